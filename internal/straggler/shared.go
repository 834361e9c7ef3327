// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/topology"
)

// labelBytes is what a label takes without its texts. A test measures it.
const labelBytes = 230

// ErrTooManyLabels says that a node's label is not kept.
var ErrTooManyLabels = errors.New("more topology labels than the cluster's share of their memory")

// keptLabel is one copy of a label, and how many nodes have it.
type keptLabel struct {
	topology.Label
	nodes int
}

// Locate notes where a push says that a node is. A label stays until another of its
// level takes its place. Invalid labels are the caller's to leave out.
func (e *Engine) Locate(clusterName, nodeName string, labels []topology.Label) (err error) {
	n := e.kept(clusterName, nodeName)
	if n == nil {
		return nil
	}
	merged, changed := topology.Merge(n.places(), labels...)
	if !changed {
		return nil
	}
	c, room := n.group.cluster, merged[:0]
	for _, l := range merged {
		if kept := e.label(c, l); kept != nil {
			room = append(room, kept.Label)
		} else {
			err = ErrTooManyLabels
		}
	}
	e.unlabel(n)
	n.labels = &room
	return err
}

func sizeOf(l topology.Label) int { return labelBytes + len(l.Level) + len(l.Value) }

// label returns the one copy of a label, nil when there is no room for it.
func (e *Engine) label(c *cluster, l topology.Label) *keptLabel {
	kept := c.labels[l]
	if kept == nil {
		size := sizeOf(l)
		if c.labelBytes+size > fairshare.Limit(fairshare.Half, e.cfg.MaxLabelBytes, e.labels-c.labelBytes) {
			return nil
		}
		kept = &keptLabel{Label: topology.Label{Level: strings.Clone(l.Level), Value: strings.Clone(l.Value)}}
		if c.labels == nil {
			c.labels = make(map[topology.Label]*keptLabel)
		}
		c.labels[kept.Label] = kept
		c.labelBytes, e.labels = c.labelBytes+size, e.labels+size
	}
	kept.nodes++
	return kept
}

// places are the labels that the node's pushes told.
func (n *node) places() []topology.Label {
	if n.labels == nil {
		return nil
	}
	return *n.labels
}

// unlabel gives back the labels of a node.
func (e *Engine) unlabel(n *node) {
	c := n.group.cluster
	for _, l := range n.places() {
		if kept := c.labels[l]; kept != nil {
			if kept.nodes--; kept.nodes == 0 {
				delete(c.labels, l)
				c.labelBytes, e.labels = c.labelBytes-sizeOf(l), e.labels-sizeOf(l)
			}
		}
	}
}

// Jobs sets the place of the job among the peer-group attributes, from 1 on; 0 is
// without jobs.
func (e *Engine) Jobs(peer int) { e.job = peer }

// Place sets what is known of nodes from elsewhere; what a node's pushes say goes before.
func (e *Engine) Place(t topology.Table) { e.table = t }

// places reports whether anything is known of where the cluster's nodes are.
func (e *Engine) places(c *cluster) bool { return len(c.labels) > 0 || len(e.table) > 0 }

// fault is who is bad in a search for what the bad nodes share.
type fault func(g *group, i int) bool

func isSlow(g *group, i int) bool {
	ep := g.nodes[i].slow
	return g.members[i].flags&flagSlow != 0 && (ep == nil || !ep.accepted)
}

func isMissing(g *group, i int) bool { return g.members[i].state == StateMissing }

// seek tests what the bad nodes of some groups share. Only nodes at work can be slow,
// any can be silent.
func (e *Engine) seek(groups []*group, silent bool, bad fault) topology.Finding {
	return topology.Shared(e.ask(groups, silent, bad))
}

// ask is the nodes of some groups for a test.
func (e *Engine) ask(groups []*group, silent bool, bad fault) []topology.Node {
	e.sought = e.sought[:0]
	for _, g := range groups {
		job := ""
		if e.job > 0 && e.job <= len(g.peers) {
			job = g.peers[e.job-1]
		}
		for i, n := range g.nodes {
			if n != nil && i < len(g.members) && (silent || g.members[i].state == StateActive) {
				labels, _ := topology.Merge(e.table.Of(n.name), n.places()...)
				e.sought = append(e.sought, topology.Node{Labels: labels, Job: job, Bad: bad(g, i)})
			}
		}
	}
	return e.sought
}

// has reports whether a node has the first label of a finding.
func (e *Engine) has(n *node, f *topology.Finding) bool {
	l := f.Labels[0]
	if l.Level == topology.JobLevel {
		return e.job > 0 && e.job <= len(n.group.peers) && n.group.peers[e.job-1] == l.Value
	}
	labels, _ := topology.Merge(e.table.Of(n.name), n.places()...)
	return slices.Contains(labels, l)
}

// sharedBy is what the slow nodes of an incident share: in the group, else in the cluster.
func (e *Engine) sharedBy(g *group) (f topology.Finding) {
	if !e.places(g.cluster) {
		return f
	}
	if f = e.seek([]*group{g}, false, isSlow); len(f.Labels) == 0 && len(g.cluster.order) > 1 {
		f = e.seek(g.cluster.order, false, isSlow)
	}
	return f
}

// placeOnsets makes one event of the onsets whose nodes share a label. While others of
// that label are about to fall it keeps them back, for as long as onsets wait.
func (e *Engine) placeOnsets(c *cluster, now time.Time) {
	if len(e.onsets) == 0 || !e.places(c) {
		return
	}
	for _, f := range c.folds {
		if f.placed() {
			e.joinPlaced(c, f, now)
		}
	}
	if len(e.onsets) == 0 {
		return
	}
	if f := e.seek(c.order, false, isSlow); len(f.Labels) > 0 {
		if slices.ContainsFunc(e.onsets, func(n *node) bool { return e.has(n, &f) }) {
			e.foldPlaced(c, f, now)
		}
		return
	}
	f := topology.Forming(e.ask(c.order, false, func(g *group, i int) bool { return isSlow(g, i) || g.members[i].suspicion >= 0.5 }))
	if len(f.Labels) == 0 {
		return
	}
	e.onsets = slices.DeleteFunc(e.onsets, func(n *node) bool {
		if n.slow.waited >= maxWait || !e.has(n, &f) {
			return false
		}
		n.slow.waited++
		return true
	})
}

// placed reports whether an event is about a label that its slow nodes share.
func (f *fold) placed() bool { return f.Subject == SubjectCluster && len(f.Shared.Labels) > 0 }

// foldPlaced makes one event of the slow nodes with a label. Those that were told
// before belong to it too, and keep their own end.
func (e *Engine) foldPlaced(c *cluster, shared topology.Finding, now time.Time) {
	nodes := e.slowWith(c, &shared)
	f := e.newFold(SubjectCluster, c, "", nodes, now)
	f.Shared, f.live = shared, 0
	for _, n := range nodes {
		if n.slow.fold == nil {
			n.slow.fold = f
			f.live++
			e.change(n)
		}
		f.Severity = max(f.Severity, SeverityOf(float64(n.group.members[n.slot].gap)))
		if n.slow.since > 0 {
			f.Since = earlier(f.Since, time.UnixMilli(n.slow.since).UTC())
		}
	}
	e.leaveOnsets(f)
	c.folds = append(c.folds, f)
	e.events = append(e.events, f.Event)
}

// joinPlaced adds new onsets to an event of their label, and tells of it now and then.
func (e *Engine) joinPlaced(c *cluster, f *fold, now time.Time) {
	joined := false
	for _, n := range e.onsets {
		if e.has(n, &f.Shared) {
			n.slow.fold = f
			f.live++
			e.change(n)
			joined = true
		}
	}
	if !joined {
		return
	}
	e.leaveOnsets(f)
	nodes := e.slowWith(c, &f.Shared)
	if len(nodes) <= f.NodeCount || now.Sub(f.At) < e.cfg.Incident.UpdateAfter {
		return
	}
	fresh := e.newFold(SubjectCluster, c, "", nodes, now)
	f.Nodes, f.NodeCount, f.At = fresh.Nodes, fresh.NodeCount, now
	f.Shared.Bad = min(f.NodeCount, f.Shared.Nodes)
	ev := f.Event
	ev.Kind = EventUpdate
	e.events = append(e.events, ev)
}

func (e *Engine) leaveOnsets(f *fold) {
	before := len(e.onsets)
	e.onsets = slices.DeleteFunc(e.onsets, func(n *node) bool { return n.slow.fold == f })
	e.counters.Folded += int64(before - len(e.onsets))
}

// slowWith lists the slow nodes with a label.
func (e *Engine) slowWith(c *cluster, shared *topology.Finding) (nodes []*node) {
	for _, g := range c.order {
		for i, n := range g.nodes {
			if n != nil && n.slow != nil && isSlow(g, i) && e.has(n, shared) {
				nodes = append(nodes, n)
			}
		}
	}
	return nodes
}
