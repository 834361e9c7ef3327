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
	rank []clock
	all  [numOps][]*Communicator
	held []Operation // which end after the tick
	// until is the tick's end, now where the first rank was as the step began.
	until, now                          float64
	steps                               int
	phase                               float64
	nextPhase, nextLoad, nextCheckpoint float64
}

// clock is where a rank is in time.
type clock struct {
	at, bias, load float64
	slot           [numOps]int // in the rank's Traffic, of those it does
}

// Rank is what one did in a tick.
type Rank struct {
	Node int
	// Seconds in operations, summed over its communicators.
	Seconds float64
	Traffic []Traffic
}

// Traffic is what a rank did in one communicator by one function in a tick.
type Traffic struct {
	*Communicator
	// Place is the rank's number within the communicator.
	Place    int
	Function string
	// Bytes of each message.
	Bytes int64
	// Count of operations and Seconds in them, which hold the waiting.
	Count   int
	Seconds float64
	// Bandwidth is the greatest bus bandwidth, in bytes per second.
	Bandwidth float64
}

// Communicator is a group of ranks.
type Communicator struct {
	// ID is as NCCL's Inspector writes it, the same on all ranks.
	ID, Name    string
	Size, Nodes int

	first, apart int
	slow         float64 // of its transfers, now
}

// Operation is one that a rank has done.
type Operation struct {
	Rank         int
	Began, Ended float64
	slot         int
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

// functions are the operations' names as NCCL has them.
var functions = [numOps]string{
	tensor: "AllReduce", gather: "AllGather", scatter: "ReduceScatter", reduce: "AllReduce", send: "Send", receive: "Recv", world: "AllReduce",
}

// latency is what the shortest transfer takes.
const latency = 20e-6

// New starts a job.
func New(job *Job, seed uint64) *Play {
	n := job.Ranks()
	p := &Play{
		Ranks: make([]Rank, n), Speed: slices.Repeat([]float64{1}, n), rank: make([]clock, n),
		job: job, rng: rand.New(rand.NewPCG(seed, 0x72616e6b73)), phase: 1,
		nextPhase: job.PhaseEvery, nextCheckpoint: job.CheckpointEvery,
	}
	for r := range p.rank {
		p.rank[r] = clock{bias: 1 + job.Bias*p.rng.NormFloat64(), load: 1}
		p.Ranks[r].Node = r / job.GPUs
	}
	stage := job.TP * job.DP
	tp := p.groups("tp", job.TP, 1, job.TP, n)
	p.join(tp, job.TPBytes, tensor)
	dp := p.groups("dp", job.DP, job.TP, stage, n)
	if job.Sharded {
		p.join(dp, job.DPBytes, gather, scatter)
	} else {
		p.join(dp, job.DPBytes, reduce)
	}
	p.join(p.groups("pp", job.PP, stage, n, n), job.PPBytes, send, receive)
	if job.World {
		p.join(p.groups("world", n, 1, n, n), job.WorldBytes, world)
	}
	return p
}

// groups makes the communicators of so many ranks so far apart, which repeat each period.
func (p *Play) groups(name string, size, apart, period, ranks int) (all []*Communicator) {
	for first := 0; first < ranks && size > 1; first++ {
		if first%period >= apart {
			continue
		}
		c := &Communicator{ID: fmt.Sprintf("0x%014x", p.rng.Uint64()>>8), Size: size, first: first, apart: apart, slow: 1}
		switch p.job.Naming {
		case SharedNames:
			c.Name = name + ":0"
		case OwnNames:
			c.Name = fmt.Sprintf("%s:%d", name, len(all))
		case NoNames:
			c.Name = "unknown"
		}
		last := -1
		for r := range c.members() {
			if node := p.Ranks[r].Node; node != last {
				c.Nodes, last = c.Nodes+1, node
			}
		}
		all = append(all, c)
	}
	return all
}

// members are the ranks of the communicator.
func (c *Communicator) members() func(func(rank, place int) bool) {
	return func(yield func(int, int) bool) {
		for i := range c.Size {
			if !yield(c.first+i*c.apart, i) {
				return
			}
		}
	}
}

// join has the members of communicators do operations in them.
func (p *Play) join(all []*Communicator, bytes int64, ops ...int) {
	for _, op := range ops {
		p.all[op] = all
		for _, c := range all {
			for r, place := range c.members() {
				p.rank[r].slot[op] = len(p.Ranks[r].Traffic)
				p.Ranks[r].Traffic = append(p.Ranks[r].Traffic, Traffic{Communicator: c, Place: place, Function: functions[op], Bytes: bytes})
			}
		}
	}
}

// busBytes are the bytes that a message's bus bandwidth and its algorithm bandwidth are of,
// by the factors of nccl-tests.
func (t *Traffic) busBytes() (bus, algorithm float64) {
	n, bytes := float64(t.Size), float64(t.Bytes)
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
		first := math.Inf(1)
		for r := range p.rank {
			first = min(first, p.rank[r].at)
		}
		if first >= p.until {
			return
		}
		p.now = first
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
	j := p.job
	p.begin()
	for range j.Micro {
		for s := range j.PP {
			p.pass(s, s-1, 1, gather)
		}
	}
	for range j.Micro {
		for s := j.PP - 1; s >= 0; s-- {
			p.pass(s, s+1, 2, scatter)
		}
	}
	for _, op := range [...]int{reduce, world} {
		for _, c := range p.all[op] {
			p.meet(op, c)
		}
	}
	p.steps++
}

// begin is what comes before a step, and what changes with it.
func (p *Play) begin() {
	j, rng := p.job, p.rng
	for now := p.now; j.Phase > 0 && now >= p.nextPhase; p.nextPhase += j.PhaseEvery {
		p.phase = 1 + j.Phase*(2*rng.Float64()-1)
	}
	loads := j.Imbalance > 0 && p.now >= p.nextLoad
	if loads {
		p.nextLoad = p.now + j.ImbalanceEvery
	}
	checkpoint := j.Checkpoint > 0 && p.now >= p.nextCheckpoint
	if checkpoint {
		p.nextCheckpoint = p.now + j.CheckpointEvery
	}
	for r := range p.rank {
		k := &p.rank[r]
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
	for _, all := range p.all {
		for _, c := range all {
			c.slow = 1
		}
	}
	for i := range j.Faults {
		if f := &j.Faults[i]; f.there(p.now) {
			p.hit(f)
		}
	}
}

// hit has a fault act on links, and on the input. The computing asks for the others.
func (p *Play) hit(f *Fault) {
	if f.Kind == Input {
		p.rank[f.At].at += f.By
	}
	seen := map[*Communicator]bool{}
	for _, all := range p.all {
		for _, c := range all {
			for r := range c.members() {
				if c.Nodes > 1 && !seen[c] && (f.Kind == Fabric || f.Kind == Rail && r%p.job.GPUs == f.At) {
					seen[c] = true
					c.slow /= 1 - f.By
				}
			}
		}
	}
}

// pass takes a micro batch through a stage, forward or back. It comes from another stage.
func (p *Play) pass(s, from int, times float64, exchange int) {
	j := p.job
	n := j.TP * j.DP
	first := s * n
	if from >= 0 && from < j.PP {
		for r := first; r < first+n; r++ {
			p.hand(r+(from-s)*n, r)
		}
	}
	work := times * j.Work * p.phase
	if s > 0 && s == j.PP-1 {
		work *= 1 + j.LastStage
	}
	for range j.Blocks {
		for r := first; r < first+n; r++ {
			k := &p.rank[r]
			k.at += work * k.bias * k.load * max(0.1, 1+j.Noise*p.rng.NormFloat64()) / p.speed(r)
		}
		for _, op := range [...]int{tensor, exchange} {
			stage := len(p.all[op]) / j.PP
			for _, c := range p.all[op][s*stage : (s+1)*stage] {
				p.meet(op, c)
			}
		}
	}
}

// speed of a rank now.
func (p *Play) speed(r int) float64 {
	v := p.Speed[r]
	for i := range p.job.Faults {
		f := &p.job.Faults[i]
		if f.there(p.now) && (f.Kind == GPU && f.At == r || f.Kind == Host && f.At == p.Ranks[r].Node) {
			v *= 1 - f.By
		}
	}
	return v
}

// takes is how long a transfer takes once all have entered it.
func (p *Play) takes(t *Traffic) float64 {
	rate := p.job.NVLink
	if t.Nodes > 1 {
		// A communicator with several GPUs of a node uses the links of all of them.
		rate = p.job.Network * float64(t.Size) / float64(t.Nodes)
	}
	bus, _ := t.busBytes()
	return (latency + bus/rate) * t.slow * math.Exp(p.job.Jitter*p.rng.NormFloat64())
}

// meet is one operation of a communicator. All leave it together, so much after the last
// has come.
func (p *Play) meet(op int, c *Communicator) {
	end := 0.0
	for r := range c.members() {
		end = max(end, p.rank[r].at)
	}
	end += p.takes(&p.Ranks[c.first].Traffic[p.rank[c.first].slot[op]])
	for r := range c.members() {
		p.leave(r, op, end)
	}
}

// hand is a message of a rank to the same rank of another stage. Both wait for each other.
func (p *Play) hand(from, to int) {
	end := max(p.rank[from].at, p.rank[to].at) + p.takes(&p.Ranks[to].Traffic[p.rank[to].slot[receive]])
	p.leave(from, send, end)
	p.leave(to, receive, end)
}

func (p *Play) leave(r, op int, end float64) {
	k := &p.rank[r]
	p.done(Operation{Rank: r, Began: k.at, Ended: end, slot: k.slot[op]})
	k.at = end
}
