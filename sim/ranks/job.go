// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"math"
	"math/rand/v2"
)

// Job is how a job is laid out, what its operations take, and what is peculiar about it.
// Times are in seconds, sizes in bytes, rates in bytes per second of bus bandwidth.
type Job struct {
	// TP, DP and PP are the sizes of the tensor-parallel, data-parallel and pipeline
	// groups, numbered in this order: the GPUs of a node are neighbours.
	TP, DP, PP, GPUs int
	// Micro batches of a step have so many Blocks, each of which takes Work forward and
	// twice as long on the way back.
	Micro, Blocks int
	Work          float64
	// Sharded exchanges weights and gradients of each block, as FSDP does, instead of
	// reducing gradients at the end of a step. World has all ranks meet there.
	Sharded, World            bool
	TPBytes, DPBytes, PPBytes int64
	// NVLink is the rate within a node, Network that of one rail between nodes.
	NVLink, Network float64
	// Noise of each block and Bias of each rank are deviations of Work, Jitter is that of
	// the logarithm of a transfer.
	Noise, Bias, Jitter float64

	// A rank works longer by Imbalance at most by design, as experts do, each
	// ImbalanceEvery another one. The last stage of the pipeline works more by LastStage.
	Imbalance, ImbalanceEvery, LastStage float64
	// The work of all changes by Phase at most each PhaseEvery.
	Phase, PhaseEvery float64
	// All ranks write for Checkpoint each CheckpointEvery, or the first alone.
	Checkpoint, CheckpointEvery float64
	FirstWrites                 bool
	// StartUp is what the first step takes a rank longer on average, the next half of that.
	StartUp float64

	Faults []Fault
}

// Kind of a fault.
type Kind uint8

// The kinds.
const (
	GPU    Kind = iota // rank At computes slower by the part By; 1 stops it
	Host               // so do all ranks of node At
	Input              // rank At waits By seconds for its data at the begin of each step
	Rail               // links of the GPUs with index At lose the part By of their rate
	Fabric             // so do all links between nodes
)

// Fault is there from From to Until, in seconds since the job's start; Until 0 is for ever.
type Fault struct {
	Kind            Kind
	At              int
	By, From, Until float64
}

// Ranks is how many there are.
func (j *Job) Ranks() int { return j.TP * j.DP * j.PP }

// Typical returns a job of so many nodes: each is a tensor-parallel group.
func Typical(nodes, gpus int) Job {
	j := Job{
		TP: gpus, DP: nodes, PP: 1, GPUs: gpus, Micro: 2, Blocks: 2, World: true,
		NVLink: 350e9, Network: 40e9, Noise: 0.04, Bias: 0.01, Jitter: 0.1,
	}
	j.take(0.5, 0.1, 0.15)
	return j
}

// take sets work and sizes by what a step takes, and what part of it the operations of
// blocks and those of the gradients do.
func (j *Job) take(step, blocks, gradients float64) {
	const passes = 3 // forward, and twice that back
	n := float64(j.Micro * j.Blocks)
	j.Work = step * (1 - blocks - gradients) / (passes * n)
	size := func(seconds, rate float64) int64 {
		return max(1, int64(seconds*rate)>>20) << 20
	}
	j.TPBytes = size(step*blocks/(2*n), j.NVLink/2)
	j.PPBytes = size(step*blocks/(2*n)/4, j.Network)
	j.DPBytes = size(step*gradients, j.Network/2)
	if j.Sharded {
		j.DPBytes = size(step*(blocks+gradients)/(2*n), j.Network*float64(j.GPUs)/float64(j.DP))
	}
}

// Draw draws a healthy job of 8 to 256 ranks.
func Draw(rng *rand.Rand) Job {
	between := func(a, b float64) float64 { return a * math.Exp(rng.Float64()*math.Log(b/a)) }
	odds := func(p float64) bool { return rng.Float64() < p }
	nodes := 1 << rng.IntN(6)
	j := Job{
		TP: 8, DP: nodes, PP: 1, GPUs: 8, Micro: 2 + rng.IntN(3), Blocks: 1 + rng.IntN(3), World: odds(0.5),
		NVLink: between(200e9, 400e9), Network: between(20e9, 50e9),
		Noise: between(0.01, 0.06), Bias: between(0.003, 0.015), Jitter: between(0.03, 0.3),
	}
	switch rng.IntN(4) {
	case 0:
		j.TP, j.DP, j.Sharded = 1, 8*nodes, true
	case 1:
		j.TP, j.DP = 4, 2*nodes
	case 2:
		if nodes >= 4 {
			j.PP = 2 << rng.IntN(2)
			j.DP /= j.PP
		}
	}
	j.take(between(0.3, 4), between(0.03, 0.2), between(0.05, 0.3))
	if odds(0.25) {
		j.Imbalance, j.ImbalanceEvery = between(0.05, 0.3), between(1, 60)
	}
	if j.PP > 1 && odds(0.5) {
		j.LastStage = 0.05
	}
	if odds(0.3) {
		j.Phase, j.PhaseEvery = between(0.1, 0.5), between(120, 900)
	}
	if odds(0.6) {
		j.Checkpoint, j.CheckpointEvery, j.FirstWrites = between(3, 40), between(180, 1800), odds(0.4)
	}
	if odds(0.6) {
		j.StartUp = between(3, 60)
	}
	return j
}
