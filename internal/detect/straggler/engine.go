// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/peergroup"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// Engine compares the nodes of clusters with their peers, for one goroutine at a time.
type Engine struct {
	cfg      Config
	pop      *population
	deciding nodesignal.Set
	clusters map[string]*cluster
	nodes    int
	room     *fairshare.Ledger[string] // by cluster: a node takes one slot, a group groupSlots

	ticked   time.Time
	report   Report
	counters Counters
	row      int  // the next of report.Nodes
	relabel  bool // the names in the rows are not those of the tick before
	tracker  episode.Tracker
	scratch
}

// New returns an engine; cfg must be valid.
func New(cfg Config) *Engine {
	pop := &populationOfNodes
	if cfg.ranks {
		pop = &populationOfRanks
	}
	return &Engine{
		cfg: cfg, pop: pop, deciding: nodesignal.Deciding(&cfg.Signals), clusters: make(map[string]*cluster), relabel: true,
		tracker: episode.Tracker{MaxOnsets: cfg.MaxOnsets}, room: fairshare.NewSlots[string](cfg.MaxNodes, fairshare.Half),
	}
}

// groupSlots are what a peer group takes of Config.MaxNodes. It needs no more than the memory
// of so many nodes.
const groupSlots = 2

// Observe takes one push's report of a node. On an error it changes nothing.
func (e *Engine) Observe(o *nodesignal.Observation, now time.Time) error {
	if err := o.Validate(); err != nil {
		return err
	}
	n, err := e.node(o, now)
	if err != nil {
		return err
	}
	g, m := n.group, &n.group.members[n.slot]
	m.seen = now.UnixNano()
	if o.HasScore {
		e.take(g, n.slot, nodesignal.Score, o.Score)
	} else if o.NoScore {
		m.void(nodesignal.Score)
	}
	for s := range nodesignal.Score {
		switch {
		case o.Values.Known[s]:
			e.take(g, n.slot, s, o.Values.V[s])
		case o.Gone[s] && m.known.Has(s):
			m.void(s)
			g.tracks[s][n.slot].forget(e.at)
		}
	}
	if o.Contested {
		m.flags |= flagDiffers
		n.cloned = true
	}
	if o.Heartbeat {
		m.fresh |= m.known
	}
	if o.HasState {
		m.reported, n.reportsState = o.State, true
	} else if o.HasScore && !n.reportsState {
		m.reported = nodesignal.StateActive
	}
	return nil
}

func (m *member) void(s nodesignal.Signal) {
	m.known &^= nodesignal.SetOf(s)
	m.fresh &^= nodesignal.SetOf(s)
}

// take keeps a value and notes when it contradicts one of the same tick.
func (e *Engine) take(g *group, slot int, s nodesignal.Signal, x float64) {
	m, t, spec := &g.members[slot], g.track(s, slot), &e.cfg.Signals[s]
	again, gap := m.received.Has(s), spec.MinGap
	if spec.Relative {
		gap *= max(x, t.X)
	}
	if again && math.Abs(x-t.X) > gap {
		m.flags |= flagDiffers
	}
	if t.X != x {
		t.Same = 0
	} else if !m.fresh.Has(s) {
		t.Same = max(t.Same, t.Same+1)
	}
	t.X, t.Y = x, spec.Level(x)
	m.known |= nodesignal.SetOf(s)
	m.fresh |= nodesignal.SetOf(s)
	m.received |= nodesignal.SetOf(s)
}

// node finds or adds the node of an observation, or moves it to its new peer group.
func (e *Engine) node(o *nodesignal.Observation, now time.Time) (*node, error) {
	if n := e.kept(o.Cluster, o.Node); n != nil {
		labels, changed := n.labelMemory.Merge(n.group.labels, o.GroupLabels, now, e.cfg.TTL)
		if !changed {
			return n, nil
		}
		switch need := e.groupNeeds(o.Cluster, labels); {
		case n.group.live == 1:
			e.room.Hold(o.Cluster, need) // its group's come back
		case !e.room.TakeAll(o.Cluster, need):
			return nil, fairshare.ErrFull
		}
		// Its comparison with the former peers does not hold here.
		e.counters.GroupChanges++
		was, slot := n.group, n.slot
		e.leave(n, episode.CauseMoved, now)
		n.reportsState = false
		e.join(was.cluster, n, labels)
		for s, tracks := range was.tracks { // but if it was behind there and is here, that goes on
			if tracks != nil {
				t := n.group.track(nodesignal.Signal(s), n.slot)
				if t.forget(e.at); tracks[slot].Sum != t.Sum {
					t.LastZero = tracks[slot].LastZero
				}
			}
		}
		return n, nil
	}
	if !e.room.TakeAll(o.Cluster, 1+e.groupNeeds(o.Cluster, o.GroupLabels)) {
		return nil, fairshare.ErrFull
	}
	c := e.clusters[o.Cluster]
	if c == nil {
		c = &cluster{name: strings.Clone(o.Cluster), nodes: make(map[string]*node), groups: make(map[string]*group)}
		e.clusters[c.name] = c
	}
	n := &node{name: strings.Clone(o.Node), since: now}
	n.labelMemory.Merge(nil, o.GroupLabels, now, e.cfg.TTL)
	c.nodes[n.name] = n
	e.nodes++
	e.join(c, n, o.GroupLabels)
	return n, nil
}

// groupNeeds is how many slots a new node takes for its group.
func (e *Engine) groupNeeds(cluster string, labels []string) int {
	if c := e.clusters[cluster]; c != nil && c.groups[peergroup.Key(labels)] != nil {
		return 0
	}
	return groupSlots
}

func (e *Engine) join(c *cluster, n *node, labels []string) {
	key := peergroup.Key(labels)
	g := c.groups[key]
	if g == nil {
		g = e.newGroup(c, key, labels)
		c.groups[key] = g
	}
	g.add(n)
	n.as = &NodeName{Cluster: c.name, Group: g.name, Node: n.name, GroupLabels: g.labels}
	e.relabel = true
}

// leave takes a node out of its group, and deletes an empty group.
func (e *Engine) leave(n *node, cause string, now time.Time) {
	g := n.group
	e.tracker.Begin(now)
	e.tracker.Calm(&n.episodes, n.slot, float64(g.members[n.slot].gap), cause)
	e.tracker.Returned(&n.episodes, cause)
	g.nodes[n.slot] = nil
	g.dirty, e.relabel = true, true
	if g.live--; g.live == 0 {
		e.tracker.EndIncident(&g.episodes, episode.CauseIdle)
		delete(g.cluster.groups, g.name)
		e.room.Give(g.cluster.name, groupSlots)
	}
}

// forget takes a node out of everything.
func (e *Engine) forget(n *node, now time.Time) {
	e.leave(n, episode.CauseForgotten, now)
	c := n.group.cluster
	e.room.Give(c.name, 1)
	delete(c.nodes, n.name)
	if e.nodes--; len(c.nodes) == 0 {
		delete(e.clusters, c.name)
	}
}

func (e *Engine) kept(cluster, node string) *node {
	if c := e.clusters[cluster]; c != nil {
		return c.nodes[node]
	}
	return nil
}

// Has reports whether a node is kept.
func (e *Engine) Has(cluster, node string) bool { return e.kept(cluster, node) != nil }

// Standing is how a node stood at the last tick: in its group, the active nodes there, and
// why there is no verdict on it. It reports false for a node that is not kept.
func (e *Engine) Standing(cluster, node string) (group string, active int, why unjudged.Reason, known bool) {
	n := e.kept(cluster, node)
	if n == nil {
		return "", 0, unjudged.Judged, false
	}
	return n.group.name, n.group.counts[nodesignal.StateActive], n.group.members[n.slot].why, true
}

// Nodes returns the number of nodes kept, missing ones included.
func (e *Engine) Nodes() int { return e.nodes }
