// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodesignal"
)

// Engine compares the nodes of many clusters with their peers. It is not safe
// for concurrent use.
type Engine struct {
	cfg      Config
	clusters map[string]*cluster
	nodes    int
	groups   int

	report      Report
	names       []string
	scores      []float64
	throughputs []float64
}

type cluster struct {
	name   string
	nodes  map[string]*node
	groups map[string]*group
	// order lists the groups by name: maps have none and a tick must be deterministic.
	order []*group
	// wide is the rule over all active nodes, for clients that know no groups.
	wide       rule
	wideCounts [numStates]int
}

type group struct {
	name    string
	peers   []string
	cluster *cluster
	// members are ordered by name from the first tick after a join on.
	members  []*node
	unsorted bool
	rule     rule
	counts   [numStates]int
}

type node struct {
	name  string
	group *group
	// grouped is when a report last named the group.
	grouped time.Time
	seen    time.Time
	fresh   bool // observed since the last tick

	// reported is what the node says of itself, missing that it has said nothing
	// for too long. What it said is kept: behind a processor that forwards only
	// changes, the heartbeat of a node that is back confirms its old score.
	reported State
	told     bool // the node has told its state itself
	missing  bool
	score    float64
	hasScore bool
	values   nodesignal.Values
	verdict  Verdict
	// asked is true once the node was asked for its state.
	asked bool
}

func (n *node) state() State {
	switch {
	case n.missing:
		return StateMissing
	case n.reported == StateActive && !n.hasScore:
		// There is nothing to compare it by.
		return StateCalibrating
	}
	return n.reported
}

// New returns an engine; cfg must be valid.
func New(cfg Config) *Engine {
	return &Engine{cfg: cfg, clusters: make(map[string]*cluster)}
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
	n.seen = now
	n.fresh = n.fresh || o.HasScore || o.Heartbeat
	switch {
	case o.HasScore:
		n.score, n.hasScore = o.Score, true
	case o.NoScore:
		n.hasScore = false
	}
	if o.HasState {
		n.reported, n.told = o.State, true
	} else if o.HasScore && !n.told {
		n.reported = StateActive
	}
	for s := range nodesignal.Score {
		switch {
		case o.Values.Known[s]:
			n.values.Set(s, o.Values.V[s])
		case o.Gone[s]:
			n.values.V[s], n.values.Known[s] = 0, false
		}
	}
	return nil
}

// node finds or adds the node of an observation and moves it when its peer
// group has changed.
func (e *Engine) node(o *Observation, now time.Time) (*node, error) {
	c := e.clusters[o.Cluster]
	if c == nil {
		if len(e.clusters) >= e.cfg.MaxClusters {
			return nil, ErrTooManyClusters
		}
		if e.nodes >= e.cfg.MaxNodes {
			return nil, ErrTooManyNodes
		}
	} else if n := c.nodes[o.Node]; n != nil {
		switch {
		case slices.Equal(n.group.peers, o.Peers):
			n.grouped = now
		case SaysNothingNew(n.group.peers, o.Peers) && now.Sub(n.grouped) <= e.cfg.TTL:
			// Another report of the node knows more of its job.
		default:
			n.grouped = now
			return n, e.move(c, n, o.Peers)
		}
		return n, nil
	}
	if e.nodes >= e.cfg.MaxNodes {
		return nil, ErrTooManyNodes
	}
	if e.groups >= e.cfg.MaxGroups && (c == nil || c.groups[GroupKey(o.Peers)] == nil) {
		return nil, ErrTooManyGroups
	}
	if c == nil {
		c = &cluster{
			name:   strings.Clone(o.Cluster),
			nodes:  make(map[string]*node),
			groups: make(map[string]*group),
		}
		e.clusters[c.name] = c
	}
	n := &node{name: strings.Clone(o.Node), reported: StateCalibrating, grouped: now}
	c.nodes[n.name] = n
	e.nodes++
	e.join(c, n, o.Peers)
	return n, nil
}

// move puts a node among other peers. What it was compared with before says
// nothing about it now.
func (e *Engine) move(c *cluster, n *node, peers []string) error {
	if e.groups >= e.cfg.MaxGroups && c.groups[GroupKey(peers)] == nil && len(n.group.members) > 1 {
		return ErrTooManyGroups
	}
	e.leave(n)
	n.verdict = Verdict{}
	n.hasScore, n.values, n.reported, n.told = false, nodesignal.Values{}, StateCalibrating, false
	e.join(c, n, peers)
	return nil
}

func (e *Engine) join(c *cluster, n *node, peers []string) {
	key := GroupKey(peers)
	g := c.groups[key]
	if g == nil {
		g = &group{name: key, cluster: c, peers: make([]string, len(peers))}
		for i, p := range peers {
			g.peers[i] = strings.Clone(p)
		}
		c.groups[key] = g
		at, _ := slices.BinarySearchFunc(c.order, key, func(g *group, key string) int { return cmp.Compare(g.name, key) })
		c.order = slices.Insert(c.order, at, g)
		e.groups++
	}
	g.members, g.unsorted = append(g.members, n), true
	n.group = g
}

func (e *Engine) leave(n *node) {
	n.group.members = slices.DeleteFunc(n.group.members, func(m *node) bool { return m == n })
	e.dropIfEmpty(n.group)
}

func (e *Engine) dropIfEmpty(g *group) {
	if len(g.members) > 0 {
		return
	}
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
	return n != nil && !n.asked && !n.hasScore && !n.told && n.values.Known == [nodesignal.Count]bool{}
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
