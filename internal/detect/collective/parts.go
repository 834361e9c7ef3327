// SPDX-License-Identifier: Apache-2.0

package collective

import "cmp"

// part are communicators that have ranks in common, and the widest of them.
type part struct {
	parent map[key]key
	widest map[key]*Rank
	first  map[process]key // of each process
}

// process is one of a node.
type process struct {
	cluster, node string
	pid           int64
}

// arrange finds which communicators are of one job, and which of one part of it. Where
// ranks send to one another the job may have a pipeline: without those, and without the
// communicators that hold the whole job, its stages have none in common.
func (b *Tracker) arrange() {
	whole := func(*link) bool { return true }
	b.all = b.union(whole)
	processes, pipes := make(map[key]map[process]bool), make(map[key]bool) // of a job
	for _, l := range b.links {
		at := b.all.root(key{l.Of.Cluster, l.Of.ID})
		pipes[at] = pipes[at] || l.pipe()
		if processes[at] == nil {
			processes[at] = make(map[process]bool)
		}
		for m := range l.members {
			processes[at][process{l.Of.Cluster, m.node, m.pid}] = true
		}
	}
	b.parts = b.union(func(l *link) bool {
		at := b.all.root(key{l.Of.Cluster, l.Of.ID})
		return !l.pipe() && (!pipes[at] || len(l.members) < len(processes[at]))
	})
}

// union joins the communicators that are asked for.
func (b *Tracker) union(of func(*link) bool) part {
	u := part{make(map[key]key), make(map[key]*Rank), make(map[process]key)}
	for k, l := range b.links {
		if !of(l) {
			continue
		}
		for m := range l.members {
			p := process{k.cluster, m.node, m.pid}
			if f, known := u.first[p]; known {
				u.parent[u.root(k)] = u.root(f)
			} else {
				u.first[p] = k
			}
		}
	}
	for k, l := range b.links {
		if !of(l) {
			continue
		}
		at := u.root(k)
		if w := u.widest[at]; w == nil || cmp.Or(cmp.Compare(l.Of.Size, w.Size), cmp.Compare(w.ID, l.Of.ID)) > 0 {
			u.widest[at] = &l.Of
		}
	}
	return u
}

func (u *part) root(c key) key {
	for {
		p, known := u.parent[c]
		if !known || p == c {
			return c
		}
		c = p
	}
}

// name is that of the widest communicator of the part that a rank's is in.
func (u *part) name(r *Rank) string {
	at, known := u.first[process{r.Cluster, r.Node, r.PID}]
	if !known {
		at = key{r.Cluster, r.ID}
	}
	if w := u.widest[u.root(at)]; w != nil {
		return w.Label()
	}
	return r.Label()
}

// jobOf is the name of a rank's job. Without one it is that of the job's widest
// communicator.
func (b *Tracker) jobOf(r *Rank) string { return cmp.Or(r.Job, b.all.name(r)) }
