// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"math"
	"math/rand/v2"
)

// Job is how a job is laid out, what its operations take, and what is peculiar about it.
// Times are in seconds.
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
	Sharded, World bool
	// TPTime, DPTime and PPTime are what an operation takes once all have entered it.
	TPTime, DPTime, PPTime float64
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

// Typical returns a job of so many nodes with steps of about half a second: each node is a
// tensor-parallel group.
func Typical(nodes, gpus int) Job {
	return Job{
		TP: gpus, DP: nodes, PP: 1, GPUs: gpus, Micro: 2, Blocks: 2, World: true,
		Work: 0.03, TPTime: 0.006, DPTime: 0.08, PPTime: 0.002, Noise: 0.04, Bias: 0.01, Jitter: 0.1,
	}
}

// Draw draws a healthy job of 8 to 256 ranks.
func Draw(rng *rand.Rand) Job {
	between := func(a, b float64) float64 { return a * math.Exp(rng.Float64()*math.Log(b/a)) }
	odds := func(p float64) bool { return rng.Float64() < p }
	j := Typical(1<<rng.IntN(6), 8)
	j.Micro, j.Blocks, j.World = 2+rng.IntN(3), 1+rng.IntN(3), odds(0.5)
	j.Noise, j.Bias, j.Jitter = between(0.01, 0.06), between(0.003, 0.015), between(0.03, 0.3)
	// A step, and the parts of it that blocks and gradients communicate.
	step, blocks, gradients := between(0.3, 4), between(0.03, 0.2), between(0.05, 0.3)
	passes := 2 * float64(j.Micro*j.Blocks)
	j.Work, j.TPTime, j.DPTime = step*(1-blocks-gradients)/passes/1.5, step*blocks/passes, step*gradients
	j.PPTime = j.TPTime / 4
	switch layout := rng.IntN(4); {
	case layout == 0:
		j.TP, j.DP, j.Sharded, j.DPTime = 1, j.DP*j.TP, true, step*(blocks+gradients)/passes
	case layout == 1:
		j.TP, j.DP = j.TP/2, 2*j.DP
	case layout == 2 && j.DP >= 4:
		j.PP = 2 << rng.IntN(2)
		j.DP /= j.PP
	}
	if odds(0.25) {
		j.Imbalance, j.ImbalanceEvery = between(0.05, 0.3), between(1, 60)
	}
	if odds(0.5) {
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
