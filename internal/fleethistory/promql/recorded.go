// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
)

// place is a node, or a GPU of it.
type place struct{ cluster, host, gpu string }

func (h *History) place(labels model.Metric) place {
	return place{h.cluster(labels), h.label(labels, h.cfg.HostLabel), h.label(labels, h.cfg.GPULabel)}
}

type recorded struct {
	place
	first, last int64
	n           int64
}

// recorded counts the samples by labels, and finds the first and the last of
// those on the page.
func (h *History) recorded(ctx context.Context, q *fleethistory.Query, last string, labels ...string) (page []recorded, total int, err error) {
	err = h.ask(ctx, func(ctx context.Context) error {
		s := spanOf(q)
		matchers := h.matchers(q, last+`!=""`)
		metrics, err := h.metrics(ctx, q, matchers)
		if err != nil || len(metrics) == 0 {
			return err
		}
		window, err := h.window(ctx, s.until-s.after)
		if err != nil {
			return err
		}
		counts := map[place]int64{}
		for _, e := range expressions(metrics, matchers, window, "count_over_time", "sum", labels...) {
			if err := h.instant(ctx, "sum by ("+strings.Join(labels, ",")+") ("+e+")", s.until, func(v *model.Sample) {
				counts[h.place(v.Metric)] += int64(v.Value)
			}); err != nil {
				return err
			}
		}
		var list []recorded
		for p, n := range counts {
			list = append(list, recorded{place: p, n: n})
		}
		slices.SortFunc(list, func(a, b recorded) int {
			return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.gpu, b.gpu))
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
func (h *History) times(ctx context.Context, q *fleethistory.Query, s span, metrics []string, part []recorded, last string, labels []string) error {
	step := max((s.until-s.after+timeSteps-1)/timeSteps, 1000)
	window, err := h.window(ctx, step)
	if err != nil {
		return err
	}
	narrowed := *q
	rows := map[place]*recorded{}
	narrowed.Hosts, narrowed.GPUs = nil, nil
	for i := range part {
		rows[part[i].place] = &part[i]
		narrowed.Hosts = append(narrowed.Hosts, part[i].host)
		if part[i].gpu != "" {
			narrowed.GPUs = append(narrowed.GPUs, part[i].gpu)
		}
	}
	slices.Sort(narrowed.Hosts)
	narrowed.Hosts = slices.Compact(narrowed.Hosts)
	for _, e := range expressions(metrics, h.matchers(&narrowed, last+`!=""`), window, "count_over_time", "sum", labels...) {
		v, _, err := h.api.QueryRange(ctx, "sum by ("+strings.Join(labels, ",")+") ("+e+")", v1.Range{
			Start: time.UnixMilli(s.until - (timeSteps-1)*step), End: time.UnixMilli(s.until), Step: time.Duration(step) * time.Millisecond,
		})
		if err != nil {
			return err
		}
		matrix, ok := v.(model.Matrix)
		if !ok {
			return fmt.Errorf("the answer is a %s, must be a matrix", v.Type())
		}
		for _, series := range matrix {
			r := rows[h.place(series.Metric)]
			for _, pair := range series.Values {
				if at := int64(pair.Timestamp); r != nil && pair.Value > 0 {
					if r.first == 0 || at-step < r.first {
						r.first = max(at-step, s.after) + 1
					}
					r.last = max(r.last, at)
				}
			}
		}
	}
	return nil
}

// Hosts implements fleethistory.History. First and Last are rounded outwards to
// a hundredth of the time asked about.
func (h *History) Hosts(ctx context.Context, q *fleethistory.Query) ([]fleethistory.Host, int, error) {
	list, total, err := h.recorded(ctx, q, h.cfg.HostLabel, h.cfg.ClusterLabel, h.cfg.HostLabel)
	var page []fleethistory.Host
	for _, r := range list {
		page = append(page, fleethistory.Host{Cluster: r.cluster, Host: r.host, First: time.UnixMilli(r.first), Last: time.UnixMilli(r.last), Samples: r.n})
	}
	return page, total, err
}

// GPUs implements fleethistory.History, as Hosts does.
func (h *History) GPUs(ctx context.Context, q *fleethistory.Query) ([]fleethistory.GPU, int, error) {
	list, total, err := h.recorded(ctx, q, h.cfg.GPULabel, h.cfg.ClusterLabel, h.cfg.HostLabel, h.cfg.GPULabel)
	var page []fleethistory.GPU
	for _, r := range list {
		page = append(page, fleethistory.GPU{Cluster: r.cluster, Host: r.host, GPU: r.gpu, First: time.UnixMilli(r.first), Last: time.UnixMilli(r.last), Samples: r.n})
	}
	return page, total, err
}
