// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/packed"
	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
)

// restorer reads a state, and then its changes, into an engine that is new. Nothing that
// it reads may make a later tick panic, whoever wrote it.
type restorer struct {
	e     *Engine
	c     *packed.Coder
	of    *cluster
	g     *group
	folds map[string]*fold
	names []string
	slots []int
	err   error
}

// ok reports whether there was no mistake so far.
func (r *restorer) ok() bool { return r.err == nil && r.c.Err() == nil }

func (r *restorer) state() {
	for r.ok() {
		switch r.mark() {
		case markCluster:
			r.cluster()
		case markGroup:
			if r.group(); r.ok() {
				r.e.packGroup(r.c, r.g)
				r.c.Check(r.g.sound())
			}
		case markNodes:
			if r.c.Check(r.g != nil); r.ok() {
				r.nodes()
			}
		default:
			return
		}
	}
}

func (r *restorer) mark() (m uint8) {
	packed.Below(r.c, &m, numMarks)
	return m
}

func (r *restorer) cluster() {
	c := &cluster{nodes: make(map[string]*node), groups: make(map[string]*group)}
	c.pack(r.c)
	r.c.Check(c.name != "")
	r.g = nil
	if !r.ok() {
		return
	}
	if r.of = r.e.clusters[c.name]; r.of == nil {
		if len(r.e.clusters) >= r.e.cfg.MaxClusters {
			r.err = ErrTooManyClusters
			return
		}
		r.of = r.e.addCluster(c.name, time.Unix(0, c.since))
	}
	r.of.since, r.of.seen, r.of.wide = c.since, c.seen, c.wide
}

func (r *restorer) group() {
	var peers []string
	r.c.Texts(&peers, maxNameLength)
	r.c.Check(r.of != nil)
	if !r.ok() {
		return
	}
	key := GroupKey(peers)
	if r.g = r.of.groups[key]; r.g == nil {
		if r.e.groups >= r.e.cfg.MaxGroups {
			r.err = ErrTooManyGroups
			return
		}
		r.g = r.e.addGroupOf(r.of, key, peers)
	}
}

// sound reports whether what is known of a group hangs together.
func (g *group) sound() bool {
	p := &g.split
	if len(p.edges) > 0 && (g.signals[p.signal] == nil || p.means[p.signal] == nil) {
		return false
	}
	for s := range p.means {
		if sig := g.signals[s]; p.means[s] != nil && sig == nil {
			return false
		}
	}
	return slices.IsSorted(p.edges) && slices.IsSorted(p.trial)
}

// nodes reads some nodes of the group, each into its place.
func (r *restorer) nodes() {
	n := r.c.Size(0)
	r.names = slices.Grow(r.names[:0], n)[:n]
	r.c.Names(n, maxNameLength, func(i int) *string { return &r.names[i] })
	r.slots = r.slots[:0]
	for _, name := range r.names {
		if r.c.Check(name != ""); !r.ok() {
			return
		}
		r.slots = append(r.slots, r.place(name))
	}
	if !r.ok() {
		return
	}
	r.e.packNodes(r.c, r.g, r.slots)
	for _, i := range r.slots {
		if !r.ok() {
			return
		}
		r.settle(i)
		r.g.nodes[i].packEpisodes(r.c, r.folds)
	}
}

// place finds or makes the place of a node in the group that is read.
func (r *restorer) place(name string) int {
	n := r.of.nodes[name]
	switch {
	case n == nil:
		if r.e.nodes >= r.e.cfg.MaxNodes {
			r.err = ErrTooManyNodes
			return 0
		}
		n = &node{name: name}
		r.of.nodes[name] = n
		r.e.nodes++
	case n.group != r.g:
		n.group.remove(n)
	default:
		r.e.unlabel(n)
		n.labels, n.culprit, n.onsets, n.silences = nil, nil, nil, nil
		return n.slot
	}
	if n.group != nil {
		r.e.unlabel(n)
	}
	*n = node{name: name}
	r.g.add(n)
	n.as = &NodeName{Cluster: r.of.name, Group: r.g.name, Node: n.name, Peers: r.g.peers}
	return n.slot
}

// settle checks a member that was read, and computes what is not saved.
func (r *restorer) settle(i int) {
	g, m, n := r.g, &r.g.members[i], r.g.nodes[i]
	cohorts := len(g.split.edges) + 1
	r.c.Check(m.reported < StateMissing && m.state < numStates && m.signal < nodesignal.Count && m.why < unjudged.Count &&
		(int(m.cohort) < cohorts || m.cohort == noCohort && cohorts > 1) && m.was <= noCohort && m.toward >= -1 && m.toward < maxCohorts &&
		m.late <= 1)
	m.fresh &= m.known
	m.flags &^= flagEpisode
	for s := range nodesignal.Count {
		sig := g.signals[s]
		if sig == nil {
			r.c.Check(!m.known.has(s))
			continue
		}
		spec := &r.e.cfg.Signals[s]
		r.c.Check(sig.x[i] >= 0 && !math.Signbit(sig.x[i]))
		sig.y[i] = levelOf(sig.x[i], spec.Relative, spec.Direction == nodesignal.High)
		t := &sig.tracks[i]
		r.c.Check(t.by <= unflagged && (!t.straggler || t.by != unflagged))
	}
	if n.labels != nil {
		labels := *n.labels
		kept := labels[:0]
		for _, l := range labels {
			if k := r.e.label(r.of, l); k != nil {
				kept = append(kept, k.Label)
			}
		}
		*n.labels = kept
	}
}

func (r *restorer) readFolds() {
	n := r.c.Size(0)
	for range n {
		f := &fold{}
		if f.Pack(r.c); !r.ok() {
			return
		}
		r.folds[f.ID] = f
	}
}

// changes reads what changed since the state.
func (r *restorer) changes() {
	n := r.c.Size(0)
	for range n {
		if r.cluster(); !r.ok() {
			return
		}
		of := r.of
		of.packSilent(r.c)
		for r.ok() && r.mark() == markGroup {
			if r.group(); !r.ok() {
				return
			}
			if r.g.incident.pack(r.c); r.ok() {
				r.nodes()
			}
		}
	}
}

// finish makes the engine one that can tick.
func (r *restorer) finish(now time.Time) {
	e := r.e
	pause := now.Sub(e.ticked)
	if pause > 0 {
		e.saving.resumed = now.UnixNano()
	}
	for _, c := range e.order {
		for _, g := range slices.Clone(c.order) {
			if g.live == 0 {
				e.dropGroup(g)
				continue
			}
			g.settle()
			g.recount(max(pause, 0))
			for i := range g.split.rises {
				rise := &g.split.rises[i]
				if n := c.nodes[rise.node.name]; n != nil && n.group == g {
					rise.node = n
				}
			}
		}
		silent := c.silent[:0]
		for _, n := range c.silent {
			if kept := c.nodes[n.name]; kept != nil {
				silent = append(silent, kept)
			}
		}
		c.silent = silent
	}
	e.order = slices.DeleteFunc(e.order, func(c *cluster) bool {
		if len(c.nodes) == 0 {
			delete(e.clusters, c.name)
		}
		return len(c.nodes) == 0
	})
	for _, f := range r.folds {
		c := e.clusters[f.Cluster]
		switch {
		case f.live > 0 && c != nil:
			c.folds = append(c.folds, f)
		default: // its nodes have gone elsewhere meanwhile
			ev := f.Event
			ev.Kind, ev.At, ev.Cause = EventEnd, e.ticked, CauseForgotten
			e.events = append(e.events, ev)
		}
	}
	for _, c := range e.order {
		slices.SortFunc(c.folds, func(a, b *fold) int { return a.At.Compare(b.At) })
	}
}

// recount computes of a group what is not saved. Nobody listened for a pause: what the
// nodes told of their peers is as old as it was.
func (g *group) recount(pause time.Duration) {
	g.counts, g.slow, g.oldest = [numStates]int{}, 0, math.MaxInt64
	for i := range g.members {
		m, n := &g.members[i], g.nodes[i]
		g.counts[m.state]++
		g.oldest = min(g.oldest, m.seen)
		if m.flags&flagSlow != 0 {
			g.slow++
		}
		if !g.incident.on {
			m.flags &^= flagListed
		}
		if n.slow != nil {
			m.flags |= flagEpisode
		}
		for _, ep := range [...]*episode{n.slow, n.silence} {
			if ep != nil && ep.fold != nil {
				ep.fold.live++
			}
		}
		for k := range n.peers.told {
			n.peers.told[k].at = n.peers.told[k].at.Add(pause)
		}
	}
}
