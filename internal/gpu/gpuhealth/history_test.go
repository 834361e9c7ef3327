// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestRising: more in each minute than in the one before, and no equal ones.
func TestRising(t *testing.T) {
	for _, tt := range []struct {
		minutes [3]uint64
		want    bool
	}{{[3]uint64{1, 2, 3}, true}, {[3]uint64{1, 1, 3}, false}, {[3]uint64{1, 2, 2}, false}, {[3]uint64{0, 2, 3}, false}} {
		h, now, n := &history{}, testStart, uint64(0)
		h.add(countLinkReplays, Some(n))
		h.mark(now)
		for _, more := range tt.minutes {
			n, now = n+more, now.Add(time.Minute)
			h.add(countLinkReplays, Some(n))
			h.mark(now)
		}
		assert.Equal(t, Some(tt.want), h.rising(now, countLinkReplays, 1), tt.minutes)
	}
}

// TestThrottleByItsClockAlone: a driver without the bits shows by the clock that nothing
// throttles, so that the rules can end.
func TestThrottleByItsClockAlone(t *testing.T) {
	var th throttle
	for i, want := range []finding{no, no, yes, no} {
		r := Readings{}
		r.ThrottleTime[ThrottleTimeHWThermal] = Some([]float64{5, 5, 6, 6}[i])
		th.update(&r, testStart)
		assert.Equal(t, want, th.thermal, i)
		assert.True(t, th.known)
	}
}
