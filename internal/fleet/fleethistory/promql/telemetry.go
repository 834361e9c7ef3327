// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

// Telemetry implements fleethistory.History. Where more samples are selected
// than are fetched, the time of the page is found by counting.
func (h *History) Telemetry(ctx context.Context, q *fleethistory.Query) (page []fleethistory.Sample, total int, err error) {
	err = h.ask(ctx, func(ctx context.Context) error {
		matchers := h.matchers(q)
		metrics, err := h.metrics(ctx, q, matchers)
		if err != nil || len(metrics) == 0 {
			return err
		}
		s := spanOf(q)
		if total, err = h.count(ctx, metrics, matchers, s); err != nil || q.Offset >= total {
			return err
		}
		skip := q.Offset
		if total > h.cfg.MaxSamples {
			if s, skip, err = h.narrow(ctx, metrics, matchers, s, total, q.Offset, q.Limit); err != nil {
				return err
			}
		}
		page, err = h.fetch(ctx, metrics, matchers, s)
		page = page[min(skip, len(page)):min(skip+q.Limit, len(page))]
		return err
	})
	return page, total, err
}

// narrow returns a span that holds the page and few samples besides, and how
// many of it are newer than the page. It bisects the time.
func (h *History) narrow(ctx context.Context, metrics []string, matchers string, all span, total, offset, limit int) (span, int, error) {
	slack := h.cfg.MaxSamples / 2
	// find returns a time with at least `least` and at most `most` samples after it.
	find := func(least, most int) (int64, int, error) {
		low, high := all.after, all.until // after low are too many, after high too few
		for high-low > 1 {
			mid := low + (high-low)/2
			n, err := h.count(ctx, metrics, matchers, span{mid, all.until})
			if err != nil {
				return 0, 0, err
			}
			switch {
			case n < least:
				high = mid
			case n > most:
				low = mid
			default:
				return mid, n, nil
			}
		}
		return 0, 0, fleethistory.ErrTooMuch
	}
	out, skipped := all, 0
	if offset > slack {
		until, n, err := find(offset-slack, offset)
		if err != nil {
			return span{}, 0, err
		}
		out.until, skipped = until, n
	}
	if total > offset+limit+slack {
		after, _, err := find(offset+limit, offset+limit+slack)
		if err != nil {
			return span{}, 0, err
		}
		out.after = after
	}
	return out, offset - skipped, nil
}

// fetch returns the samples of a span, the newest first.
func (h *History) fetch(ctx context.Context, metrics []string, matchers string, s span) ([]fleethistory.Sample, error) {
	window := strconv.FormatInt(s.until-s.after, 10) + "ms"
	selector := "{" + join(`__name__=~"`+strings.Join(metrics, "|")+`"`, matchers) + "}"
	matrix, err := answer[model.Matrix](h.api.Query(ctx, selector+"["+window+"]", time.UnixMilli(s.until)))
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
