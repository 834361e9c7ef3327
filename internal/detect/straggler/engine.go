// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"
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
	places   fairshare.Places

	ticked   time.Time
	report   Report
	counters Counters
	row      int  // the next of report.Nodes
	relabel  bool // the names in the rows are not those of the tick before
	book     episode.Book
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
		book:   episode.Book{MaxOnsets: cfg.MaxOnsets},
		places: fairshare.Places{MaxClusters: cfg.MaxClusters, MaxGroups: cfg.MaxGroups, MaxNodes: cfg.MaxNodes, TTL: cfg.TTL},
	}
}

// Observe takes what one push said about one node, or changes nothing and says why.
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
	e.places.Hear(o.Cluster, now)
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
		m.reported, n.told = o.State, true
	} else if o.HasScore && !n.told {
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
	again, gap := m.said.Has(s), spec.MinGap
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
	m.said |= nodesignal.SetOf(s)
}

// node finds or adds the node of an observation, or moves it to its new peer group.
func (e *Engine) node(o *nodesignal.Observation, now time.Time) (*node, error) {
	if n := e.kept(o.Cluster, o.Node); n != nil {
		peers, changed := n.peers.Merge(n.group.peers, o.Peers, now, e.cfg.TTL)
		if !changed {
			return n, nil
		}
		if err := e.places.Move(o.Cluster, n.group.name, peergroup.Key(peers)); err != nil {
			return nil, err
		}
		// Its comparison with the peers before says nothing here.
		e.counters.GroupChanges++
		was, slot := n.group, n.slot
		e.leave(n, episode.CauseMoved, now)
		n.told = false
		e.join(was.cluster, n, peers)
		for s, tracks := range was.tracks { // but if it was behind there and is here, that goes on
			if tracks != nil {
				t := n.group.track(nodesignal.Signal(s), n.slot)
				if t.forget(e.at); tracks[slot].Sum != t.Sum {
					t.Quiet = tracks[slot].Quiet
				}
			}
		}
		return n, nil
	}
	err := e.places.Enter(o.Cluster, peergroup.Key(o.Peers), now)
	if err != nil && !errors.Is(err, fairshare.ErrClusterNodes) && !errors.Is(err, fairshare.ErrClusterGroups) {
		if silent, ok := e.places.Silent(o.Cluster, now); ok {
			for _, n := range slices.SortedFunc(maps.Values(e.clusters[silent].nodes), func(a, b *node) int { return cmp.Compare(a.name, b.name) }) {
				e.forget(n, now)
			}
			e.counters.ReclaimedClusters++
			err = e.places.Enter(o.Cluster, peergroup.Key(o.Peers), now)
		}
	}
	if err != nil {
		return nil, err
	}
	c := e.clusters[o.Cluster]
	if c == nil {
		c = &cluster{name: strings.Clone(o.Cluster), nodes: make(map[string]*node), groups: make(map[string]*group)}
		e.clusters[c.name] = c
	}
	n := &node{name: strings.Clone(o.Node)}
	n.peers.Merge(nil, o.Peers, now, e.cfg.TTL)
	c.nodes[n.name] = n
	e.nodes++
	e.join(c, n, o.Peers)
	return n, nil
}

func (e *Engine) join(c *cluster, n *node, peers []string) {
	key := peergroup.Key(peers)
	g := c.groups[key]
	if g == nil {
		g = e.newGroup(c, key, peers)
		c.groups[key] = g
	}
	g.add(n)
	n.as = &NodeName{Cluster: c.name, Group: g.name, Node: n.name, Peers: g.peers}
	e.relabel = true
}

// leave takes a node out of its group, whose end that may be.
func (e *Engine) leave(n *node, cause string, now time.Time) {
	g := n.group
	e.book.Begin(now)
	e.book.Calm(&n.episodes, n.slot, float64(g.members[n.slot].gap), cause)
	e.book.Heard(&n.episodes, cause)
	g.nodes[n.slot] = nil
	g.dirty, e.relabel = true, true
	if g.live--; g.live == 0 {
		e.book.EndIncident(&g.told, episode.CauseIdle)
		delete(g.cluster.groups, g.name)
	}
}

// forget takes a node out of everything.
func (e *Engine) forget(n *node, now time.Time) {
	e.leave(n, episode.CauseForgotten, now)
	c := n.group.cluster
	e.places.Leave(c.name, n.group.name)
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
