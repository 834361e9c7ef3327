// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// index holds all entries in the order of their keys, so that pages are stable
// from one request to the next. A new node waits until somebody reads.
type index struct {
	sorted atomic.Pointer[rows]
	dirty  atomic.Bool

	waiting sync.Mutex // held for an append, by writers of new nodes
	added   []*entry

	merging sync.Mutex // held by one reader
}

// rows are sorted by key, and never change.
type rows struct {
	all      []*entry
	clusters []string
}

func (x *index) add(e *entry) {
	x.waiting.Lock()
	x.added = append(x.added, e)
	x.waiting.Unlock()
	x.dirty.Store(true)
}

func (x *index) stale() { x.dirty.Store(true) }

// get returns the rows; the nodes of some may be gone.
func (x *index) get() *rows {
	if x.dirty.Load() {
		x.merge()
	}
	return x.sorted.Load()
}

func (x *index) merge() {
	x.merging.Lock()
	defer x.merging.Unlock()
	if !x.dirty.Swap(false) {
		return
	}
	x.waiting.Lock()
	added := x.added
	x.added = nil
	x.waiting.Unlock()
	slices.SortFunc(added, byKey)

	old := x.sorted.Load().all
	next := &rows{all: make([]*entry, 0, len(old)+len(added))}
	for len(old) > 0 || len(added) > 0 {
		from := &old
		if len(old) == 0 || len(added) > 0 && byKey(added[0], old[0]) < 0 {
			from = &added
		}
		if e := (*from)[0]; !e.gone.Load() {
			if n := len(next.clusters); n == 0 || next.clusters[n-1] != e.key.Cluster {
				next.clusters = append(next.clusters, e.key.Cluster)
			}
			next.all = append(next.all, e)
		}
		*from = (*from)[1:]
	}
	x.sorted.Store(next)
}

func byKey(a, b *entry) int { return a.key.Compare(b.key) }

// Compare orders keys by cluster, then by node.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Cluster, o.Cluster), cmp.Compare(k.Node, o.Node))
}
