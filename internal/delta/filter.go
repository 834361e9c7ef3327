// SPDX-License-Identifier: Apache-2.0

package delta // import "github.com/gpu-collector/gpu-collector/internal/delta"

import (
	"math"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	nodeidentity "github.com/gpu-collector/gpu-collector/internal/reading/identity"
)

// Filter takes decoded reports through the table. It is reused, and keeps
// nothing of a report after Reset.
type Filter struct {
	Judge
	ident identity
	drop  []bool // of the metric at hand, for each point whether it goes
	names describer
}

// Reset lets go of the report.
func (f *Filter) Reset() {
	f.Judge.Reset()
	f.names.scope, f.names.metric = pcommon.InstrumentationScope{}, pmetric.Metric{}
}

// Filter removes from md what the next hop has, and adds heartbeats.
func (f *Filter) Filter(md pmetric.Metrics) {
	md.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool { return f.resource(rm) })
}

// resource and its siblings below report whether nothing is left.
func (f *Filter) resource(rm pmetric.ResourceMetrics) bool {
	if resourcePoints(rm) == 0 {
		return true // it says nothing, not even that the node is there
	}
	f.open(f.ident.node(rm.Resource().Attributes()))
	defer f.close()
	if f.Report.Undescribed() {
		f.names.describeNode(f.Report, rm.Resource())
	}

	rm.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool {
		scope := scopeHash(sm.Scope())
		f.names.scope = sm.Scope()
		sm.Metrics().RemoveIf(func(m pmetric.Metric) bool { return f.metric(m, scope) })
		return sm.Metrics().Len() == 0
	})
	if f.isOver() {
		f.names.attributes(rm.Resource().Attributes())
		f.tell(f.names.attrs)
		clear(f.names.attrs)
	}
	reported := rm.ScopeMetrics().Len()
	f.vanished(func(s *statetable.Series, at pcommon.Timestamp) { marker(rm, reported, s, at) })
	from := rm.ScopeMetrics().Len()
	f.repeated(func(s *statetable.Series, at pcommon.Timestamp) { repeat(rm, from, s, at) })
	if f.ended {
		markersLast(rm)
	}
	if at, due := f.heartbeatDue(isNode(rm.Resource().Attributes())); due {
		heartbeat(rm, at)
	}
	return rm.ScopeMetrics().Len() == 0
}

// isNode tells nodes, which alone have a heartbeat, from other resources.
func isNode(attrs pcommon.Map) bool {
	for key := range attrs.All() {
		if nodeidentity.IsNode(key) {
			return true
		}
	}
	return false
}

// heartbeat says when the node last reported, so that silence can be told from
// lack of change.
func heartbeat(rm pmetric.ResourceMetrics, at pcommon.Timestamp) {
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(ScopeName)
	m := sm.Metrics().AppendEmpty()
	m.SetName(gpusemconv.MetricNodeHeartbeat)
	m.SetDescription("Time of the node's last report.")
	m.SetUnit("s")
	dp := m.SetEmptyGauge().DataPoints().AppendEmpty()
	dp.SetTimestamp(at)
	dp.SetIntValue(at.AsTime().Unix())
}

func (f *Filter) metric(m pmetric.Metric, scope uint64) bool {
	see(&f.Judge, m.Name(), m.Type() == pmetric.MetricTypeGauge)
	f.names.metric = m
	hash, compared := metricHash(m, scope), isLastValue(m)
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		// The start time of a gauge has no meaning, and some SDKs move it with
		// each collection.
		return f.numbers(m.Gauge().DataPoints(), hash, false)
	case pmetric.MetricTypeSum:
		if compared {
			return f.numbers(m.Sum().DataPoints(), hash, true)
		}
		return pass(f, m.Sum().DataPoints())
	case pmetric.MetricTypeHistogram:
		if compared {
			return hashed(f, m.Histogram().DataPoints(), hash, histogramHash)
		}
		return pass(f, m.Histogram().DataPoints())
	case pmetric.MetricTypeExponentialHistogram:
		if compared {
			return hashed(f, m.ExponentialHistogram().DataPoints(), hash, exponentialHash)
		}
		return pass(f, m.ExponentialHistogram().DataPoints())
	case pmetric.MetricTypeSummary:
		return hashed(f, m.Summary().DataPoints(), hash, summaryHash)
	default:
		// A type that this version of pdata does not know: not ours to judge.
		return f.Report.Drops()
	}
}

// numbers judges all points before it removes any: most often all are dropped,
// and then the metric goes as a whole, without each point being cleared first.
func (f *Filter) numbers(points pmetric.NumberDataPointSlice, metric uint64, withStart bool) bool {
	f.drop = f.drop[:0]
	kept := 0
	for _, dp := range points.All() {
		drop := f.number(dp, metric, withStart)
		f.drop = append(f.drop, drop)
		if !drop {
			kept++
		}
	}
	if kept > 0 && kept < len(f.drop) {
		i := -1
		points.RemoveIf(func(pmetric.NumberDataPoint) bool {
			i++
			return f.drop[i]
		})
	}
	return kept == 0
}

func (f *Filter) number(dp pmetric.NumberDataPoint, metric uint64, withStart bool) bool {
	p := statetable.Point{Key: seriesKey(metric, dp.Attributes())}
	var start pcommon.Timestamp
	if withStart {
		start = dp.StartTimestamp()
	}
	valid := true
	switch dp.ValueType() {
	case pmetric.NumberDataPointValueTypeInt:
		p.Kind, p.Value = statetable.KindInt, uint64(dp.IntValue())
	case pmetric.NumberDataPointValueTypeDouble:
		p.Kind, p.Value = statetable.KindDouble, math.Float64bits(dp.DoubleValue())
	default:
		valid = false
	}
	if beat := beatOf(dp.ValueType(), p.Value); f.isBeat && beat != 0 && !dp.Flags().NoRecordedValue() {
		if at := f.relayed(beat); at != beat {
			dp.SetTimestamp(at)
			dp.SetIntValue(at.AsTime().Unix())
			p.Kind, p.Value = statetable.KindInt, uint64(dp.IntValue())
		}
	}
	return judge(f, dp, p, start, valid)
}

// stamped is a point of any type.
type stamped interface {
	Timestamp() pcommon.Timestamp
	SetTimestamp(pcommon.Timestamp)
	Flags() pmetric.DataPointFlags
	Attributes() pcommon.Map
}

// timeOf is the point's time, or the time of receipt, which the point gets where
// its own is not to be believed.
func timeOf[P stamped](f *Filter, dp P) pcommon.Timestamp {
	at := dp.Timestamp()
	f.clock = max(f.clock, at)
	if at > f.latest {
		f.Ahead++
		at = f.now
		dp.SetTimestamp(at)
	}
	return at
}

// pass lets points go on that are not compared.
func pass[S pointSlice[P], P stamped](f *Filter, points S) bool {
	for i := range points.Len() {
		dp := points.At(i)
		timeOf(f, dp)
		f.ended = f.ended || dp.Flags().NoRecordedValue()
	}
	return f.pass(points.Len())
}

// judge reports whether the point is to be removed.
func judge[P stamped](f *Filter, dp P, p statetable.Point, start pcommon.Timestamp, valid bool) bool {
	drop := f.point(p, start, timeOf(f, dp), dp.Flags(), valid)
	if f.stamp != 0 {
		dp.SetTimestamp(f.stamp)
	}
	if !drop && f.Report.Fresh() && !f.names.describe(f.Report, dp.Attributes()) {
		f.nameless()
		return true
	}
	return drop
}

// hashed judges points whose content is compared by its hash.
func hashed[S pointSlice[P], P hashable[P]](f *Filter, points S, metric uint64, content func(P) uint64) bool {
	points.RemoveIf(func(dp P) bool {
		p := statetable.Point{Key: seriesKey(metric, dp.Attributes()), Kind: statetable.KindHash, Value: content(dp)}
		return judge(f, dp, p, dp.StartTimestamp(), true)
	})
	return points.Len() == 0
}

type hashable[P any] interface {
	stamped
	point[P]
	StartTimestamp() pcommon.Timestamp
}
