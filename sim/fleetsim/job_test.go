// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestTheSameSeedGivesTheSameJob(t *testing.T) {
	cfg := JobConfig{Runs: 20 * time.Minute, Pause: 2 * time.Minute, Seed: 4}
	a, b := NewJob(3, 2, cfg), NewJob(3, 2, cfg)
	cfg.Seed = 5
	other := NewJob(3, 2, cfg)
	for _, j := range []*Job{a, b, other} {
		j.Nodes()[1].Inject(Fault{Kind: ThermalThrottle, GPU: 1, From: 10 * time.Minute})
	}
	a.Advance(time.Hour)
	for range 360 {
		b.Advance(10 * time.Second)
		other.Advance(10 * time.Second)
	}
	for i := range 3 {
		assert.Equal(t, a.Nodes()[i].Reading(1), b.Nodes()[i].Reading(1))
		assert.Equal(t, a.Nodes()[i].Host(), b.Nodes()[i].Host())
		assert.NotEqual(t, a.Nodes()[i].Reading(1), other.Nodes()[i].Reading(1))
	}
	assert.NotEqual(t, a.Nodes()[0].Reading(0), a.Nodes()[2].Reading(0), "nodes differ")
}

// Jobs end, all of their nodes rest, and the next one is another. All write their
// checkpoints at the same time.
func TestJobBoundaries(t *testing.T) {
	j := NewJob(3, 1, JobConfig{Runs: 20 * time.Minute, Pause: 4 * time.Minute, Seed: 1})
	memory, working, rests, jobs, checkpoints := map[float64]bool{}, false, 0, 0, 0
	for range 6 * 60 * 3 {
		j.Advance(10 * time.Second)
		first := j.Nodes()[0]
		for _, n := range j.Nodes() {
			assert.InDelta(t, first.Reading(0).Utilization, n.Reading(0).Utilization, 0)
			assert.InDelta(t, first.Reading(0).MemoryUsed, n.Reading(0).MemoryUsed, 0)
		}
		r, h := first.Reading(0), first.Host()
		if r.Processes == 0 {
			rests, working = rests+1, false
			assert.Zero(t, r.Utilization)
			assert.Zero(t, h.StepSeconds)
			assert.Equal(t, 1, r.PCIeGeneration, "to save power")
			continue
		}
		memory[r.MemoryUsed] = true
		if r.Utilization < 0.5 {
			checkpoints++
		}
		if !working {
			working, jobs = true, jobs+1
		}
	}
	assert.InDelta(t, 7.5, jobs, 2.5, "of 3 hours")
	assert.Len(t, memory, jobs)
	assert.InDelta(t, 6*4*(jobs-1), rests, 60)
	assert.InDelta(t, (6*60*3-rests)/30, checkpoints, 7, "a minute in half an hour, by all nodes at once")
}
