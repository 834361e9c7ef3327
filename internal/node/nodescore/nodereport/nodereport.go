// SPDX-License-Identifier: Apache-2.0

// Package nodereport writes what an agent finds out about its node as metrics.
package nodereport // import "github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodereport"

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Gauges adds points of one timestamp to the gauges of a scope. A point's attributes are
// names and values in turn; one without a value is left out.
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

// Point adds a point without a value. The first of a metric of the catalogue starts it:
// receivers warn about metrics without points. Flags have no unit there: with "1"
// Prometheus would call them a ratio.
func (g Gauges) Point(name string, attributes ...string) pmetric.NumberDataPoint {
	at := g.metrics.Len() - 1
	for at >= 0 && g.metrics.At(at).Name() != name { // mostly it is one of the last
		at--
	}
	if at < 0 {
		at = g.metrics.Len()
		m, known := g.metrics.AppendEmpty(), reading.ByName(name)
		m.SetName(name)
		m.SetUnit(known.Unit)
		m.SetDescription(known.About)
		m.SetEmptyGauge()
	}
	p := g.metrics.At(at).Gauge().DataPoints().AppendEmpty()
	p.SetTimestamp(g.ts)
	for i := 0; i < len(attributes); i += 2 {
		if attributes[i+1] != "" {
			p.Attributes().PutStr(attributes[i], attributes[i+1])
		}
	}
	return p
}

// Double adds a point.
func (g Gauges) Double(name string, v float64, attributes ...string) {
	g.Point(name, attributes...).SetDoubleValue(v)
}

// Int adds a point.
func (g Gauges) Int(name string, v int64, attributes ...string) {
	g.Point(name, attributes...).SetIntValue(v)
}

// Flag adds a point that is 1 or 0.
func (g Gauges) Flag(name string, on bool, attributes ...string) {
	v := int64(0)
	if on {
		v = 1
	}
	g.Int(name, v, attributes...)
}

// Append adds an agent's evaluation to a resource. reachable is whether the
// gateway answered the last push.
func Append(rm pmetric.ResourceMetrics, scope string, ts pcommon.Timestamp, res *nodescore.Result, reachable bool) {
	g := NewGauges(rm, scope, ts)
	// The state is a metric of its own: as an attribute of the score each change
	// would leave the old score standing beside the new one.
	for _, s := range [...]nodesignal.State{nodesignal.StateActive, nodesignal.StateIdle, nodesignal.StateCalibrating} {
		g.Flag(gpusemconv.MetricNodeState, s == res.State, gpusemconv.AttrNodeState, s.String())
	}
	if res.HasScore {
		g.Double(gpusemconv.MetricNodeHealthScore, res.Score)
	}
	for s := range nodesignal.Score {
		if res.Signals.Known[s] {
			g.Double(gpusemconv.MetricNodeSignal, res.Signals.V[s], gpusemconv.AttrSignal, s.String())
		}
	}
	g.Flag(gpusemconv.MetricAgentStraggler, res.Straggler)
	if res.Mode != nodescore.ModeNone {
		g.Double(gpusemconv.MetricAgentThreshold, res.Threshold)
	}
	for m := range nodescore.NumModes {
		g.Flag(gpusemconv.MetricAgentDetectionMode, m == res.Mode, gpusemconv.AttrDetectionMode, m.String())
	}
	g.Flag(gpusemconv.MetricAgentGatewayReachable, reachable)
}
