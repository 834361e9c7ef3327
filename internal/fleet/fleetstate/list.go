// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// View is a node's view and the time of the node's last sign of life.
type View struct {
	*Node
	Seen  time.Time
	State string // Node.State, or missing
}

// Straggler reports whether the gateway takes the node for a straggler. Of a
// missing node there is no verdict, only the former one.
func (v *View) Straggler() bool {
	return v.State != gpusemconv.StateMissing && v.Values.Flag(reading.NodeStraggler)
}

func (s *Store) view(e *entry, now int64) View {
	n, seen := e.view.Load(), e.seen.Load()
	v := View{n, time.UnixMilli(seen), n.State}
	if s.missing(seen, now) {
		v.State = gpusemconv.StateMissing
	}
	return v
}

func (s *Store) missing(seen, now int64) bool { return now-seen > s.cfg.MissingAfter.Milliseconds() }

// Filter selects nodes. The zero filter selects all.
type Filter struct {
	Clusters []string
	// Names of nodes; `abc*` stands for all names that begin with `abc`.
	Names  []string
	Groups []string
	States []string
	Health []string // names of the worst GPU's
	// Straggler selects by View.Straggler.
	Straggler *bool
	// Jobs selects nodes that run one of these, by the node's resource or by its GPUs.
	Jobs []string
	// MinUsage is the least mean utilisation of a node's GPUs, a fraction. No
	// missing node has any.
	MinUsage float64
}

// fixed reports whether a selected node stays selected.
func (f *Filter) fixed() bool {
	return len(f.Groups) == 0 && len(f.States) == 0 && len(f.Health) == 0 && f.Straggler == nil && len(f.Jobs) == 0 && f.MinUsage == 0
}

func (f *Filter) matchKey(k Key) bool {
	return (len(f.Clusters) == 0 || slices.Contains(f.Clusters, k.Cluster)) &&
		(len(f.Names) == 0 || slices.ContainsFunc(f.Names, func(name string) bool {
			prefix, many := strings.CutSuffix(name, "*")
			return name == k.Node || many && strings.HasPrefix(k.Node, prefix)
		}))
}

func (f *Filter) matchNode(v *View) bool {
	return (len(f.Groups) == 0 || slices.Contains(f.Groups, v.Group)) &&
		(f.Straggler == nil || *f.Straggler == v.Straggler()) &&
		(f.MinUsage <= 0 || v.State != gpusemconv.StateMissing && v.Usage >= f.MinUsage) && // not while it is unknown, NaN
		(len(f.Jobs) == 0 || v.Runs(f.Jobs, "")) &&
		(len(f.Health) == 0 || slices.Contains(f.Health, v.Health.String())) &&
		(len(f.States) == 0 || slices.Contains(f.States, v.State))
}

// Each calls yield for the selected nodes in the order of their keys, until it
// returns false.
func (s *Store) Each(f *Filter, now time.Time, yield func(View) bool) {
	ms := now.UnixMilli()
	for _, e := range s.rows().all {
		if e.gone.Load() || !f.matchKey(e.key) {
			continue
		}
		if v := s.view(e, ms); f.matchNode(&v) && !yield(v) {
			return
		}
	}
}

// List returns the selected nodes from an offset on, at most limit of them,
// and how many are selected in all.
func (s *Store) List(f *Filter, now time.Time, offset, limit int) (page []View, total int) {
	s.Each(f, now, func(v View) bool {
		if total >= offset && len(page) < limit {
			page = append(page, v)
		}
		total++
		return true
	})
	return page, total
}

// Clusters returns the names of all known clusters, sorted.
func (s *Store) Clusters() []string {
	names := map[string]bool{}
	for _, c := range s.rows().clusters {
		names[c] = true
	}
	for _, g := range s.Groups() {
		names[g.Cluster] = true
	}
	s.episodes.mu.RLock()
	for k := range s.episodes.all {
		names[k.Cluster] = true
	}
	s.episodes.mu.RUnlock()
	return slices.Sorted(maps.Keys(names))
}

// Node returns the view of a node.
func (s *Store) Node(k Key, now time.Time) (View, bool) {
	e := s.find(k)
	if e == nil {
		return View{}, false
	}
	return s.view(e, now.UnixMilli()), true
}

// Stragglers ranks the selected nodes, the most suspect first: those that are
// stragglers, then by suspicion, then by how far the score is below the
// group's median. It leaves out missing nodes, and nodes without any of these.
func (s *Store) Stragglers(f *Filter, now time.Time, limit int) (top []View, total int) {
	type ranked struct {
		View
		by [3]float64 // straggler, suspicion, below the median
	}
	compare := func(a, b ranked) int { return cmp.Or(slices.Compare(b.by[:], a.by[:]), a.Compare(b.Key)) }
	medians := map[GroupKey]float64{}
	for _, g := range s.Groups() {
		if m := g.Get(reading.GroupMedian); m != nil {
			medians[g.GroupKey] = *m
		}
	}
	var list []ranked
	s.Each(f, now, func(v View) bool {
		if v.State == gpusemconv.StateMissing {
			return true
		}
		r := ranked{View: v}
		suspicion, score := v.Values.Get(reading.NodeSuspicion), v.Values.Get(reading.NodeHealthScore)
		if v.Straggler() {
			r.by[0] = 1
		} else if suspicion == nil && score == nil {
			return true
		}
		if suspicion != nil {
			r.by[1] = *suspicion
		}
		if m, ok := medians[GroupKey{v.Cluster, v.Group}]; ok && score != nil {
			r.by[2] = m - *score
		}
		total++
		// The list is short; most nodes are below its last.
		if len(list) == limit && compare(r, list[limit-1]) >= 0 {
			return true
		}
		at, _ := slices.BinarySearchFunc(list, r, compare)
		list = slices.Insert(list, at, r)
		list = list[:min(len(list), limit)]
		return true
	})
	for i := range list {
		top = append(top, list[i].View)
	}
	return top, total
}

// index holds all entries in the order of their keys, so that pages are stable from one
// request to the next. The first read after nodes came or went sorts it again.
type index struct {
	sorted  atomic.Pointer[rows]
	dirty   atomic.Bool
	sorting sync.Mutex
}

// rows are sorted by key, and never change.
type rows struct {
	all      []*entry
	clusters []string
}

// rows returns all nodes; some may be gone since.
func (s *Store) rows() *rows {
	x := &s.index
	if !x.dirty.Load() {
		return x.sorted.Load()
	}
	x.sorting.Lock()
	defer x.sorting.Unlock()
	if x.dirty.Swap(false) {
		s.mu.RLock()
		next := &rows{all: slices.AppendSeq(make([]*entry, 0, len(s.nodes)), maps.Values(s.nodes))}
		s.mu.RUnlock()
		slices.SortFunc(next.all, func(a, b *entry) int { return a.key.Compare(b.key) })
		for _, e := range next.all {
			if n := len(next.clusters); n == 0 || next.clusters[n-1] != e.key.Cluster {
				next.clusters = append(next.clusters, e.key.Cluster)
			}
		}
		x.sorted.Store(next)
	}
	return x.sorted.Load()
}
