// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"

	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// Why a metric was taken out of a push.
var (
	ownName = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", "own_name")))
	alike   = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", "alike")))
)

// takeOut takes the metrics out of a push that a gateway alone may write, whatever
// their type: nobody tells its readers who is slow but itself.
func (o *observer) takeOut(ctx context.Context, md pmetric.Metrics) {
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			sm.Metrics().RemoveIf(func(m pmetric.Metric) bool {
				if !gpusemconv.IsReserved(m.Name(), m.Unit()) {
					return false
				}
				o.complain(ctx, rm, m.Name())
				why := alike
				if reading.ByName(m.Name()) != nil {
					why = ownName
				}
				o.rejects.removed.Add(ctx, 1, why)
				return true
			})
		}
	}
}

// complain tells of it, once per cluster.
func (o *observer) complain(ctx context.Context, rm pmetric.ResourceMetrics, name string) {
	id, _ := o.ids.read(wire.CallerFromContext(ctx), rm.Resource().Attributes())
	if !o.reader.Once(id.cluster, "reserved name") {
		return
	}
	o.log.Warn("a metric was taken out of a push: only a gateway gives names like this. Name it otherwise. A pipeline without this processor takes the verdicts of another gateway",
		zap.String("metric", wire.Clip(name)), zap.Strings("reserved", gpusemconv.Reserved[:]),
		zap.String("cluster", id.cluster), zap.String("node", id.node))
}
