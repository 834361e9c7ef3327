// SPDX-License-Identifier: Apache-2.0

package fleethistory

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
)

// maxCounted is how many selected samples are counted for one answer, a second or two.
const maxCounted = 5_000_000

// Telemetry returns a page of samples, the newest first, and how many are selected in all, -1
// where that is not known.
func Telemetry(ctx context.Context, h History, q *Query) (page []Sample, total int, err error) {
	err = h.Samples(ctx, q, func(p *Sample) bool {
		if total >= q.Offset && len(page) < q.Limit {
			page = append(page, *p)
		}
		total++
		return total <= maxCounted
	})
	tooMuch := errors.Is(err, ErrTooMuch) || total > maxCounted
	switch {
	case tooMuch && len(page) == q.Limit:
		return page, -1, nil
	case tooMuch:
		return nil, 0, ErrTooMuch
	}
	return page, total, err
}

// Steps returns the samples of a question with steps, the oldest first. More than Limit are
// ErrTooMuch.
func Steps(ctx context.Context, h History, q *Query) (list []Sample, err error) {
	err = h.Samples(ctx, q, func(p *Sample) bool {
		list = append(list, *p)
		return len(list) <= q.Limit
	})
	if err == nil && len(list) > q.Limit {
		err = ErrTooMuch
	}
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(list, func(a, b Sample) int { return cmp.Compare(a.At, b.At) })
	return list, nil
}

// Recorded is a node, or a GPU of one, with the time of its history.
type Recorded struct {
	Cluster string    `json:"cluster"`
	Host    string    `json:"host"`
	GPU     string    `json:"gpu,omitempty" doc:"Absent of a node"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Samples int64     `json:"samples"`
}

// subject names a row of an answer.
type subject struct{ cluster, host, gpu string }

// ListRecorded returns a page of the nodes that have history, by name, or of their GPUs, and how
// many there are. It does not look at GPUs and Metrics.
func ListRecorded(ctx context.Context, h History, q *Query, gpus bool) (page []Recorded, total int, err error) {
	all := map[subject]*Recorded{}
	var last subject // samples of a subject come one after the other
	var r *Recorded
	err = h.Samples(ctx, q, func(p *Sample) bool {
		of := subject{p.Cluster, p.Node, ""}
		if gpus {
			of.gpu = p.GPU
		}
		if of.host == "" || gpus && of.gpu == "" {
			return true
		}
		at := time.UnixMilli(p.At).UTC()
		if r == nil || of != last {
			if last, r = of, all[of]; r == nil {
				r = &Recorded{Cluster: of.cluster, Host: of.host, GPU: of.gpu, Last: at}
				all[of] = r
			}
		}
		r.First = at // the newest came first
		r.Samples++
		return true
	})
	if err != nil {
		return nil, 0, err
	}
	list := slices.SortedFunc(maps.Values(all), func(a, b *Recorded) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.GPU, b.GPU))
	})
	for _, r := range list[min(q.Offset, len(list)):min(q.Offset+q.Limit, len(list))] {
		page = append(page, *r)
	}
	return page, len(list), nil
}

// GroupBy is what an aggregation makes one row of.
type GroupBy string

// Each groups samples by one more key, besides metric and attributes.
const (
	ByCluster GroupBy = "cluster"
	ByHost    GroupBy = "host"
	ByGPU     GroupBy = "gpu"
	ByMetric  GroupBy = "metric"
)

// Aggregation are the figures of one group, metric and set of attributes: of
// the temperatures of GPU and memory there is no mean. Metrics whose name ends
// with `.info` are always 1; they are only looked at where they are named.
type Aggregation struct {
	// The first three are empty beyond what is grouped by.
	Cluster    string  `json:"cluster,omitempty"`
	Host       string  `json:"host,omitempty"`
	GPU        string  `json:"gpu,omitempty"`
	Metric     string  `json:"metric"`
	Attributes string  `json:"-"` // as of Sample
	Count      int64   `json:"count"`
	Min        float64 `json:"min"`
	Max        float64 `json:"max"`
	Mean       float64 `json:"mean"`
	Sum        float64 `json:"sum"`
}

// series names a row of a subject.
type series struct{ metric, attributes string }

// maxGroups bounds an answer of aggregations, which has no pages.
const maxGroups = 10_000

// Aggregate returns figures by group.
func Aggregate(ctx context.Context, h History, q *Query, by GroupBy) (list []Aggregation, err error) {
	all := map[subject]map[series]*Aggregation{}
	var last subject // samples of a subject come one after the other
	var rows map[series]*Aggregation
	n := 0
	err = h.Samples(ctx, q, func(p *Sample) bool {
		of := subject{p.Cluster, p.Node, p.GPU}
		switch by {
		case ByMetric:
			of = subject{}
		case ByCluster:
			of.host, of.gpu = "", ""
		case ByHost:
			of.gpu = ""
		}
		if by == ByHost && of.host == "" || by == ByGPU && of.gpu == "" || len(q.Metrics) == 0 && isInfo(p.Metric) {
			return true
		}
		if rows == nil || of != last {
			if last, rows = of, all[of]; rows == nil {
				rows = map[series]*Aggregation{}
				all[of] = rows
			}
		}
		key := series{p.Metric, p.Attributes}
		a := rows[key]
		if a == nil {
			if n++; n > maxGroups {
				return false
			}
			a = &Aggregation{Cluster: of.cluster, Host: of.host, GPU: of.gpu, Metric: p.Metric, Attributes: p.Attributes, Min: p.Value, Max: p.Value}
			rows[key] = a
		}
		a.Count++
		a.Sum += p.Value
		a.Min, a.Max = min(a.Min, p.Value), max(a.Max, p.Value)
		return true
	})
	if n > maxGroups {
		err = ErrTooMuch
	}
	if err != nil {
		return nil, err
	}
	for _, rows := range all {
		for _, a := range rows {
			a.Mean = a.Sum / float64(a.Count)
			list = append(list, *a)
		}
	}
	slices.SortFunc(list, func(a, b Aggregation) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Host, b.Host), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Metric, b.Metric), cmp.Compare(a.Attributes, b.Attributes))
	})
	return list, nil
}

// isInfo reports whether a metric is always 1, by its name in OpenTelemetry or in Prometheus.
func isInfo(metric string) bool {
	return strings.HasSuffix(metric, ".info") || strings.HasSuffix(metric, "_info")
}
