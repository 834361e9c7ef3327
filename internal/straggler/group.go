// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"cmp"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/peergroup"
	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
)

type cluster struct {
	name string
	// since and seen are when a node was first and last heard of, in unix
	// nanoseconds.
	since, seen int64
	nodes       map[string]*node
	groups      map[string]*group
	order       []*group // by name
	// wide is the rule over all active nodes, for clients that know no groups.
	wide       rule
	wideCounts [numStates]int
	// silent are nodes gone missing that no event has told of yet, for
	// silentTicks ticks.
	silent      []*node
	silentTicks int
}

// node is what is kept of a node outside the arrays that a tick walks.
type node struct {
	name    string
	as      *NodeName // in its group, for reports
	group   *group
	slot    int
	peers   peergroup.Memory    // of group.peers
	told    bool                // the node has told its state itself
	asked   bool                // the node was asked for its state
	gone    bool                // forgotten
	culprit *nodesignal.Subject // nil while none of its ranks stands out
	slow    *episode
	silence *episode
	// onsets and silences are when the newest episodes were told, in unix
	// milliseconds.
	onsets, silences []int64
}

// group keeps its nodes in arrays: a tick reads them from one end to the
// other, which is what a hundred thousand nodes in milliseconds take.
type group struct {
	name    string
	peers   []string
	cluster *cluster
	// nodes, members and what the signals keep are parallel, by name from the
	// first tick after a change on; nil is a node that left since.
	nodes   []*node
	members []member
	signals [nodesignal.Count]*signal // nil until somebody reports it
	plain   []Verdict                 // only under DecisionThreshold
	live    int
	dirty   bool
	// since is the first tick, in unix milliseconds; settled is long after it.
	since   int64
	settled bool
	// phase is when within reviewLater its cohorts are reviewed.
	phase time.Duration

	rule     rule
	counts   [numStates]int
	slow     int // stragglers
	unjudged [unjudged.Count]int
	scored   bool // some active node reports nothing but a score
	split    splitState
	incident incidentState
}

// member is what a tick needs of a node besides its signals.
type member struct {
	seen     int64 // unix nanoseconds
	known    signalSet
	fresh    signalSet // told since the last tick
	reported State
	state    State
	flags    memberFlags
	cohort   uint8
	was      uint8 // the cohort before
	toward   int8  // the cohort at whose level its values are, -1 for its own or none
	run      uint8 // ticks there
	warm     uint8 // ticks since it became active
	late     uint8 // 1 if the group was settled before it came
	signal   nodesignal.Signal
	// suspicion is the greatest of its signals, gap the loss in that signal. Among
	// several full sums the signal with the greatest weight, gap/min_gap, counts.
	suspicion, gap, weight float32
	// contest counts ticks with contradicting values, then those without.
	contest uint8
	why     unjudged.Reason // at the last tick
}

type memberFlags uint16

const (
	flagDiffers memberFlags = 1 << iota
	flagContested
	flagSlow    // the verdict
	flagWasSlow // the verdict of the tick before
	flagMissing
	flagUnjudged // too few peers to be compared with
	flagEpisode  // the node has an episode to be looked after
	flagListed   // the group's incident has told of it
	flagJudged   // some signal of it was compared
	flagLockstep // so was one by which all wait for the slowest
)

// signal is what a group keeps of one signal.
type signal struct {
	x, y    []float64   // the values and their levels, see Params
	tracks  []track     // parallel to them
	cohorts []estimator // at least one
}

// staleTTL is how many parts a TTL has for track.stale.
const staleTTL = 250

// track is what is kept of one node and signal besides the value, in one place:
// each array more is one more place that a tick waits for.
type track struct {
	Tracker
	short float32 // moving average of the value, zero for none
	same  uint16  // ticks with the very same value; throughput only
	stale uint8   // time since the node told it, in parts of the TTL, see staleTTL
	given given
}

// reset makes it the track of an unknown node.
func (t *track) reset() {
	t.Reset()
	t.short = 0
}

// follow takes a value into the short mean, with a weight.
func (t *track) follow(x, weight float64) {
	if t.short == 0 {
		t.short = float32(x)
	}
	t.short += float32(weight) * (float32(x) - t.short)
}

func newGroup(c *cluster, key string, peers []string, d Decision) *group {
	g := &group{name: key, cluster: c, peers: make([]string, len(peers))}
	h := fnv.New32a()
	_, _ = h.Write([]byte(key)) // never fails
	g.phase = time.Duration(h.Sum32()) % (reviewLater / time.Second) * time.Second
	if d == DecisionThreshold {
		g.plain = []Verdict{}
	}
	g.split.on = len(peers) == 0
	for i, p := range peers {
		g.peers[i] = strings.Clone(p)
		g.split.on = g.split.on || p == ""
	}
	return g
}

// signal returns what is kept of s and begins to keep it.
func (g *group) signal(s nodesignal.Signal) *signal {
	if g.signals[s] == nil {
		sig := &signal{cohorts: make([]estimator, len(g.split.edges)+1)}
		for range g.nodes {
			sig.add()
		}
		g.signals[s] = sig
	}
	return g.signals[s]
}

func (s *signal) add() {
	s.x, s.y = append(s.x, 0), append(s.y, 0)
	s.tracks = append(s.tracks, track{})
}

// count counts the ticks in which a value has stood still. A node may tell it several
// times in a tick.
func (s *signal) count(slot int, x float64, again bool) {
	switch same := &s.tracks[slot].same; {
	case s.x[slot] != x:
		*same = 0
	case !again && *same < math.MaxUint16:
		*same++
	}
}

func (g *group) add(n *node) {
	n.group, n.slot = g, len(g.nodes)
	g.nodes = append(g.nodes, n)
	m := member{reported: StateCalibrating, state: StateCalibrating, cohort: g.split.newcomer(), toward: -1}
	if g.settled {
		m.late = 1
	}
	g.members = append(g.members, m)
	for _, s := range g.signals {
		if s != nil {
			s.add()
		}
	}
	if g.plain != nil {
		g.plain = append(g.plain, Verdict{})
	}
	g.split.add()
	g.live++
	g.dirty = true
}

func (g *group) remove(n *node) {
	g.nodes[n.slot] = nil
	g.live--
	g.dirty = true
}

// settle puts the arrays in order after nodes came or went.
func (g *group) settle() {
	if !g.dirty {
		return
	}
	g.dirty = false
	order := make([]int, 0, g.live)
	for i, n := range g.nodes {
		if n != nil {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(g.nodes[a].name, g.nodes[b].name) })
	g.nodes = pick(g.nodes, order)
	g.members = pick(g.members, order)
	for _, s := range g.signals {
		if s != nil {
			s.x, s.y, s.tracks = pick(s.x, order), pick(s.y, order), pick(s.tracks, order)
		}
	}
	if g.plain != nil {
		g.plain = pick(g.plain, order)
	}
	g.split.pick(order)
	for i, n := range g.nodes {
		n.slot = i
	}
}

func pick[T any](from []T, order []int) []T {
	to := make([]T, len(order), len(order)+len(order)/8)
	for i, at := range order {
		to[i] = from[at]
	}
	return to
}

// pause is for a member that fell silent: it keeps what it always differs by.
func (g *group) pause(i int) {
	for _, s := range g.signals {
		if s != nil {
			s.tracks[i].Rest()
		}
	}
	g.restart(i)
}

// forget makes a member a newcomer.
func (g *group) forget(i int) {
	g.forgetTrackers(i)
	g.restart(i)
}

// restart has a member warm up anew.
func (g *group) restart(i int) {
	g.members[i].warm, g.members[i].cohort, g.members[i].toward = 0, g.split.newcomer(), -1
	if g.plain != nil {
		g.plain[i].Reset()
	}
	g.split.forget(i)
}

func (g *group) forgetTrackers(i int) {
	for _, s := range g.signals {
		if s != nil {
			s.tracks[i].reset()
		}
	}
}
