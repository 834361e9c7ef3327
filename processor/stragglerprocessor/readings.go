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
)

var errReading = errors.New("reading is not a finite number >= 0")

// source says which points of a metric are an input: all, or those whose
// attribute has the value or is absent.
type source struct {
	input     nodescore.Input
	attribute string
	value     string
}

// sources maps metrics to the inputs of the score.
var sources = map[string]source{
	gpusemconv.MetricAppStepDuration: {input: nodescore.StepDuration},
	gpusemconv.MetricAppStepRate:     {input: nodescore.StepRate},
	gpusemconv.MetricGPUUtilization:  {nodescore.Utilization, gpusemconv.AttrGPUTask, "general"},
	gpusemconv.MetricGPUClock:        {nodescore.SMClock, gpusemconv.AttrClock, "sm"},
	gpusemconv.MetricGPUClockLimit:   {nodescore.SMClockLimit, gpusemconv.AttrClock, "sm"},
	gpusemconv.MetricGPUMemoryUsage:  {nodescore.MemoryUsed, gpusemconv.AttrMemoryState, "used"},
	gpusemconv.MetricGPUMemoryLimit:  {input: nodescore.MemoryLimit},
	gpusemconv.MetricNodeCPUPressure: {input: nodescore.CPUPressure},
}

// collectReading adds what rm says to r and returns the report's timestamp.
func collectReading(r *nodescore.Reading, rm pmetric.ResourceMetrics, rejects *rejects, ctx context.Context) pcommon.Timestamp {
	var ts pcommon.Timestamp
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			src, ok := sources[m.Name()]
			if !ok {
				continue
			}
			for _, p := range numberPoints(m).All() {
				if p.Flags().NoRecordedValue() || !src.matches(p.Attributes()) {
					continue
				}
				if !r.Add(src.input, number(p)) {
					rejects.add(ctx, errReading)
					continue
				}
				ts = max(ts, p.Timestamp())
			}
		}
	}
	return ts
}

func (s *source) matches(attrs pcommon.Map) bool {
	if s.attribute == "" {
		return true
	}
	v, ok := attrs.Get(s.attribute)
	return !ok || v.Str() == s.value
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
