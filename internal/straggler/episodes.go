// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/episode"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

const (
	// waitTicks is for how long an onset waits while so many nodes are about to fall that
	// it may be one of many.
	waitTicks = 6
	// settleTicks in a row must agree on another severity.
	settleTicks = 6
	// flapEpisodes of one node within flapWindow make it flapping: its episode stays open
	// until flapWindow has passed without it being slow.
	flapEpisodes, flapWindow = 3, time.Hour
	// More stragglers than manyNodes and than manyShare of the group are one incident. It
	// ends after calmTicks without, and tells of more nodes each updateAfter.
	manyNodes, manyShare, calmTicks, updateAfter = 2, 0.15, 18, 10 * time.Minute
	// maxListed bounds the nodes that an event lists.
	maxListed = 100
)

// spell is a time in which a node is slow or silent, or many are. Its Event is what was
// last known of it.
type spell struct {
	episode.Event
	told    bool    // its onset is out; only then it gets an end
	in      *spell  // the silence of many that tells of it
	live    int     // nodes still in it
	worst   float64 // confidence
	differs int     // ticks in a row with another severity
	waited  int     // ticks
	last    int64   // when the node was last slow, unix milliseconds
	held    bool    // flapping
	counted bool    // in a counter
	joined  bool    // a node is in it that no event has named
	updated time.Time
}

// begin begins an episode. Its id is the same at every gateway that sees the same; of one
// without a beginning only the tick tells it from another.
func (e *Engine) begin(s episode.Subject, c *cluster, group, node string, since int64) *spell {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d\x00%s\x00%s\x00%s\x00%d", s, c.name, group, node, cmp.Or(since, e.at)) // never fails
	return &spell{Event: episode.Event{
		Subject: s, ID: fmt.Sprintf("%016x", h.Sum64()), Cluster: c.name, Group: group, Node: node,
		Since: time.UnixMilli(since).UTC(), Confidence: 1, NodeCount: 1,
	}}
}

func (e *Engine) tell(ep *spell, kind episode.EventKind, cause string, now time.Time) {
	ev := ep.Event
	ev.Kind, ev.At, ev.Cause = kind, now, cmp.Or(cause, ev.Cause)
	ep.told, ep.differs = true, 0
	e.events = append(e.events, ev)
}

// settles reports whether another severity has been so for long enough.
func (ep *spell) settles(differs bool) bool {
	if ep.differs++; !differs {
		ep.differs = 0
	}
	return ep.differs >= settleTicks
}

// many is how many slow nodes are more than single ones.
func (g *group) many() int {
	return max(manyNodes, int(manyShare*float64(g.counts[nodesignal.StateActive])))
}

// track moves the episode of a member along. Rising nodes of its group are slow, or about
// to be.
func (e *Engine) track(g *group, i, rising int, now time.Time) {
	n, m := g.nodes[i], &g.members[i]
	if m.flags&flagSlow == 0 {
		cause := episode.CauseRecovered
		switch {
		case m.flags&flagContested != 0:
			cause = episode.CauseContested
		case m.state == nodesignal.StateMissing:
			cause = episode.CauseMissing
		case m.state != nodesignal.StateActive || m.flags&flagFewPeers != 0:
			cause = episode.CauseIdle
		}
		e.endSlow(n, cause, now)
		return
	}
	if n.slow == nil {
		n.slow = e.begin(episode.SubjectNode, g.cluster, g.name, n.name, e.since(g, i))
		n.slow.Peers = g.peers
		m.flags |= flagEpisode
	}
	ep, gap := n.slow, float64(m.gap)
	ep.last, ep.Signal, ep.Gap, ep.Confidence = e.at, m.signal, gap, 1-math.Exp(-float64(m.suspicion))
	ep.worst = max(ep.worst, ep.Confidence)
	if n.culprit != (nodesignal.Subject{}) {
		ep.Culprit = n.culprit
	}
	// To be better takes a fifth less than to be worse: a loss of about 10 % is no news
	// each minute. One that is about to be well does not become better first.
	severity := episode.SeverityOf(gap)
	if severity < ep.Severity {
		severity = min(episode.SeverityOf(gap/0.8), ep.Severity)
		if !g.behind(i) {
			severity = ep.Severity
		}
	}
	switch {
	case ep.told:
		if ep.settles(severity != ep.Severity) && e.changes < e.cfg.MaxOnsets { // else at the next tick
			e.changes++
			ep.Severity = severity
			e.compared(ep, g, i)
			e.tell(ep, episode.EventSeverity, "", now)
		}
	case m.suspicion < 1: // it was slow with others, or is about to be well
	case g.incident != nil:
		e.countOnce(ep, &e.counters.Folded)
		g.incident.joined = g.incident.joined || m.flags&flagListed == 0
		// One that lies clearly beyond the others gets its own onset.
		if ep.settles(episode.SeverityOf(0.8*gap) > g.incident.Severity && gap > 1.5*g.incident.Gap) && !e.flaps(n.onsets) {
			e.onsets = append(e.onsets, n)
		}
	case rising > g.many() && ep.waited < waitTicks:
		ep.waited++
	case e.flaps(n.onsets):
		e.countOnce(ep, &e.counters.Flapping)
	default:
		e.onsets = append(e.onsets, n)
	}
}

// behind reports whether a member was slow at its last value.
func (g *group) behind(i int) bool {
	if v := &g.nodes[i].plain; v.Straggler {
		return v.Suspect()
	}
	t := &g.tracks[g.members[i].signal][i]
	return t.beyond(t.r) > float64(t.loss)/2
}

func (e *Engine) countOnce(ep *spell, counter *int64) {
	if !ep.counted {
		ep.counted = true
		*counter++
	}
}

// flaps reports whether enough of a node's episodes were told lately.
func (e *Engine) flaps(told []int64) bool {
	return len(told) >= flapEpisodes && e.at-told[len(told)-flapEpisodes] < flapWindow.Milliseconds()
}

// lately adds this tick to the newest episodes.
func (e *Engine) lately(told []int64) []int64 {
	return append(told[max(0, len(told)+1-flapEpisodes):], e.at)
}

// compared says how a member compares with its peers now.
func (e *Engine) compared(ep *spell, g *group, i int) {
	m := &g.members[i]
	ep.Active, ep.Rank = g.counts[nodesignal.StateActive], 1
	for j := range g.members {
		if g.members[j].suspicion > m.suspicion {
			ep.Rank++
		}
	}
	if ep.Compared = m.state == nodesignal.StateActive && m.known.Has(ep.Signal) && m.level != noLevel; ep.Compared {
		ep.Value = g.tracks[ep.Signal][i].x
		ep.Median = e.cfg.Signals[ep.Signal].Value(g.levels[m.level].of(ep.Signal).centre)
	}
	if e.cfg.Decision == DecisionThreshold {
		ep.Compared, ep.Value, ep.Median = true, g.tracks[nodesignal.Score][i].x, g.rule.Median
	}
}

// endSlow ends a node's episode of slowness, unless the node flaps.
func (e *Engine) endSlow(n *node, cause string, now time.Time) {
	ep := n.slow
	if ep == nil {
		return
	}
	if cause != episode.CauseMoved && cause != episode.CauseForgotten {
		if ep.told && !ep.held && e.flaps(n.onsets) {
			ep.held = true
			e.counters.Flapping++
		}
		if ep.held && e.at-ep.last < flapWindow.Milliseconds() {
			return
		}
	}
	if ep.told {
		e.compared(ep, n.group, n.slot)
		ep.Confidence, ep.Gap, ep.Rank = ep.worst, float64(n.group.members[n.slot].gap), 0
		e.tell(ep, episode.EventEnd, cause, now)
	}
	n.slow = nil
	n.group.members[n.slot].flags &^= flagEpisode
}

// tellOnsets tells of the cluster's new episodes, the worst ones first. The rest waits for
// the next tick.
func (e *Engine) tellOnsets(now time.Time) {
	slices.SortStableFunc(e.onsets, func(a, b *node) int { return cmp.Compare(b.slow.Confidence, a.slow.Confidence) })
	for _, n := range e.onsets[:min(len(e.onsets), e.cfg.MaxOnsets)] {
		n.slow.Severity, n.onsets = episode.SeverityOf(n.slow.Gap), e.lately(n.onsets)
		e.compared(n.slow, n.group, n.slot)
		e.tell(n.slow, episode.EventOnset, "", now)
	}
	e.onsets = e.onsets[:0]
}

// silences tells of the nodes of a cluster that nothing is heard of. It waits for others:
// pushes of one outage end within one interval. Many at once are one event: their group's
// when all are of one, else the cluster's.
func (e *Engine) silences(c *cluster, now time.Time) {
	if len(c.silent) == 0 {
		return
	}
	if c.silentTicks++; c.silentTicks <= waitTicks/3 {
		return
	}
	silent := slices.DeleteFunc(c.silent, func(n *node) bool {
		return n.gone || n.silence != nil || n.group.members[n.slot].state != nodesignal.StateMissing
	})
	c.silent, c.silentTicks = nil, 0
	var f *spell // for many
	if len(silent) > manyNodes {
		first := silent[0].group.name
		if slices.ContainsFunc(silent, func(n *node) bool { return n.group.name != first }) {
			first = ""
		}
		slices.SortFunc(silent, func(a, b *node) int { return cmp.Compare(a.name, b.name) })
		f = e.begin(episode.SubjectMissing, c, first, silent[0].name, e.at)
		f.Severity, f.Node, f.NodeCount, f.live = episode.SeverityCritical, "", len(silent), len(silent)
	}
	for _, n := range silent {
		g := n.group
		ep := e.begin(episode.SubjectMissing, c, g.name, n.name, g.members[n.slot].seen/int64(time.Millisecond))
		ep.Peers, ep.Severity, ep.Active, ep.in, n.silence = g.peers, episode.SeverityMajor, g.counts[nodesignal.StateActive], f, ep
		switch {
		case f != nil:
			if ep.Since.Before(f.Since) {
				f.Since = ep.Since
			}
			f.list(n.name)
		case e.flaps(n.silences):
			e.counters.Flapping++
		default:
			n.silences = e.lately(n.silences)
			e.tell(ep, episode.EventOnset, "", now)
		}
	}
	if f != nil {
		e.tell(f, episode.EventOnset, "", now)
	}
}

// list adds a node to those of an episode of many.
func (ep *spell) list(name string) {
	if len(ep.Nodes) < maxListed {
		ep.Nodes = append(ep.Nodes, name)
	}
}

// endSilence ends a node's episode of silence.
func (e *Engine) endSilence(n *node, cause string, now time.Time) {
	ep := n.silence
	if ep == nil {
		return
	}
	if n.silence = nil; ep.told {
		e.tell(ep, episode.EventEnd, cause, now)
	}
	if f := ep.in; f != nil {
		if f.live--; f.live == 0 {
			e.tell(f, episode.EventEnd, cause, now)
		}
	}
}

// watch begins, updates or ends the incident of a group: one episode for many slow nodes.
func (e *Engine) watch(g *group, now time.Time) {
	in := g.incident
	if in == nil && g.slow == 0 {
		return
	}
	// Who is about to be well is none of many. sizes counts them by severity, with the
	// gaps as they are and with a fifth more, see track.
	var sizes, eased [episode.SeverityCritical + 1]int
	n, behind, since := 0, 0, e.at
	for i := range g.members {
		m := &g.members[i]
		if m.flags&flagSlow == 0 || m.suspicion == 0 {
			continue
		}
		n++
		since = min(since, e.since(g, i))
		sizes[episode.SeverityOf(float64(m.gap))]++
		eased[episode.SeverityOf(float64(m.gap)/0.8)]++
		if g.behind(i) {
			behind++
		}
	}
	gravity := func(sizes *[episode.SeverityCritical + 1]int) episode.Severity { // of more than single nodes
		switch sum := sizes[episode.SeverityCritical] + sizes[episode.SeverityMajor]; {
		case sizes[episode.SeverityCritical] > g.many():
			return episode.SeverityCritical
		case sum > g.many():
			return episode.SeverityMajor
		}
		return episode.SeverityMinor
	}
	switch {
	case in == nil && n > g.many():
		in = e.begin(episode.SubjectGroup, g.cluster, g.name, "", e.at)
		in.Since, in.Peers, in.Cause, g.incident = time.UnixMilli(since).UTC(), g.peers, episode.CauseStragglers, in
		in.Severity = gravity(&sizes)
		e.tellIncident(g, episode.EventOnset, now)
	case in == nil:
	case g.counts[nodesignal.StateActive] == 0:
		e.endIncident(g, episode.CauseIdle, now)
	case n <= g.many():
		if in.waited++; in.waited >= calmTicks {
			e.endIncident(g, episode.CauseRecovered, now)
		}
	default:
		in.waited = 0
		severity := gravity(&sizes)
		if severity < in.Severity {
			severity = min(gravity(&eased), in.Severity)
		}
		if in.settles(severity != in.Severity && behind > g.many()) {
			in.Severity = severity
			e.tellIncident(g, episode.EventSeverity, now)
		} else if in.joined && now.Sub(in.updated) >= updateAfter {
			e.tellIncident(g, episode.EventUpdate, now)
		}
	}
}

// tellIncident tells of an incident and who is in it. The numbers are those of the
// signal that most of them are slow in.
func (e *Engine) tellIncident(g *group, kind episode.EventKind, now time.Time) {
	in := g.incident
	var count [nodesignal.Count]int
	var gaps, values [nodesignal.Count]float64
	var level [nodesignal.Count]uint8
	in.Nodes, in.NodeCount, in.Active, in.Signal = nil, 0, g.counts[nodesignal.StateActive], nodesignal.Score
	for i := range g.members {
		m := &g.members[i]
		if m.flags&flagSlow == 0 || m.suspicion == 0 {
			continue
		}
		m.flags |= flagListed
		in.NodeCount++
		in.list(g.nodes[i].name)
		s := m.signal
		gaps[s], values[s], level[s] = gaps[s]+float64(m.gap), values[s]+g.tracks[s][i].x, m.level
		if count[s]++; count[s] > count[in.Signal] {
			in.Signal = s
		}
	}
	s := in.Signal
	in.Gap, in.Value = gaps[s]/float64(count[s]), values[s]/float64(count[s])
	in.Median = e.cfg.Signals[s].Value(g.levels[level[s]].of(s).centre)
	in.updated, in.joined = now, false
	e.tell(in, kind, "", now)
}

func (e *Engine) endIncident(g *group, cause string, now time.Time) {
	if g.incident == nil {
		return
	}
	e.tell(g.incident, episode.EventEnd, cause, now)
	g.incident = nil
	for i := range g.members {
		g.members[i].flags &^= flagListed
	}
}
