// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"cmp"
	"slices"
	"sort"
	"strings"
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
	clusters []span
}

// span is a part of the rows.
type span struct{ from, to int }

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
	if p := x.sorted.Load(); p != nil {
		return p
	}
	return &rows{}
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
		old = p.all
	}
	next := &rows{all: make([]*entry, 0, len(old)+len(added))}
	for len(old) > 0 || len(added) > 0 {
		from := &old
		if len(old) == 0 || len(added) > 0 && byKey(added[0], old[0]) < 0 {
			from = &added
		}
		if e := (*from)[0]; !e.gone.Load() {
			if n := len(next.all); n == 0 || next.all[n-1].key.Cluster != e.key.Cluster {
				next.clusters = append(next.clusters, span{n, n})
			}
			next.all = append(next.all, e)
			next.clusters[len(next.clusters)-1].to++
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

// spans returns the rows whose keys a filter selects, in order.
func (r *rows) spans(f *Filter) []span {
	if len(f.Clusters) == 0 && len(f.Names) == 0 {
		return []span{{0, len(r.all)}}
	}
	var list []span
	for _, c := range r.clusters {
		switch {
		case len(f.Clusters) > 0 && !slices.Contains(f.Clusters, r.all[c.from].key.Cluster):
		case len(f.Names) == 0:
			list = append(list, c)
		default:
			for _, name := range f.Names {
				if s := r.named(c, name); s.from < s.to {
					list = append(list, s)
				}
			}
		}
	}
	// Names may overlap, such as `a*` and `a1`.
	slices.SortFunc(list, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	merged := list[:0]
	for _, s := range list {
		if n := len(merged); n > 0 && s.from < merged[n-1].to {
			merged[n-1].to = max(merged[n-1].to, s.to)
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// named returns the rows of a cluster that have a name, or begin as it does.
func (r *rows) named(c span, name string) span {
	part := r.all[c.from:c.to]
	prefix, many := strings.CutSuffix(name, "*")
	from := sort.Search(len(part), func(i int) bool { return part[i].key.Node >= prefix })
	rest := part[from:]
	n := sort.Search(len(rest), func(i int) bool {
		if many {
			return !strings.HasPrefix(rest[i].key.Node, prefix)
		}
		return rest[i].key.Node != name
	})
	return span{c.from + from, c.from + from + n}
}
