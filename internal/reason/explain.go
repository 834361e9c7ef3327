// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"iter"
	"math"
	"slices"
	"time"
)

const (
	// MaxPeers are looked at for a median: a median of that many is off by 6 %
	// of the values' rank, and an explanation stays below a millisecond or so.
	MaxPeers = 256
	// minPeers must know a fact: of fewer, one odd peer would decide.
	minPeers = 3
)

// Explain says why a node is slow that was accused since then; the zero time
// means that it was slow from the first. peers are the names of the other nodes
// of its group, in any order; its own name among them is passed over. A node
// without a known fact, or without a rule that fits, is unexplained without
// evidence.
//
// The first rule wins with a contrast to the peers that was not there before
// the node became slow: an old fact does not explain a new slowness. Without any,
// the first rule with an older contrast wins. Then comes the first rule that
// holds, as an observation: a fact of the peers too makes no single node slower.
func (s *Store) Explain(cluster, node string, peers iter.Seq[string], since, now time.Time) Finding {
	n, ok := s.nodes[nodeKey{cluster, node}]
	if !ok {
		return outcomeOf(ofNobody)
	}
	w := newWindow(since, now)
	s.findPeers(cluster, peers, func(name string) bool { return name == node }, w)
	defer s.peers.forget()
	if r := s.choose(n, w); r != nil {
		return s.finding(n, r, w)
	}
	return outcomeOf(ofNobody)
}

// maxAsked of the nodes of a group are explained: a share of that many is
// off by a tenth or so, and it takes milliseconds.
const maxAsked = 32

// ExplainGroup says what most of the nodes have that are slow together since
// then, against the others of their group. It is unexplained when less than
// half of the first 32 of them have the same reason. The finding names no GPU
// or adapter; its evidence is the median over those that share the reason.
func (s *Store) ExplainGroup(cluster string, slow []string, others iter.Seq[string], since, now time.Time) Finding {
	w := newWindow(since, now)
	s.findPeers(cluster, others, func(name string) bool { return slices.Contains(slow, name) }, w)
	defer s.peers.forget()
	asked := slow[:min(len(slow), maxAsked)]
	chosen := make([]*Rule, len(asked))
	counts := make(map[*Rule]int)
	for i, name := range asked {
		if n, ok := s.nodes[nodeKey{cluster, name}]; ok {
			if chosen[i] = s.choose(n, w); chosen[i] != nil {
				counts[chosen[i]]++
			}
		}
	}
	var common *Rule
	for i := range rules { // of as many, the first in the table
		if r := &rules[i]; counts[r] > counts[common] {
			common = r
		}
	}
	if common == nil || 2*counts[common] < len(asked) {
		f := outcomeOf(ofMany)
		f.Asked = len(asked)
		return f
	}
	var found []Finding
	for i, name := range asked {
		if chosen[i] == common {
			found = append(found, s.finding(s.nodes[nodeKey{cluster, name}], common, w))
		}
	}
	f := merge(found)
	f.Shared, f.Asked = len(found), len(asked)
	return f
}

// merge makes one finding of those of several nodes for the same reason.
func merge(found []Finding) Finding {
	f := found[0]
	f.GPU = ""
	old, seen, half := 0.0, 0.0, float64(len(found))/2
	for i := range found {
		old += one(found[i].Standing)
		seen += one(found[i].Observation)
	}
	f.Standing, f.Observation = old > half, seen > half
	f.Evidence = slices.Clone(f.Evidence)
	for i := range f.Evidence {
		e := &f.Evidence[i]
		var values []float64
		for j := range found {
			for _, other := range found[j].Evidence {
				if other.Fact == e.Fact {
					values = append(values, other.Value)
				}
			}
		}
		slices.Sort(values)
		e.GPU, e.Value, e.Since, e.Standing = "", values[len(values)/2], time.Time{}, false
	}
	return f
}

// outcome of a test or rule, the better explanation being greater.
type outcome uint8

const (
	fails outcome = iota
	heldBefore
	holds
	oldContrast
	contrast
)

// choose returns the rule that explains a node, nil without any.
func (s *Store) choose(n *Node, w window) *Rule {
	var best *Rule
	found := fails
	braked := -1 // the GPU that a lasting cause of low clocks holds down
	for i := range rules {
		r := &rules[i]
		_, at, o := s.try(n, r, w)
		if r.lowersClock && o == oldContrast && braked < 0 {
			braked = at
		}
		if r.isLowClock && o == contrast && at == braked {
			continue // the clock is low because of that, since when it may
		}
		if o > found {
			best, found = r, o
		}
	}
	return best
}

// try returns the test of a rule that explains the node best, on which GPU or
// adapter, and how well.
func (s *Store) try(n *Node, r *Rule, w window) (test, at int, best outcome) {
	at = -1
	for i := range r.Tests {
		if of, o := s.pick(n, &r.Tests[i], w); o > best {
			test, at, best = i, of, o
		}
	}
	return test, at, best
}

// pick returns the GPU or adapter that a test fits best, the worst of several. Among
// equals the lowest SM clock decides: a brake or a cap often holds all of them.
// Without a known clock it is the first.
func (s *Store) pick(n *Node, t *Test, w window) (at int, best outcome) {
	at = -1
	worst, lowest := 0.0, 2.0
	for i := range n.devices(t.Fact) {
		v, ok := n.value(t.Fact, i, w)
		if !ok {
			continue
		}
		o := s.test(t, n, i, v, w)
		if o == fails || !n.hold(t, i, w) {
			continue
		}
		if n.standing(t.Fact, i, w) {
			o-- // to what it is when it is old
		}
		clock := 2.0
		if facts[t.Fact].scope == ofGPU {
			if c, ok := n.value(SMClock, i, w); ok {
				clock = c
			}
		}
		d := t.Fact.worse(v, worst)
		if o > best || o == best && (d > 0 || d == 0 && clock < lowest) {
			at, worst, best, lowest = i, v, o, clock
		}
	}
	return at, best
}

// hold reports whether the flags that a test asks for hold of a GPU, or of a port.
func (n *Node) hold(t *Test, gpu int, w window) bool {
	if t.WasUp && !n.adapters[gpu].wasUp {
		return false
	}
	for _, f := range t.While {
		if v, ok := n.value(f, gpu, w); !ok || v == 0 {
			return false
		}
	}
	for _, f := range t.Now {
		if n.gpus[gpu].on&(1<<(source[f]-firstFlag)) == 0 {
			return false
		}
	}
	return true
}

// test compares one value; whether it is old is not asked.
func (s *Store) test(t *Test, n *Node, i int, v float64, w window) outcome {
	x := v
	if t.PerMinute {
		x /= w.minutes()
	}
	if t.Fact.worse(t.Limit, x) > 0 {
		return fails
	}
	if p, ok := s.peers.against(t.Fact, n, i); ok {
		if d := t.Fact.worse(v, p); d > 0 && d >= t.Margin && d >= t.Share*math.Abs(p) {
			return contrast
		}
	}
	if t.NeedsPeers {
		return fails
	}
	return holds
}

// finding gathers the evidence for r, which has at least one test that holds.
func (s *Store) finding(n *Node, r *Rule, w window) Finding {
	test, at, o := s.try(n, r, w)
	f := Finding{
		Reason: r.Reason, Action: r.Action, Advice: r.Advice,
		Observation: o == holds || o == heldBefore, Standing: o == heldBefore || o == oldContrast,
	}
	// The GPU is that of the test which decides, and its evidence comes first.
	gpu, adapter := -1, -1
	decides := r.Tests[test].Fact
	switch facts[decides].scope {
	case ofGPU:
		gpu, f.GPU = at, n.gpus[at].id
	case ofAdapter:
		adapter, f.GPU = at, n.adapters[at].id
	case ofNode:
	}
	f.Evidence = s.appendEvidence(f.Evidence, n, decides, gpu, adapter, w)
	for i := range r.Tests {
		if _, o := s.pick(n, &r.Tests[i], w); o != fails {
			f.Evidence = s.appendEvidence(f.Evidence, n, r.Tests[i].Fact, gpu, adapter, w)
		}
	}
	for _, fact := range r.Evidence {
		f.Evidence = s.appendEvidence(f.Evidence, n, fact, gpu, adapter, w)
	}
	return f
}

// appendEvidence adds a fact of the GPU or adapter that the finding points at. If the
// finding points elsewhere, or its GPU lacks the fact, it adds the worst GPU's.
func (s *Store) appendEvidence(list []Evidence, n *Node, fact Fact, gpu, adapter int, w window) []Evidence {
	if slices.ContainsFunc(list, func(e Evidence) bool { return e.Fact == fact }) {
		return list
	}
	at := -1
	switch facts[fact].scope {
	case ofGPU:
		at = gpu
	case ofAdapter:
		at = adapter
	case ofNode:
	}
	v, ok := 0.0, false
	if at >= 0 {
		v, ok = n.value(fact, at, w)
	} else {
		v, at, ok = n.worst(fact, w)
	}
	if !ok {
		return list
	}
	e := Evidence{Fact: fact, Value: v}
	if fact.bad(v) {
		e.Since, e.Standing = n.since(fact, at, w), n.standing(fact, at, w)
	}
	switch facts[fact].scope {
	case ofGPU:
		e.GPU = n.gpus[at].id
	case ofAdapter:
		e.GPU = n.adapters[at].id
		if fact == NetworkErrors {
			e.Kind = n.kindName(at, w)
		}
	case ofNode:
	}
	if fact != LastXid { // the median of codes means nothing
		e.Peers, e.HasPeers = s.peers.against(fact, n, at)
	}
	return append(list, e)
}

// peerScratch holds the peers that are looked at and, of the facts that were
// asked for, the medians.
type peerScratch struct {
	nodes  []*Node
	window window
	values []float64
	facts  [NumFacts]peerFact
	ports  []portFact
}

// portFact is the median of the ports of one name.
type portFact struct {
	fact   Fact
	port   string
	median float64
	known  bool
}

type peerFact struct {
	median      float64
	read, known bool
}

// findPeers takes the nodes to compare with out of peers, but for those that
// are compared.
func (s *Store) findPeers(cluster string, peers iter.Seq[string], compared func(string) bool, w window) {
	p := &s.peers
	p.forget()
	p.window = w
	for name := range peers {
		if compared(name) {
			continue
		}
		if n, ok := s.nodes[nodeKey{cluster, name}]; ok {
			if p.nodes = append(p.nodes, n); len(p.nodes) == MaxPeers {
				return
			}
		}
	}
}

func (p *peerScratch) forget() {
	clear(p.nodes)
	p.nodes, p.facts, p.ports = p.nodes[:0], [NumFacts]peerFact{}, p.ports[:0]
}

// against returns what a fact of the GPU or port at that index is compared with: of a
// port the median of the peers' ports of the same name, where enough of them have it.
func (p *peerScratch) against(f Fact, n *Node, i int) (float64, bool) {
	if facts[f].scope != ofAdapter {
		return p.median(f)
	}
	if m, ok := p.medianOf(f, n.adapters[i].id); ok || facts[f].named {
		return m, ok
	}
	return p.median(f)
}

func (p *peerScratch) medianOf(f Fact, port string) (float64, bool) {
	for i := range p.ports {
		if m := &p.ports[i]; m.fact == f && m.port == port {
			return m.median, m.known
		}
	}
	v := p.values[:0]
	for _, n := range p.nodes {
		for i := range n.adapters {
			if n.adapters[i].id == port {
				if x, ok := n.value(f, i, p.window); ok {
					v = append(v, x)
				}
				break
			}
		}
	}
	p.values = v
	m := portFact{fact: f, port: port}
	m.median, m.known = medianOf(v)
	p.ports = append(p.ports, m)
	return m.median, m.known
}

// median of the peers' worst values, and whether enough of them know the fact.
func (p *peerScratch) median(f Fact) (float64, bool) {
	m := &p.facts[f]
	if m.read {
		return m.median, m.known
	}
	m.read = true
	v := p.values[:0]
	for _, n := range p.nodes {
		if x, _, ok := n.worst(f, p.window); ok {
			v = append(v, x)
		}
	}
	p.values = v
	m.median, m.known = medianOf(v)
	return m.median, m.known
}

// medianOf sorts the values, and returns false where they are too few.
func medianOf(v []float64) (float64, bool) {
	if len(v) < minPeers {
		return 0, false
	}
	slices.Sort(v)
	mid := len(v) / 2
	if len(v)%2 == 0 {
		return (v[mid] + v[mid-1]) / 2, true
	}
	return v[mid], true
}
