// SPDX-License-Identifier: Apache-2.0

package diffprocessor // import "github.com/gpu-collector/gpu-collector/processor/diffprocessor"

import (
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/statetable"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
)

// filter takes one report through the table. It is reused, and keeps nothing of
// the report after reset.
type filter struct {
	report *statetable.Report
	ident  identity
	drop   []bool // of the metric at hand, for each point whether it goes

	received, forwarded, heartbeats int64

	// Of the resource at hand:
	newest  pcommon.Timestamp // latest timestamp of its points
	points  int64             // that it came with
	hasBeat bool              // it came with a heartbeat, from a diff processor before this one
	spoke   bool              // the node itself spoke, not only a gateway about it
}

func (f *filter) reset() {
	f.report = nil
	f.received, f.forwarded, f.heartbeats = 0, 0, 0
}

// filter removes from md what the next hop has, and adds heartbeats.
func (f *filter) filter(md pmetric.Metrics) {
	md.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool { return f.resource(rm) })
}

// resource and its siblings below report whether nothing is left.
func (f *filter) resource(rm pmetric.ResourceMetrics) bool {
	f.newest, f.points, f.hasBeat, f.spoke = 0, 0, false, false
	f.report.OpenNode(f.ident.node(rm.Resource().Attributes()))
	defer f.report.CloseNode()

	rm.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool {
		scope := scopeHash(sm.Scope())
		sm.Metrics().RemoveIf(func(m pmetric.Metric) bool { return f.metric(m, scope) })
		return sm.Metrics().Len() == 0
	})
	f.received += f.points
	// A resource without points says nothing, not even that the node is there.
	if f.points > 0 && f.spoke && !f.hasBeat && isNode(rm.Resource().Attributes()) {
		if f.newest == 0 {
			f.newest = pcommon.NewTimestampFromTime(time.Now())
		}
		if f.report.HeartbeatDue(uint64(f.newest)) {
			f.heartbeat(rm)
		}
	}
	return rm.ScopeMetrics().Len() == 0
}

// isNode tells nodes from other resources, such as a cluster with figures of
// its own: only nodes have a heartbeat.
func isNode(attrs pcommon.Map) bool {
	for _, name := range [...]string{gpusemconv.AttrHostName, gpusemconv.AttrK8sNodeName, gpusemconv.AttrHostID} {
		if _, ok := attrs.Get(name); ok {
			return true
		}
	}
	return false
}

// heartbeat says when the node last reported, so that silence can be told from
// lack of change.
func (f *filter) heartbeat(rm pmetric.ResourceMetrics) {
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(metadata.ScopeName)
	m := sm.Metrics().AppendEmpty()
	m.SetName(gpusemconv.MetricNodeHeartbeat)
	m.SetDescription("Time of the node's last report.")
	m.SetUnit("s")
	dp := m.SetEmptyGauge().DataPoints().AppendEmpty()
	dp.SetTimestamp(f.newest)
	dp.SetIntValue(f.newest.AsTime().Unix())
	f.heartbeats++
}

func (f *filter) metric(m pmetric.Metric, scope uint64) bool {
	f.spoke = f.spoke || m.Name() != gpusemconv.MetricNodeStraggler
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		f.hasBeat = f.hasBeat || m.Name() == gpusemconv.MetricNodeHeartbeat
		metric := metricHash(m, scope, pmetric.AggregationTemporalityUnspecified, false)
		// The start time of a gauge has no meaning, and some SDKs move it with
		// each collection.
		return f.numbers(m.Gauge().DataPoints(), metric, false)
	case pmetric.MetricTypeSum:
		if s := m.Sum(); s.AggregationTemporality() == pmetric.AggregationTemporalityCumulative {
			metric := metricHash(m, scope, s.AggregationTemporality(), s.IsMonotonic())
			return f.numbers(s.DataPoints(), metric, true)
		}
		return f.pass(m.Sum().DataPoints().Len())
	case pmetric.MetricTypeHistogram:
		if h := m.Histogram(); h.AggregationTemporality() == pmetric.AggregationTemporalityCumulative {
			return f.histograms(h.DataPoints(), metricHash(m, scope, h.AggregationTemporality(), false))
		}
		return f.pass(m.Histogram().DataPoints().Len())
	case pmetric.MetricTypeExponentialHistogram:
		if h := m.ExponentialHistogram(); h.AggregationTemporality() == pmetric.AggregationTemporalityCumulative {
			return f.exponentials(h.DataPoints(), metricHash(m, scope, h.AggregationTemporality(), false))
		}
		return f.pass(m.ExponentialHistogram().DataPoints().Len())
	case pmetric.MetricTypeSummary:
		return f.summaries(m.Summary().DataPoints(), metricHash(m, scope, pmetric.AggregationTemporalityUnspecified, false))
	default:
		// A type that this version of pdata does not know: not ours to judge.
		return false
	}
}

// pass counts points that are forwarded as they are: a delta that is dropped is
// lost for good, for the next one does not include it.
func (f *filter) pass(points int) bool {
	f.points += int64(points)
	f.forwarded += int64(points)
	return points == 0
}

// numbers judges all points before it removes any: most often all are dropped,
// and then the metric goes as a whole, without each point being cleared first.
func (f *filter) numbers(points pmetric.NumberDataPointSlice, metric uint64, withStart bool) bool {
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

func (f *filter) number(dp pmetric.NumberDataPoint, metric uint64, withStart bool) bool {
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
	return f.point(p, start, dp.Timestamp(), dp.Flags(), valid)
}

func (f *filter) histograms(points pmetric.HistogramDataPointSlice, metric uint64) bool {
	points.RemoveIf(func(dp pmetric.HistogramDataPoint) bool {
		p := statetable.Point{
			Key:  seriesKey(metric, dp.Attributes()),
			Kind: statetable.KindHash, Value: histogramHash(dp),
		}
		return f.point(p, dp.StartTimestamp(), dp.Timestamp(), dp.Flags(), true)
	})
	return points.Len() == 0
}

func (f *filter) exponentials(points pmetric.ExponentialHistogramDataPointSlice, metric uint64) bool {
	points.RemoveIf(func(dp pmetric.ExponentialHistogramDataPoint) bool {
		p := statetable.Point{
			Key:  seriesKey(metric, dp.Attributes()),
			Kind: statetable.KindHash, Value: exponentialHash(dp),
		}
		return f.point(p, dp.StartTimestamp(), dp.Timestamp(), dp.Flags(), true)
	})
	return points.Len() == 0
}

func (f *filter) summaries(points pmetric.SummaryDataPointSlice, metric uint64) bool {
	points.RemoveIf(func(dp pmetric.SummaryDataPoint) bool {
		p := statetable.Point{
			Key:  seriesKey(metric, dp.Attributes()),
			Kind: statetable.KindHash, Value: summaryHash(dp),
		}
		return f.point(p, dp.StartTimestamp(), dp.Timestamp(), dp.Flags(), true)
	})
	return points.Len() == 0
}

// point reports whether the point is to be removed. One without a value ends
// its series for the next hop, so the value after it is news.
func (f *filter) point(p statetable.Point, start, at pcommon.Timestamp, flags pmetric.DataPointFlags, valid bool) bool {
	f.points++
	f.newest = max(f.newest, at)
	if !valid || flags.NoRecordedValue() {
		f.report.Forget(p.Key)
		f.forwarded++
		return false
	}
	p.Time = uint64(at)
	p.Origin = uint64(start)
	if flags != 0 {
		p.Origin = statetable.Mix(p.Origin, uint64(flags))
	}
	if f.report.Observe(p) != statetable.Forward {
		return true
	}
	f.forwarded++
	return false
}
