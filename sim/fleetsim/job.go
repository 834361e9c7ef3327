// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"math/rand/v2"
	"time"
)

// JobConfig is how nodes work together.
type JobConfig struct {
	// Runs is how long a training job runs on average, Pause how long the nodes rest before
	// the next one. With Runs 0 one job lasts.
	Runs, Pause time.Duration
	Seed        uint64
}

// Job is nodes that train together, one job after the other, in lockstep: all begin a step
// once the slowest has ended the one before, and write their checkpoints at the same time.
// It is used by one goroutine.
type Job struct {
	cfg   JobConfig
	rng   *rand.Rand
	nodes []*Node
	schedule
	// The time, the begin of the present job or of the next, the end, 0 for never.
	at, begin, end time.Duration
}

// NewJob returns a job on so many nodes, which differ.
func NewJob(nodes, gpus int, cfg JobConfig) *Job {
	j := &Job{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x6770755f6a6f6273))}
	for i := range nodes {
		j.nodes = append(j.nodes, newNode(gpus, cfg.Seed<<16+uint64(i)+1))
	}
	j.next(0)
	return j
}

// Nodes returns the nodes, which Advance alone moves.
func (j *Job) Nodes() []*Node { return j.nodes }

// next begins the next job: its model takes other memory, its checkpoints come
// at other times.
func (j *Job) next(pause time.Duration) {
	j.begin, j.end = j.at+pause, 0
	if j.cfg.Runs > 0 {
		j.end = j.begin + time.Duration((0.5+j.rng.Float64())*float64(j.cfg.Runs))
	}
	j.schedule = newSchedule(j.rng)
}

// Advance moves the job and its nodes on in time.
func (j *Job) Advance(by time.Duration) {
	for by > 0 {
		dt := min(by, maxStep)
		if j.at += dt; j.end != 0 && j.at >= j.end {
			j.next(time.Duration((0.5 + j.rng.Float64()) * float64(j.cfg.Pause)))
		}
		pace := 1.0
		for _, n := range j.nodes {
			pace = min(pace, n.speed())
		}
		for _, n := range j.nodes {
			var d demand
			if j.at >= j.begin {
				d = j.schedule.at(j.at, dt)
			}
			n.step(d, pace, dt)
		}
		by -= dt
	}
}
