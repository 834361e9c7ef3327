// SPDX-License-Identifier: Apache-2.0

package delta // import "github.com/gpu-collector/gpu-collector/internal/delta"

import (
	"math"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
)

// firstType is the pdata type that the table's first one stands for. Both list gauge,
// sum, histogram, exponential histogram and summary in this order.
const firstType = pmetric.MetricTypeGauge

var _ = [1]struct{}{}[pmetric.MetricTypeSummary-firstType-pmetric.MetricType(statetable.TypeSummary)]

// describer gives what is new to the table its name, so that it can be declared
// gone when it vanishes.
type describer struct {
	scope  pcommon.InstrumentationScope
	metric pmetric.Metric
	attrs  []statetable.Attr // scratch
}

func (d *describer) describeNode(r *statetable.Report, res pcommon.Resource) {
	d.attributes(res.Attributes()) // those that can be; the node's key has them all
	r.DescribeNode(d.attrs)
	clear(d.attrs)
}

// describe names the series of a new point, and reports whether there is room for it. A
// series whose name does not fit statetable's form has none.
func (d *describer) describe(r *statetable.Report, attrs pcommon.Map) bool {
	m := statetable.Metric{
		ScopeName: d.scope.Name(), ScopeVersion: d.scope.Version(),
		Name: d.metric.Name(), Unit: d.metric.Unit(), Description: d.metric.Description(),
	}
	if d.metric.Type() == pmetric.MetricTypeEmpty {
		return true
	}
	m.Type, m.Monotonic = statetable.MetricType(d.metric.Type()-firstType), isMonotonic(d.metric)
	fits := d.attributes(attrs) && d.scope.Attributes().Len() == 0
	room := !fits || r.Describe(&m, d.attrs)
	clear(d.attrs)
	return room
}

// attributes fills attrs and reports whether all of them fit.
func (d *describer) attributes(attrs pcommon.Map) bool {
	d.attrs = d.attrs[:0]
	all := true
	for k, v := range attrs.All() {
		a := statetable.Attr{Key: k}
		switch v.Type() {
		case pcommon.ValueTypeStr:
			a.Type, a.Text = statetable.AttrString, v.Str()
		case pcommon.ValueTypeInt:
			a.Type, a.Num = statetable.AttrInt, uint64(v.Int())
		case pcommon.ValueTypeDouble:
			a.Type, a.Num = statetable.AttrDouble, math.Float64bits(v.Double())
		case pcommon.ValueTypeBool:
			a.Type, a.Num = statetable.AttrBool, boolBit(v.Bool())
		default:
			all = false
			continue
		}
		d.attrs = append(d.attrs, a)
	}
	return all
}

// marker adds a point that ends a series for whoever takes it. The markers are
// the scopes from the given one on.
func marker(rm pmetric.ResourceMetrics, from int, s *statetable.Series, at pcommon.Timestamp) {
	m := markerMetric(rm, from, &s.Metric)
	switch s.Metric.Type {
	case statetable.TypeGauge:
		mark(m.Gauge().DataPoints().AppendEmpty(), s, at)
	case statetable.TypeSum:
		mark(m.Sum().DataPoints().AppendEmpty(), s, at)
	case statetable.TypeHistogram:
		mark(m.Histogram().DataPoints().AppendEmpty(), s, at)
	case statetable.TypeExponentialHistogram:
		mark(m.ExponentialHistogram().DataPoints().AppendEmpty(), s, at)
	case statetable.TypeSummary:
		mark(m.Summary().DataPoints().AppendEmpty(), s, at)
	}
}

func mark(dp interface {
	stamped
	SetFlags(pmetric.DataPointFlags)
}, s *statetable.Series, at pcommon.Timestamp,
) {
	dp.SetTimestamp(at)
	dp.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
	putAttributes(dp.Attributes(), s.Attrs)
}

func putAttributes(to pcommon.Map, from []statetable.Attr) {
	for i := range from {
		a := &from[i]
		switch a.Type {
		case statetable.AttrString:
			to.PutStr(a.Key, a.Text)
		case statetable.AttrInt:
			to.PutInt(a.Key, int64(a.Num))
		case statetable.AttrDouble:
			to.PutDouble(a.Key, math.Float64frombits(a.Num))
		case statetable.AttrBool:
			to.PutBool(a.Key, a.Num != 0)
		}
	}
}

// repeat adds the point that a series of a gauge or sum would have now. Repeated
// points are the scopes from the given one on.
func repeat(rm pmetric.ResourceMetrics, from int, s *statetable.Series, at pcommon.Timestamp) {
	m := repeatMetric(rm, from, &s.Metric)
	var dp pmetric.NumberDataPoint
	if s.Metric.Type == statetable.TypeSum {
		dp = m.Sum().DataPoints().AppendEmpty()
	} else {
		dp = m.Gauge().DataPoints().AppendEmpty()
	}
	dp.SetStartTimestamp(pcommon.Timestamp(s.Start))
	dp.SetTimestamp(at)
	if s.Kind == statetable.KindInt {
		dp.SetIntValue(int64(s.Value))
	} else {
		dp.SetDoubleValue(math.Float64frombits(s.Value))
	}
	putAttributes(dp.Attributes(), s.Attrs)
}

// repeatMetric returns the last metric where that is the series'; the table has
// a node's series in the order in which they were reported.
func repeatMetric(rm pmetric.ResourceMetrics, from int, of *statetable.Metric) pmetric.Metric {
	sm := markerScope(rm, from, of)
	if n := sm.Metrics().Len(); n > 0 {
		m := sm.Metrics().At(n - 1)
		if m.Name() == of.Name && m.Unit() == of.Unit && m.Description() == of.Description && m.Type() == pmetric.MetricType(of.Type)+firstType && isMonotonic(m) == of.Monotonic {
			return m
		}
	}
	return markerMetric(rm, from, of)
}

// markerMetric returns a metric for the next marker, each its own:
// prometheusexporter (v0.155.0, accumulator.go) skips what comes after a point
// without a value in the same metric.
func markerMetric(rm pmetric.ResourceMetrics, from int, of *statetable.Metric) pmetric.Metric {
	m := markerScope(rm, from, of).Metrics().AppendEmpty()
	m.SetName(of.Name)
	m.SetUnit(of.Unit)
	m.SetDescription(of.Description)
	setType(m, pmetric.MetricType(of.Type)+firstType, pmetric.AggregationTemporalityCumulative, of.Monotonic)
	return m
}

// markerScope returns the last scope where that is the metric's.
func markerScope(rm pmetric.ResourceMetrics, from int, of *statetable.Metric) pmetric.ScopeMetrics {
	if n := rm.ScopeMetrics().Len(); n > from {
		sm := rm.ScopeMetrics().At(n - 1)
		if sm.Scope().Name() == of.ScopeName && sm.Scope().Version() == of.ScopeVersion {
			return sm
		}
	}
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(of.ScopeName)
	sm.Scope().SetVersion(of.ScopeVersion)
	return sm
}
