// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"fmt"
	"slices"
)

// graph is one step: its operations, on what they wait, and with whom they run.
type graph struct {
	ops   []Op
	after [][]int // by operation: those that must have ended
	group []int   // by operation: into groups
	// groups end together: at the last one's start plus each one's own transfer.
	groups [][]int
	order  []int // of groups: each comes after what its operations wait on
	ends   []float64
}

// place finds an operation of a step.
type place struct {
	Worker
	kind Kind
	seq  int
}

// builder collects a step's graph. The dependencies are those of section 3.2 of the
// paper: order within a stream, compute between receive and send, and post-processing.
type builder struct {
	*graph
	at     map[place]int
	stages int
	dp     int
	err    error
}

// newGraph returns the graph of one step, or an error that names the operation that is
// missing.
func newGraph(ops []Op, dp, stages int) (*graph, error) {
	b := builder{graph: &graph{ops: ops, after: make([][]int, len(ops)), group: make([]int, len(ops))}, at: make(map[place]int, len(ops)), dp: dp, stages: stages}
	for i := range ops {
		p := place{ops[i].Worker, ops[i].Kind, ops[i].Seq}
		if _, twice := b.at[p]; twice {
			return nil, fmt.Errorf("step %d has %s %d of worker dp%d-pp%d twice", ops[i].Step, p.kind, p.seq, p.DP, p.Stage)
		}
		b.at[p] = i
	}
	for d := range dp {
		for s := range stages {
			b.worker(Worker{d, s})
		}
	}
	b.join()
	if b.err == nil {
		b.sort()
	}
	b.ends = make([]float64, len(ops))
	return b.graph, b.err
}

func (b *builder) fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf("step %d: "+format, append([]any{b.ops[0].Step}, args...)...)
	}
}

// of returns the worker's operations of some kinds, in the order in which they ran.
func (b *builder) of(w Worker, kinds ...Kind) (list []int) {
	for i := range b.ops {
		if b.ops[i].Worker == w && slices.Contains(kinds, b.ops[i].Kind) {
			list = append(list, i)
		}
	}
	slices.SortStableFunc(list, func(i, j int) int {
		x, y := &b.ops[i], &b.ops[j]
		if x.Kind == y.Kind {
			return cmp.Compare(x.Seq, y.Seq)
		}
		return cmp.Compare(x.Start, y.Start)
	})
	return list
}

// chain makes each operation wait for the one before it.
func (b *builder) chain(lists ...[]int) {
	last := -1
	for _, i := range slices.Concat(lists...) {
		if last >= 0 {
			b.wait(i, last)
		}
		last = i
	}
}

func (b *builder) wait(i, on int) { b.after[i] = append(b.after[i], on) }

func (b *builder) worker(w Worker) {
	compute := b.of(w, ForwardCompute, BackwardCompute)
	forward, backward := b.of(w, ForwardCompute), b.of(w, BackwardCompute)
	if len(forward) == 0 || len(backward) == 0 {
		b.fail("worker dp%d-pp%d has no compute", w.DP, w.Stage)
		return
	}
	b.chain(compute)
	b.flow(w, forward, ForwardRecv, ForwardSend, w.Stage > 0, w.Stage < b.stages-1)
	b.flow(w, backward, BackwardRecv, BackwardSend, w.Stage < b.stages-1, w.Stage > 0)
	b.firstBackward(w, compute)

	gather, scatter := b.of(w, ParamsAllGather), b.of(w, GradsReduceScatter)
	separate := b.of(w, SeparateGradsAllReduce)
	b.chain(gather, scatter)
	if len(gather) > 0 {
		b.wait(forward[0], gather[len(gather)-1])
	}
	last := compute[len(compute)-1]
	// With gradients that overlap compute, a reduce-scatter waits for the last
	// backward compute alone, and what comes later for the reduce-scatter.
	gc, between := b.of(w, GC), b.of(w, LayernormGradsAllReduce)
	between = append(between, b.of(w, EmbeddingGradsAllReduce)...)
	end := slices.Concat(b.of(w, OptimizerClip), b.of(w, Optimizer))
	if len(separate) > 0 {
		if len(scatter) > 0 {
			b.wait(scatter[0], backward[len(backward)-1])
			b.chain(scatter[len(scatter)-1:], between, separate, end)
		}
		b.chain([]int{last}, gc, between, separate, end)
		return
	}
	b.chain([]int{last}, gc, between, scatter, end)
}

// flow ties the receives and sends of one direction to its computes: compute i waits
// for receive i, send i for compute i, and receive i for compute i-1.
func (b *builder) flow(w Worker, compute []int, recv, send Kind, receives, sends bool) {
	in, out := b.of(w, recv), b.of(w, send)
	b.chain(in)
	b.chain(out)
	for i, c := range compute {
		if receives {
			if len(in) != len(compute) {
				b.fail("worker dp%d-pp%d has %d %s for %d computes", w.DP, w.Stage, len(in), recv, len(compute))
				return
			}
			b.wait(c, in[i])
			if i > 0 {
				b.wait(in[i], compute[i-1])
			}
		}
		if sends {
			if len(out) != len(compute) {
				b.fail("worker dp%d-pp%d has %d %s for %d computes", w.DP, w.Stage, len(out), send, len(compute))
				return
			}
			b.wait(out[i], c)
		}
	}
}

// firstBackward lets the first backward communication start with the last forward
// compute before it: a schedule posts it then, and no earlier.
func (b *builder) firstBackward(w Worker, compute []int) {
	k := slices.IndexFunc(compute, func(i int) bool { return b.ops[i].Kind == BackwardCompute })
	if k < 2 {
		return
	}
	for _, kind := range [...]Kind{BackwardRecv, BackwardSend} {
		if list := b.of(w, kind); len(list) > 0 {
			b.wait(list[0], compute[k-2])
		}
	}
}

// join puts the operations that run together into groups.
func (b *builder) join() {
	type key struct {
		kind         Kind
		dp, stage, n int
	}
	of := make(map[key]int)
	want := [...]int{alone: 1, pair: 2, ends: 2, ranks: b.dp, all: b.dp * b.stages}
	if b.stages == 1 {
		want[ends] = 1
	}
	for i := range b.ops {
		o := &b.ops[i]
		k := key{o.Kind, o.DP, o.Stage, o.Seq}
		switch scopes[o.Kind] {
		case pair:
			// Both sides of an edge have the key of the sender.
			switch o.Kind {
			case ForwardRecv:
				k.kind, k.stage = ForwardSend, o.Stage-1
			case BackwardRecv:
				k.kind, k.stage = BackwardSend, o.Stage+1
			}
		case ends:
			k.stage = 0
		case ranks:
			k.dp = 0
		case all:
			k.dp, k.stage = 0, 0
		case alone:
		}
		g, known := of[k]
		if !known {
			g = len(b.groups)
			of[k] = g
			b.groups = append(b.groups, nil)
		}
		b.group[i] = g
		b.groups[g] = append(b.groups[g], i)
	}
	for _, members := range b.groups {
		o := &b.ops[members[0]]
		if n := want[scopes[o.Kind]]; len(members) != n {
			b.fail("%s %d of worker dp%d-pp%d has %d of %d participants", o.Kind, o.Seq, o.DP, o.Stage, len(members), n)
			return
		}
	}
}

// sort orders the groups by their dependencies (Kahn 1962).
func (b *builder) sort() {
	waits := make([]int, len(b.groups))
	next := make([][]int, len(b.groups))
	for i, list := range b.after {
		for _, on := range list {
			if from, to := b.group[on], b.group[i]; from != to {
				waits[to]++
				next[from] = append(next[from], to)
			}
		}
	}
	for g, n := range waits {
		if n == 0 {
			b.order = append(b.order, g)
		}
	}
	for k := 0; k < len(b.order); k++ {
		for _, to := range next[b.order[k]] {
			if waits[to]--; waits[to] == 0 {
				b.order = append(b.order, to)
			}
		}
	}
	if len(b.order) < len(b.groups) {
		b.fail("operations wait for each other in a circle")
	}
}

// transfers are what each operation takes by itself: of communication the time from
// the last participant's start, which leaves out the wait for it.
func (g *graph) transfers() []float64 {
	own := make([]float64, len(g.ops))
	for _, members := range g.groups {
		last := g.ops[members[0]].Start
		for _, i := range members {
			last = max(last, g.ops[i].Start)
		}
		for _, i := range members {
			own[i] = g.ops[i].Duration
			if scopes[g.ops[i].Kind] != alone {
				own[i] = max(0, g.ops[i].end()-last)
			}
		}
	}
	return own
}

// replay returns how long the step takes when each operation takes as long as own says.
func (g *graph) replay(own func(i int) float64) (took float64) {
	for _, k := range g.order {
		begin := 0.0
		for _, i := range g.groups[k] {
			for _, on := range g.after[i] {
				begin = max(begin, g.ends[on])
			}
		}
		for _, i := range g.groups[k] {
			g.ends[i] = begin + own(i)
			took = max(took, g.ends[i])
		}
	}
	return took
}
