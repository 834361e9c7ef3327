// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/peergroup"
)

// Engine compares the nodes of many clusters with their peers. It is not safe
// for concurrent use.
type Engine struct {
	cfg      Config
	deciding signalSet
	raw      signalSet // those of deciding that are not the score
	clusters map[string]*cluster
	// order lists the clusters by name: maps have none and a tick must be deterministic.
	order  []*cluster
	nodes  int
	groups int

	ticked   time.Time
	hearing  int64 // since when ticks came in time, unix nanoseconds
	report   Report
	counters Counters
	// row is the next of report.Nodes; relabel that the names in it and in all
	// after it are not those of the tick before.
	row     int
	relabel bool
	// events are those since the last tick's report.
	events []Event
	scratch
}

// signalSet is a set of signals, a bit each.
type signalSet uint8

func (s signalSet) has(x nodesignal.Signal) bool { return s>>x&1 != 0 }

func bit(x nodesignal.Signal) signalSet { return 1 << x }

// deciding are the signals that nodes are compared by.
func (c *Config) deciding() (set signalSet) {
	for s := range nodesignal.Count {
		if c.Signals[s].Decides {
			set |= bit(s)
		}
	}
	return set
}

// New returns an engine; cfg must be valid.
func New(cfg Config) *Engine {
	e := &Engine{cfg: cfg, clusters: make(map[string]*cluster), relabel: true}
	e.deciding = cfg.deciding()
	e.raw = e.deciding &^ bit(nodesignal.Score)
	return e
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
		m.known &^= bit(nodesignal.Score)
		m.fresh &^= bit(nodesignal.Score)
	}
	for s := range nodesignal.Score {
		switch {
		case o.Values.Known[s]:
			e.take(g, n.slot, s, o.Values.V[s])
		case o.Gone[s] && m.known.has(s):
			m.known &^= bit(s)
			m.fresh &^= bit(s)
			g.signals[s].tracks[n.slot].reset()
		}
	}
	n.blame(o)
	if o.Heartbeat {
		m.fresh |= m.known
	}
	if o.HasState {
		m.reported, n.told = o.State, true
	} else if m.known != 0 && o.HasScore && !n.told {
		m.reported = StateActive
	}
	return nil
}

// blame keeps whom of the node a push names.
func (n *node) blame(o *Observation) {
	switch none := (nodesignal.Subject{}); {
	case !o.HasCulprit:
		if n.culprit != nil && *n.culprit == o.NoCulprit {
			n.culprit = nil
		}
	case o.Culprit == none:
		n.culprit = nil
	case n.culprit == nil || *n.culprit != o.Culprit:
		of := o.Culprit
		of.GPU = strings.Clone(of.GPU)
		n.culprit = &of
	}
}

// take keeps a value and notes when it contradicts one of the same tick.
func (e *Engine) take(g *group, slot int, s nodesignal.Signal, x float64) {
	if x == 0 {
		x = 0 // not -0: its bits are not in order with the others'
	}
	m, sig := &g.members[slot], g.signal(s)
	if m.fresh.has(s) {
		gap := e.cfg.Signals[s].MinGap
		if e.cfg.Signals[s].Relative {
			gap *= max(x, sig.x[slot])
		}
		if x-sig.x[slot] > gap || sig.x[slot]-x > gap {
			m.flags |= flagDiffers
		}
	}
	if s == nodesignal.Throughput {
		sig.count(slot, x, m.fresh.has(s))
	}
	if sig.x[slot] != x || !m.known.has(s) {
		spec := &e.cfg.Signals[s]
		sig.x[slot], sig.y[slot] = x, levelOf(x, spec.Relative, spec.Direction == nodesignal.High)
	}
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
	} else if n := c.nodes[o.Node]; n != nil {
		if peers, changed := n.peers.Merge(n.group.peers, o.Peers, now, e.cfg.TTL); changed {
			return n, e.move(c, n, peers, now)
		}
		return n, nil
	}
	if e.nodes >= e.cfg.MaxNodes && !e.reclaim(c, now) {
		return nil, ErrTooManyNodes
	}
	if c != nil && len(c.nodes) >= fairshare.Limit(fairshare.Half, e.cfg.MaxNodes, e.nodes-len(c.nodes)) {
		return nil, ErrClusterNodes
	}
	if e.groups >= e.cfg.MaxGroups {
		e.reclaim(c, now)
	}
	if err := e.room(c, o.Peers); err != nil {
		return nil, err
	}
	if c == nil {
		c = e.addCluster(strings.Clone(o.Cluster), now)
	}
	n := &node{name: strings.Clone(o.Node)}
	n.peers.Merge(nil, o.Peers, now, e.cfg.TTL)
	c.nodes[n.name] = n
	e.nodes++
	e.join(c, n, o.Peers)
	return n, nil
}

// reclaim makes room for a new cluster and reports whether it could. It forgets
// a cluster that was silent for the TTL, but never own. Among several the cluster
// with the shortest life goes: a made-up name was heard of once. Such a name must
// not keep its place for the whole retention, nor cost an established cluster its
// place in an outage.
func (e *Engine) reclaim(own *cluster, now time.Time) bool {
	var victim *cluster
	for _, c := range e.order {
		// Nobody listened while no tick came: that time is no silence.
		silent := now.UnixNano() - max(c.seen, e.hearing)
		if c != own && silent > int64(e.cfg.TTL) && (victim == nil || c.seen-c.since < victim.seen-victim.since) {
			victim = c
		}
	}
	if victim == nil {
		return false
	}
	for _, g := range slices.Backward(victim.order) {
		for _, n := range slices.Clone(g.nodes) {
			if n != nil {
				e.forget(n, now)
			}
		}
	}
	delete(e.clusters, victim.name)
	e.order = slices.DeleteFunc(e.order, func(c *cluster) bool { return c == victim })
	e.counters.ReclaimedClusters++
	return true
}

// forget takes a node out of everything.
func (e *Engine) forget(n *node, now time.Time) {
	e.endSlow(n, CauseForgotten, now)
	e.endSilence(n, CauseForgotten, now)
	n.gone = true
	delete(n.group.cluster.nodes, n.name)
	e.nodes--
	e.leave(n)
}

// room reports whether a cluster, nil for a new one, may have the group of these
// peers.
func (e *Engine) room(c *cluster, peers []string) error {
	switch {
	case c != nil && c.groups[peergroup.Key(peers)] != nil:
		return nil
	case e.groups >= e.cfg.MaxGroups:
		return ErrTooManyGroups
	case c != nil && len(c.groups) >= fairshare.Limit(fairshare.Half, e.cfg.MaxGroups, e.groups-len(c.groups)):
		return ErrClusterGroups
	}
	return nil
}

func (e *Engine) addCluster(name string, now time.Time) *cluster {
	c := &cluster{name: name, since: now.UnixNano(), nodes: make(map[string]*node), groups: make(map[string]*group)}
	e.clusters[name] = c
	at, _ := slices.BinarySearchFunc(e.order, name, func(c *cluster, name string) int { return cmp.Compare(c.name, name) })
	e.order = slices.Insert(e.order, at, c)
	return c
}

// move puts a node among other peers. Its comparison with the peers before says
// nothing here.
func (e *Engine) move(c *cluster, n *node, peers []string, now time.Time) error {
	if n.group.live > 1 {
		if err := e.room(c, peers); err != nil {
			return err
		}
	}
	e.counters.GroupChanges++
	e.endSlow(n, CauseMoved, now)
	e.endSilence(n, CauseMoved, now)
	e.leave(n)
	n.told = false
	e.join(c, n, peers)
	return nil
}

func (e *Engine) join(c *cluster, n *node, peers []string) {
	key := peergroup.Key(peers)
	g := c.groups[key]
	if g == nil {
		g = newGroup(c, key, peers, e.cfg.Decision)
		c.groups[key] = g
		at, _ := slices.BinarySearchFunc(c.order, key, func(g *group, key string) int { return cmp.Compare(g.name, key) })
		c.order = slices.Insert(c.order, at, g)
		e.groups++
	}
	g.add(n)
	n.as = &NodeName{Cluster: c.name, Group: g.name, Node: n.name, Peers: g.peers}
	e.relabel = true
}

// leave takes a node out of its group, whose end that may be.
func (e *Engine) leave(n *node) {
	g := n.group
	g.remove(n)
	e.relabel = true
	if g.live > 0 {
		return
	}
	e.endIncident(g, CauseIdle, e.ticked)
	delete(g.cluster.groups, g.name)
	g.cluster.order = slices.DeleteFunc(g.cluster.order, func(o *group) bool { return o == g })
	e.groups--
}

// Has reports whether a node is kept.
func (e *Engine) Has(cluster, node string) bool {
	return e.kept(cluster, node) != nil
}

// Wants reports whether a node, whose heartbeats say that it has nothing new,
// never said anything that it could be compared by: whoever forwards only its
// changes takes for known here what is not. Call Asked once it was asked for.
func (e *Engine) Wants(clusterName, nodeName string) bool {
	n := e.kept(clusterName, nodeName)
	return n != nil && !n.asked && !n.told && n.group.members[n.slot].known == 0
}

// Asked notes that the node was asked for its state. It is wanted no more while
// it is kept, since it may have no score to say.
func (e *Engine) Asked(clusterName, nodeName string) {
	if n := e.kept(clusterName, nodeName); n != nil {
		n.asked = true
	}
}

func (e *Engine) kept(clusterName, nodeName string) *node {
	c := e.clusters[clusterName]
	if c == nil {
		return nil
	}
	return c.nodes[nodeName]
}

// Nodes returns the number of nodes kept, missing ones included.
func (e *Engine) Nodes() int { return e.nodes }
