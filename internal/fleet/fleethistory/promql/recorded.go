// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"context"
	"strings"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

// Recorded implements fleethistory.History: it counts the samples by labels, in steps of the time.
// First and Last are rounded outwards to a step.
func (h *History) Recorded(ctx context.Context, q *fleethistory.Query, gpus bool) (page []fleethistory.Recorded, total int, err error) {
	labels := []string{h.cfg.ClusterLabel, h.cfg.HostLabel}
	if gpus {
		labels = append(labels, h.cfg.GPULabel)
	}
	err = h.ask(ctx, func(ctx context.Context) error {
		s := spanOf(q)
		matchers := h.matchers(q, labels[len(labels)-1]+`!=""`)
		metrics, err := h.metrics(ctx, q, matchers)
		if err != nil || len(metrics) == 0 {
			return err
		}
		step := max((s.until-s.after+timeSteps-1)/timeSteps, 1000)
		first := s.until - (s.until-s.after-1)/step*step // the end of the first one
		steps := v1.Range{Start: time.UnixMilli(first), End: time.UnixMilli(s.until), Step: time.Duration(step) * time.Millisecond}
		var list fleethistory.RecordedList
		for _, e := range expressions(metrics, matchers, h.window(step), "count_over_time", "sum", labels...) {
			matrix, err := answer[model.Matrix](h.api.QueryRange(ctx, "sum by ("+strings.Join(labels, ",")+") ("+e+")", steps))
			if err != nil {
				return err
			}
			for _, series := range matrix {
				p := h.sample(series.Metric)
				for _, pair := range series.Values {
					if at := int64(pair.Timestamp); pair.Value > 0 {
						first := time.UnixMilli(max(at-step, s.after) + 1).UTC()
						list.Add(p.Cluster, p.Node, p.GPU, first, time.UnixMilli(at).UTC(), int64(pair.Value))
					}
				}
			}
		}
		page, total = list.Page(q)
		return nil
	})
	return page, total, err
}
