// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"testing"
	"time"
)

// TestClock has the nodes' clocks jump by an hour, so far as their reports tell:
// there and back, and later first. TestOwnClock has the collectors' own.
func TestClock(t *testing.T) {
	t.Parallel()
	behind(t, pick([]string{gatewayFleet}, []string{gatewayFleet, rootFleet}), func(t *testing.T, w *world) {
		for _, tc := range []struct {
			name string
			by   time.Duration
		}{
			{"an hour ahead", time.Hour},
			{"right again", 0},
			{"an hour behind", -time.Hour},
			{"right again after that", 0},
			{"two minutes ahead", 2 * time.Minute},
			{"right at last", 0},
		} {
			t.Run(tc.name, func(t *testing.T) {
				w.suffer(func() {
					w.fleet.setSkew(tc.by)
					time.Sleep(pick(2*interval, 5*interval))
				})
				w.recovered(t)
			})
		}
	})
}
