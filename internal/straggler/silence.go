// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"slices"
	"time"
)

// silentTicks is for how long a silent node waits for others that fell silent
// with it: pushes of one outage end within one interval.
const silentTicks = 2

// silences tells of the nodes of a cluster that nothing is heard of, of many at
// once by one event: a group's when all are of one, else the cluster's.
func (e *Engine) silences(c *cluster, now time.Time) {
	if len(c.silent) == 0 {
		return
	}
	c.silentTicks++
	if c.silentTicks <= silentTicks {
		return
	}
	silent := slices.DeleteFunc(c.silent, func(n *node) bool {
		return n.gone || n.silence != nil || n.group.members[n.slot].state != StateMissing
	})
	if len(silent) > e.cfg.Incident.MinNodes {
		group := silent[0].group.name
		if slices.ContainsFunc(silent, func(n *node) bool { return n.group.name != group }) {
			group = ""
		}
		f := e.newFold(SubjectMissing, c, group, silent, now)
		f.Severity = SeverityCritical
		if e.places(c) {
			f.Shared = e.seek(c.order, true, isMissing)
		}
		c.folds = append(c.folds, f)
		for _, n := range silent {
			f.Since = earlier(f.Since, e.lastSeen(n))
			n.silence = &episode{id: f.ID, since: e.at, fold: f}
			e.change(n)
		}
		e.events = append(e.events, f.Event)
	} else {
		for _, n := range silent {
			e.tellSilence(n, now)
		}
	}
	clear(c.silent)
	c.silent, c.silentTicks = c.silent[:0], 0
}

func (e *Engine) lastSeen(n *node) time.Time {
	return time.Unix(0, n.group.members[n.slot].seen).UTC()
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (e *Engine) tellSilence(n *node, now time.Time) {
	since := n.group.members[n.slot].seen / int64(time.Millisecond)
	ep := &episode{since: since, id: episodeID(SubjectMissing, n.group.cluster.name, n.group.name, n.name, since)}
	n.silence = ep
	e.change(n)
	window := e.cfg.Episodes.FlapWindow.Milliseconds()
	n.silences = slices.DeleteFunc(n.silences, func(at int64) bool { return e.at-at >= window })
	if len(n.silences) >= e.cfg.Episodes.FlapEpisodes {
		e.counters.Flapping++
		return
	}
	n.silences = append(n.silences, e.at)
	ep.told = true
	e.events = append(e.events, silenceEvent(EventOnset, n, now))
}

func silenceEvent(kind EventKind, n *node, now time.Time) Event {
	g := n.group
	return Event{
		Kind: kind, Subject: SubjectMissing, ID: n.silence.id, Cluster: g.cluster.name, Group: g.name, Node: n.name, Peers: g.peers,
		Severity: SeverityMajor, At: now, Since: time.UnixMilli(n.silence.since).UTC(), Confidence: 1,
		Active: g.counts[StateActive], NodeCount: 1,
	}
}

// endSilence ends a node's episode of silence.
func (e *Engine) endSilence(n *node, cause string, now time.Time) {
	ep := n.silence
	if ep == nil {
		return
	}
	if ep.told {
		ev := silenceEvent(EventEnd, n, now)
		ev.Cause = cause
		e.events = append(e.events, ev)
	}
	n.silence = nil
	e.change(n)
	if ep.fold != nil {
		e.drop(ep.fold, cause, now)
	}
}
