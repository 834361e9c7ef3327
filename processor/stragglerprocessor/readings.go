// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"errors"
	"math"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/rankattr"
)

var (
	errReading = errors.New("reading is not a finite number >= 0")
	errGPUs    = errors.New("more GPUs or ranks than a node can have")
)

// collectReading adds what rm says to r and returns the report's timestamp. A
// MIG slice is no GPU of its own here: its clock, power and links are those of
// the GPU it is cut from.
func collectReading(ctx context.Context, r *nodescore.Reading, plan *nodescore.Plan, rm pmetric.ResourceMetrics, rejects *rejects) pcommon.Timestamp {
	var ts pcommon.Timestamp
	resource := rm.Resource().Attributes()
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			inputs := plan.Inputs(m.Name())
			if inputs == nil {
				continue
			}
			for _, p := range numberPoints(m).All() {
				if p.Flags().NoRecordedValue() {
					continue
				}
				attrs := p.Attributes()
				if _, slice := attrs.Get(gpusemconv.AttrHWParent); slice {
					continue
				}
				for i := range inputs {
					if !matches(&inputs[i], attrs) {
						continue
					}
					if !r.Add(&inputs[i], subject(&inputs[i], resource, attrs), number(p)) {
						rejects.add(ctx, errReading)
						continue
					}
					ts = max(ts, p.Timestamp())
				}
			}
		}
	}
	return ts
}

func matches(in *nodescore.Input, attrs pcommon.Map) bool {
	for i := range in.Attributes {
		if v, ok := attrs.Get(in.Attributes[i].Key); ok && text(v) != in.Attributes[i].Value {
			return false
		}
	}
	return true
}

// subject is whom a point is of. Only a job's own readings are of ranks: the
// environment of a rank may have given its resource attributes to others.
func subject(in *nodescore.Input, resource, point pcommon.Map) nodesignal.Subject {
	if in.Ranked {
		return rankattr.Within(resource, point)
	}
	return nodesignal.Subject{GPU: rankattr.GPU(point)}
}

// numberPoints returns the points of a gauge or sum, none for other types.
func numberPoints(m pmetric.Metric) pmetric.NumberDataPointSlice {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints()
	case pmetric.MetricTypeSum:
		return m.Sum().DataPoints()
	default:
		return noPoints
	}
}

var noPoints = pmetric.NewNumberDataPointSlice()

// number returns a point's value, NaN when it has none.
func number(p pmetric.NumberDataPoint) float64 {
	switch p.ValueType() {
	case pmetric.NumberDataPointValueTypeInt:
		return float64(p.IntValue())
	case pmetric.NumberDataPointValueTypeDouble:
		return p.DoubleValue()
	default:
		return math.NaN()
	}
}

// round keeps log lines readable.
func round(x float64) float64 { return math.Round(x*1000) / 1000 }
