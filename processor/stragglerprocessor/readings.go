// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"errors"
	"math"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/rankattr"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

var errGPUs = errors.New("more GPUs or ranks than a node can have")

// collectReading adds what rm says to r and returns the report's timestamp. A
// MIG slice is no GPU of its own here: its clock, power and links are those of
// the GPU it is cut from.
func collectReading(r *nodescore.Reading, plan *nodescore.Plan, rm pmetric.ResourceMetrics, from *metricreading.Resource) pcommon.Timestamp {
	var ts pcommon.Timestamp
	resource := rm.Resource().Attributes()
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			if known := reading.ByName(m.Name()); known == nil {
				ts = max(ts, collectForeign(r, plan, resource, m, from))
			} else if inputs := plan.Known(known); inputs != nil {
				ts = max(ts, collectKnown(r, inputs, resource, known, m, from))
			}
		}
	}
	return ts
}

func collectKnown(r *nodescore.Reading, inputs []nodescore.Input, resource pcommon.Map, known *reading.Metric, m pmetric.Metric, from *metricreading.Resource) (ts pcommon.Timestamp) {
	points, ok := from.Open(known, m)
	if !ok {
		return 0
	}
	var p metricreading.Point
	for _, dp := range points.All() {
		if from.Read(dp, &p) != reading.Accepted || p.Ended || p.Subject == reading.Slice {
			continue
		}
		for i := range inputs {
			in := &inputs[i]
			if in.Field != reading.None && in.Field != p.Field || in.Field == reading.None && !matches(in, dp.Attributes(), p.Subject) {
				continue
			}
			if r.Add(in, subject(in, resource, dp.Attributes(), p.ID), p.Value) {
				ts = max(ts, dp.Timestamp())
			} else {
				from.Refused[reading.ValueRange]++
			}
		}
	}
	return ts
}

// collectForeign reads a metric that only the configuration knows: any unit,
// and any number that is not negative.
func collectForeign(r *nodescore.Reading, plan *nodescore.Plan, resource pcommon.Map, m pmetric.Metric, from *metricreading.Resource) (ts pcommon.Timestamp) {
	inputs := plan.Inputs(m.Name())
	if inputs == nil {
		return 0
	}
	for _, dp := range metricreading.Points(m).All() {
		attrs := dp.Attributes()
		gpu := rankattr.GPU(attrs)
		if parent, ok := attrs.Get(gpusemconv.AttrHWParent); ok && metricreading.IsSlice(gpu, metricreading.Text(parent)) || dp.Flags().NoRecordedValue() {
			continue
		}
		for i := range inputs {
			switch {
			case !matches(&inputs[i], attrs, reading.GPU):
			case r.Add(&inputs[i], subject(&inputs[i], resource, attrs, gpu), metricreading.Number(dp)):
				ts = max(ts, dp.Timestamp())
			default:
				from.Refused[reading.ValueRange]++
			}
		}
	}
	return ts
}

// subject is whom a point is of. Only a job's own readings are of ranks: the
// environment of a rank may have given its resource attributes to others.
func subject(in *nodescore.Input, resource, point pcommon.Map, gpu string) nodesignal.Subject {
	if in.Ranked {
		return rankattr.Within(resource, point)
	}
	return nodesignal.Subject{GPU: gpu}
}

// matches reports whether a point has the attributes of an input or lacks them.
// Hardware of another type is only taken by an input that names it.
func matches(in *nodescore.Input, attrs pcommon.Map, subject reading.Subject) bool {
	named := subject != reading.Other
	for i := range in.Attributes {
		want := &in.Attributes[i]
		if v, ok := attrs.Get(want.Key); ok && metricreading.Text(v) != want.Value {
			return false
		}
		named = named || want.Key == gpusemconv.AttrHWType
	}
	return named
}

// round keeps log lines readable.
func round(x float64) float64 { return math.Round(x*1000) / 1000 }
