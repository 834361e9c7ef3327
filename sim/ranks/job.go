// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"math"
	"math/rand/v2"
)

// Job is how a job is laid out, what its operations take, and what is peculiar about it.
// Times are in seconds.
type Job struct {
	TP, DP, PP, GPUs       int     // sizes of tensor, data and pipeline groups, in the order of ranks; of a node
	Micro, Blocks          int     // micro batches of a step, and blocks of a micro batch
	Work                   float64 // of a block forward; it takes twice as long on the way back
	Sharded                bool    // exchanges weights and gradients of each block, as FSDP does, not at the end of a step
	World                  bool    // all ranks meet at the end of a step
	TPTime, DPTime, PPTime float64 // of an operation once all have entered it
	Noise, Bias, Jitter    float64 // deviations: of each block, of each rank, of a transfer's logarithm

	Imbalance, ImbalanceEvery   float64 // a rank works longer by so much at most by design, as experts do, and each of these times another one
	LastStage                   float64 // the last stage of the pipeline works more by it
	Phase, PhaseEvery           float64 // the work of all changes by so much at most
	Checkpoint, CheckpointEvery float64 // all ranks write so long,
	FirstWrites                 bool    // or the first alone
	StartUp                     float64 // the first step takes a rank so much longer on average, the next half of that

	Faults []Fault
}

// Fault is there from a second of the job on.
type Fault struct {
	Kind     Kind
	At       int
	By, From float64
}

// Kind of a fault.
type Kind uint8

// The kinds.
const (
	GPU   Kind = iota // rank At computes slower by the part By; 1 stops it
	Host              // so do all ranks of node At
	Input             // rank At waits By seconds for its data at the begin of each step
	Rail              // links between nodes of the GPUs with index At lose the part By of their rate
)

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
