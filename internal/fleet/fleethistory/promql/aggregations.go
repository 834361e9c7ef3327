// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/common/model"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

// figures are the parts of an aggregation, and how series are put together.
var figures = []struct {
	function, aggregate string
	set                 func(*fleethistory.Aggregation, float64)
}{
	{"count_over_time", "sum", func(a *fleethistory.Aggregation, v float64) { a.Count = int64(v) }},
	{"sum_over_time", "sum", func(a *fleethistory.Aggregation, v float64) { a.Sum = v }},
	{"min_over_time", "min", func(a *fleethistory.Aggregation, v float64) { a.Min = v }},
	{"max_over_time", "max", func(a *fleethistory.Aggregation, v float64) { a.Max = v }},
}

// depth is how many of cluster, host and GPU a row has.
var depth = map[fleethistory.GroupBy]int{fleethistory.ByCluster: 1, fleethistory.ByHost: 2, fleethistory.ByGPU: 3}

// Aggregations implements fleethistory.History.
func (h *History) Aggregations(ctx context.Context, q *fleethistory.AggregationQuery) (list []fleethistory.Aggregation, err error) {
	err = h.ask(ctx, func(ctx context.Context) error {
		s := spanOf(&q.Query)
		labels := []string{h.cfg.ClusterLabel, h.cfg.HostLabel, h.cfg.GPULabel}[:depth[q.GroupBy]]
		var more []string
		if len(labels) > 1 {
			more = []string{labels[len(labels)-1] + `!=""`}
		}
		matchers := h.matchers(&q.Query, more...)
		metrics, err := h.metrics(ctx, &q.Query, matchers)
		if err == nil && len(q.Metrics) == 0 {
			metrics = slices.DeleteFunc(metrics, constant)
		}
		if err != nil || len(metrics) == 0 {
			return err
		}
		attributes, err := h.attributeLabels(ctx, &q.Query, metrics, matchers)
		if err != nil {
			return err
		}
		by := slices.Concat(labels, attributes)
		window := h.window(s.until - s.after)
		table := fleethistory.NewFigures(q.GroupBy)
		for _, f := range figures {
			for _, e := range expressions(metrics, matchers, window, f.function, f.aggregate, by...) {
				if err := h.instant(ctx, e, s.until, func(v *model.Sample) {
					p := h.sample(v.Metric)
					p.Metric = translate().fromMetric(string(v.Metric[metricLabel]))
					if a := table.Row(&p); a != nil {
						f.set(a, float64(v.Value))
					}
				}); err != nil {
					return err
				}
			}
		}
		list, err = table.List()
		return err
	})
	return list, err
}

// constant reports whether a metric is always 1.
func constant(metric string) bool {
	return strings.HasSuffix(metric, "_info") || strings.HasSuffix(translate().fromMetric(metric), ".info")
}

// maxAttributes bounds the labels of an expression: the product has some 30.
const maxAttributes = 100

// attributeLabels returns the labels that distinguish samples of one metric.
func (h *History) attributeLabels(ctx context.Context, q *fleethistory.Query, metrics []string, matchers string) ([]string, error) {
	selector := join(ours, matchers)
	if len(q.Metrics) > 0 {
		selector = join(`__name__=~"`+strings.Join(metrics, "|")+`"`, matchers)
	}
	names, _, err := h.api.LabelNames(ctx, []string{"{" + selector + "}"}, q.Start, q.End)
	if err != nil {
		return nil, err
	}
	// A name that must be quoted is none of the product's.
	names = slices.DeleteFunc(names, func(name string) bool { return !h.isAttribute(name) || !model.LegacyValidation.IsValidLabelName(name) })
	if len(names) > maxAttributes {
		return nil, fmt.Errorf("%w (%d attributes)", fleethistory.ErrTooMuch, len(names))
	}
	return names, nil
}
