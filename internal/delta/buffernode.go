// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// bufferNode holds one node's points. Most often these are a single report as it came.
// From the second report on, an index finds the point that a later point replaces.
type bufferNode struct {
	key     statetable.NodeKey
	cluster uint64 // hash of its name, 0 for none
	known   bool
	since   uint64 // round from which on it waits
	late    bool   // it was refused, and is the last next time
	done    bool   // the next hop has all of it, or it was given up
	rm      pmetric.ResourceMetrics
	points  int
	bytes   int          // of it as OTLP; those that the receiver counted until it is measured
	extra   int          // room that long points take beyond one each
	markers bool         // some points may be without a value
	index   *bufferIndex // nil for a single report
}

// bufferIndex finds what a node holds. Handles of pdata's elements, and positions
// in its slices, stay good while nothing is removed.
type bufferIndex struct {
	scopes  map[uint64]pmetric.ScopeMetrics
	metrics map[uint64]pmetric.Metric
	points  map[uint64]int // by series, its place among the metric's points
}

// size is that of what the node holds, as OTLP. A single report was measured when it came.
func (n *bufferNode) size(proto *pmetric.ProtoMarshaler) int {
	if n.index == nil {
		return n.bytes
	}
	return proto.ResourceMetricsSize(n.rm)
}

// dropLastValues removes them and returns how many points they had.
func dropLastValues(rm pmetric.ResourceMetrics) (points int) {
	rm.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool {
		sm.Metrics().RemoveIf(func(m pmetric.Metric) bool {
			if !isLastValue(m) {
				return false
			}
			points += metricreading.Count(m)
			return true
		})
		return sm.Metrics().Len() == 0
	})
	return points
}

func isLastValue(m pmetric.Metric) bool {
	switch m.Type() {
	case pmetric.MetricTypeGauge, pmetric.MetricTypeSummary:
		return true
	case pmetric.MetricTypeSum, pmetric.MetricTypeHistogram, pmetric.MetricTypeExponentialHistogram:
		return temporality(m) == pmetric.AggregationTemporalityCumulative
	case pmetric.MetricTypeEmpty:
	}
	return false
}

func temporality(m pmetric.Metric) pmetric.AggregationTemporality {
	switch m.Type() {
	case pmetric.MetricTypeSum:
		return m.Sum().AggregationTemporality()
	case pmetric.MetricTypeHistogram:
		return m.Histogram().AggregationTemporality()
	case pmetric.MetricTypeExponentialHistogram:
		return m.ExponentialHistogram().AggregationTemporality()
	case pmetric.MetricTypeGauge, pmetric.MetricTypeSummary, pmetric.MetricTypeEmpty:
	}
	return pmetric.AggregationTemporalityUnspecified
}

func isMonotonic(m pmetric.Metric) bool {
	return m.Type() == pmetric.MetricTypeSum && m.Sum().IsMonotonic()
}

// lastValues is how many points rm has, 0 where some are not last values, and
// whether some have no value.
func lastValues(rm pmetric.ResourceMetrics) (points int, markers bool) {
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			if !isLastValue(m) {
				return 0, false
			}
			points += metricreading.Count(m)
			markers = markers || hasMarker(m)
		}
	}
	return points, markers
}

// empty has the node hold nothing of the resource yet.
func (n *bufferNode) empty(of pmetric.ResourceMetrics) {
	n.rm, n.points = pmetric.NewResourceMetrics(), 0
	n.index = &bufferIndex{
		scopes: map[uint64]pmetric.ScopeMetrics{}, metrics: map[uint64]pmetric.Metric{}, points: map[uint64]int{},
	}
	of.Resource().CopyTo(n.rm.Resource())
	n.rm.SetSchemaUrl(of.SchemaUrl())
}

// indexed has the node know what it holds, and returns how many points that is less
// than before: those of series that the report had twice.
func (n *bufferNode) indexed(t *tally) (less int) {
	if n.index != nil {
		return 0
	}
	report, points := n.rm, n.points
	n.empty(report)
	own := tally{most: points, reserve: func() bool { return true }}
	n.take(report, &own)
	t.replaced += own.replaced
	return points - n.points
}

// tally is what becomes of points that a node takes.
type tally struct {
	most              int         // that the node may have
	reserve           func() bool // takes room for one
	beat              func()      // unless nil, makes room for one
	full              bool        // longer points have no room either
	replaced, dropped int64
}

func (n *bufferNode) take(rm pmetric.ResourceMetrics, t *tally) {
	for _, sm := range rm.ScopeMetrics().All() {
		scope := scopeHash(sm.Scope())
		for _, m := range sm.Metrics().All() {
			if !isLastValue(m) {
				continue
			}
			key := metricHash(m, scope)
			// Made with its first point, or names without room would pile up.
			own := func() pmetric.Metric { return n.metric(key, scope, m, sm) }
			in := intake{tally: t, metric: key, most: t.most, full: t.full, room: t.reserve}
			if m.Name() == gpusemconv.MetricNodeHeartbeat && sm.Scope().Name() == ScopeName {
				// A node with too much to say is not silent, nor is one of a fleet that has.
				in.most++
				in.full = false
				in.room = func() bool {
					if t.reserve() {
						return true
					}
					first := t.beat != nil && metricreading.Count(own()) == 0
					if first {
						t.beat()
					}
					return first
				}
			}
			switch m.Type() {
			case pmetric.MetricTypeGauge:
				takePoints(n, &in, m.Gauge().DataPoints(), func() pmetric.NumberDataPointSlice { return own().Gauge().DataPoints() })
			case pmetric.MetricTypeSum:
				takePoints(n, &in, m.Sum().DataPoints(), func() pmetric.NumberDataPointSlice { return own().Sum().DataPoints() })
			case pmetric.MetricTypeHistogram:
				takePoints(n, &in, m.Histogram().DataPoints(), func() pmetric.HistogramDataPointSlice { return own().Histogram().DataPoints() })
			case pmetric.MetricTypeExponentialHistogram:
				takePoints(n, &in, m.ExponentialHistogram().DataPoints(), func() pmetric.ExponentialHistogramDataPointSlice { return own().ExponentialHistogram().DataPoints() })
			case pmetric.MetricTypeSummary:
				takePoints(n, &in, m.Summary().DataPoints(), func() pmetric.SummaryDataPointSlice { return own().Summary().DataPoints() })
			case pmetric.MetricTypeEmpty:
			}
		}
	}
}

// metric returns the node's metric of that key, made like m if need be.
func (n *bufferNode) metric(key, scope uint64, m pmetric.Metric, sm pmetric.ScopeMetrics) pmetric.Metric {
	if own, ok := n.index.metrics[key]; ok {
		return own
	}
	in, ok := n.index.scopes[scope]
	if !ok {
		in = n.rm.ScopeMetrics().AppendEmpty()
		sm.Scope().CopyTo(in.Scope())
		in.SetSchemaUrl(sm.SchemaUrl())
		n.index.scopes[scope] = in
	}
	own := in.Metrics().AppendEmpty()
	likeMetric(m, own)
	n.index.metrics[key] = own
	return own
}

// intake is the points of a metric on their way in.
type intake struct {
	*tally
	metric uint64
	most   int
	full   bool
	room   func() bool // takes room for one
}

// takePoints copies points in, each over what is there of its series.
func takePoints[S pointSlice[P], P point[P]](n *bufferNode, in *intake, from S, to func() S) {
	for i := range from.Len() {
		dp := from.At(i)
		n.markers = n.markers || dp.Flags().NoRecordedValue()
		series := seriesKey(in.metric, dp.Attributes())
		at, ok := n.index.points[series]
		switch {
		case ok && !in.full:
			in.replaced++
			dp.CopyTo(to().At(at))
		case !ok && n.points < in.most && in.room():
			own := to()
			n.index.points[series] = own.Len()
			n.points++
			dp.CopyTo(own.AppendEmpty())
		default:
			in.dropped++
		}
	}
}
