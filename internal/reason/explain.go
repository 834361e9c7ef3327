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

// Explain says why a node is slow that was accused since then. peers are the
// names of the other nodes of its group, in any order; its own name among them
// is passed over. A node of which nothing is known, and one that no rule fits,
// is unexplained without evidence.
//
// The first rule with a contrast to the peers wins; without any, the first
// that holds, as an observation: what the peers have as well does not make one
// node slower than they are.
func (s *Store) Explain(cluster, node string, peers iter.Seq[string], since, now time.Time) Finding {
	n, ok := s.nodes[nodeKey{cluster, node}]
	if !ok {
		return unexplained()
	}
	w := newWindow(since, now)
	s.findPeers(cluster, node, peers, w)
	defer s.peers.forget()
	observed := -1
	for i := range rules {
		switch s.try(n, &rules[i], w) {
		case contrast:
			return s.finding(n, &rules[i], w, false)
		case holds:
			if observed < 0 {
				observed = i
			}
		}
	}
	if observed >= 0 {
		return s.finding(n, &rules[observed], w, true)
	}
	return unexplained()
}

func unexplained() Finding {
	return Finding{Reason: Unexplained, Action: ActionBurnIn, Advice: unexplainedAdvice}
}

// outcome of a test or rule.
type outcome uint8

const (
	fails outcome = iota
	holds
	contrast
)

func (s *Store) try(n *Node, r *Rule, w window) outcome {
	best := fails
	for i := range r.Tests {
		t := &r.Tests[i]
		if v, _, ok := n.worst(t.Fact, w); ok {
			best = max(best, s.test(t, v, w))
		}
	}
	return best
}

func (s *Store) test(t *Test, v float64, w window) outcome {
	x := v
	if t.PerMinute {
		x /= w.minutes()
	}
	if t.Fact.worse(t.Limit, x) > 0 {
		return fails
	}
	if p, ok := s.peers.median(t.Fact); ok {
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
func (s *Store) finding(n *Node, r *Rule, w window, observation bool) Finding {
	f := Finding{Reason: r.Reason, Action: r.Action, Advice: r.Advice, Observation: observation}
	// The GPU is that of the test which decides: the first with a contrast, else the first.
	decided := fails
	gpu, adapter := -1, -1
	for i := range r.Tests {
		t := &r.Tests[i]
		v, of, ok := n.worst(t.Fact, w)
		if !ok {
			continue
		}
		o := s.test(t, v, w)
		if o == fails {
			continue
		}
		if o > decided {
			decided = o
			gpu, adapter = -1, -1
			switch facts[t.Fact].scope {
			case ofGPU:
				gpu = n.slowest(t.Fact, v, of, w)
				f.GPU = n.gpus[gpu].id
			case ofAdapter:
				adapter, f.GPU = of, n.adapters[of].id
			case ofNode:
				f.GPU = ""
			}
		}
	}
	for i := range r.Tests {
		t := &r.Tests[i]
		if v, _, ok := n.worst(t.Fact, w); ok && s.test(t, v, w) != fails {
			f.Evidence = s.appendEvidence(f.Evidence, n, t.Fact, gpu, adapter, w)
		}
	}
	for _, fact := range r.Evidence {
		f.Evidence = s.appendEvidence(f.Evidence, n, fact, gpu, adapter, w)
	}
	return f
}

// slowest returns, of the GPUs that share the worst value of a fact, the one
// with the lowest SM clock: a brake or a cap often holds all of them. It is
// first where no clock is known.
func (n *Node) slowest(f Fact, worst float64, first int, w window) int {
	at, lowest := first, 2.0
	for i := first; i < len(n.gpus); i++ {
		if v, ok := n.value(f, i, w); !ok || v != worst {
			continue
		}
		if clock, ok := n.value(SMClock, i, w); ok && clock < lowest {
			at, lowest = i, clock
		}
	}
	return at
}

// appendEvidence adds a fact of the GPU or adapter that the finding points at,
// of the worst one where it points elsewhere or where that one does not have it.
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
	switch facts[fact].scope {
	case ofGPU:
		e.GPU = n.gpus[at].id
	case ofAdapter:
		e.GPU = n.adapters[at].id
	case ofNode:
	}
	if fact != LastXid { // the median of codes means nothing
		e.Peers, e.HasPeers = s.peers.median(fact)
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
}

type peerFact struct {
	median      float64
	read, known bool
}

func (s *Store) findPeers(cluster, self string, peers iter.Seq[string], w window) {
	p := &s.peers
	p.forget()
	p.window = w
	for name := range peers {
		if name == self {
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
	p.nodes, p.facts = p.nodes[:0], [NumFacts]peerFact{}
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
	if len(v) < minPeers {
		return 0, false
	}
	slices.Sort(v)
	mid := len(v) / 2
	m.median, m.known = v[mid], true
	if len(v)%2 == 0 {
		m.median = (m.median + v[mid-1]) / 2
	}
	return m.median, true
}
