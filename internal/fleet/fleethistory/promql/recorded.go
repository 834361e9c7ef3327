// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

// subject is a node, or a GPU of it.
type subject struct{ cluster, host, gpu string }

func (h *History) subject(labels model.Metric) subject {
	return subject{h.cluster(labels), h.label(labels, h.cfg.HostLabel), h.label(labels, h.cfg.GPULabel)}
}

// Recorded implements fleethistory.History: it counts the samples by labels, and
// finds the first and the last of those on the page. First and Last are rounded
// outwards to a hundredth of the time asked about.
func (h *History) Recorded(ctx context.Context, q *fleethistory.Query, gpus bool) (page []fleethistory.Recorded, total int, err error) {
	labels := []string{h.cfg.ClusterLabel, h.cfg.HostLabel}
	if gpus {
		labels = append(labels, h.cfg.GPULabel)
	}
	last := labels[len(labels)-1]
	err = h.ask(ctx, func(ctx context.Context) error {
		s := spanOf(q)
		matchers := h.matchers(q, last+`!=""`)
		metrics, err := h.metrics(ctx, q, matchers)
		if err != nil || len(metrics) == 0 {
			return err
		}
		window := h.window(s.until - s.after)
		counts := map[subject]int64{}
		for _, e := range expressions(metrics, matchers, window, "count_over_time", "sum", labels...) {
			if err := h.instant(ctx, "sum by ("+strings.Join(labels, ",")+") ("+e+")", s.until, func(v *model.Sample) {
				counts[h.subject(v.Metric)] += int64(v.Value)
			}); err != nil {
				return err
			}
		}
		var list []fleethistory.Recorded
		for p, n := range counts {
			list = append(list, fleethistory.Recorded{Cluster: p.cluster, Host: p.host, GPU: p.gpu, Samples: n})
		}
		slices.SortFunc(list, func(a, b fleethistory.Recorded) int {
			return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.GPU, b.GPU))
		})
		total = len(list)
		page = list[min(q.Offset, total):min(q.Offset+q.Limit, total)]
		for part := range slices.Chunk(page, hostsPerQuery) {
			if err := h.times(ctx, q, s, metrics, part, last, labels); err != nil {
				return err
			}
		}
		return nil
	})
	return page, total, err
}

// times finds when there are samples, in steps of the time.
func (h *History) times(ctx context.Context, q *fleethistory.Query, s span, metrics []string, part []fleethistory.Recorded, last string, labels []string) error {
	step := max((s.until-s.after+timeSteps-1)/timeSteps, 1000)
	window := h.window(step)
	narrowed := *q
	rows := map[subject]*fleethistory.Recorded{}
	narrowed.Hosts, narrowed.GPUs = nil, nil
	for i := range part {
		p := &part[i]
		rows[subject{p.Cluster, p.Host, p.GPU}] = p
		narrowed.Hosts = append(narrowed.Hosts, p.Host)
		if p.GPU != "" {
			narrowed.GPUs = append(narrowed.GPUs, p.GPU)
		}
	}
	slices.Sort(narrowed.Hosts)
	narrowed.Hosts = slices.Compact(narrowed.Hosts)
	for _, e := range expressions(metrics, h.matchers(&narrowed, last+`!=""`), window, "count_over_time", "sum", labels...) {
		matrix, err := answer[model.Matrix](h.api.QueryRange(ctx, "sum by ("+strings.Join(labels, ",")+") ("+e+")", v1.Range{
			Start: time.UnixMilli(s.until - (timeSteps-1)*step), End: time.UnixMilli(s.until), Step: time.Duration(step) * time.Millisecond,
		}))
		if err != nil {
			return err
		}
		for _, series := range matrix {
			r := rows[h.subject(series.Metric)]
			for _, pair := range series.Values {
				if at := int64(pair.Timestamp); r != nil && pair.Value > 0 {
					// The points of a series come in order, those of expressions do not.
					if first := time.UnixMilli(max(at-step, s.after) + 1).UTC(); r.First.IsZero() || first.Before(r.First) {
						r.First = first
					}
					if last := time.UnixMilli(at).UTC(); last.After(r.Last) {
						r.Last = last
					}
				}
			}
		}
	}
	return nil
}
