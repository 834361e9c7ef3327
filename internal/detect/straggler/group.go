// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/peergroup"
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold/rule"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

type cluster struct {
	name         string
	nodes        map[string]*node
	groups       map[string]*group
	order        []*group // by name: a tick must be deterministic
	wide         rule.Threshold
	wideCounts   [nodesignal.NumStates]int
	missing      []*node
	missingTicks int
}

// node is what is kept of a node outside the arrays that a tick walks.
type node struct {
	name         string
	since        time.Time // it is kept
	as           *NodeName // in its group, for reports
	group        *group
	slot         int
	labelMemory  peergroup.Memory // of group.peers
	reportsState bool             // it has reported a state
	cloned       bool             // several machines have its name, while it is contested
	ranks        RankVerdict      // the verdict of this tick by its ranks
	off          uint32           // when it last was idle or away, unix seconds
	warming      float64          // seconds of warm-up since it last was compared or had no work
	episodes     episode.Node
}

// group keeps its nodes in arrays: a tick reads them from one end to the other, which is
// what a hundred thousand nodes in milliseconds take.
type group struct {
	name    string
	labels  []string
	cluster *cluster
	signals *[nodesignal.Count]nodesignal.Spec
	// nodes, members and each signal's tracks are parallel, by name from the first tick
	// after a change on; nil is a node that left since.
	nodes   []*node
	members []member
	tracks  [nodesignal.Count][]track // nil until a node reports the signal
	live    int
	dirty   bool
	age     float64 // seconds since its first tick
	levels  []level // by their bounds, at least one
	split   split

	rule     rule.Threshold
	counts   [nodesignal.NumStates]int
	slow     int // stragglers
	unjudged [unjudged.Count]int
	episodes episode.Group
}

// member is what a tick needs of a node besides its signals.
type member struct {
	seen            int64          // unix nanoseconds
	known, fresh    nodesignal.Set // reported, and reported or confirmed since the last tick
	received        nodesignal.Set // reported since the last tick
	reported, state nodesignal.State
	flags           memberFlags
	level           uint8
	signal          nodesignal.Signal // in which it is worst
	contest         uint8             // ticks with contradicting values, then those without
	why             unjudged.Reason   // at the last tick
	// suspicion is the greatest of its signals, gap the loss in signal, weight gap/min_gap.
	suspicion, gap, weight float32
}

type memberFlags uint16

const (
	flagDiffers memberFlags = 1 << iota
	flagContested
	flagSlow // the verdict
	flagMissing
	flagFewPeers
	flagEpisode  // the node has an episode to be looked after
	flagJudged   // some signal of it was compared
	flagLockstep // so was one by which all wait for the slowest
	flagNoise    // it is behind in one, and its peers differ by as much
)

// Compare is for the events of the group's episodes.
func (g *group) Compare(slot int, s nodesignal.Signal) (value, median float64, known bool) {
	m, w := &g.members[slot], &g.nodes[slot].ranks
	switch {
	case w.judgesBy(s):
		return w.Value, w.Median, w.Judged && w.Median > 0
	case m.state != nodesignal.StateActive || !m.known.Has(s) || m.level == noLevel:
		return 0, 0, false
	}
	return g.tracks[s][slot].X, g.signals[s].Value(g.levels[m.level].Signals[s].Centre), true
}

// Rank is the rank of a member among those that are behind, 1 for the one furthest behind.
func (g *group) Rank(slot int) int {
	rank := 1
	for i := range g.members {
		if g.members[i].weight > g.members[slot].weight {
			rank++
		}
	}
	return rank
}

func (e *Engine) newGroup(c *cluster, key string, labels []string) *group {
	g := &group{name: key, cluster: c, signals: &e.cfg.Signals, levels: []level{{Low: math.Inf(-1), High: math.Inf(1)}}}
	for _, p := range labels {
		g.labels = append(g.labels, strings.Clone(p))
	}
	g.split.On = len(labels) == 0 || slices.Contains(labels, "")
	g.episodes = episode.Group{Cluster: c.name, Name: key, Labels: g.labels, Comparer: g}
	return g
}

func (g *group) add(n *node) {
	n.group, n.slot = g, len(g.nodes)
	g.nodes = append(g.nodes, n)
	g.members = append(g.members, member{reported: nodesignal.StateCalibrating, state: nodesignal.StateCalibrating, level: noLevel, why: unjudged.Calibrating})
	for s := range g.tracks {
		if g.tracks[s] != nil {
			g.tracks[s] = append(g.tracks[s], track{})
		}
	}
	g.live++
	g.dirty = true
}

func (g *group) track(s nodesignal.Signal, slot int) *track {
	if g.tracks[s] == nil {
		g.tracks[s] = make([]track, len(g.nodes))
	}
	return &g.tracks[s][slot]
}

// settle puts the arrays in order after nodes came or went.
func (g *group) settle() {
	if !g.dirty {
		return
	}
	g.dirty = false
	var order []int
	for i, n := range g.nodes {
		if n != nil {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(g.nodes[a].name, g.nodes[b].name) })
	g.nodes, g.members = pick(g.nodes, order), pick(g.members, order)
	for s := range g.tracks {
		g.tracks[s] = pick(g.tracks[s], order)
	}
	for i, n := range g.nodes {
		n.slot = i
	}
}

func pick[T any](from []T, order []int) []T {
	if from == nil {
		return nil
	}
	to := make([]T, len(order), len(order)+len(order)/8)
	for i, at := range order {
		to[i] = from[at]
	}
	return to
}

// pause is for a member that does not work. Only one that is away keeps its baseline.
func (g *group) pause(i int, away bool) {
	for _, tracks := range g.tracks {
		switch {
		case tracks == nil || !tracks[i].Met:
		case away:
			tracks[i].rest()
		default:
			t := &tracks[i]
			*t = track{X: t.X, Y: t.Y, Age: t.Age, Same: t.Same, Fell: t.Fell, Sum: t.Sum, LastZero: t.LastZero}
			if g.members[i].state != nodesignal.StateCalibrating {
				t.Sum = [windows]uint16{}
			}
		}
	}
	if !away {
		g.members[i].level = noLevel
	}
}
