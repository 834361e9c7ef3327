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
	assert.NotEqual(t, a.Nodes()[0].Reading(1), a.Nodes()[1].Reading(1), "nodes differ")
}

// Jobs end, all of their nodes rest, and the next one is another.
func TestJobBoundaries(t *testing.T) {
	j := NewJob(3, 1, JobConfig{Runs: 20 * time.Minute, Pause: 4 * time.Minute, Seed: 1})
	memory, working, rests, jobs := map[float64]bool{}, false, 0, 0
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
		if !working {
			working, jobs = true, jobs+1
		}
	}
	assert.InDelta(t, 7.5, jobs, 2.5, "of 3 hours")
	assert.Len(t, memory, jobs)
	assert.InDelta(t, 6*4*(jobs-1), rests, 60)
}

// All nodes of a job write their checkpoints at the same time.
func TestCheckpointsOfAJob(t *testing.T) {
	j := NewJob(4, 1, JobConfig{Seed: 2})
	dips := 0
	for range 6 * 60 {
		j.Advance(10 * time.Second)
		low := 0
		for _, n := range j.Nodes() {
			if n.Reading(0).Utilization < 0.5 {
				low++
			}
		}
		assert.Contains(t, []int{0, 4}, low)
		dips += low / 4
	}
	assert.InDelta(t, 12, dips, 1, "a minute in half an hour")
}

// The slowest node sets the pace; a waiting node draws less power, and is as busy.
func TestTheSlowestSetsThePace(t *testing.T) {
	energy := func(loss float64) (waits, slow float64) {
		j := NewJob(2, 1, JobConfig{Seed: 6})
		if loss > 0 {
			j.Nodes()[1].Inject(Fault{Kind: SlowNode, GPU: AllGPUs, Severity: loss})
		}
		before := [2]float64{j.Nodes()[0].Reading(0).Joules, j.Nodes()[1].Reading(0).Joules}
		j.Advance(time.Hour)
		return j.Nodes()[0].Reading(0).Joules - before[0], j.Nodes()[1].Reading(0).Joules - before[1]
	}
	waits0, slow0 := energy(0)
	waits20, slow20 := energy(0.2)
	waits50, _ := energy(0.5)
	assert.InEpsilon(t, slow0, slow20, 1e-9)
	assert.Less(t, waits20, 0.95*waits0)
	assert.Less(t, waits50, 0.9*waits20)
}
