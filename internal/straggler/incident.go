// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/topology"
)

// incidentState is one event for many slow nodes of a group.
type incidentState struct {
	on       bool
	id       string
	signal   nodesignal.Signal
	severity Severity
	gap      float64
	since    int64 // unix milliseconds
	began    time.Time
	ticks    int
	told     time.Time // when something was last told of it
	joined   bool      // a node is in it that no event has named
	differs  int       // ticks in a row with another severity
	calm     time.Duration
	shared   topology.Finding
}

// many is how many slow nodes are more than single ones.
func (e *Engine) many(active int) int {
	return max(e.cfg.Incident.MinNodes, int(e.cfg.Incident.MinShare*float64(active)))
}

// incident begins, updates or ends the incident of a group.
func (e *Engine) incident(g *group, now time.Time) {
	in, cfg := &g.incident, &e.cfg.Incident
	if !in.on && g.slow == 0 {
		return
	}
	in.ticks++
	tooMany := g.pressing() > e.many(g.counts[StateActive])
	switch {
	case !in.on:
		if tooMany {
			*in = incidentState{on: true, began: now, since: e.firstSlow(g)}
			in.id = episodeID(SubjectGroup, g.cluster.name, g.name, "", e.at)
			in.severity, _ = e.gravity(g, 1, false)
			e.tellIncident(EventOnset, g, now)
		}
	case g.counts[StateActive] == 0:
		e.endIncident(g, CauseIdle, now)
	case now.Sub(in.began) >= cfg.RelearnAfter:
		e.accept(g)
		e.endIncident(g, CauseRelearned, now)
	case tooMany:
		in.calm = 0
		e.update(g, now)
	default:
		if in.calm += e.counted(); in.calm >= cfg.EndAfter {
			e.endIncident(g, CauseRecovered, now)
		}
	}
}

// pressed reports whether a member is one of many: slow, not about to be well,
// and not so for longer than what is relearnt.
func (g *group) pressed(i int) bool {
	m := &g.members[i]
	if m.flags&flagSlow == 0 || m.suspicion == 0 {
		return false
	}
	ep := g.nodes[i].slow
	return ep == nil || !ep.accepted
}

func (g *group) pressing() (n int) {
	for i := range g.members {
		if g.pressed(i) {
			n++
		}
	}
	return n
}

// gravity is the greatest severity that more than single nodes have, with their gaps
// times ease: of all nodes, or of the nodes that still fall behind. It is false when
// these are too few.
func (e *Engine) gravity(g *group, ease float64, behind bool) (Severity, bool) {
	var n [SeverityCritical + 1]int
	for i := range g.members {
		if m := &g.members[i]; g.pressed(i) && (!behind || g.behind(i, m.signal)) {
			n[SeverityOf(ease*float64(m.gap))]++
		}
	}
	many := e.many(g.counts[StateActive])
	sum := 0
	for s := SeverityCritical; ; s-- {
		if sum += n[s]; sum > many || s == SeverityMinor {
			return s, sum > many
		}
	}
}

// update tells when an incident has become better or worse, and now and then of
// the nodes that joined it. As with single nodes, to be better takes a fifth less.
func (e *Engine) update(g *group, now time.Time) {
	in := &g.incident
	s, ok := e.gravity(g, 1, true)
	if s < in.severity {
		s, ok = e.gravity(g, 1/0.8, true)
	}
	if !ok || s == in.severity {
		in.differs = 0
	} else if in.differs++; in.differs >= e.cfg.Episodes.SeverityTicks {
		in.severity, in.differs = s, 0
		e.tellIncident(EventSeverity, g, now)
		return
	}
	if len(in.shared.Labels) == 0 && in.ticks%seekTicks == 0 {
		if f := e.sharedBy(g); len(f.Labels) > 0 {
			e.tellIncident(EventUpdate, g, now)
			return
		}
	}
	if in.joined && now.Sub(in.told) >= e.cfg.Incident.UpdateAfter {
		e.tellIncident(EventUpdate, g, now)
	}
}

// seekTicks is how often an incident without a label is searched for one: a minute of
// 10 s ticks.
const seekTicks = 6

// joinAfter is how long it takes to tell a node that is worse than its incident
// from one whose gap is not settled yet.
const joinAfter = 2 * time.Minute

// inside follows a slow node during its group's incident. One that became slow,
// or slower, after the others and lies clearly beyond them gets its own onset.
func (e *Engine) inside(g *group, i int) {
	n, m, in := g.nodes[i], &g.members[i], &g.incident
	ep, gap := n.slow, float64(m.gap)
	if !ep.counted && time.Duration(in.ticks)*e.counted() <= e.cfg.Incident.EndAfter {
		ep.joins = joinAfter // what it has at the end of that is its part in the incident
	}
	e.countOnce(ep, &e.counters.Folded)
	if ep.joins > 0 {
		ep.joins = max(ep.joins-e.counted(), 0)
		ep.severity = SeverityOf(gap)
		return
	}
	if gap > 1.5*in.gap && SeverityOf(0.8*gap) > max(in.severity, ep.severity) && g.behind(i, m.signal) {
		if ep.differs++; time.Duration(ep.differs)*e.counted() >= joinAfter && !e.flaps(n) {
			e.onsets = append(e.onsets, n)
		}
		return
	}
	ep.differs = 0
	in.joined = in.joined || m.flags&flagListed == 0
}

// accept takes nodes that were slow for a whole incident as slow by design: they
// stay stragglers, but are news only when they get worse, or slow again.
func (e *Engine) accept(g *group) {
	for i := range g.members {
		if ep := g.nodes[i].slow; ep != nil && !ep.told && ep.fold == nil {
			ep.accepted, ep.severity, ep.differs = true, SeverityOf(float64(g.members[i].gap)), 0
			e.change(g.nodes[i])
		}
	}
	for _, s := range g.signals {
		if s != nil {
			for k := range s.cohorts {
				s.cohorts[k].relearn()
			}
		}
	}
}

// firstSlow is when the first of those that make an incident began to be slow.
func (e *Engine) firstSlow(g *group) int64 {
	first := e.at
	for i := range g.members {
		if g.pressed(i) {
			first = min(first, e.since(g, i))
		}
	}
	return first
}

// tellIncident tells of an incident and who is in it. The numbers are those of
// the signal and the cohort that most of them are slow in.
func (e *Engine) tellIncident(kind EventKind, g *group, now time.Time) {
	in := &g.incident
	var count [nodesignal.Count][maxCohorts + 1]int
	signal, cohort := nodesignal.Score, uint8(0)
	for i := range g.members {
		if m := &g.members[i]; g.pressed(i) {
			n := &count[m.signal][m.cohort]
			if *n++; *n > count[signal][cohort] {
				signal, cohort = m.signal, m.cohort
			}
		}
	}
	in.signal, in.told, in.joined = signal, now, false
	if f := e.sharedBy(g); len(f.Labels) > 0 {
		in.shared = f
	}
	ev := e.event(kind, g, now)
	ev.Cause = CauseStragglers
	gaps, values, alike := 0.0, 0.0, 0.0
	sig := g.signals[signal]
	for i := range g.members {
		m := &g.members[i]
		if !g.pressed(i) {
			continue
		}
		m.flags |= flagListed
		ev.NodeCount++
		if m.signal == signal && m.cohort == cohort && sig != nil {
			gaps, values, alike = gaps+float64(m.gap), values+sig.x[i], alike+1
		}
		if len(ev.Nodes) < e.cfg.Episodes.MaxListed {
			ev.Nodes = append(ev.Nodes, g.nodes[i].name)
		}
	}
	ev.Gap, ev.Value = gaps/max(1, alike), values/max(1, alike)
	if sig != nil && cohort < maxCohorts {
		ev.Median = sig.cohorts[cohort].params.Centre
	}
	in.gap = ev.Gap
	e.events = append(e.events, ev)
}

// event begins an event about a group's incident.
func (e *Engine) event(kind EventKind, g *group, now time.Time) Event {
	in := &g.incident
	return Event{
		Kind: kind, Subject: SubjectGroup, ID: in.id, Cluster: g.cluster.name, Group: g.name, Peers: g.peers, Confidence: 1,
		Signal: in.signal, Severity: in.severity, At: now, Since: time.UnixMilli(in.since).UTC(), Active: g.counts[StateActive], Shared: in.shared,
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
	for i := range g.members {
		g.members[i].flags &^= flagListed
	}
}
