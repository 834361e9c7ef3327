// SPDX-License-Identifier: Apache-2.0

// Package ranks plays training jobs whose ranks wait for one another, one collective
// operation after the other. A rank that computes longer than its peers enters each
// operation last, and waits least: step time and utilisation are the same on all ranks.
// Pure: randomness comes in, and time is the job's own.
package ranks // import "github.com/gpu-collector/gpu-collector/sim/ranks"

import (
	"errors"
	"math"
	"math/rand/v2"
)

// Job is how a job is laid out and what its operations take. Ranks are numbered with
// the tensor-parallel index fastest, then the data-parallel, then the stage, as Megatron
// does: the GPUs of a node are neighbours.
type Job struct {
	// TP, DP and PP are the sizes of the groups; their product is the number of ranks.
	TP, DP, PP int
	// GPUs of a node.
	GPUs int
	// MicroBatches of a step, each of so many Blocks of layers.
	MicroBatches, Blocks int
	// Backward is how many times as long as forward a block takes on the way back, which
	// all micro batches take after one another; 0 leaves that out.
	Backward float64
	// Compute is what a block takes a rank without noise, in seconds. TensorTime,
	// DataTime and PipeTime are what an operation of each kind takes once all have
	// entered it; DataTime is of a whole step.
	Compute, TensorTime, DataTime, PipeTime float64
	// Bytes of the message of an operation of each kind. Only who watches has use for them.
	TensorBytes, DataBytes, PipeBytes int64
	// Overlap lets the data-parallel operation run beside the last micro batch.
	Overlap bool
	// Noise of each block and Bias of each rank are standard deviations, as shares of
	// Compute. Imbalance is the most that a block of a rank takes longer by design, each
	// time for another rank.
	Noise, Bias, Imbalance float64
	// Jitter is the deviation of the logarithm of what a data-parallel operation takes.
	Jitter float64
}

// Ranks is how many there are.
func (j *Job) Ranks() int { return j.TP * j.DP * j.PP }

// Validate returns what is wrong with j.
func (j *Job) Validate() error {
	switch {
	case min(j.TP, j.DP, j.PP, j.GPUs, j.MicroBatches, j.Blocks) < 1:
		return errors.New("ranks: sizes must be at least 1")
	case j.Ranks()%j.GPUs != 0:
		return errors.New("ranks: the ranks do not fill whole nodes")
	case !(j.Compute > 0) || min(j.TensorTime, j.DataTime, j.PipeTime, j.Noise, j.Bias, j.Imbalance, j.Jitter, j.Backward) < 0:
		return errors.New("ranks: times must not be negative, and compute is more than 0")
	case min(j.TensorBytes, j.DataBytes, j.PipeBytes) < 0:
		return errors.New("ranks: messages must not be less than nothing")
	}
	return nil
}

// Faults of the moment. The zero value is none.
type Faults struct {
	// Slower is by how much of its speed a rank's compute lost, by rank; nil for none.
	Slower []float64
	// Rail multiplies the time of the data-parallel operations of the ranks with this
	// place on their node; 0 is no fault. Fabric does so for all.
	RailOf int
	Rail   float64
	Fabric float64
	// Load multiplies all computing: a phase of the job.
	Load float64
}

// Play is a job that runs.
type Play struct {
	job  Job
	rng  *rand.Rand
	bias []float64
	at   []float64 // seconds since the start, by rank
	in   []float64 // of these in collectives
	took float64   // of the last step
	// Of the data-parallel operations since Data: by rank the shortest, 0 for none, and
	// the seconds in all of them.
	dataLeast, dataTime []float64
	ready               []float64 // scratch, by rank: when its stage's output is there
	last                []float64
	each                func(*Operation) // nil for nobody
	groups              map[[2]int]*Communicator
}

// New starts a job, which must be valid.
func New(job Job, rng *rand.Rand) *Play {
	n := job.Ranks()
	p := &Play{
		job: job, rng: rng, bias: make([]float64, n), at: make([]float64, n), in: make([]float64, n),
		dataLeast: make([]float64, n), dataTime: make([]float64, n), ready: make([]float64, n), last: make([]float64, n),
		groups: map[[2]int]*Communicator{},
	}
	for r := range p.bias {
		p.bias[r] = job.Bias * rng.NormFloat64()
	}
	return p
}

// Now is how far the slowest rank is, in seconds since the start.
func (p *Play) Now() float64 {
	most := 0.0
	for _, at := range p.at {
		most = max(most, at)
	}
	return most
}

// Step plays one step of the job.
func (p *Play) Step(f *Faults) {
	j, began := &p.job, p.Now()
	for micro := range j.MicroBatches {
		if j.Overlap && micro == j.MicroBatches-1 {
			copy(p.last, p.at)
		}
		for s := range j.PP {
			p.stage(s, s-1, micro, false, 1, f)
		}
	}
	for micro := range j.MicroBatches {
		if j.Backward == 0 {
			break
		}
		if j.Overlap && micro == j.MicroBatches-1 {
			copy(p.last, p.at)
		}
		for s := j.PP - 1; s >= 0; s-- {
			p.stage(s, s+1, micro, true, j.Backward, f)
		}
	}
	p.reduce(f)
	p.took = p.Now() - began
}

// stage computes a micro batch, which comes from another stage if there is such.
func (p *Play) stage(s, from, micro int, back bool, times float64, f *Faults) {
	j := &p.job
	n := j.TP * j.DP
	first := s * n
	for r := first; r < first+n; r++ {
		if from >= 0 && from < j.PP {
			p.receive(r, from, micro, back)
		}
		p.ready[r] = p.at[r]
	}
	for range j.Blocks {
		for r := first; r < first+n; r++ {
			p.compute(r, times, f)
		}
		if j.TP > 1 {
			for g := first; g < first+n; g += j.TP {
				p.meet(g, j.TP, j.TensorTime)
			}
		}
	}
	for r := first; r < first+n; r++ {
		if p.each != nil {
			p.each(&Operation{Kind: Compute, Rank: r, Micro: micro, Back: back, Began: p.ready[r], Ended: p.at[r]})
		}
		p.ready[r] = p.at[r]
	}
}

// Pause stops all ranks for so many seconds, as a checkpoint does.
func (p *Play) Pause(seconds float64) {
	now := p.Now()
	for r := range p.at {
		p.at[r] = now + seconds
	}
}

// Took is the wall time of the last step.
func (p *Play) Took() float64 { return p.took }

// Shares takes what part of so many seconds each rank was in collectives since the last
// call, summed over its communicators. Under overlap it may be more than 1.
func (p *Play) Shares(seconds float64, into []float64) []float64 {
	into = into[:0]
	for r := range p.in {
		into = append(into, p.in[r]/seconds)
		p.in[r] = 0
	}
	return into
}

func (p *Play) compute(r int, times float64, f *Faults) {
	x := times * p.job.Compute * (1 + p.bias[r]) * max(0.1, 1+p.job.Noise*p.rng.NormFloat64())
	if f.Slower != nil {
		x /= 1 - f.Slower[r]
	}
	if f.Load > 0 {
		x *= f.Load
	}
	if p.job.Imbalance > 0 {
		x *= 1 + p.job.Imbalance*p.rng.Float64()
	}
	p.at[r] += x
}

// receive waits for the output of another stage.
func (p *Play) receive(r, from, micro int, back bool) {
	n := p.job.TP * p.job.DP
	end := max(p.at[r], p.ready[from*n+r%n]) + p.job.PipeTime
	p.in[r] += end - p.at[r]
	p.tell(Operation{Kind: Pipe, Rank: r, Peer: from, Micro: micro, Back: back, Began: p.at[r], Ended: end, Bytes: p.job.PipeBytes})
	p.at[r] = end
}

// meet is one tensor-parallel operation of the n ranks from first on. All leave it together,
// so much after the last has come.
func (p *Play) meet(first, n int, takes float64) {
	end := p.lastOf(p.at, first, 1, n) + takes
	for r := first; r < first+n; r++ {
		p.in[r] += end - p.at[r]
		p.tell(Operation{Kind: Tensor, Rank: r, Began: p.at[r], Ended: end, Bytes: p.job.TensorBytes})
		p.at[r] = end
	}
}

func (p *Play) lastOf(came []float64, first, apart, n int) (last float64) {
	for i := range n {
		last = max(last, came[first+i*apart])
	}
	return last
}

// reduce is the data-parallel operation at the end of a step.
func (p *Play) reduce(f *Faults) {
	j := &p.job
	if j.DP < 2 {
		return
	}
	stage := j.TP * j.DP
	for s := range j.PP {
		for t := range j.TP {
			first, takes := s*stage+t, j.DataTime
			if f.Fabric > 0 {
				takes *= f.Fabric
			}
			if f.Rail > 0 && first%j.GPUs == f.RailOf {
				takes *= f.Rail
			}
			if j.Jitter > 0 {
				takes *= math.Exp(j.Jitter * p.rng.NormFloat64())
			}
			came := p.at
			if j.Overlap {
				came = p.last
			}
			end := p.lastOf(came, first, j.TP, j.DP) + takes
			for i := range j.DP {
				r := first + i*j.TP
				took := end - came[r]
				p.tell(Operation{Kind: Data, Rank: r, Began: came[r], Ended: end, Bytes: j.DataBytes})
				p.in[r] += took
				p.dataTime[r] += took
				if p.dataLeast[r] == 0 || took < p.dataLeast[r] {
					p.dataLeast[r] = took
				}
				p.at[r] = max(p.at[r], end)
			}
		}
	}
}

// Data takes the rank's data-parallel operations since the last call: the shortest, 0 for
// none, and the seconds in all of them.
func (p *Play) Data(r int) (least, total float64) {
	least, total = p.dataLeast[r], p.dataTime[r]
	p.dataLeast[r], p.dataTime[r] = 0, 0
	return least, total
}

// DataGroup is the first rank of the data-parallel communicator of a rank.
func (p *Play) DataGroup(r int) int {
	stage := p.job.TP * p.job.DP
	return r/stage*stage + r%p.job.TP
}
