// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

func TestReadingsStayWithinTheChip(t *testing.T) {
	j := NewJob(1, 4, JobConfig{Runs: 40 * time.Minute, Pause: 5 * time.Minute, Seed: 42})
	n := j.Nodes()[0]
	before := n.Reading(0)
	capped, hottest := 0, 0.0
	for range 720 {
		j.Advance(10 * time.Second)
		r := n.Reading(0)
		assert.LessOrEqual(t, r.Watts, CapWatts)
		assert.Positive(t, r.Watts)
		assert.LessOrEqual(t, r.ClockHertz, BoostHertz)
		assert.Zero(t, int64(r.ClockHertz)%int64(ClockStepHertz))
		assert.LessOrEqual(t, r.MemoryUsed, MemoryBytes)
		assert.GreaterOrEqual(t, r.Joules, before.Joules)
		assert.GreaterOrEqual(t, r.PCIeBytes, before.PCIeBytes)
		assert.InDelta(t, 50, r.Celsius, 35)
		if r.Throttled&gpuhealth.ThrottlePowerCap != 0 {
			capped++
		}
		hottest = max(hottest, r.Celsius)
		before = r
	}
	assert.Greater(t, capped, 100, "a training GPU meets its power cap")
	assert.Greater(t, hottest, 60.0)
}

// With a work of one the exchange is the last 0.9 s of each 6 s.
func TestOverlap(t *testing.T) {
	second := time.Second
	for _, c := range []struct {
		at   time.Duration
		want float64
	}{
		{3 * second, 0},
		{5600 * time.Millisecond, 0.5},
		{5999 * time.Millisecond, 0.899},
		{500 * time.Millisecond, 0.5},
		{second, 0},
	} {
		assert.InDelta(t, c.want, overlap(c.at, second, 6*second), 0.002, "%v", c.at)
	}
}
