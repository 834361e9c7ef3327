// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/packed"
)

// What is saved are the facts that no report repeats: what grew, when something began, how a
// GPU was lost. Readings come anew with the next report.

// SaveVersion is that of what Save writes. Facts, flags and kinds are told by their names, so
// that their tables may change without a version.
const SaveVersion = 1

const (
	// MaxSaved bounds the nodes that are saved: those that are asked for come first.
	MaxSaved = 256
	// savedAge is how long a node is saved after something was noted of it.
	savedAge = 3600
	maxNames = 256 // of a table
	maxWord  = 64
	// seenValues are the values that take as long to write as a node to pass over.
	seenValues = 16
)

// Name of a node.
type Name struct{ Cluster, Node string }

// tables are the names that what is saved refers to by their places.
type tables struct{ flags, steps, facts, kinds []string }

// stepFacts are the facts of steps.
var stepFacts = [len(steps)]Fact{PCIeGeneration, PCIeWidth, NVLinksUp, Processes, PowerLimit}

func newTables() tables {
	t := tables{flags: make([]string, numFlags)}
	for f := range NumFacts {
		t.facts = append(t.facts, f.String())
		if s := source[f]; s >= firstFlag && s < firstGauge {
			t.flags[s-firstFlag] = f.String()
		}
	}
	for _, f := range stepFacts {
		t.steps = append(t.steps, f.String())
	}
	for i := range networkKinds {
		t.kinds = append(t.kinds, networkKinds[i].name)
	}
	return t
}

func (t *tables) pack(c *packed.Coder) {
	for _, list := range [...]*[]string{&t.flags, &t.steps, &t.facts, &t.kinds} {
		c.Texts(list, maxWord)
		c.Check(len(*list) <= maxNames)
	}
}

// places are where the names of one table are in another, -1 where they are not.
func places(from, to []string) []int {
	at := make([]int, len(from))
	for i, name := range from {
		at[i] = slices.Index(to, name)
	}
	return at
}

// place is where the i-th is in another table, or false.
func place(at []int, i int) (int, bool) {
	if i >= len(at) || at[i] < 0 {
		return 0, false
	}
	return at[i], true
}

// note has the node saved: something happened that no report repeats.
func (n *Node) note() { n.store.noted[n] = n.seen }

// tellsAlways are counted facts that grow on healthy nodes.
func tellsAlways(f Fact) bool {
	return f == NetworkPackets || f == NetworkCongestion || f == NetworkWait || f == NetworkRetransmits
}

// Save begins to write the nodes that are asked for, and then those of which something was
// noted in the last hour, MaxSaved in all. Each call of the function that it returns writes
// so many values, to the end of a node, and reports whether there are any left: some nodes
// have ten times as many as others. Readings may come in between.
func (s *Store) Save(c *packed.Coder, asked []Name, now time.Time) (next func(values int) (more bool)) {
	t := newTables()
	t.pack(c)
	since := int64(seconds(now)) - savedAge
	room, gpu := MaxSaved, t.newGPU()
	first := make([]*Node, 0, min(len(asked), MaxSaved))
	chosen := make(map[*Node]bool, cap(first))
	for _, a := range asked {
		if n := s.nodes[nodeKey{a.Cluster, a.Node}]; n != nil && !chosen[n] && len(first) < MaxSaved {
			first, chosen[n] = append(first, n), true
		}
	}
	left := slices.Clone(s.all)
	save := func(n *Node) (values int) {
		more := true
		c.Bool(&more)
		n.save(c, &gpu)
		room--
		return n.values()
	}
	return func(values int) bool {
		for values > 0 {
			switch {
			case room == 0 || len(first)+len(left) == 0:
				more := false
				c.Bool(&more)
				room, first, left = 0, nil, nil
				return false
			case len(first) > 0:
				values -= save(first[0])
				first = first[1:]
			default:
				n := left[0]
				left = left[1:]
				values -= seenValues
				if at, noted := s.noted[n]; noted && int64(at) >= since && !chosen[n] {
					values -= save(n)
				}
			}
		}
		return true
	}
}

// values is about how many are written of a node.
func (n *Node) values() int {
	const ofNode, ofGPU, ofAdapter, ofSeries, ofHistory = 8, 2*numFlags + 2*len(steps) + 7, 6, 5, 5 + historyMinutes
	return ofNode + ofGPU*len(n.gpus) + ofAdapter*len(n.adapters) + ofSeries*len(n.series) + ofHistory*len(n.moved)
}

func (n *Node) save(c *packed.Coder, x *savedGPU) {
	c.Text(&n.key.cluster, maxName)
	c.Text(&n.key.node, maxName)
	noted := n.store.noted[n] // 0 for never
	for _, x := range [...]*uint32{&n.first, &n.seen, &noted} {
		packed.Uint(c, x)
	}
	c.Size(len(n.gpus))
	for i := range n.gpus {
		x.of(&n.gpus[i])
		x.pack(c)
	}
	c.Size(len(n.adapters))
	for i := range n.adapters {
		a := &n.adapters[i]
		down := a.up == linkDown
		a.pack(c, &down)
	}
	codes := 0
	for i := range n.series {
		codes += int(one(facts[n.series[i].fact].scope == ofGPU))
	}
	c.Size(codes)
	for i := range n.series {
		if x := &n.series[i]; facts[x.fact].scope == ofGPU {
			x.pack(c)
		}
	}
	c.Size(len(n.moved))
	for i := range n.moved {
		n.moved[i].pack(c)
	}
}

// savedGPU is what is saved of a GPU, by the tables of who saves it.
type savedGPU struct {
	id                    string
	held, began, worsened []uint32
	gauges                []float32 // before the steps: one while nobody listened is one too
	on, xid               uint8
	up                    Up
	upAt, xidAt, seen     uint32
}

func (t *tables) newGPU() savedGPU {
	f, s := len(t.flags), len(t.steps)
	return savedGPU{held: make([]uint32, f), began: make([]uint32, f), worsened: make([]uint32, s), gauges: make([]float32, s)}
}

// of fills in a GPU of this process.
func (x *savedGPU) of(g *gpu) {
	x.id, x.on, x.xid, x.up, x.upAt, x.xidAt, x.seen = g.id, g.on, g.xid, g.up.up(), g.upAt, g.xidAt, g.seen
	copy(x.held, g.held[:])
	copy(x.began, g.began[:])
	copy(x.worsened, g.worsened[:])
	for i, f := range steps {
		x.gauges[i] = g.gauges[f-firstGauge]
	}
}

func (x *savedGPU) pack(c *packed.Coder) {
	c.Text(&x.id, maxName)
	for i := range x.held {
		packed.Uint(c, &x.held[i])
		packed.Uint(c, &x.began[i])
	}
	for i := range x.worsened {
		packed.Uint(c, &x.worsened[i])
		packGauge(c, &x.gauges[i])
	}
	packed.Uint(c, &x.on)
	packed.Below(c, &x.up, UpSilent+1)
	packed.Uint(c, &x.upAt)
	packed.Uint(c, &x.xid)
	packed.Uint(c, &x.xidAt)
	packed.Uint(c, &x.seen)
}

// packGauge is for a reading that may be unknown.
func packGauge(c *packed.Coder, v *float32) {
	is, x := known(*v), float64(*v)
	if c.Bool(&is); !is {
		*v = unknown
		return
	}
	c.Float(&x)
	*v = float32(x)
}

func (a *adapter) pack(c *packed.Coder, down *bool) {
	c.Text(&a.id, maxName)
	for _, x := range [...]*uint32{&a.slower, &a.downFrom, &a.downUntil} {
		packed.Uint(c, x)
	}
	c.Bool(&a.wasUp)
	c.Bool(down)
}

func (x *series) pack(c *packed.Coder) {
	packed.Uint(c, &x.of)
	packed.Uint(c, &x.fact)
	packed.Uint(c, &x.sub)
	packed.Uint(c, &x.from)
	c.Float(&x.raw)
}

func (h *history) pack(c *packed.Coder) {
	packed.Uint(c, &h.of)
	packed.Uint(c, &h.fact)
	packed.Uint(c, &h.kind)
	packed.Uint(c, &h.began)
	packed.Uint(c, &h.last)
	for i := range h.minutes {
		x := float64(min(h.minutes[i], math.MaxFloat32)) // a sum may be more
		c.Float(&x)
		c.Check(x >= 0 && x <= math.MaxFloat32)
		h.minutes[i] = float32(x)
	}
}

// restorer reads the nodes of a state into a store.
type restorer struct {
	s                         *Store
	c                         *packed.Coder
	now                       uint32
	tables                    tables
	flags, steps, facts, kind []int
}

// Restore reads what was saved into a store that is empty. The coder has the mistakes. What
// finds no room is left out.
func (s *Store) Restore(c *packed.Coder, now time.Time) {
	r := restorer{s: s, c: c, now: seconds(now)}
	s.resumedAt = r.now
	r.tables.pack(c)
	own := newTables()
	r.flags, r.steps = places(r.tables.flags, own.flags), places(r.tables.steps, own.steps)
	r.facts, r.kind = places(r.tables.facts, own.facts), places(r.tables.kinds, own.kinds)
	for range MaxSaved {
		var more bool
		if c.Bool(&more); !more || c.Err() != nil {
			return
		}
		r.node()
	}
	var more bool
	c.Bool(&more)
	c.Check(!more)
}

// past keeps a time from being one that is to come: a clock may have been set back.
func (r *restorer) past(at *uint32) { *at = min(*at, r.now) }

func (r *restorer) node() {
	c := r.c
	var key nodeKey
	var first, seen, noted uint32
	c.Text(&key.cluster, maxName)
	c.Text(&key.node, maxName)
	for _, x := range [...]*uint32{&first, &seen, &noted} {
		packed.Uint(c, x)
		r.past(x)
	}
	var n *Node // nil where there is no room, or where it was told of already
	if _, twice := r.s.nodes[key]; !twice && c.Err() == nil {
		if kept, err := r.s.Node(key.cluster, key.node, time.Unix(int64(seen), 0)); err == nil {
			n = kept
			n.first = first
			if noted > 0 {
				r.s.noted[n] = noted
			}
			r.s.resumed = append(r.s.resumed, n)
		}
	}
	gpus := make([]int, c.Size(0))
	for i := range gpus {
		x := r.tables.newGPU()
		if x.pack(c); c.Err() != nil {
			return
		}
		if gpus[i] = -1; n != nil {
			gpus[i] = r.gpu(n, &x)
		}
	}
	adapters := make([]int, c.Size(0))
	for i := range adapters {
		var a adapter
		var down bool
		if a.pack(c, &down); c.Err() != nil {
			return
		}
		if adapters[i] = -1; n != nil {
			adapters[i] = r.adapter(n, &a, down)
		}
	}
	for range c.Size(0) {
		var x series
		if x.pack(c); c.Err() != nil {
			return
		}
		if n != nil {
			r.xids(n, &x, gpus)
		}
	}
	for range c.Size(0) {
		var h history
		if h.pack(c); c.Err() != nil {
			return
		}
		if n != nil {
			r.history(n, &h, gpus, adapters)
		}
	}
}

// gpu returns the place of the GPU, -1 where there is none.
func (r *restorer) gpu(n *Node, x *savedGPU) int {
	if n.Has(x.id) {
		return -1
	}
	at, err := n.GPU(x.id)
	if err != nil {
		return -1
	}
	g := &n.gpus[at]
	g.up, g.upAt, g.xid, g.xidAt, g.seen = upAndIndex(x.up), x.upAt, x.xid, x.xidAt, x.seen
	for _, t := range [...]*uint32{&g.upAt, &g.xidAt, &g.seen} {
		r.past(t)
	}
	for i := range x.held {
		if to, ok := place(r.flags, i); ok {
			g.held[to], g.began[to] = min(x.held[i], r.now), min(x.began[i], r.now)
			if i < 8 && x.on&(1<<i) != 0 {
				g.held[to] = r.now // as far as is known; the next report says whether it does
			}
		}
	}
	for i := range x.worsened {
		if to, ok := place(r.steps, i); ok {
			g.worsened[to] = min(x.worsened[i], r.now)
			g.gauges[steps[to]-firstGauge] = x.gauges[i]
		}
	}
	return at
}

// adapter is the same of a port. Its counters are told apart by numbers of a process: those
// that are there at its first report are history.
func (r *restorer) adapter(n *Node, x *adapter, down bool) int {
	if slices.ContainsFunc(n.adapters, func(a adapter) bool { return a.id == x.id }) {
		return -1
	}
	at, err := n.adapter(x.id)
	if err != nil {
		return -1
	}
	a := &n.adapters[at]
	a.first, a.wasUp = r.now, x.wasUp
	a.slower, a.downFrom, a.downUntil = min(x.slower, r.now), min(x.downFrom, r.now), min(x.downUntil, r.now)
	if down {
		a.downUntil = r.now
	}
	return at
}

// xids takes the last value of a counter of Xids.
func (r *restorer) xids(n *Node, x *series, gpus []int) {
	fact, known := place(r.facts, int(x.fact))
	of, there := place(gpus, int(x.of))
	if !known || !there || x.sub > math.MaxUint8 || x.raw < 0 {
		return
	}
	if of, ok := xidFacts[uint16(x.sub)]; !ok || of != Fact(fact) {
		return // its evidence is another in this release
	}
	r.past(&x.from)
	x.fact, x.of = Fact(fact), uint8(of)
	if n.find(x.of, x.fact, x.sub) == nil {
		n.keep(*x)
	}
}

func (r *restorer) history(n *Node, h *history, gpus, adapters []int) {
	fact, ok := place(r.facts, int(h.fact))
	if !ok {
		return
	}
	h.fact = Fact(fact)
	of := gpus
	switch facts[h.fact].scope {
	case ofAdapter:
		of = adapters
	case ofNode:
		return
	case ofGPU:
	}
	at, known := place(of, int(h.of))
	kind, named := 0, true
	if h.fact == NetworkErrors {
		kind, named = place(r.kind, int(h.kind))
	}
	if !known || !named {
		return
	}
	h.of, h.kind = uint8(at), uint8(kind)
	r.past(&h.began)
	r.past(&h.last)
	if len(n.moved) < maxMoved && n.history(h.fact, at, h.kind) == nil {
		push(n, &n.moved, *h, 0)
	}
}

// settle forgets of nodes that were restored what was not told again once their whole state
// is known: a GPU may have left while nobody listened.
func (s *Store) settle() {
	s.resumed = slices.DeleteFunc(s.resumed, func(n *Node) bool {
		if s.nodes[n.key] != n {
			return true
		}
		if n.seen-s.resumedAt < settled || n.seen < s.resumedAt {
			return false
		}
		for i := range n.gpus {
			g := &n.gpus[i]
			if g.seen > s.resumedAt {
				continue
			}
			g.up, g.on, g.told = g.up&^upBits, 0, 0
			for j := range g.gauges {
				g.gauges[j] = unknown
			}
		}
		return true
	})
}
