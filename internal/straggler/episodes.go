// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

const (
	// waitTicks is for how long an onset waits while so many are about to fall that it
	// may be one of many, and a silence for others that began with it.
	waitTicks = 6
	// settleTicks in a row must agree on another severity.
	settleTicks = 6
	// flapEpisodes of one node within flapWindow make it flapping: its episode stays open
	// until flapWindow has passed without it being slow.
	flapEpisodes, flapWindow = 3, time.Hour
	// More stragglers than manyNodes and than manyShare of the group are one incident.
	// It ends after calmTicks without, and tells of more nodes each updateAfter.
	manyNodes, manyShare, calmTicks, updateAfter = 2, 0.15, 18, 10 * time.Minute
	// maxListed bounds the nodes that an event lists.
	maxListed = 100
)

// episode is a time in which a node is slow, silent, or in which many are. A node has at
// most one of either.
type episode struct {
	Event
	told    bool     // its onset is out; only then it gets an end
	in      *episode // the one of many that tells of it
	live    int      // nodes that are in it
	worst   float64  // confidence
	differs int      // ticks in a row with another severity
	waited  int      // ticks
	last    int64    // when the node was last slow, unix milliseconds
	held    bool     // flapping: open until it has been calm for long
	counted bool     // in a counter
	joined  bool     // a node is in it that no event has named
	updated time.Time
}

// begin begins an episode; its id is the same at every gateway that sees the same.
func (e *Engine) begin(s Subject, c *cluster, group, node string, since int64, now time.Time) *episode {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d\x00%s\x00%s\x00%s\x00%d", s, c.name, group, node, cmp.Or(since, e.at)) // never fails
	return &episode{updated: now, Event: Event{
		Subject: s, ID: fmt.Sprintf("%016x", h.Sum64()), Cluster: c.name, Group: group, Node: node,
		Since: time.UnixMilli(since).UTC(), Confidence: 1, NodeCount: 1,
	}}
}

func (e *Engine) tell(ep *episode, kind EventKind, cause string, now time.Time) {
	ev := ep.Event
	ev.Kind, ev.At = kind, now
	ev.Cause = cmp.Or(cause, ev.Cause)
	e.events = append(e.events, ev)
}

// many is how many slow nodes are more than single ones.
func (g *group) many() int {
	return max(manyNodes, int(manyShare*float64(g.counts[nodesignal.StateActive])))
}

// track moves the episode of one member along. Rising nodes of its group are slow or
// about to be.
func (e *Engine) track(g *group, i, rising int, now time.Time) {
	n, m := g.nodes[i], &g.members[i]
	if m.flags&flagSlow == 0 {
		e.endSlow(n, e.calmCause(m), now)
		return
	}
	if n.slow == nil {
		n.slow = e.begin(SubjectNode, g.cluster, g.name, n.name, e.since(g, i), now)
		n.slow.Peers = g.peers
		m.flags |= flagEpisode
	}
	ep := n.slow
	ep.last = e.at
	if n.culprit != (nodesignal.Subject{}) {
		ep.Culprit = n.culprit
	}
	e.compared(ep, g, i)
	severity, worse := ep.severity(float64(m.gap), g.behind(i))
	switch {
	case ep.in != nil:
	case ep.told:
		// Above the bound it waits for the next tick.
		if ep.settles(severity != ep.Severity) && e.changes < e.cfg.MaxOnsets {
			e.changes++
			ep.Severity, ep.differs = severity, 0
			e.tell(ep, EventSeverity, "", now)
		}
	case m.suspicion < 1:
		// It was slow with others, or is about to be well: what is left of that is no
		// reason to name it alone.
	case g.incident != nil:
		// One that lies clearly beyond the others gets its own onset.
		e.countOnce(ep, &e.counters.Folded)
		g.incident.joined = g.incident.joined || m.flags&flagListed == 0
		if ep.settles(worse > g.incident.Severity && float64(m.gap) > 1.5*g.incident.Gap) && !e.flaps(n.onsets) {
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

// severity is that of a gap. To be better takes a fifth less than to be worse: a loss of
// about 10 % is not news each minute. One that is about to be well becomes no better
// first.
func (ep *episode) severity(gap float64, behind bool) (now, worse Severity) {
	if now = SeverityOf(gap); now < ep.Severity {
		if now = SeverityOf(gap / 0.8); !behind {
			now = ep.Severity
		}
	}
	return now, SeverityOf(0.8 * gap)
}

// settles reports whether something has been so for long enough.
func (ep *episode) settles(differs bool) bool {
	if !differs {
		ep.differs = 0
		return false
	}
	ep.differs++
	return ep.differs >= settleTicks
}

// behind reports whether a member was slow at its last value.
func (g *group) behind(i int) bool {
	m := &g.members[i]
	if v := &g.nodes[i].plain; v.Straggler {
		return v.Suspect()
	}
	t := &g.tracks[m.signal][i]
	return t.beyond(t.r) > float64(t.loss)/2
}

func (e *Engine) countOnce(ep *episode, counter *int64) {
	if !ep.counted {
		ep.counted = true
		*counter++
	}
}

// flaps reports whether enough of a node's episodes were told lately.
func (e *Engine) flaps(told []int64) bool {
	return len(told) >= flapEpisodes && e.at-told[len(told)-flapEpisodes] < flapWindow.Milliseconds()
}

// calmCause is why a member stopped being slow.
func (e *Engine) calmCause(m *member) string {
	switch {
	case m.flags&flagContested != 0:
		return CauseContested
	case m.state == nodesignal.StateMissing:
		return CauseMissing
	case m.state != nodesignal.StateActive || m.flags&flagFewPeers != 0:
		return CauseIdle
	}
	return CauseRecovered
}

// compared says how a member compares with its peers now.
func (e *Engine) compared(ep *episode, g *group, i int) {
	m := &g.members[i]
	ep.Signal, ep.Gap, ep.Active = m.signal, float64(m.gap), g.counts[nodesignal.StateActive]
	ep.Confidence = 1 - math.Exp(-float64(m.suspicion))
	ep.worst = max(ep.worst, ep.Confidence)
	ep.Rank = 1
	for j := range g.members {
		if g.members[j].suspicion > m.suspicion {
			ep.Rank++
		}
	}
	ep.Compared = true
	if ep.Value = g.tracks[m.signal][i].x; e.cfg.Decision == DecisionThreshold {
		ep.Median = g.rule.Median
	} else if m.level != noLevel {
		ep.Median = valueOf(g.levels[m.level].of(m.signal).centre, &e.cfg.Signals[m.signal])
	}
}

// endSlow ends a node's episode of slowness, unless the node flaps.
func (e *Engine) endSlow(n *node, cause string, now time.Time) {
	ep := n.slow
	if ep == nil {
		return
	}
	if cause != CauseMoved && cause != CauseForgotten {
		if ep.told && !ep.held && e.flaps(n.onsets) {
			ep.held = true
			e.counters.Flapping++
		}
		if ep.held && e.at-ep.last < flapWindow.Milliseconds() {
			return
		}
	}
	if ep.told {
		ep.Confidence, ep.Rank = ep.worst, 0
		if m := &n.group.members[n.slot]; m.state != nodesignal.StateActive || !m.known.has(ep.Signal) {
			ep.Compared = false
		} else if e.cfg.Decision != DecisionThreshold {
			e.compared(ep, n.group, n.slot)
			ep.Confidence, ep.Rank = ep.worst, 0
		}
		e.tell(ep, EventEnd, cause, now)
	}
	e.leaveFold(ep, cause, now)
	n.slow = nil
	n.group.members[n.slot].flags &^= flagEpisode
}

// tellOnsets tells of the cluster's new episodes: the worst ones each by itself, the
// rest by one event.
func (e *Engine) tellOnsets(c *cluster, now time.Time) {
	slices.SortStableFunc(e.onsets, func(a, b *node) int {
		return cmp.Compare(b.group.members[b.slot].suspicion, a.group.members[a.slot].suspicion)
	})
	single := min(len(e.onsets), e.cfg.MaxOnsets)
	for _, n := range e.onsets[:single] {
		n.slow.told, n.slow.Severity, n.slow.differs = true, SeverityOf(n.slow.Gap), 0
		n.onsets = append(n.onsets[max(0, len(n.onsets)+1-flapEpisodes):], e.at)
		e.tell(n.slow, EventOnset, "", now)
	}
	if rest := e.onsets[single:]; len(rest) > 0 {
		e.counters.Folded += int64(len(rest))
		f := e.fold(SubjectCluster, c, "", rest, now)
		for _, n := range rest {
			n.slow.in = f
			f.Severity = max(f.Severity, SeverityOf(n.slow.Gap))
		}
		e.tell(f, EventOnset, "", now)
	}
	e.onsets = e.onsets[:0]
}

// fold is one episode for many nodes that began together.
func (e *Engine) fold(s Subject, c *cluster, group string, nodes []*node, now time.Time) *episode {
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		names = append(names, n.name)
	}
	slices.Sort(names)
	f := e.begin(s, c, group, names[0], e.at, now)
	f.Node, f.Nodes, f.NodeCount, f.live = "", slices.Clone(names[:min(len(names), maxListed)]), len(names), len(names)
	return f
}

// leaveFold takes an episode out of the one that tells of it, whose end that may be.
func (e *Engine) leaveFold(ep *episode, cause string, now time.Time) {
	if ep.in == nil {
		return
	}
	if ep.in.live--; ep.in.live == 0 {
		e.tell(ep.in, EventEnd, cause, now)
	}
}

// silences tells of the nodes of a cluster that nothing is heard of, of many at once by
// one event: a group's when all are of one, else the cluster's.
func (e *Engine) silences(c *cluster, now time.Time) {
	if len(c.silent) == 0 {
		return
	}
	if c.silentTicks++; c.silentTicks <= waitTicks/3 { // pushes of one outage end within one interval
		return
	}
	silent := slices.DeleteFunc(c.silent, func(n *node) bool {
		return n.gone || n.silence != nil || n.group.members[n.slot].state != nodesignal.StateMissing
	})
	c.silent, c.silentTicks = nil, 0
	var f *episode
	if len(silent) > manyNodes {
		group := silent[0].group.name
		if slices.ContainsFunc(silent, func(n *node) bool { return n.group.name != group }) {
			group = ""
		}
		f = e.fold(SubjectMissing, c, group, silent, now)
		f.Severity = SeverityCritical
	}
	for _, n := range silent {
		g, since := n.group, n.group.members[n.slot].seen/int64(time.Millisecond)
		ep := e.begin(SubjectMissing, c, g.name, n.name, since, now)
		ep.Peers, ep.Severity, ep.Active, ep.in, n.silence = g.peers, SeverityMajor, g.counts[nodesignal.StateActive], f, ep
		switch {
		case f != nil:
			if ep.Since.Before(f.Since) {
				f.Since = ep.Since
			}
		case e.flaps(n.silences):
			e.counters.Flapping++
		default:
			n.silences = append(n.silences[max(0, len(n.silences)+1-flapEpisodes):], e.at)
			ep.told = true
			e.tell(ep, EventOnset, "", now)
		}
	}
	if f != nil {
		e.tell(f, EventOnset, "", now)
	}
}

// endSilence ends a node's episode of silence.
func (e *Engine) endSilence(n *node, cause string, now time.Time) {
	ep := n.silence
	if ep == nil {
		return
	}
	if n.silence = nil; ep.told {
		e.tell(ep, EventEnd, cause, now)
	}
	e.leaveFold(ep, cause, now)
}

// pressed reports whether a member is one of many: slow, and not about to be well.
func (g *group) pressed(i int) bool {
	return g.members[i].flags&flagSlow != 0 && g.members[i].suspicion > 0
}

// watch begins, updates or ends the one episode for many slow nodes of a group.
func (e *Engine) watch(g *group, now time.Time) {
	in := g.incident
	if in == nil && g.slow == 0 {
		return
	}
	pressing, since := 0, e.at
	for i := range g.members {
		if g.pressed(i) {
			pressing++
			since = min(since, e.since(g, i))
		}
	}
	switch tooMany := pressing > g.many(); {
	case in == nil && !tooMany:
	case in == nil:
		in = e.begin(SubjectGroup, g.cluster, g.name, "", e.at, now)
		in.Since, in.Peers, in.Cause, g.incident = time.UnixMilli(since).UTC(), g.peers, CauseStragglers, in
		in.Severity, _ = e.gravity(g, 1)
		e.tellIncident(g, EventOnset, now)
	case g.counts[nodesignal.StateActive] == 0:
		e.endIncident(g, CauseIdle, now)
	case !tooMany:
		if in.waited++; in.waited >= calmTicks {
			e.endIncident(g, CauseRecovered, now)
		}
	default:
		in.waited = 0
		severity, ok := e.gravity(g, 1)
		if severity < in.Severity {
			severity, ok = e.gravity(g, 1/0.8)
		}
		if in.settles(ok && severity != in.Severity) {
			in.Severity, in.differs = severity, 0
			e.tellIncident(g, EventSeverity, now)
		} else if in.joined && now.Sub(in.updated) >= updateAfter {
			e.tellIncident(g, EventUpdate, now)
		}
	}
}

// gravity is the greatest severity that more than single nodes have, of their gaps times
// ease; false while too few of them still fall behind.
func (e *Engine) gravity(g *group, ease float64) (Severity, bool) {
	var n [SeverityCritical + 1]int
	behind := 0
	for i := range g.members {
		if g.pressed(i) {
			n[SeverityOf(ease*float64(g.members[i].gap))]++
			if g.behind(i) {
				behind++
			}
		}
	}
	sum := 0
	for s := SeverityCritical; s > SeverityMinor; s-- {
		if sum += n[s]; sum > g.many() {
			return s, behind > g.many()
		}
	}
	return SeverityMinor, behind > g.many()
}

// tellIncident tells of an incident and who is in it. The numbers are those of the
// signal that most of them are slow in.
func (e *Engine) tellIncident(g *group, kind EventKind, now time.Time) {
	in := g.incident
	var count [nodesignal.Count]int
	in.Signal, in.updated, in.joined = nodesignal.Score, now, false
	in.Nodes, in.NodeCount, in.Active = nil, 0, g.counts[nodesignal.StateActive]
	for i := range g.members {
		if m := &g.members[i]; g.pressed(i) {
			if count[m.signal]++; count[m.signal] > count[in.Signal] {
				in.Signal = m.signal
			}
		}
	}
	gaps, values, level := 0.0, 0.0, uint8(0)
	for i := range g.members {
		m := &g.members[i]
		if !g.pressed(i) {
			continue
		}
		m.flags |= flagListed
		if in.NodeCount++; in.NodeCount <= maxListed {
			in.Nodes = append(in.Nodes, g.nodes[i].name)
		}
		if m.signal == in.Signal {
			gaps, values, level = gaps+float64(m.gap), values+g.tracks[m.signal][i].x, m.level
		}
	}
	in.Gap, in.Value = gaps/float64(count[in.Signal]), values/float64(count[in.Signal])
	if level < noLevel {
		in.Median = valueOf(g.levels[level].of(in.Signal).centre, &e.cfg.Signals[in.Signal])
	}
	e.tell(in, kind, "", now)
}

func (e *Engine) endIncident(g *group, cause string, now time.Time) {
	if g.incident == nil {
		return
	}
	e.tell(g.incident, EventEnd, cause, now)
	g.incident = nil
	for i := range g.members {
		g.members[i].flags &^= flagListed
	}
}
