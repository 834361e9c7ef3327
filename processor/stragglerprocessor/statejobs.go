// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/packed"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// The kinds of what is kept beside the comparison, and their version; see the engine's.
const (
	jobsKind, linksKind = "straggler-jobs", "straggler-links"
	factsKind           = "straggler-facts" // its version is reason.SaveVersion
	jobsVersion         = 2                 // 1 lacks the onsets of communicators
)

// Bounds of what is read.
const maxIDBytes, maxTextBytes = 64, 1024

// pack is what was told of the episodes that are open.
func (x *explainer) pack(c *packed.Coder) {
	n := c.Size(len(x.told))
	if !c.Reads() {
		for id, t := range x.told {
			c.Text(&id, maxIDBytes)
			t.pack(c)
		}
		return
	}
	for range n {
		id, t := "", told{}
		c.Text(&id, maxIDBytes)
		if t.pack(c); len(x.told) < x.most {
			x.told[id] = t
		}
	}
}

// accused are the nodes of the episodes that are open, first those of one node: there may be
// more than are saved.
func (x *explainer) accused() []reason.Name {
	all := make([]reason.Name, 0, len(x.told))
	for _, t := range x.told {
		if len(t.nodes) == 1 {
			all = append(all, reason.Name{Cluster: t.cluster, Node: t.nodes[0]})
		}
	}
	for _, t := range x.told {
		if len(all) >= reason.MaxSaved {
			break
		}
		if len(t.nodes) > 1 {
			for _, name := range t.nodes {
				all = append(all, reason.Name{Cluster: t.cluster, Node: name})
			}
		}
	}
	return all
}

// recall notes whose the episodes are that go on after a restart. The next state may be
// written before a tick tells of them.
func (x *explainer) recall(open []straggler.Event) {
	for i := range open {
		if t, known := x.told[open[i].ID]; known {
			t.cluster, t.nodes = open[i].Cluster, listed(&open[i])
			x.told[open[i].ID] = t
		}
	}
}

// listed are the nodes that an event says are slow, bounded by `max_listed`.
func listed(ev *straggler.Event) []string {
	switch ev.Subject {
	case straggler.SubjectNode:
		return []string{ev.Node}
	case straggler.SubjectGroup, straggler.SubjectCluster:
		return ev.Nodes
	default:
		return nil
	}
}

func (t *told) pack(c *packed.Coder) {
	why := string(t.Reason)
	c.Text(&why, maxTextBytes)
	t.Reason = reason.Reason(why)
	c.Bool(&t.Observation)
	c.Text(&t.GPU, maxTextBytes)
	c.Float(&t.rate)
	c.Float(&t.lost)
	c.Time(&t.at)
	c.Bool(&t.counts)
}

// pack is what the jobs lost so far. Jobs without a peer group go with the next tick.
func (l *jobLedger) pack(c *packed.Coder) {
	c.Time(&l.at)
	n := c.Size(len(l.open))
	if c.Reads() {
		for range n {
			id, t := "", trouble{}
			c.Text(&id, maxIDBytes)
			t.pack(c)
			l.open[id] = t
		}
	} else {
		for id, t := range l.open {
			c.Text(&id, maxIDBytes)
			t.pack(c)
		}
	}
	n = c.Size(len(l.jobs))
	if c.Reads() {
		for range n {
			k, j := jobKey{}, &job{}
			k.pack(c)
			j.ledger.Pack(c)
			l.jobs[k] = j
		}
		return
	}
	for k, j := range l.jobs {
		k.pack(c)
		j.ledger.Pack(c)
	}
}

func (t *trouble) pack(c *packed.Coder) {
	t.of.pack(c)
	c.Time(&t.since)
	packed.Count(c, &t.slow)
}

func (k *jobKey) pack(c *packed.Coder) {
	c.Text(&k.cluster, maxTextBytes)
	c.Text(&k.id, maxTextBytes)
}

// abandon ends all open episodes as of a time, since this process did not see them end.
func (g *gateway) abandon(at time.Time) (ends []episode) {
	const kind, cause = straggler.EventEnd, straggler.CauseRestart
	none := &straggler.Report{}
	ranks := g.observer.ranks
	ends = g.explainer.episodes(&straggler.Report{Events: g.engine.Open(kind, cause, at)})
	ends = append(ends, g.explainer.links(ranks.links.Open(kind, cause, at), none, ranks)...)
	return append(ends, g.explainer.hangs(ranks.hangs.Open(kind, cause, at), none, ranks)...)
}
