// SPDX-License-Identifier: Apache-2.0

// Package nodereport writes what an agent finds out about its node as metrics.
package nodereport // import "github.com/gpu-collector/gpu-collector/internal/nodescore/nodereport"

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/rankattr"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// Gauges adds gauge metrics of one timestamp to a scope.
type Gauges struct {
	metrics pmetric.MetricSlice
	ts      pcommon.Timestamp
}

// NewGauges adds a scope to a resource and returns it.
func NewGauges(rm pmetric.ResourceMetrics, scope string, ts pcommon.Timestamp) Gauges {
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(scope)
	return Gauges{sm.Metrics(), ts}
}

// Metric starts a gauge of the catalogue and returns its points. Flags have no
// unit there: with "1" Prometheus would call them a ratio.
func (g Gauges) Metric(name string) pmetric.NumberDataPointSlice {
	m, known := g.metrics.AppendEmpty(), reading.ByName(name)
	m.SetName(name)
	m.SetUnit(known.Unit)
	m.SetDescription(known.About)
	return m.SetEmptyGauge().DataPoints()
}

// DropEmpty drops metrics without points: they say nothing, and receivers warn
// about them.
func (g Gauges) DropEmpty() {
	g.metrics.RemoveIf(func(m pmetric.Metric) bool { return m.Gauge().DataPoints().Len() == 0 })
}

// Point adds a point without a value.
func (g Gauges) Point(to pmetric.NumberDataPointSlice) pmetric.NumberDataPoint {
	p := to.AppendEmpty()
	p.SetTimestamp(g.ts)
	return p
}

// Double adds a point.
func (g Gauges) Double(to pmetric.NumberDataPointSlice, v float64) pmetric.NumberDataPoint {
	p := g.Point(to)
	p.SetDoubleValue(v)
	return p
}

// Flag adds a point that is 1 or 0.
func (g Gauges) Flag(to pmetric.NumberDataPointSlice, on bool) pmetric.NumberDataPoint {
	p := g.Point(to)
	if on {
		p.SetIntValue(1)
	} else {
		p.SetIntValue(0)
	}
	return p
}

// Append adds an agent's evaluation to a resource. reachable is whether the
// gateway answered the last push.
func Append(rm pmetric.ResourceMetrics, scope string, ts pcommon.Timestamp, res *nodescore.Result, reachable bool) {
	g := NewGauges(rm, scope, ts)
	// The state is a metric of its own: as an attribute of the score each change
	// would leave the old score standing beside the new one.
	states := g.Metric(gpusemconv.MetricNodeState)
	for _, s := range [...]nodesignal.State{nodesignal.StateActive, nodesignal.StateIdle, nodesignal.StateCalibrating} {
		g.Flag(states, s == res.State).Attributes().PutStr(gpusemconv.AttrNodeState, s.String())
	}
	if res.HasScore {
		g.Double(g.Metric(gpusemconv.MetricNodeHealthScore), res.Score)
	}
	if res.Signals.Known != [nodesignal.Count]bool{} {
		signals := g.Metric(gpusemconv.MetricNodeSignal)
		for s := range nodesignal.Score {
			if res.Signals.Known[s] {
				g.Double(signals, res.Signals.V[s]).Attributes().PutStr(gpusemconv.AttrSignal, s.String())
			}
		}
	}
	if res.Culprit.Known || res.Before.Known {
		appendCulprit(g, res)
	}
	g.Flag(g.Metric(gpusemconv.MetricAgentStraggler), res.Straggler)
	if res.Mode != nodescore.ModeNone {
		g.Double(g.Metric(gpusemconv.MetricAgentThreshold), res.Threshold)
	}
	modes := g.Metric(gpusemconv.MetricAgentDetectionMode)
	for m := range nodescore.NumModes {
		g.Flag(modes, m == res.Mode).Attributes().PutStr(gpusemconv.AttrDetectionMode, m.String())
	}
	g.Flag(g.Metric(gpusemconv.MetricAgentGatewayReachable), reachable)
}

// appendCulprit adds the part of the node that stands out from its siblings. A node
// has one such series at a time, which names nobody and is 0 while none stands out.
// The series before it ends with a point without a value. That point comes last,
// since the prometheus exporter skips what is behind it.
func appendCulprit(g Gauges, res *nodescore.Result) {
	points := g.Metric(gpusemconv.MetricNodeCulprit)
	if res.Culprit.Known {
		label(g.Flag(points, res.Culprit.Subject != nodesignal.Subject{}), res.Culprit.Subject)
	}
	if res.Before.Known && res.Before != res.Culprit {
		p := g.Point(points)
		p.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
		label(p, res.Before.Subject)
	}
}

func label(p pmetric.NumberDataPoint, of nodesignal.Subject) {
	p.Attributes().PutStr(gpusemconv.AttrSignal, nodesignal.Throughput.String())
	rankattr.Put(p.Attributes(), of)
}
