// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumererror"
)

// A marker that the buffer accepted, and that the next hop then refuses for
// good, is sent again: upstream would else keep the series.
func TestAMarkerThatIsRefusedForGoodIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &hop{}
		p := newTestProcessor(t, next, func(c *Config) {
			conflating(c)
			c.TTL, c.VanishedAfter = 640*time.Second, 60*time.Second
		})
		push := func(values ...float64) {
			require.NoError(t, p.ConsumeMetrics(t.Context(), report("n", time.Since(p.engine.Epoch), values...)))
			time.Sleep(10 * time.Second)
			synctest.Wait()
		}
		push(1, 2)
		refuse := func(with func() error) {
			next.mu.Lock()
			defer next.mu.Unlock()
			next.refuse = with
		}
		refuse(func() error { return consumererror.NewPermanent(errors.New("refused")) })
		for range 10 { // the marker is among what is refused
			push(1)
		}
		refuse(nil)
		require.Equal(t, map[string]float64{"n/m/GPU-0": 1, "n/m/GPU-1": 2}, next.state)
		push(1)
		assert.Equal(t, map[string]float64{"n/m/GPU-0": 1, "n/m/GPU-1": 0}, next.state, "a point without a value")
		require.NoError(t, p.Shutdown(t.Context()))
	})
}
