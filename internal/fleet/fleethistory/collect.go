// SPDX-License-Identifier: Apache-2.0

package fleethistory

import (
	"cmp"
	"slices"
	"time"
)

// RecordedList collects the nodes, or GPUs, that have samples.
type RecordedList struct{ all map[group]*Recorded }

// group names a row of an answer.
type group struct{ cluster, host, gpu, metric, attributes string }

// Add adds so many samples of a subject, from the first to the last.
func (l *RecordedList) Add(cluster, host, gpu string, first, last time.Time, samples int64) {
	g := group{cluster: cluster, host: host, gpu: gpu}
	r := l.all[g]
	if r == nil {
		if l.all == nil {
			l.all = map[group]*Recorded{}
		}
		r = &Recorded{Cluster: cluster, Host: host, GPU: gpu, First: first, Last: last}
		l.all[g] = r
	}
	if first.Before(r.First) {
		r.First = first
	}
	if last.After(r.Last) {
		r.Last = last
	}
	r.Samples += samples
}

// Page returns the page that a query asks for, by name, and how many there are.
func (l *RecordedList) Page(q *Query) (page []Recorded, total int) {
	list := make([]Recorded, 0, len(l.all))
	for _, r := range l.all {
		list = append(list, *r)
	}
	slices.SortFunc(list, func(a, b Recorded) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.GPU, b.GPU))
	})
	return list[min(q.Offset, len(list)):min(q.Offset+q.Limit, len(list))], len(list)
}

// Figures collects the rows of an aggregation.
type Figures struct {
	by  GroupBy
	all map[group]*Aggregation
	// over is set where there are more rows than an answer may have.
	over bool
}

// maxGroups bounds an answer of aggregations, which has no pages.
const maxGroups = 10_000

// NewFigures returns figures without a row.
func NewFigures(by GroupBy) *Figures { return &Figures{by: by, all: map[group]*Aggregation{}} }

// Row returns the row that a sample belongs to, nil where it belongs to none.
func (f *Figures) Row(p *Sample) *Aggregation {
	g := group{metric: p.Metric, attributes: p.Attributes}
	if f.by != ByMetric {
		g.cluster = p.Cluster
	}
	if f.by == ByHost || f.by == ByGPU {
		g.host = p.Node
	}
	if f.by == ByGPU {
		g.gpu = p.GPU
	}
	if f.by == ByHost && g.host == "" || f.by == ByGPU && g.gpu == "" {
		return nil
	}
	a := f.all[g]
	if a == nil {
		if f.over = f.over || len(f.all) >= maxGroups; f.over {
			return nil
		}
		a = &Aggregation{Cluster: g.cluster, Host: g.host, GPU: g.gpu, Metric: g.metric, Attributes: g.attributes}
		f.all[g] = a
	}
	return a
}

// List returns the rows that have samples, with their means.
func (f *Figures) List() (list []Aggregation, err error) {
	if f.over {
		return nil, ErrTooMuch
	}
	for _, a := range f.all {
		if a.Count > 0 {
			a.Mean = a.Sum / float64(a.Count)
			list = append(list, *a)
		}
	}
	slices.SortFunc(list, func(a, b Aggregation) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Host, b.Host), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Metric, b.Metric), cmp.Compare(a.Attributes, b.Attributes))
	})
	return list, nil
}
