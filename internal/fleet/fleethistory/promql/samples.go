// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// The time of the first request, and how many samples make the next one's longer or shorter.
const (
	firstSlice  = time.Minute
	fewSamples  = 10_000
	manySamples = 50_000
)

// Samples implements fleethistory.History. Without steps it asks for slices of the time, the newest
// first.
func (h *History) Samples(ctx context.Context, q *fleethistory.Query, f func(*fleethistory.Sample) bool) error {
	return h.ask(ctx, func(ctx context.Context) error {
		selector, left := h.selector(q), h.cfg.MaxSamples
		from, to := q.Span()
		if q.Step > 0 {
			steps := v1.Range{Start: time.UnixMilli(q.Ends(from)), End: time.UnixMilli(to), Step: q.Step}
			v, _, err := h.api.QueryRange(ctx, fmt.Sprintf("last_over_time(%s[%dms])", selector, q.Back().Milliseconds()), steps)
			if err != nil {
				return err
			}
			return h.each(v, f)
		}
		for length := firstSlice.Milliseconds(); from <= to; {
			start := max(from, to-length+1)
			list, err := h.slice(ctx, selector, start, to)
			if isTooMuch(err) && to > start {
				length = (to - start + 1) / 2
				continue
			}
			if err != nil {
				return err
			}
			for i := range list {
				if left--; left < 0 {
					return fleethistory.ErrTooMuch
				}
				if !f(&list[i]) {
					return nil
				}
			}
			to = start - 1
			if len(list) < fewSamples {
				length *= 2
			} else if len(list) > manySamples {
				length = max(length/2, 1)
			}
		}
		return nil
	})
}

// slice returns the raw samples of a time in Unix milliseconds, the newest first. Ranges of
// Prometheus before 3.0 include their left end, others do not.
func (h *History) slice(ctx context.Context, selector string, from, to int64) (list []fleethistory.Sample, err error) {
	v, _, err := h.api.Query(ctx, fmt.Sprintf("%s[%dms]", selector, to-from+1), time.UnixMilli(to))
	if err != nil {
		return nil, err
	}
	err = h.each(v, func(p *fleethistory.Sample) bool {
		if p.At >= from && p.At <= to {
			list = append(list, *p)
		}
		return true
	})
	slices.SortFunc(list, func(a, b fleethistory.Sample) int {
		return cmp.Or(cmp.Compare(b.At, a.At), cmp.Compare(a.Node, b.Node), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Metric, b.Metric),
			cmp.Compare(a.Attributes, b.Attributes), cmp.Compare(a.Cluster, b.Cluster))
	})
	return list, err
}

// each calls f for each number of an answer, until it returns false.
func (h *History) each(v model.Value, f func(*fleethistory.Sample) bool) error {
	matrix, ok := v.(model.Matrix)
	if !ok {
		return fmt.Errorf("the answer is a %s, must be a matrix: is this a server of the Prometheus API?", v.Type())
	}
	for _, series := range matrix {
		p := h.sample(series.Metric)
		for _, pair := range series.Values {
			p.At, p.Value = int64(pair.Timestamp), float64(pair.Value)
			if !math.IsNaN(p.Value) && !math.IsInf(p.Value, 0) && !f(&p) {
				return nil
			}
		}
	}
	return nil
}

// selector selects the series of a question: where it names no metric, those of the product.
func (h *History) selector(q *fleethistory.Query) string {
	list := []string{`__name__=~"(hw|gpu)_.+"`, `__name__!~".+_bucket"`}
	oneOf := func(label string, values []string) {
		if len(values) > 0 {
			quoted := make([]string, len(values))
			for i, v := range values {
				quoted[i] = regexp.QuoteMeta(v)
			}
			list = append(list, label+"=~"+strconv.Quote(strings.Join(quoted, "|")))
		}
	}
	if len(q.Metrics) > 0 {
		names := make([]string, len(q.Metrics))
		for i, name := range q.Metrics {
			names[i] = translate().metric(name)
		}
		list = nil
		oneOf(model.MetricNameLabel, names)
	}
	clusters := q.Clusters
	if slices.Contains(clusters, h.cfg.DefaultCluster) {
		clusters = append([]string{""}, clusters...)
	}
	oneOf(h.cfg.ClusterLabel, clusters)
	oneOf(h.cfg.HostLabel, q.Hosts)
	oneOf(h.cfg.GPULabel, q.GPUs)
	if q.PeerGroup != "" {
		oneOf(underscores(gpusemconv.AttrPeerGroup), []string{q.PeerGroup})
	}
	return "{" + strings.Join(list, ",") + "}"
}

// sample returns the sample of a series, without time and value.
func (h *History) sample(labels model.Metric) fleethistory.Sample {
	p := fleethistory.Sample{Cluster: h.cfg.DefaultCluster}
	attributes := map[string]string{}
	for name, v := range labels {
		value := string(v)
		switch label := string(name); {
		case value == "":
		case label == model.MetricNameLabel:
			p.Metric = translate().fromMetric(value)
		case label == h.cfg.ClusterLabel:
			p.Cluster = value
		case label == h.cfg.HostLabel:
			p.Node = value
		case label == h.cfg.GPULabel:
			p.GPU = value
		case !noise(label):
			attributes[translate().fromLabel(label)] = value
		}
	}
	p.Attributes = fleethistory.JoinAttributes(attributes)
	return p
}
