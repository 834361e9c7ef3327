// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"cmp"
	"iter"
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
	// Nodes by name; `abc*` stands for all names that begin with `abc`.
	Nodes  []string
	Groups []string
	States []string
	Health []string // names of the worst GPU's
	// Straggler selects by View.Straggler.
	Straggler *bool
	// Jobs selects nodes that run one of these, by the node's resource or by its GPUs.
	Jobs []string
	// MinUtilization is the least mean utilisation of a node's GPUs, a fraction. No
	// missing node has any.
	MinUtilization float64
}

// fixed reports whether a selected node stays selected.
func (f *Filter) fixed() bool {
	return len(f.Groups) == 0 && len(f.States) == 0 && len(f.Health) == 0 && f.Straggler == nil && len(f.Jobs) == 0 && f.MinUtilization == 0
}

func (f *Filter) matchKey(k Key) bool {
	return (len(f.Clusters) == 0 || slices.Contains(f.Clusters, k.Cluster)) &&
		(len(f.Nodes) == 0 || slices.ContainsFunc(f.Nodes, func(name string) bool {
			prefix, many := strings.CutSuffix(name, "*")
			return name == k.Node || many && strings.HasPrefix(k.Node, prefix)
		}))
}

func (f *Filter) matchNode(v *View) bool {
	return (len(f.Groups) == 0 || slices.Contains(f.Groups, v.Group)) &&
		(f.Straggler == nil || *f.Straggler == v.Straggler()) &&
		(f.MinUtilization <= 0 || v.State != gpusemconv.StateMissing && v.Utilization >= f.MinUtilization) && // not while it is unknown, NaN
		(len(f.Jobs) == 0 || v.Runs(f.Jobs, "")) &&
		(len(f.Health) == 0 || slices.Contains(f.Health, v.Health.String())) &&
		(len(f.States) == 0 || slices.Contains(f.States, v.State))
}

// Each returns the selected nodes in the order of their keys.
func (s *Store) Each(f *Filter, now time.Time) iter.Seq[View] {
	return func(yield func(View) bool) {
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

// Suspect is a node among the most suspect ones.
type Suspect struct {
	View
	Place int // from 1
	// By sorts: 1 for a straggler, the suspicion, how far the score is below the group's median.
	By [3]float64
}

// Stragglers ranks the selected nodes, the most suspect first. It leaves out missing nodes,
// and nodes of which nothing is known that ranks them.
func (s *Store) Stragglers(f *Filter, now time.Time) (list []Suspect) {
	medians := map[GroupKey]float64{}
	for _, g := range s.Groups() {
		if m := g.Get(reading.GroupMedian); m != nil {
			medians[g.GroupKey] = *m
		}
	}
	for v := range s.Each(f, now) {
		if v.State == gpusemconv.StateMissing {
			continue
		}
		r := Suspect{View: v}
		suspicion, score := v.Values.Get(reading.NodeSuspicion), v.Values.Get(reading.NodeHealthScore)
		if v.Straggler() {
			r.By[0] = 1
		} else if suspicion == nil && score == nil {
			continue
		}
		if suspicion != nil {
			r.By[1] = *suspicion
		}
		if m, ok := medians[GroupKey{v.Cluster, v.Group}]; ok && score != nil {
			r.By[2] = m - *score
		}
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b Suspect) int { return cmp.Or(slices.Compare(b.By[:], a.By[:]), a.Compare(b.Key)) })
	for i := range list {
		list[i].Place = i + 1
	}
	return list
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
