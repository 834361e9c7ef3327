// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const tick = 10 * time.Second

// fleet drives an engine.
type fleet struct {
	t   require.TestingT
	e   *Engine
	now time.Time
}

func newFleet(t require.TestingT, change func(*Config)) *fleet {
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	require.NoError(t, cfg.Validate(""))
	return &fleet{t: t, e: New(cfg), now: start}
}

func (f *fleet) observe(o nodesignal.Observation) { require.NoError(f.t, f.e.Observe(&o, f.now)) }

// push sends an active node's score.
func (f *fleet) push(node string, labels []string, score float64) {
	f.observe(nodesignal.Observation{Cluster: "c", Node: node, GroupLabels: labels, HasState: true, Score: score, HasScore: true})
}

// round pushes scores[i] for node i and ticks.
func (f *fleet) round(scores ...float64) {
	for i, s := range scores {
		f.push(nodeName("n", i), nil, s)
	}
	f.tick()
}

func (f *fleet) tick() *Report {
	f.now = f.now.Add(tick)
	return f.e.Tick(f.now)
}

// restored returns an engine that has read what another one saved.
func restored(t require.TestingT, cfg Config, saved *Saved, now time.Time) *Engine {
	var text bytes.Buffer
	require.NoError(t, saved.Write(&text))
	e := New(cfg)
	require.NoError(t, e.Restore(&text, now))
	return e
}

func throughput(x float64) (v nodesignal.Values) {
	v.Set(nodesignal.Throughput, x)
	return v
}

func groupOf(t require.TestingT, r *Report, group string) GroupReport {
	for _, g := range r.Groups {
		if g.Cluster == "c" && g.Group == group {
			return g
		}
	}
	require.Failf(t, "no such group", "%s in %v", group, r.Groups)
	return GroupReport{}
}

func stragglers(r *Report) (names []string) {
	for _, n := range r.Nodes {
		if n.Straggler {
			names = append(names, n.Node)
		}
	}
	return names
}

// play is a cluster whose groups have so many nodes each. A node does ten units of work
// a second, give or take half a percent, but for what the test changes.
type play struct {
	*fleet
	groups []string // a name each, "" is the one without labels
	nodes  int      // of each group
	noise  float64  // normal noise instead of the half percent
	// loss of a node by its number in the group; missing and idle ones.
	loss          func(group string, i int) float64
	missing, idle func(group string, i int) bool
	also          func(o *nodesignal.Observation, i int) // changes what a node pushes
	clone         float64                                // work of a second node by the name of the third

	draw     *rand.Rand
	k        int // ticks so far
	last     *Report
	counters Counters
}

func newPlay(t require.TestingT, groups []string, nodes int, change func(*Config)) *play {
	return &play{fleet: newFleet(t, change), groups: groups, nodes: nodes, draw: rand.New(rand.NewPCG(1, 2))}
}

func nodeName(group string, i int) string { return fmt.Sprintf("%s-%02d", group, i) }

// observation is one node's push.
func (p *play) observation(group string, i int) nodesignal.Observation {
	o := nodesignal.Observation{Cluster: "c", Node: nodeName(group, i), GroupLabels: []string{group}, HasState: true}
	if p.idle != nil && p.idle(group, i) {
		o.State = nodesignal.StateIdle
		return o
	}
	x := 10 + 0.05*float64((i+p.k)%3)
	if p.noise > 0 {
		x = 10 * (1 + p.noise*p.draw.NormFloat64())
	}
	if p.loss != nil {
		x *= 1 - p.loss(group, i)
	}
	o.Values = throughput(max(x, 0))
	if p.also != nil {
		p.also(&o, i)
	}
	return o
}

// ticks plays some and returns the events.
func (p *play) ticks(n int) (events []episode.Episode) {
	for range n {
		for _, g := range p.groups {
			for i := range p.nodes {
				if p.missing == nil || !p.missing(g, i) {
					p.observe(p.observation(g, i))
				}
				if i == 3 && p.clone > 0 {
					o := p.observation(g, i)
					o.Values = throughput(p.clone)
					p.observe(o)
				}
			}
		}
		events = append(events, p.tickOnce()...)
	}
	return events
}

func (p *play) tickOnce() []episode.Episode {
	p.last = p.tick()
	p.k++
	p.counters.add(&p.last.Counters)
	return copies(p.last.Events)
}

// copies of what may change at the next tick.
func copies(events []*episode.Episode) (all []episode.Episode) {
	for _, e := range events {
		all = append(all, *e)
	}
	return all
}

func (c *Counters) add(o *Counters) {
	c.GroupChanges += o.GroupChanges
	c.Contested += o.Contested
	c.Stuck += o.Stuck
	c.Flapping += o.Flapping
	c.Folded += o.Folded
}

func (p *play) node(name string) NodeReport {
	for _, n := range p.last.Nodes {
		if n.Node == name {
			return n
		}
	}
	require.Failf(p.t, "no such node", name)
	return NodeReport{}
}

func (p *play) group() GroupReport {
	return groupOf(p.t, p.last, cmp.Or(p.groups[0], "default"))
}

// What nodes do from a step of a story on. Each sets what it is about for all nodes.

// lose makes some nodes lose a share of their work; the others do as usual.
func lose(loss float64, nodes ...int) func(*play) {
	return func(p *play) {
		p.loss = func(_ string, i int) float64 { return map[bool]float64{true: loss}[slices.Contains(nodes, i)] }
	}
}

// loseEach makes each node lose its own share.
func loseEach(loss map[int]float64) func(*play) {
	return func(p *play) { p.loss = func(_ string, i int) float64 { return loss[i] } }
}

func missing(nodes ...int) func(*play) {
	return func(p *play) { p.missing = func(_ string, i int) bool { return slices.Contains(nodes, i) } }
}

func idle(nodes ...int) func(*play) {
	return func(p *play) { p.idle = func(_ string, i int) bool { return slices.Contains(nodes, i) } }
}

// clones lets two nodes push by the name of the third, the other doing x units.
func clones(x float64) func(*play) { return func(p *play) { p.clone = x } }

func both(a, b func(*play)) func(*play) { return func(p *play) { a(p); b(p) } }

// moves takes a node to another peer group, of which it never comes back.
func moves(node int, to string) func(*play) {
	return func(p *play) {
		o := p.observation("j", node)
		o.GroupLabels = []string{to}
		p.observe(o)
		missing(node)(p)
	}
}

// upTo lists the first nodes.
func upTo(n int) (nodes []int) {
	for i := range n {
		nodes = append(nodes, i)
	}
	return nodes
}

// step is what nodes do for so many ticks, and the events meanwhile.
type step struct {
	do    func(*play) // nil is as before
	ticks int
	want  []string
	check func(t *testing.T, p *play, events []episode.Episode)
}

// story is what happens to a group "j" of twenty nodes, unless it has others.
type story struct {
	groups []string
	nodes  int
	config func(*Config)
	steps  []step
}

func runStories(t *testing.T, stories map[string]story) {
	t.Helper()
	for name, s := range stories {
		t.Run(name, func(t *testing.T) {
			if s.nodes == 0 {
				s.nodes = 20
			}
			if s.groups == nil {
				s.groups = []string{"j"}
			}
			p := newPlay(t, s.groups, s.nodes, s.config)
			ids := map[string]string{} // of the open episodes
			for i, st := range s.steps {
				if st.do != nil {
					st.do(p)
				}
				events := p.ticks(st.ticks)
				require.Equal(t, st.want, brief(events), "step %d", i)
				for _, ev := range events {
					key := fmt.Sprint(ev.Subject, ev.Cluster, ev.Group, ev.Node)
					if was, open := ids[key]; open {
						assert.Equal(t, was, ev.ID, "one id per episode")
					}
					if ids[key] = ev.ID; ev.Phase == episode.PhaseEnd {
						delete(ids, key)
					}
				}
				if st.check != nil {
					st.check(t, p, events)
				}
			}
		})
	}
}

// brief is what of an event the tests compare.
func brief(events []episode.Episode) (all []string) {
	for _, e := range events {
		s := fmt.Sprint(e.Subject, " ", e.Phase, " ", e.Node)
		if e.Node == "" {
			s = fmt.Sprint(e.Subject, " ", e.Phase, " ", e.NodeCount)
		}
		if e.Cause != "" {
			s += " " + e.Cause
		}
		if e.Phase == episode.PhaseSeverity {
			s += " " + e.Severity.String()
		}
		all = append(all, s)
	}
	return all
}

// reasons counts the nodes of a group by why there is no verdict on them.
func reasons(g GroupReport) map[string]int {
	count := map[string]int{}
	for why, n := range g.Unjudged {
		if n > 0 {
			count[unjudged.Reason(why).String()] = n
		}
	}
	return count
}
