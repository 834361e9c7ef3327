// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodesignal"
)

// incidentState is one event for many slow nodes of a group.
type incidentState struct {
	on       bool
	id       string
	cause    string
	signal   nodesignal.Signal
	severity Severity
	since    int64 // unix milliseconds
	began    time.Time
	calm     int
}

// many is how many slow nodes are more than single ones.
func (e *Engine) many(active int) int {
	return max(e.cfg.Incident.MinNodes, int(e.cfg.Incident.MinShare*float64(active)))
}

// incident begins or ends the incident of a group.
func (e *Engine) incident(g *group, now time.Time) {
	in, cfg := &g.incident, &e.cfg.Incident
	down, at, low := e.lowest(g)
	tooMany := g.slow > e.many(g.counts[StateActive])
	if !in.on {
		switch {
		case down != nil && down.low >= cfg.Ticks:
			*in = incidentState{cause: CauseLevel, signal: at, since: down.lowSince}
		case tooMany:
			*in = incidentState{cause: CauseStragglers, signal: e.commonSignal(g), since: e.firstSlow(g)}
		default:
			return
		}
		in.on, in.began = true, now
		e.raise(g, now)
		return
	}
	switch {
	case g.counts[StateActive] == 0:
		e.endIncident(g, CauseIdle, now)
	case in.cause == CauseLevel && now.Sub(in.began) >= cfg.RelearnAfter:
		e.endIncident(g, CauseRelearned, now)
		for _, s := range g.signals {
			if s != nil {
				for k := range s.cohorts {
					s.cohorts[k].relearn()
				}
			}
		}
		for i := range g.members {
			g.forget(i)
		}
	case low || tooMany:
		in.calm = 0
	default:
		if in.calm++; in.calm >= cfg.Ticks {
			e.endIncident(g, CauseRecovered, now)
		}
	}
}

// lowest returns what has been below its usual level for longest, and whether
// anything that the incident is about still is. While one is on, or begins, the
// nodes are compared with those at the usual level.
func (e *Engine) lowest(g *group) (down *estimator, at nodesignal.Signal, low bool) {
	for s, sig := range g.signals {
		if sig == nil || !e.deciding.has(nodesignal.Signal(s)) { //nolint:gosec // an index
			continue
		}
		for k := range len(g.split.edges) + 1 {
			t := &sig.cohorts[k]
			if !t.known {
				continue
			}
			t.upper = t.low >= e.cfg.Incident.Ticks
			low = low || t.low > 0
			if t.low > 0 && (down == nil || t.low > down.low) {
				down, at = t, nodesignal.Signal(s) //nolint:gosec // an index
			}
		}
	}
	return down, at, low
}

// commonSignal is that of the first straggler by name.
func (e *Engine) commonSignal(g *group) nodesignal.Signal {
	for i := range g.members {
		if g.members[i].flags&flagSlow != 0 {
			return g.members[i].signal
		}
	}
	return nodesignal.Score
}

// firstSlow is when the first of the stragglers began to be one.
func (e *Engine) firstSlow(g *group) int64 {
	first := e.at
	for i := range g.members {
		if g.members[i].flags&flagSlow != 0 {
			first = min(first, e.since(g, i))
		}
	}
	return first
}

// raise tells of an incident and who is in it.
func (e *Engine) raise(g *group, now time.Time) {
	in := &g.incident
	in.id = episodeID(SubjectGroup, g.cluster.name, g.name, "", in.since)
	ev := e.event(EventOnset, g, now)
	ev.Cause = in.cause
	gaps := 0.0
	for i := range g.members {
		gap, ok := e.affected(g, i)
		if !ok {
			continue
		}
		ev.NodeCount++
		gaps += gap
		if len(ev.Nodes) < e.cfg.Episodes.MaxListed {
			ev.Nodes = append(ev.Nodes, g.nodes[i].name)
		}
	}
	ev.Gap = gaps / max(1, float64(ev.NodeCount))
	if sig := g.signals[in.signal]; sig != nil {
		ev.Median = sig.cohorts[0].params.Centre
		if in.cause == CauseLevel {
			ev.Value, ev.Median = ev.Median, sig.cohorts[0].usual
		}
	}
	in.severity = SeverityOf(ev.Gap)
	ev.Severity, ev.Confidence = in.severity, 1
	e.events = append(e.events, ev)
}

// affected reports whether a node is slow, or has fallen with its group from
// the level that was usual, and by how much.
func (e *Engine) affected(g *group, i int) (gap float64, ok bool) {
	m := &g.members[i]
	if m.state != StateActive {
		return 0, false
	}
	if g.incident.cause == CauseLevel {
		s := g.incident.signal
		sig, spec := g.signals[s], &e.cfg.Signals[s]
		if m.known.has(s) && m.cohort < maxCohorts {
			if t := &sig.cohorts[m.cohort]; t.upper && t.params.Level != 0 {
				if gap = (t.usual - sig.x[i]) / t.params.Level; gap >= t.cutoff(spec) {
					return gap, true
				}
			}
		}
	}
	return float64(m.gap), m.flags&flagSlow != 0
}

// event begins an event about a group's incident.
func (e *Engine) event(kind EventKind, g *group, now time.Time) Event {
	in := &g.incident
	return Event{
		Kind: kind, Subject: SubjectGroup, ID: in.id, Cluster: g.cluster.name, Group: g.name, Peers: g.peers,
		Signal: in.signal, Severity: in.severity, At: now, Since: time.UnixMilli(in.since).UTC(), Active: g.counts[StateActive],
	}
}

func (e *Engine) endIncident(g *group, cause string, now time.Time) {
	if !g.incident.on {
		return
	}
	ev := e.event(EventEnd, g, now)
	ev.Cause = cause
	e.events = append(e.events, ev)
	g.incident = incidentState{}
}
