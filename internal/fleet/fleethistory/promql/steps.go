// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Steps implements fleethistory.History. Each metric is a question of its own: functions
// over ranges may drop its name.
func (h *History) Steps(ctx context.Context, q *fleethistory.StepQuery) (list []fleethistory.Sample, err error) {
	err = h.ask(ctx, func(ctx context.Context) error {
		var more []string
		if q.PeerGroup != "" {
			more = append(more, underscores(gpusemconv.AttrPeerGroup)+"="+strconv.Quote(q.PeerGroup))
		}
		matchers := h.matchers(&q.Query, more...)
		metrics, err := h.metrics(ctx, &q.Query, matchers)
		if err != nil {
			return err
		}
		window := span{0, q.Back().Milliseconds()}.window()
		steps := v1.Range{
			Start: time.UnixMilli(q.Ends(q.Start.UnixMilli())), End: time.UnixMilli(q.End.UnixMilli()), Step: q.Step,
		}
		for _, metric := range metrics {
			matrix, err := answer[model.Matrix](h.api.QueryRange(ctx, fmt.Sprintf("last_over_time(%s{%s}[%s])", metric, matchers, window), steps))
			if err != nil {
				return err
			}
			for _, series := range matrix {
				p := h.sample(series.Metric)
				p.Metric = translate().fromMetric(metric)
				for _, pair := range series.Values {
					if p.At, p.Value = int64(pair.Timestamp), float64(pair.Value); math.IsNaN(p.Value) || math.IsInf(p.Value, 0) {
						continue
					}
					if list = append(list, p); len(list) > q.Limit {
						return fleethistory.ErrTooMuch
					}
				}
			}
		}
		slices.SortStableFunc(list, func(a, b fleethistory.Sample) int { return cmp.Compare(a.At, b.At) })
		return nil
	})
	if err != nil {
		list = nil
	}
	return list, err
}
