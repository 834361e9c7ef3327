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

// episode is one time in which a node is slow, or silent. A node has at most
// one of either.
type episode struct {
	id    string
	since int64 // unix milliseconds
	// told is true once its onset is out; only then it gets an end. One that is
	// folded is told by fold instead.
	told     bool
	fold     *fold
	signal   nodesignal.Signal
	severity Severity
	// differs counts the ticks in a row with another severity.
	differs int
	waited  int
	last    int64         // when the node was last slow
	held    bool          // flapping: open until it has been calm for long
	counted bool          // folded into the group's incident, or kept back
	joins   time.Duration // until what it has is its part in the group's incident
	// accepted episodes are not told, since they outlasted an incident.
	accepted bool
	peak     float32             // the greatest suspicion
	culprit  *nodesignal.Subject // the last of the node, shared with it
}

// fold is one event for many nodes that began together.
type fold struct {
	Event
	live int
}

// episodeID names an episode: the same at every gateway that sees the same.
func episodeID(s Subject, cluster, group, node string, since int64) string {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d\x00%s\x00%s\x00%s\x00%d", s, cluster, group, node, since) // never fails
	return fmt.Sprintf("%016x", h.Sum64())
}

// maxWait is for how many ticks a verdict waits to be told while so many others
// are about to fall that it may be one of many.
const maxWait = 6

// follow moves the episode of one member along.
func (e *Engine) follow(g *group, i, rising int, now time.Time) {
	n, m := g.nodes[i], &g.members[i]
	slow, ep := m.flags&flagSlow != 0, n.slow
	if ep == nil {
		if !slow {
			return
		}
		since := e.since(g, i)
		// Of a node that was slow from the first, only the tick tells one episode
		// from the other.
		id := episodeID(SubjectNode, g.cluster.name, g.name, n.name, cmp.Or(since, e.at))
		ep = &episode{id: id, since: since, signal: m.signal}
		n.slow = ep
		m.flags |= flagEpisode
		e.change(n)
	}
	if !slow {
		e.endSlow(n, e.calmCause(m), now)
		return
	}
	ep.last, ep.signal, ep.peak = e.at, m.signal, max(ep.peak, m.suspicion)
	late := ep.told && ep.culprit == nil && n.culprit != nil
	if n.culprit != nil && !late {
		ep.culprit = n.culprit
	}
	switch {
	case late:
		e.tellCulprit(n, now)
	case ep.told:
		e.severity(g, i, now)
	case ep.fold != nil:
	case g.incident.on:
		e.inside(g, i)
	case m.suspicion < 1:
		// It was slow with others, or is about to be well: what is left of that, or
		// the noise since, is no reason to name it alone.
	case ep.accepted:
		e.worsened(g, i)
	case rising > e.many(g.counts[StateActive]) && ep.waited < maxWait:
		ep.waited++
	case e.flaps(n):
		e.countOnce(ep, &e.counters.Flapping)
	default:
		e.onsets = append(e.onsets, n)
	}
}

// worsened makes an accepted episode one to be told of when it gets worse.
func (e *Engine) worsened(g *group, i int) {
	m, ep := &g.members[i], g.nodes[i].slow
	if SeverityOf(0.8*float64(m.gap)) <= ep.severity || !g.behind(i, m.signal) {
		ep.differs = 0
	} else if ep.differs++; ep.differs >= e.cfg.Episodes.SeverityTicks {
		ep.accepted, ep.since, ep.differs = false, e.at, 0
		e.change(g.nodes[i])
	}
}

func (e *Engine) countOnce(ep *episode, counter *int64) {
	if !ep.counted {
		ep.counted = true
		*counter++
	}
}

// calmCause is why a member stopped being slow.
func (e *Engine) calmCause(m *member) string {
	switch {
	case m.flags&flagContested != 0:
		return CauseContested
	case m.state == StateMissing:
		return CauseMissing
	case m.state != StateActive || m.warm == 0 || m.flags&flagUnjudged != 0:
		return CauseIdle
	}
	return CauseRecovered
}

// flaps reports whether enough episodes of the node were told lately.
func (e *Engine) flaps(n *node) bool {
	window := e.cfg.Episodes.FlapWindow.Milliseconds()
	n.onsets = slices.DeleteFunc(n.onsets, func(at int64) bool { return e.at-at >= window })
	return len(n.onsets) >= e.cfg.Episodes.FlapEpisodes
}

// tellOnsets tells of the cluster's new episodes, the worst ones each by itself.
func (e *Engine) tellOnsets(c *cluster, now time.Time) {
	e.placeOnsets(c, now)
	slices.SortStableFunc(e.onsets, func(a, b *node) int {
		return cmp.Compare(b.group.members[b.slot].suspicion, a.group.members[a.slot].suspicion)
	})
	for k, n := range e.onsets {
		if k == e.cfg.Episodes.MaxOnsets {
			e.foldOnsets(c, e.onsets[k:], now)
			break
		}
		ep, m := n.slow, &n.group.members[n.slot]
		ep.told, ep.severity, ep.differs = true, SeverityOf(float64(m.gap)), 0
		n.onsets = append(n.onsets, e.at)
		e.change(n)
		e.events = append(e.events, e.nodeEvent(EventOnset, n, now))
	}
	e.onsets = e.onsets[:0]
}

// foldOnsets makes one event of many onsets of one tick.
func (e *Engine) foldOnsets(c *cluster, nodes []*node, now time.Time) {
	f := e.newFold(SubjectCluster, c, "", nodes, now)
	c.folds = append(c.folds, f)
	for _, n := range nodes {
		n.slow.fold = f
		e.change(n)
		f.Severity = max(f.Severity, SeverityOf(float64(n.group.members[n.slot].gap)))
	}
	e.counters.Folded += int64(len(nodes))
	e.events = append(e.events, f.Event)
}

func (e *Engine) newFold(s Subject, c *cluster, group string, nodes []*node, now time.Time) *fold {
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		names = append(names, n.name)
	}
	slices.Sort(names)
	count := len(names)
	names = slices.Clone(names[:min(count, e.cfg.Episodes.MaxListed)])
	return &fold{live: count, Event: Event{
		Kind: EventOnset, Subject: s, ID: episodeID(s, c.name, group, names[0], e.at),
		Cluster: c.name, Group: group, At: now, Since: now, Confidence: 1, Nodes: names, NodeCount: count,
	}}
}

// drop takes one node out of a fold, whose end that may be.
func (e *Engine) drop(f *fold, cause string, now time.Time) {
	if f.live--; f.live == 0 {
		if c := e.clusters[f.Cluster]; c != nil {
			c.folds = slices.DeleteFunc(c.folds, func(o *fold) bool { return o == f })
		}
		ev := f.Event
		ev.Kind, ev.At, ev.Cause = EventEnd, now, cause
		e.events = append(e.events, ev)
	}
}

// severity tells when an episode has become better or worse. To be better takes
// a fifth less than to be worse: a loss of about 10 % is not news each minute.
func (e *Engine) severity(g *group, i int, now time.Time) {
	n, m := g.nodes[i], &g.members[i]
	ep, gap := n.slow, float64(m.gap)
	s := SeverityOf(gap)
	if s < ep.severity {
		s = SeverityOf(gap / 0.8)
	}
	// A node that is about to be well is on its way to the end, not to less.
	if s == ep.severity || (s < ep.severity && !g.behind(i, ep.signal)) {
		ep.differs = 0
		return
	}
	// Above the bound it waits for the next tick.
	if ep.differs++; ep.differs >= e.cfg.Episodes.SeverityTicks && e.changes < e.cfg.Episodes.MaxOnsets {
		e.changes++
		ep.severity, ep.differs = s, 0
		e.change(n)
		e.events = append(e.events, e.nodeEvent(EventSeverity, n, now))
	}
}

// tellCulprit tells whom an episode is about that was told without a name: a node may be
// sure before its parts are. It is told once; above the bound it waits for the next tick.
func (e *Engine) tellCulprit(n *node, now time.Time) {
	if e.changes >= e.cfg.Episodes.MaxOnsets {
		return
	}
	e.changes++
	n.slow.culprit = n.culprit
	e.change(n)
	e.events = append(e.events, e.nodeEvent(EventUpdate, n, now))
}

// behind reports whether a member was slow by a signal at its last value.
func (g *group) behind(i int, s nodesignal.Signal) bool {
	if g.plain != nil {
		return g.plain[i].low > 0
	}
	sig := g.signals[s]
	return sig != nil && float64(sig.tracks[i].last) > sig.cohorts[0].params.MinGap/2
}

// nodeEvent says how a node compares with its peers now.
func (e *Engine) nodeEvent(kind EventKind, n *node, now time.Time) Event {
	g, i, ep := n.group, n.slot, n.slow
	m := &g.members[i]
	ev := Event{
		Kind: kind, Subject: SubjectNode, ID: ep.id, Cluster: g.cluster.name, Group: g.name, Node: n.name, Peers: g.peers,
		Signal: ep.signal, Severity: ep.severity, At: now, Since: time.UnixMilli(ep.since).UTC(), NodeCount: 1,
		Confidence: 1 - math.Exp(-float64(m.suspicion)), Gap: float64(m.gap), Active: g.counts[StateActive],
	}
	of := n.culprit
	if kind == EventEnd {
		of = ep.culprit
	}
	if of != nil {
		ev.Culprit = *of
	}
	if sig := g.signals[ep.signal]; sig != nil && m.known.has(ep.signal) {
		switch {
		case m.cohort < maxCohorts && sig.cohorts[m.cohort].known:
			ev.Value, ev.Median, ev.Compared = sig.x[i], sig.cohorts[m.cohort].params.Centre, true
		case ep.signal == nodesignal.Score && g.rule.quorum:
			ev.Value, ev.Median, ev.Compared = sig.x[i], g.rule.median, true
		}
	}
	if kind == EventEnd {
		ev.Confidence = 1 - math.Exp(-float64(ep.peak))
	} else {
		ev.Rank = 1
		for j := range g.members {
			if g.members[j].suspicion > m.suspicion {
				ev.Rank++
			}
		}
	}
	return ev
}

// endSlow ends a node's episode of slowness, unless the node flaps.
func (e *Engine) endSlow(n *node, cause string, now time.Time) {
	ep := n.slow
	if ep == nil {
		return
	}
	if ep.told && cause != CauseMoved && cause != CauseForgotten && e.flaps(n) {
		if !ep.held {
			ep.held = true
			e.counters.Flapping++
		}
		return
	}
	if ep.held && cause != CauseMoved && cause != CauseForgotten && e.at-ep.last < e.cfg.Episodes.FlapWindow.Milliseconds() {
		return
	}
	if ep.told {
		ev := e.nodeEvent(EventEnd, n, now)
		ev.Cause = cause
		e.events = append(e.events, ev)
	}
	if ep.fold != nil {
		e.drop(ep.fold, cause, now)
	}
	n.slow = nil
	n.group.members[n.slot].flags &^= flagEpisode
	e.change(n)
}
