// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold/rule"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// Report is what one tick found. It is the engine's, to be read until the next Tick.
type Report struct {
	At     time.Time
	Groups []GroupReport
	// Nodes lists every node kept, by cluster, group and name.
	Nodes []NodeReport
	// Events are the episodes that began, changed or ended, by cluster and group, and Open
	// those that are open. They are valid until the next Tick or Observe.
	Events, Open []*episode.Episode
	// Counters are since the report before.
	Counters Counters
}

// GroupReport is one peer group, or a whole cluster when Group is empty.
type GroupReport struct {
	Cluster, Group string
	rule.Threshold
	Counts      [nodesignal.NumStates]int // indexed by State
	CoverageLow bool                      // too many of the known nodes are missing
	Stragglers  int
	Incident    bool // many of its nodes are slow
	// Signals is how the nodes are compared by each signal, of several levels by that of
	// most nodes; all unknown for a whole cluster.
	Signals [nodesignal.Count]SignalReport
	// Unjudged counts the nodes by why there is no verdict on them.
	Unjudged [unjudged.Count]int
	// Detectable is the smallest loss that is found within an hour now, a fraction of
	// the peers' level; 0 while none is compared.
	Detectable float64
}

// SignalReport is how nodes are compared by one signal.
type SignalReport struct {
	N int // nodes compared, none where too few report it
	// Median is in the signal's unit, Scale the spread of a tick as a fraction.
	Median, Scale float64
	// Threshold is the value below which a node is flagged within a minute, but for its baseline.
	Threshold float64
	// Fall is how far the median is below its usual level, a fraction: a phase of the work.
	// The usual level is known after a minute.
	Fall      float64
	FallKnown bool
}

// NodeName identifies the node of a report.
type NodeName struct {
	Cluster, Group, Node string
	GroupLabels          []string // values of the peer-group attributes
}

// NodeReport is the verdict on one node. The name is apart, since it stays from
// tick to tick: what a tick writes fits into one cache line.
type NodeReport struct {
	*NodeName
	State     nodesignal.State
	Straggler bool
	// Unjudged is why there is no verdict on it, UnjudgedBefore at the tick before. Until
	// is when it ends, in unix milliseconds, if that is known.
	Unjudged, UnjudgedBefore unjudged.Reason
	Until                    int64
	// Seen is when its last report came.
	Seen time.Time
	// Signal is the one in which it is worst, and Gap its loss in it, a fraction
	// of the peers' level. Suspicion is its smoothed deviation by the limit, in [0,2].
	Signal         nodesignal.Signal
	Suspicion, Gap float64
	// Since is when it became slow, the Unix epoch where it was from the first.
	Since time.Time
	// Ranks is what is known of its ranks, see RankVerdict.
	Ranks *RankVerdict
}

// Counters count observations that were doubted, and onsets that were not reported.
type Counters struct {
	GroupChanges int64 // moves of a node to another peer group
	Contested    int64 // names
	Stuck        int64 // nodes not accused since their throughput never changes
	Flapping     int64 // episodes that were held open
	Folded       int64 // onsets in a group's or cluster's event
}

// fill writes the next row of the report's nodes, its name where it is another.
func (e *Engine) fill(g *group, i int) {
	r, m := &e.report, &g.members[i]
	if e.row == len(r.Nodes) {
		r.Nodes = append(r.Nodes, NodeReport{})
	}
	row := &r.Nodes[e.row]
	e.row++
	if e.relabel {
		row.NodeName = g.nodes[i].as
	}
	row.UnjudgedBefore = m.why
	m.why, row.Until = e.unjudged(g, i)
	switch g.unjudged[m.why]++; m.why {
	case unjudged.Calibrating:
		g.nodes[i].warming += e.dt
	case unjudged.NoSignal:
	default:
		g.nodes[i].warming = 0
	}
	row.Unjudged, row.State, row.Seen = m.why, m.state, time.Unix(0, m.seen).UTC()
	row.Ranks = &g.nodes[i].ranks
	row.Signal, row.Suspicion, row.Gap = m.signal, float64(m.suspicion), float64(m.gap)
	if row.Straggler, row.Since = m.flags&flagSlow != 0, (time.Time{}); row.Straggler {
		row.Since = time.UnixMilli(e.since(g, i)).UTC()
	}
}

// unjudged says why there is no verdict on a member, and until when, see NodeReport.
func (e *Engine) unjudged(g *group, i int) (why unjudged.Reason, until int64) {
	m := &g.members[i]
	switch {
	case m.state == nodesignal.StateMissing:
		return unjudged.Missing, 0
	case m.flags&flagContested != 0 && g.nodes[i].cloned:
		return unjudged.Contested, 0
	case g.nodes[i].ranks.Judged:
		return g.nodes[i].ranks.Why, 0
	case m.state == nodesignal.StateIdle:
		return unjudged.Idle, 0
	case m.known&e.deciding == 0 && (m.reported == nodesignal.StateActive || g.nodes[i].warming > lateAge):
		return unjudged.NoSignal, 0
	case m.state == nodesignal.StateCalibrating:
		return unjudged.Calibrating, 0
	case m.flags&flagContested != 0:
		return unjudged.Contested, 0
	case m.flags&flagSlow == 0 && m.flags&flagNoise != 0:
		return unjudged.Noise, 0
	case m.flags&(flagJudged|flagSlow) != 0:
		return unjudged.Judged, 0
	case m.flags&flagLockstep != 0:
		return unjudged.Lockstep, 0
	case g.split.unstable(), m.level == noLevel && len(g.levels) > 1 && g.age > settled && !m.known.Has(g.split.Signal):
		return unjudged.Levels, 0
	case m.flags&flagFewPeers != 0:
		return unjudged.FewPeers, 0
	}
	if m.fresh&e.deciding == 0 {
		return m.why, 0 // no report since the tick before
	}
	for s, tracks := range g.tracks {
		if tracks == nil || !(m.fresh & e.deciding).Has(nodesignal.Signal(s)) || g.nodes[i].warming > 2*settled {
			continue
		}
		if left := e.wait(g, &tracks[i]); left > 0 {
			return unjudged.Calibrating, e.at + int64(left*1000)
		}
	}
	return unjudged.NoSignal, 0
}

// since is when the loss of a member began, in unix milliseconds.
func (e *Engine) since(g *group, i int) int64 {
	since := e.at
	if w := &g.nodes[i].ranks; w.Slow {
		since = w.Since.UnixMilli()
	}
	for _, tracks := range g.tracks {
		if tracks != nil && tracks[i].Flagged {
			since = min(since, int64(max(tracks[i].LastZero[tracks[i].By], g.nodes[i].off))*1000)
		}
	}
	return max(since, g.nodes[i].episodes.SlowEnded.UnixMilli())
}

func (e *Engine) groupReport(to *GroupReport, cluster, name string, t *rule.Threshold, counts [nodesignal.NumStates]int, stragglers int) {
	known := 0
	for _, n := range counts {
		known += n
	}
	*to = GroupReport{
		Cluster: cluster, Group: name, Threshold: *t, Counts: counts, Stragglers: stragglers,
		CoverageLow: float64(known-counts[nodesignal.StateMissing]) < e.cfg.CoverageFraction*float64(known),
	}
}

// reportSignals adds how nodes are compared. Every level finds what is detectable.
func (e *Engine) reportSignals(g *group, r *GroupReport) {
	r.Incident, r.Unjudged = g.episodes.Incident(), g.unjudged
	if g.split.unstable() {
		return
	}
	for k := range g.levels {
		best := 1.0
		for s := range g.levels[k].Signals {
			l, spec := &g.levels[k].Signals[s], &e.cfg.Signals[s]
			if l.N == 0 {
				continue
			}
			if !e.pop.alike || !l.lockstep(spec.MinGap) {
				best = min(best, spec.Loss(l.detectable()))
			}
			if to := &r.Signals[s]; l.N > to.N {
				*to = SignalReport{
					N: l.N, Median: spec.Value(l.Centre), Scale: spec.Loss(l.S),
					Threshold: spec.Value(l.Centre - l.Limit[0]),
				}
				if to.FallKnown = l.Part.Known; to.FallKnown {
					to.Fall = spec.Loss(l.Part.Usual - l.Centre)
				}
			}
		}
		if best < 1 {
			r.Detectable = max(r.Detectable, best)
		}
	}
}
