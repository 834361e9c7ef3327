// SPDX-License-Identifier: Apache-2.0

// Package ranks plays training jobs whose ranks wait for one another, one operation of a
// communicator after the other. A rank that computes longer than its peers enters each
// operation last, and waits least, while step time and utilisation are the same on all.
// Pure: seeds come in, and time is the job's own.
package ranks // import "github.com/gpu-collector/gpu-collector/sim/ranks"

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Play is a job that runs. It is used by one goroutine.
type Play struct {
	// Ranks tell of the last tick.
	Ranks []Rank
	// Speed of each rank's GPU, 1 for all but for who changes it; 0 stops the rank.
	Speed []float64
	// Each, if not nil, is called with every operation when its tick comes.
	Each func(Operation)

	job  *Job
	rng  *rand.Rand
	rank []state
	all  [numOps][]*Communicator
	held []Operation // which end after the tick
	// until is the tick's end, now where the first rank was as the step began.
	until, now, phase, nextPhase, nextLoad, nextCheckpoint float64
	steps                                                  int
}

// state of a rank: where it is in time, and how fast.
type state struct {
	at, bias, load, speed float64
	slot                  [numOps]int // in its Traffic
}

// Rank is what one did in a tick: Seconds are in operations, summed over its communicators.
type Rank struct {
	Node    int
	Seconds float64
	Traffic []Traffic
}

// Traffic is what a rank did in one communicator by one function in a tick.
type Traffic struct {
	*Communicator
	Place    int // the rank's number within the communicator
	Function string
	Bytes    int64 // of each message
	// Count of operations, Seconds in them with the waiting, and the greatest bus bandwidth
	// in bytes per second.
	Count              int
	Seconds, Bandwidth float64
}

// Communicator is a group of ranks. ID is as NCCL's Inspector writes it, the same on all.
type Communicator struct {
	ID, Name string
	Members  []int
	Nodes    int
	takes    float64 // once all have entered an operation
	slow     float64 // times that, now
}

// Operation is one that a rank has done, in seconds since the job's start.
type Operation struct {
	Rank         int
	Began, Ended float64
	slot, peer   int
}

// Of is what the operation belongs to.
func (p *Play) Of(o *Operation) *Traffic { return &p.Ranks[o.Rank].Traffic[o.slot] }

// The operations of a step.
const (
	tensor = iota
	gather
	scatter
	reduce
	send
	receive
	world
	numOps
)

var operations = [numOps]struct {
	function string
	bytes    int64
}{
	tensor: {"AllReduce", 16 << 20}, gather: {"AllGather", 8 << 20}, scatter: {"ReduceScatter", 8 << 20}, reduce: {"AllReduce", 512 << 20},
	send: {"Send", 2 << 20}, receive: {"Recv", 2 << 20}, world: {"AllReduce", 64 << 10},
}

// New starts a job.
func New(job *Job, seed uint64) *Play {
	n, stage := job.Ranks(), job.TP*job.DP
	p := &Play{
		Ranks: make([]Rank, n), Speed: slices.Repeat([]float64{1}, n), rank: make([]state, n),
		job: job, rng: rand.New(rand.NewPCG(seed, 0x72616e6b73)), phase: 1, nextPhase: job.PhaseEvery, nextCheckpoint: job.CheckpointEvery,
	}
	for r := range p.rank {
		p.rank[r] = state{bias: 1 + job.Bias*p.rng.NormFloat64(), load: 1}
		p.Ranks[r].Node = r / job.GPUs
	}
	p.join("tp:0", job.TP, job.TPTime, func(r int) int { return r / job.TP }, tensor)
	gradients := []int{reduce}
	if job.Sharded {
		gradients = []int{gather, scatter}
	}
	p.join("dp:0", job.DP, job.DPTime, func(r int) int { return r/stage*job.TP + r%job.TP }, gradients...)
	p.join("pp:0", job.PP, job.PPTime, func(r int) int { return r % stage }, send, receive)
	if job.World {
		p.join("world:0", n, 1e-3, func(int) int { return 0 }, world)
	}
	return p
}

// join makes communicators of so many ranks each, whose members do operations there.
func (p *Play) join(name string, size int, takes float64, group func(rank int) int, ops ...int) {
	of := map[int]*Communicator{}
	for r := 0; r < len(p.Ranks) && size > 1; r++ {
		k, c := &p.Ranks[r], of[group(r)]
		if c == nil {
			c = &Communicator{ID: fmt.Sprintf("0x%014x", p.rng.Uint64()>>8), Name: name, takes: takes}
			of[group(r)] = c
			for _, op := range ops {
				p.all[op] = append(p.all[op], c)
			}
		}
		if len(c.Members) == 0 || p.Ranks[c.Members[len(c.Members)-1]].Node != k.Node {
			c.Nodes++
		}
		for _, op := range ops {
			p.rank[r].slot[op] = len(k.Traffic)
			k.Traffic = append(k.Traffic, Traffic{Communicator: c, Place: len(c.Members), Function: operations[op].function, Bytes: operations[op].bytes})
		}
		c.Members = append(c.Members, r)
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
	for _, o := range held {
		p.done(o)
	}
	for {
		first := slices.MinFunc(p.rank, func(a, b state) int { return cmp.Compare(a.at, b.at) })
		if p.now = first.at; p.now >= p.until {
			return
		}
		p.step()
	}
}

// done counts an operation, or keeps it for its tick. One that never ends is neither.
func (p *Play) done(o Operation) {
	switch {
	case o.Ended <= p.until:
		t, seconds := p.Of(&o), o.Ended-o.Began
		bus, _ := t.busBytes()
		t.Count++
		t.Seconds += seconds
		t.Bandwidth = max(t.Bandwidth, bus/seconds)
		p.Ranks[o.Rank].Seconds += seconds
		if p.Each != nil {
			p.Each(o)
		}
	case !math.IsInf(o.Ended, 1):
		p.held = append(p.held, o)
	}
}

// step plays one step of the job.
func (p *Play) step() {
	p.begin()
	for range p.job.Micro {
		for s := range p.job.PP {
			p.pass(s, s-1, 1, gather)
		}
	}
	for range p.job.Micro {
		for s := p.job.PP - 1; s >= 0; s-- {
			p.pass(s, s+1, 2, scatter)
		}
	}
	p.meet(reduce, p.all[reduce])
	p.meet(world, p.all[world])
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
	for r := range p.rank {
		k := &p.rank[r]
		k.speed = p.Speed[r]
		for i := range p.Ranks[r].Traffic {
			p.Ranks[r].Traffic[i].slow = 1
		}
		if loads {
			k.load = 1 + j.Imbalance*rng.Float64()
		}
		if checkpoint && (r == 0 || !j.FirstWrites) {
			k.at += j.Checkpoint * (0.9 + 0.2*rng.Float64())
		}
		if j.StartUp > 0 && p.steps < 4 {
			k.at += j.StartUp * (0.5 + rng.Float64()) / float64(int(1)<<p.steps)
		}
	}
	for i := range j.Faults {
		if f := &j.Faults[i]; p.now >= f.From && (f.Until == 0 || p.now < f.Until) {
			for r := range p.rank {
				p.hit(f, r)
			}
		}
	}
}

// hit has a fault act on a rank in this step.
func (p *Play) hit(f *Fault, r int) {
	k := &p.rank[r]
	switch {
	case f.Kind == GPU && r == f.At, f.Kind == Host && p.Ranks[r].Node == f.At:
		k.speed *= 1 - f.By
	case f.Kind == Input && r == f.At:
		k.at += f.By
	case f.Kind == Fabric, f.Kind == Rail && r%p.job.GPUs == f.At:
		for _, t := range p.Ranks[r].Traffic {
			if t.Nodes > 1 {
				t.slow = 1 / (1 - f.By)
			}
		}
	}
}

// pass takes a micro batch through a stage, forward or back. It comes from another stage.
func (p *Play) pass(s, from int, times float64, exchange int) {
	j := p.job
	n := j.TP * j.DP
	for r := s * n; from >= 0 && from < j.PP && r < (s+1)*n; r++ {
		p.hand(r+(from-s)*n, r)
	}
	work := times * j.Work * p.phase
	if s > 0 && s == j.PP-1 {
		work *= 1 + j.LastStage
	}
	for range j.Blocks {
		for r := s * n; r < (s+1)*n; r++ {
			k := &p.rank[r]
			k.at += work * k.bias * k.load * max(0.1, 1+j.Noise*p.rng.NormFloat64()) / k.speed
		}
		for _, op := range [...]int{tensor, exchange} {
			n := len(p.all[op]) / j.PP
			p.meet(op, p.all[op][s*n:(s+1)*n])
		}
	}
}

func (p *Play) takes(c *Communicator) float64 {
	return c.takes * c.slow * math.Exp(p.job.Jitter*p.rng.NormFloat64())
}

// meet is one operation of each communicator. All members leave it together, so much after
// the last has come.
func (p *Play) meet(op int, all []*Communicator) {
	for _, c := range all {
		end := 0.0
		for _, r := range c.Members {
			end = max(end, p.rank[r].at)
		}
		end += p.takes(c)
		for _, r := range c.Members {
			p.leave(r, op, 0, end)
		}
	}
}

// hand is a message of a rank to the same rank of another stage. Both wait for each other.
func (p *Play) hand(from, to int) {
	n := p.job.TP * p.job.DP // the places of a pipeline are its stages
	end := max(p.rank[from].at, p.rank[to].at) + p.takes(p.all[send][to%n])
	p.leave(from, send, to/n, end)
	p.leave(to, receive, from/n, end)
}

func (p *Play) leave(r, op, peer int, end float64) {
	k := &p.rank[r]
	p.done(Operation{Rank: r, Began: k.at, Ended: end, slot: k.slot[op], peer: peer})
	k.at = end
}
