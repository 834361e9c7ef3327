// SPDX-License-Identifier: Apache-2.0

// Package ranks plays training jobs whose ranks wait for one another, one operation of a
// communicator after the other. A rank that computes longer than its peers enters each
// operation last, and waits least, while step time and utilisation are the same on all.
// Pure: seeds come in, and time is the job's own.
package ranks // import "github.com/gpu-collector/gpu-collector/sim/ranks"

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Play is a job that runs. It is used by one goroutine.
type Play struct {
	Ranks []Rank
	Each  func(Operation) // if not nil, is called with every operation when its tick comes

	job  *Job
	rng  *rand.Rand
	held []Operation // which end after the tick
	// until is the tick's end, now where the first rank was as the step began.
	until, now, phase, nextPhase, nextLoad, nextCheckpoint float64
	steps                                                  int
}

// Rank is one rank, and what it did in the last tick.
type Rank struct {
	Node    int
	Speed   float64 // of its GPU, 1 for all but for who changes it; 0 stops the rank
	Seconds float64 // in operations, summed over its communicators
	Traffic []Traffic

	at, bias, load float64
	by             [4][]Traffic // the same by group
}

// The groups.
const (
	tensor = iota
	data
	pipeline
	world
)

// Traffic is what a rank did in one communicator by one function in the last tick.
type Traffic struct {
	*Communicator
	Place        int // the rank's number within the communicator
	Function     string
	Bytes        int64   // of each message
	Count, Total int     // of operations; since the job's start
	Seconds      float64 // in them, with the waiting
	Bandwidth    float64 // the greatest bus bandwidth, in bytes per second
}

// Communicator is a group of ranks. ID is as NCCL's Inspector writes it, the same on all.
type Communicator struct {
	ID, Name string
	Members  []int
	Nodes    int
	takes    float64 // once all have entered an operation
}

// Operation is one that a rank has done, in seconds since the job's start.
type Operation struct {
	*Traffic
	Rank, peer, number int
	Began, Ended       float64
}

// New starts a job.
func New(job *Job, seed uint64) *Play {
	p := &Play{
		Ranks: make([]Rank, job.Ranks()), job: job, rng: rand.New(rand.NewPCG(seed, 0x72616e6b73)),
		phase: 1, nextPhase: job.PhaseEvery, nextCheckpoint: job.CheckpointEvery,
	}
	for r := range p.Ranks {
		p.Ranks[r] = Rank{Node: r / job.GPUs, Speed: 1, bias: 1 + job.Bias*p.rng.NormFloat64(), load: 1, Traffic: make([]Traffic, 0, 8)}
	}
	gradients := []Traffic{{Function: "AllReduce", Bytes: 256 << 20}}
	if job.Sharded {
		gradients = []Traffic{{Function: "AllGather", Bytes: 8 << 20}, {Function: "ReduceScatter", Bytes: 8 << 20}}
	}
	p.join(tensor, "tp:0", job.TP, 1, job.TPTime, Traffic{Function: "AllReduce", Bytes: 16 << 20})
	p.join(data, "dp:0", job.DP, job.TP, job.DPTime, gradients...)
	p.join(pipeline, "pp:0", job.PP, job.TP*job.DP, job.PPTime, Traffic{Function: "Send", Bytes: 2 << 20}, Traffic{Function: "Recv", Bytes: 2 << 20})
	if job.World {
		p.join(world, "world:0", job.Ranks(), 1, 1e-3, Traffic{Function: "AllReduce", Bytes: 64 << 10})
	}
	return p
}

// join makes communicators of so many ranks, a stride apart, that do such operations.
func (p *Play) join(group int, name string, size, stride int, takes float64, like ...Traffic) {
	for r := 0; r < len(p.Ranks) && size > 1; r++ {
		k, c, place := &p.Ranks[r], (*Communicator)(nil), r/stride%size
		if place == 0 {
			c = &Communicator{ID: fmt.Sprintf("0x%014x", p.rng.Uint64()>>8), Name: name, takes: takes}
		} else {
			c = p.Ranks[r-stride].by[group][0].Communicator
		}
		if place == 0 || p.Ranks[r-stride].Node != k.Node {
			c.Nodes++
		}
		c.Members = append(c.Members, r)
		for _, t := range like {
			t.Communicator, t.Place = c, place
			k.Traffic = append(k.Traffic, t)
		}
		k.by[group] = k.Traffic[len(k.Traffic)-len(like):]
	}
}

// busBytes are the bytes that a message's bus bandwidth and its algorithm bandwidth are of,
// by the factors of nccl-tests.
func (t *Traffic) busBytes() (bus, algorithm float64) {
	n, bytes := float64(len(t.Members)), float64(t.Bytes)
	switch t.Function {
	case "AllReduce":
		return bytes * 2 * (n - 1) / n, bytes
	case "AllGather", "ReduceScatter":
		return bytes * (n - 1), bytes * n
	}
	return bytes, bytes
}

// Advance plays a tick of dt seconds: Ranks tell of the operations that ended in it.
func (p *Play) Advance(dt float64) {
	p.until += dt
	for r := range p.Ranks {
		k := &p.Ranks[r]
		k.Seconds = 0
		for i := range k.Traffic {
			t := &k.Traffic[i]
			t.Count, t.Seconds, t.Bandwidth = 0, 0, 0
		}
	}
	held := p.held
	p.held = p.held[:0]
	for i := range held {
		p.done(held[i])
	}
	for {
		p.now = math.Inf(1)
		for r := range p.Ranks {
			p.now = min(p.now, p.Ranks[r].at)
		}
		if p.now >= p.until {
			return
		}
		p.step()
	}
}

// done counts an operation, or keeps it for its tick.
func (p *Play) done(o Operation) {
	if o.Ended > p.until {
		p.held = append(p.held, o)
		return
	}
	t, k, seconds := o.Traffic, &p.Ranks[o.Rank], o.Ended-o.Began
	bus, _ := t.busBytes()
	o.number = t.Total
	t.Count, t.Total = t.Count+1, t.Total+1
	t.Seconds, t.Bandwidth = t.Seconds+seconds, max(t.Bandwidth, bus/seconds)
	k.Seconds += seconds
	if p.Each != nil {
		p.Each(o)
	}
}

// step plays one step of the job: all micro batches go through the stages, and back.
func (p *Play) step() {
	p.begin()
	for way := range 2 {
		for range p.job.Micro {
			for s := range p.job.PP {
				p.pass(s+way*(p.job.PP-1-2*s), way)
			}
		}
	}
	if !p.job.Sharded {
		p.meet(data, 0, p.Ranks)
	}
	p.meet(world, 0, p.Ranks)
	p.steps++
}

// begin is what comes before a step, and what changes with it.
func (p *Play) begin() {
	j, rng := p.job, p.rng
	due := func(amount, every float64, next *float64) bool {
		if amount == 0 || p.now < *next {
			return false
		}
		*next = p.now + every
		return true
	}
	if due(j.Phase, j.PhaseEvery, &p.nextPhase) {
		p.phase = 1 + j.Phase*(2*rng.Float64()-1)
	}
	loads, checkpoint := due(j.Imbalance, j.ImbalanceEvery, &p.nextLoad), due(j.Checkpoint, j.CheckpointEvery, &p.nextCheckpoint)
	for r := range p.Ranks {
		k := &p.Ranks[r]
		if loads {
			k.load = 1 + j.Imbalance*rng.Float64()
		}
		if checkpoint && (r == 0 || !j.FirstWrites) {
			k.at += j.Checkpoint * (0.9 + 0.2*rng.Float64())
		}
		if j.StartUp > 0 && p.steps < 4 {
			k.at += j.StartUp * (0.5 + rng.Float64()) / float64(int(1)<<p.steps)
		}
		k.at += p.lost(Input, r)
	}
}

// lost is what the faults of a kind take at a place in this step.
func (p *Play) lost(kind Kind, at int) (by float64) {
	for _, f := range p.job.Faults {
		if f.Kind == kind && f.At == at && p.now >= f.From {
			by += f.By
		}
	}
	return by
}

// pass takes a micro batch through a stage, forward (way 0) or back (way 1). It comes from
// another stage: both ranks wait for each other.
func (p *Play) pass(s, way int) {
	j := p.job
	n, from := j.TP*j.DP, s-1+2*way
	stage := p.Ranks[s*n : (s+1)*n]
	for r := s * n; from >= 0 && from < j.PP && r < (s+1)*n; r++ {
		p.operate(pipeline, 0, r+(from-s)*n, r)
	}
	work := float64(1+way) * j.Work * p.phase
	if s > 0 && s == j.PP-1 {
		work *= 1 + j.LastStage
	}
	for range j.Blocks {
		for i := range stage {
			k := &stage[i]
			speed := k.Speed * (1 - p.lost(GPU, s*n+i) - p.lost(Host, k.Node))
			k.at += work * k.bias * k.load * max(0.1, 1+j.Noise*p.rng.NormFloat64()) / speed
		}
		if p.meet(tensor, 0, stage); j.Sharded {
			p.meet(data, way, stage)
		}
	}
}

// meet is the nth operation of each communicator of a group.
func (p *Play) meet(group, nth int, among []Rank) {
	for i := range among {
		if by := among[i].by[group]; len(by) > 0 && by[0].Place == 0 {
			p.operate(group, nth, by[0].Members...)
		}
	}
}

// operate is an operation of a communicator of these ranks. They leave it together, so much
// after the last has come. In a pipeline the first sends and the other receives.
func (p *Play) operate(group, nth int, all ...int) {
	end, lost := 0.0, 0.0
	for _, r := range all {
		end, lost = max(end, p.Ranks[r].at), max(lost, p.lost(Rail, r%p.job.GPUs))
	}
	c := p.Ranks[all[0]].by[group][0].Communicator
	if c.Nodes == 1 {
		lost = 0
	}
	end += c.takes / (1 - lost) * math.Exp(p.job.Jitter*p.rng.NormFloat64())
	for i, r := range all {
		if group == pipeline {
			nth = i
		}
		k, peer := &p.Ranks[r], &p.Ranks[all[len(all)-1-i]]
		p.done(Operation{Traffic: &k.by[group][nth], Rank: r, peer: peer.by[group][0].Place, Began: k.at, Ended: end})
		k.at = end
	}
}
