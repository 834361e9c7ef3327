// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/peergroup"
)

// Engine compares the nodes of many clusters with their peers. It is not safe
// for concurrent use.
type Engine struct {
	cfg           Config
	deciding      signalSet
	clusters      map[string]*cluster
	nodes, groups int

	ticked   time.Time
	hearing  int64 // since when ticks came in time, unix nanoseconds
	report   Report
	counters Counters
	row      int     // the next of report.Nodes
	relabel  bool    // the names in the rows are not those of the tick before
	events   []Event // since the last tick's report
	scratch
}

// New returns an engine; cfg must be valid.
func New(cfg Config) *Engine {
	return &Engine{cfg: cfg, deciding: cfg.deciding(), clusters: make(map[string]*cluster), relabel: true}
}

// Observe takes what one push said about one node, or returns one of the
// package's errors and changes nothing.
func (e *Engine) Observe(o *Observation, now time.Time) error {
	if err := o.validate(); err != nil {
		return err
	}
	n, err := e.node(o, now)
	if err != nil {
		return err
	}
	g, m := n.group, &n.group.members[n.slot]
	m.seen = now.UnixNano()
	g.cluster.seen = m.seen
	if o.HasScore {
		e.take(g, n.slot, nodesignal.Score, o.Score)
	} else if o.NoScore {
		m.void(nodesignal.Score)
	}
	for s := range nodesignal.Score {
		switch {
		case o.Values.Known[s]:
			e.take(g, n.slot, s, o.Values.V[s])
		case o.Gone[s] && m.known.has(s):
			m.void(s)
			g.tracks[s][n.slot] = track{}
		}
	}
	n.blame(o)
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
	m.known &^= bit(s)
	m.fresh &^= bit(s)
}

// blame keeps whom of the node a push names.
func (n *node) blame(o *Observation) {
	switch {
	case o.HasCulprit && n.culprit != o.Culprit:
		n.culprit = o.Culprit
		n.culprit.GPU = strings.Clone(o.Culprit.GPU)
	case !o.HasCulprit && n.culprit == o.NoCulprit:
		n.culprit = nodesignal.Subject{}
	}
}

// take keeps a value and notes when it contradicts one of the same tick.
func (e *Engine) take(g *group, slot int, s nodesignal.Signal, x float64) {
	if g.tracks[s] == nil {
		g.tracks[s] = make([]track, len(g.nodes))
	}
	m, t, spec := &g.members[slot], &g.tracks[s][slot], &e.cfg.Signals[s]
	again, gap := m.fresh.has(s), spec.MinGap
	if spec.Relative {
		gap *= max(x, t.x)
	}
	if again && math.Abs(x-t.x) > gap {
		m.flags |= flagDiffers
	}
	if t.x != x {
		t.same = 0
	} else if !again {
		t.same = max(t.same, t.same+1)
	}
	t.x, t.y = x, levelOf(x, spec)
	m.known |= bit(s)
	m.fresh |= bit(s)
}

// node finds or adds the node of an observation and moves it when its peer
// group has changed.
func (e *Engine) node(o *Observation, now time.Time) (*node, error) {
	c := e.clusters[o.Cluster]
	if c == nil {
		if len(e.clusters) >= e.cfg.MaxClusters && !e.reclaim(nil, now) {
			return nil, ErrTooManyClusters
		}
		c = &cluster{name: o.Cluster, since: now.UnixNano(), nodes: make(map[string]*node), groups: make(map[string]*group)}
	} else if n := c.nodes[o.Node]; n != nil {
		peers, changed := n.peers.Merge(n.group.peers, o.Peers, now, e.cfg.TTL)
		if !changed {
			return n, nil
		}
		if n.group.live > 1 {
			if err := e.room(c, peers); err != nil {
				return nil, err
			}
		}
		// Its comparison with the peers before says nothing here.
		e.counters.GroupChanges++
		e.leave(n, CauseMoved, now)
		n.told = false
		e.join(c, n, peers)
		return n, nil
	}
	if e.nodes >= e.cfg.MaxNodes && !e.reclaim(c, now) {
		return nil, ErrTooManyNodes
	}
	if len(c.nodes) >= fairshare.Limit(fairshare.Half, e.cfg.MaxNodes, e.nodes-len(c.nodes)) {
		return nil, ErrClusterNodes
	}
	if e.groups >= e.cfg.MaxGroups {
		e.reclaim(c, now)
	}
	if err := e.room(c, o.Peers); err != nil {
		return nil, err
	}
	if len(c.nodes) == 0 {
		c.name = strings.Clone(o.Cluster)
		e.clusters[c.name] = c
	}
	n := &node{name: strings.Clone(o.Node)}
	n.peers.Merge(nil, o.Peers, now, e.cfg.TTL)
	c.nodes[n.name] = n
	e.nodes++
	e.join(c, n, o.Peers)
	return n, nil
}

// reclaim makes room and reports whether it could. It forgets a cluster that was silent
// for the TTL, but never own. Among several the one with the shortest life goes: a
// made-up name was heard of once, and must not cost an established cluster its place in
// an outage.
func (e *Engine) reclaim(own *cluster, now time.Time) bool {
	var victim *cluster
	for _, c := range e.clusters {
		// Nobody listened while no tick came: that time is no silence.
		silent := now.UnixNano() - max(c.seen, e.hearing)
		if c == own || silent <= int64(e.cfg.TTL) {
			continue
		}
		if victim == nil || c.seen-c.since < victim.seen-victim.since || c.seen-c.since == victim.seen-victim.since && c.name < victim.name {
			victim = c
		}
	}
	if victim == nil {
		return false
	}
	for _, n := range byName(victim.nodes) {
		e.forget(n, now)
	}
	e.counters.ReclaimedClusters++
	return true
}

// room reports whether a cluster may have the group of these peers.
func (e *Engine) room(c *cluster, peers []string) error {
	switch {
	case c.groups[peergroup.Key(peers)] != nil:
		return nil
	case e.groups >= e.cfg.MaxGroups:
		return ErrTooManyGroups
	case len(c.groups) >= fairshare.Limit(fairshare.Half, e.cfg.MaxGroups, e.groups-len(c.groups)):
		return ErrClusterGroups
	}
	return nil
}

func (e *Engine) join(c *cluster, n *node, peers []string) {
	key := peergroup.Key(peers)
	g := c.groups[key]
	if g == nil {
		g = newGroup(c, key, peers)
		c.groups[key] = g
		e.groups++
	}
	g.add(n)
	n.as = &NodeName{Cluster: c.name, Group: g.name, Node: n.name, Peers: g.peers}
	e.relabel = true
}

// leave takes a node out of its group, whose end that may be.
func (e *Engine) leave(n *node, cause string, now time.Time) {
	e.endSlow(n, cause, now)
	e.endSilence(n, cause, now)
	g := n.group
	g.nodes[n.slot] = nil
	g.dirty, e.relabel = true, true
	if g.live--; g.live == 0 {
		e.endIncident(g, CauseIdle, e.ticked)
		delete(g.cluster.groups, g.name)
		e.groups--
	}
}

// forget takes a node out of everything.
func (e *Engine) forget(n *node, now time.Time) {
	e.leave(n, CauseForgotten, now)
	c := n.group.cluster
	n.gone = true
	delete(c.nodes, n.name)
	if e.nodes--; len(c.nodes) == 0 {
		delete(e.clusters, c.name)
	}
}

// Has reports whether a node is kept.
func (e *Engine) Has(cluster, node string) bool { return e.kept(cluster, node) != nil }

// Wants reports whether a node, whose heartbeats say that it has nothing new, never said
// anything that it could be compared by: whoever forwards only its changes takes for
// known here what is not. Call Asked once it was asked: it may have nothing to say.
func (e *Engine) Wants(cluster, node string) bool {
	n := e.kept(cluster, node)
	return n != nil && !n.asked && !n.told && n.group.members[n.slot].known == 0
}

// Asked notes that the node was asked for its state.
func (e *Engine) Asked(cluster, node string) {
	if n := e.kept(cluster, node); n != nil {
		n.asked = true
	}
}

func (e *Engine) kept(cluster, node string) *node {
	if c := e.clusters[cluster]; c != nil {
		return c.nodes[node]
	}
	return nil
}

// Nodes returns the number of nodes kept, missing ones included.
func (e *Engine) Nodes() int { return e.nodes }
