// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"iter"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

const (
	maxPeers = 256         // a median of that many is off by 6 % of the values' rank
	minPeers = 3           // with a known value: of fewer, one outlier would decide
	maxAsked = 32          // nodes of a group: a share of that many is off by a tenth
	lead     = time.Minute // before the beginning: a cause comes before its effect
)

// window is the time range of the facts.
type window struct {
	start uint32 // Unix seconds
	open  bool   // the start of the slowness is unknown
}

// has reports whether the spell was at any time in the window.
func (w window) has(s fleetstate.Spell) bool { return s.Ended == 0 || s.Ended >= w.start }

// Explain returns why a node is slow since then; a zero time is an unknown start. peers are the
// other nodes of its group, in any order. A nil node, and one that no rule fits, are unexplained
// without evidence.
//
// The first rule with a contrast to the peers that began with the slowness wins. Then comes the
// first with an older contrast, then the first that holds, as an observation: a fault of all
// peers makes no single node slower.
func Explain(node *fleetstate.Node, peers iter.Seq[*fleetstate.Node], since, now time.Time) Finding {
	c := newComparison(peers, since, now)
	if r, o := c.choose(node); o != fails {
		return c.finding(node, &r)
	}
	return Finding{Reason: Unexplained, Action: gpuhealth.ActionBurnIn}
}

// ExplainGroup returns the reason that at least half of the first 32 slow nodes share, against
// the others of their group. It names no GPU or adapter; its evidence is the median over the
// nodes that share the reason.
func ExplainGroup(slow []*fleetstate.Node, others iter.Seq[*fleetstate.Node], since, now time.Time) Finding {
	c := newComparison(others, since, now)
	asked := slow[:min(len(slow), maxAsked)]
	found, rules := map[Reason][]Finding{}, []rule{}
	for _, n := range asked {
		if r, o := c.choose(n); o != fails {
			found[r.reason], rules = append(found[r.reason], c.finding(n, &r)), append(rules, r)
		}
	}
	var common []Finding
	slices.SortStableFunc(rules, compare)
	for i := range rules { // of as many, the first in the order of the tries
		if these := found[rules[i].reason]; len(these) > len(common) {
			common = these
		}
	}
	if len(common) == 0 || 2*len(common) < len(asked) {
		return Finding{Reason: Unexplained, Action: gpuhealth.ActionCheckShared, Asked: len(asked)}
	}
	f, seen, values := common[0], 0, map[string][]float64{}
	for _, one := range common {
		if one.Observation {
			seen++
		}
		for _, e := range one.Evidence {
			values[e.Fact] = append(values[e.Fact], *e.Value)
		}
	}
	f.GPU, f.Shared, f.Asked, f.Observation = "", len(common), len(asked), 2*seen > len(common)
	for i := range f.Evidence {
		e := &f.Evidence[i]
		slices.Sort(values[e.Fact])
		e.GPU, e.Value, e.Since, e.Standing = "", new(values[e.Fact][len(values[e.Fact])/2]), time.Time{}, false
	}
	return f
}

// comparison is of nodes with the same peers over the same window.
type comparison struct {
	window
	peers   []*fleetstate.Node
	medians map[string]float64 // by fact, NaN where too few peers know it
}

func newComparison(peers iter.Seq[*fleetstate.Node], since, now time.Time) *comparison {
	open := since.Unix() <= 0
	if open {
		since = now
	}
	c := &comparison{window: window{uint32(since.Add(-lead).Unix()), open}, medians: map[string]float64{}}
	for n := range peers {
		if c.peers = append(c.peers, n); len(c.peers) == maxPeers {
			break
		}
	}
	return c
}

// median of the peers' worst values, NaN where too few of them are known.
func (c *comparison) median(f *fact) float64 {
	if m, read := c.medians[f.name]; read {
		return m
	}
	var v []float64
	for _, n := range c.peers {
		if x, _ := f.worst(n, c.window); x == x {
			v = append(v, x)
		}
	}
	m := math.NaN()
	if len(v) >= minPeers {
		slices.Sort(v)
		m = (v[len(v)/2] + v[(len(v)-1)/2]) / 2
	}
	c.medians[f.name] = m
	return m
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

// match is where a test of a rule fits a node, on which GPU or adapter, and how well.
type match struct {
	test *test
	at   int
	outcome
}

// choose returns the rule that explains a node, fails for none. The node may be nil.
func (c *comparison) choose(n *fleetstate.Node) (best rule, found outcome) {
	if n != nil {
		for _, r := range rulesOf(n, c.window) {
			if m := c.match(n, r.tests); m.outcome > found {
				best, found = r, m.outcome
			}
		}
	}
	return best, found
}

// match returns the test that explains the node best, on the worst GPU or adapter. Among
// equals the lowest SM clock decides: a brake or a cap often holds all of them.
func (c *comparison) match(n *fleetstate.Node, tests []test) (best match) {
	worst, lowest := 0.0, 0.0
	for i := range tests {
		t := &tests[i]
		for at := range t.fact.devices(n) {
			if t.on != nil && !t.on(&n.GPUs[at], c.window) {
				continue
			}
			v, clock := t.fact.value(n, at, c.window), 2.0
			o := c.test(t, v)
			if o != fails && c.standing(t.fact, n, at) {
				o-- // to what it is when it is old
			}
			if t.fact.scope == ofGPU {
				if x := smClock.value(n, at, c.window); x == x {
					clock = x
				}
			}
			d := t.fact.worse(v, worst)
			if o > best.outcome || o != fails && o == best.outcome && t == best.test && (d > 0 || d == 0 && clock < lowest) {
				best, worst, lowest = match{t, at, o}, v, clock
			}
		}
	}
	return best
}

// test compares one value; whether it is old is not asked.
func (c *comparison) test(t *test, v float64) outcome {
	if !(t.fact.worse(t.limit, v) <= 0) { // also NaN
		return fails
	}
	p := c.median(t.fact)
	if d := t.fact.worse(v, p); d > 0 && d >= t.margin && d >= t.share*math.Abs(p) {
		return contrast
	}
	if t.peers {
		return fails
	}
	return holds
}

// standing reports whether a fact held before the window. A node whose first report came shortly
// before the window has no known older facts.
func (c *comparison) standing(f *fact, n *fleetstate.Node, at int) bool {
	return f.since != nil && !c.open && f.since(n, at) < c.start && c.start >= n.Born+fleetstate.Settled
}

// everywhere reports whether a test holds of all boards of a node alike, so that none stands
// out: their SM clocks, and what decides, differ by little.
func (c *comparison) everywhere(n *fleetstate.Node, m match) bool {
	boards, worst := 0, m.test.fact.value
	for at := range n.GPUs {
		if m.test.fact.scope != ofGPU || !n.GPUs[at].Board() {
			continue
		}
		boards++
		v, of := worst(n, at, c.window), worst(n, m.at, c.window)
		clock := smClock.value(n, at, c.window) - smClock.value(n, m.at, c.window)
		if m.test.on != nil && !m.test.on(&n.GPUs[at], c.window) || c.test(m.test, v) == fails || math.Abs(v-of) > alike*math.Abs(of) || clock > alike {
			return false
		}
	}
	return boards > 1
}

// finding gathers the evidence for r, a test of which holds. What decides comes first.
func (c *comparison) finding(n *fleetstate.Node, r *rule) Finding {
	m := c.match(n, r.tests)
	decides := m.test.fact
	f := Finding{
		Reason: r.reason, Action: r.action, GPU: decides.device(n, m.at), Observation: m.outcome <= holds,
	}
	if c.everywhere(n, m) {
		f.GPU = ""
	}
	of := []*fact{decides}
	for i := range r.tests {
		if c.match(n, r.tests[i:i+1]).outcome != fails {
			of = append(of, r.tests[i].fact)
		}
	}
	for _, fact := range append(of, r.evidence...) {
		v, at := fact.worst(n, c.window)
		if fact.scope == decides.scope { // else it is the worst GPU's
			v, at = fact.value(n, m.at, c.window), m.at
		}
		// The health score stands for a health reason, which has no text here.
		if fact.what == "" || math.IsNaN(v) || slices.ContainsFunc(f.Evidence, func(e episode.Evidence) bool { return e.Fact == fact.name }) {
			continue
		}
		e, began := episode.Evidence{Fact: fact.name, Unit: fact.unit, GPU: fact.device(n, at), Value: &v}, fact
		if p := c.median(fact); p == p {
			e.Peers = &p
		}
		if fact == healthScore {
			began = decides
		}
		if began.since != nil && (fact.low || v > 0) {
			e.Standing = c.standing(began, n, at)
			if at := began.since(n, at); at > 0 {
				e.Since = time.Unix(int64(at), 0).UTC()
			}
		}
		f.Evidence = append(f.Evidence, e)
	}
	return f
}
