// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

// Samples implements fleethistory.History. It fetches slices of time that have few samples.
func (h *History) Samples(ctx context.Context, q *fleethistory.Query, f func(*fleethistory.Sample) bool) error {
	return h.ask(ctx, func(ctx context.Context) error {
		matchers := h.matchers(q)
		metrics, err := h.metrics(ctx, q, matchers)
		if err != nil || len(metrics) == 0 {
			return err
		}
		all, left, most := spanOf(q), h.cfg.MaxSamples, max(1, h.cfg.MaxSamples/parts)
		for until, length := all.until, all.until-all.after; until > all.after; {
			part := span{max(all.after, until-length), until}
			n, err := h.count(ctx, metrics, matchers, part)
			if err != nil {
				return err
			}
			if n > most && length > 1 {
				length = max(1, (until-part.after)*int64(most)/int64(2*n))
				continue
			}
			list, err := h.fetch(ctx, metrics, matchers, part)
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
			until, length = part.after, 2*length
		}
		return nil
	})
}

// fetch returns the samples of a span, the newest first.
func (h *History) fetch(ctx context.Context, metrics []string, matchers string, s span) ([]fleethistory.Sample, error) {
	selector := "{" + join(`__name__=~"`+strings.Join(metrics, "|")+`"`, matchers) + "}"
	matrix, err := answer[model.Matrix](h.api.Query(ctx, selector+"["+s.window()+"]", time.UnixMilli(s.until)))
	if err != nil {
		return nil, err
	}
	var list []fleethistory.Sample
	for _, series := range matrix {
		p := h.sample(series.Metric)
		for _, pair := range series.Values {
			if at, value := int64(pair.Timestamp), float64(pair.Value); at > s.after && at <= s.until && !math.IsNaN(value) && !math.IsInf(value, 0) {
				p.At, p.Value = at, value
				list = append(list, p)
			}
		}
	}
	slices.SortFunc(list, func(a, b fleethistory.Sample) int {
		return cmp.Or(cmp.Compare(b.At, a.At), cmp.Compare(a.Node, b.Node), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Metric, b.Metric),
			cmp.Compare(a.Attributes, b.Attributes), cmp.Compare(a.Cluster, b.Cluster))
	})
	return list, nil
}

func (h *History) sample(labels model.Metric) fleethistory.Sample {
	return fleethistory.Sample{
		Cluster: h.cluster(labels), Node: h.label(labels, h.cfg.HostLabel), GPU: h.label(labels, h.cfg.GPULabel),
		Metric: translate().fromMetric(string(labels["__name__"])), Attributes: h.attributes(labels),
	}
}
