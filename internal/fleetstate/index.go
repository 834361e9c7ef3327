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
	sorted atomic.Pointer[[]*entry]
	dirty  atomic.Bool

	waiting sync.Mutex // held for an append, by writers of new nodes
	added   []*entry

	merging sync.Mutex // held by one reader
}

func (x *index) add(e *entry) {
	x.waiting.Lock()
	x.added = append(x.added, e)
	x.waiting.Unlock()
	x.dirty.Store(true)
}

func (x *index) stale() { x.dirty.Store(true) }

// all returns the entries. The slice is not to be changed; some may be gone.
func (x *index) all() []*entry {
	if x.dirty.Load() {
		x.merge()
	}
	if p := x.sorted.Load(); p != nil {
		return *p
	}
	return nil
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

	var old []*entry
	if p := x.sorted.Load(); p != nil {
		old = *p
	}
	merged := make([]*entry, 0, len(old)+len(added))
	for len(old) > 0 || len(added) > 0 {
		from := &old
		if len(old) == 0 || len(added) > 0 && byKey(added[0], old[0]) < 0 {
			from = &added
		}
		if e := (*from)[0]; !e.gone.Load() {
			merged = append(merged, e)
		}
		*from = (*from)[1:]
	}
	x.sorted.Store(&merged)
}

func byKey(a, b *entry) int { return a.key.Compare(b.key) }

// Compare orders keys by cluster, then by node.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Cluster, o.Cluster), cmp.Compare(k.Node, o.Node))
}
