// SPDX-License-Identifier: Apache-2.0

package otlp // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"

import (
	"math"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
)

// ScopeName is the instrumentation scope of the heartbeats.
const ScopeName = "github.com/gpu-collector/gpu-collector/processor/diffprocessor"

// firstType is the pdata type that the table's first one stands for. Both list gauge,
// sum, histogram, exponential histogram and summary in this order.
const firstType = pmetric.MetricTypeGauge

var _ = [1]struct{}{}[pmetric.MetricTypeSummary-firstType-pmetric.MetricType(lastvalue.TypeSummary)]

// unbounded is for messages that end with the report that they belong to.
const unbounded = math.MaxInt

// emit adds the dirty series and the heartbeat of the report's open node to its resource,
// about maxBytes of OTLP at most but for a single point. It begins with a place of the node,
// and returns how many bytes that is and where the next message goes on, 0 for nowhere.
func emit(r *lastvalue.Report, rm pmetric.ResourceMetrics, from, maxBytes int) (bytes, next int) {
	w := writer{rm: rm, from: rm.ScopeMetrics().Len()}
	next = r.Emit(from, func(s *lastvalue.Series) bool {
		w.point(s)
		return w.bytes < maxBytes
	})
	// The heartbeat goes with the first of several messages: where it is late, the points tell
	// how late.
	if at, dirty := r.Beat(from); dirty {
		appendHeartbeat(rm, pcommon.Timestamp(at))
	}
	return w.bytes, next
}

// writer writes points of series to a resource. Its scopes are those from the given one on.
type writer struct {
	rm     pmetric.ResourceMetrics
	from   int
	scope  pmetric.ScopeMetrics
	metric pmetric.Metric
	last   lastvalue.Metric // that metric is of
	open   bool             // another point may go there
	bytes  int              // about as many as OTLP takes
}

// overhead is about what OTLP takes for a point, a metric or a scope besides its texts.
const overhead = 40

// point writes a point of the series. The table has a node's series in the order in which
// they were first reported, so those of a metric follow each other. A point without a value
// has a metric of its own: prometheusexporter (v0.155.0, accumulator.go) skips what comes
// after such a point in the same metric.
func (w *writer) point(s *lastvalue.Series) {
	if !w.open || s.Gone || s.Metric != w.last {
		w.begin(&s.Metric)
	}
	w.open = !s.Gone
	switch s.Metric.Type {
	case lastvalue.TypeGauge:
		w.number(w.metric.Gauge().DataPoints().AppendEmpty(), s)
	case lastvalue.TypeSum:
		w.number(w.metric.Sum().DataPoints().AppendEmpty(), s)
	case lastvalue.TypeHistogram:
		w.end(w.metric.Histogram().DataPoints().AppendEmpty(), s)
	case lastvalue.TypeExponentialHistogram:
		w.end(w.metric.ExponentialHistogram().DataPoints().AppendEmpty(), s)
	case lastvalue.TypeSummary:
		w.end(w.metric.Summary().DataPoints().AppendEmpty(), s)
	}
}

// begin writes a metric without points.
func (w *writer) begin(of *lastvalue.Metric) {
	if n := w.rm.ScopeMetrics().Len(); n == w.from || of.ScopeName != w.last.ScopeName || of.ScopeVersion != w.last.ScopeVersion {
		w.scope = w.rm.ScopeMetrics().AppendEmpty()
		w.scope.Scope().SetName(of.ScopeName)
		w.scope.Scope().SetVersion(of.ScopeVersion)
		w.bytes += overhead + len(of.ScopeName) + len(of.ScopeVersion)
	}
	m := w.scope.Metrics().AppendEmpty()
	m.SetName(of.Name)
	m.SetUnit(of.Unit)
	m.SetDescription(of.Description)
	setType(m, of)
	w.metric, w.last = m, *of
	w.bytes += overhead + len(of.Name) + len(of.Unit) + len(of.Description)
}

// setType makes m an empty metric of a type.
func setType(m pmetric.Metric, of *lastvalue.Metric) {
	const cumulative = pmetric.AggregationTemporalityCumulative
	switch of.Type {
	case lastvalue.TypeGauge:
		m.SetEmptyGauge()
	case lastvalue.TypeSum:
		m.SetEmptySum().SetAggregationTemporality(cumulative)
		m.Sum().SetIsMonotonic(of.Monotonic)
	case lastvalue.TypeHistogram:
		m.SetEmptyHistogram().SetAggregationTemporality(cumulative)
	case lastvalue.TypeExponentialHistogram:
		m.SetEmptyExponentialHistogram().SetAggregationTemporality(cumulative)
	case lastvalue.TypeSummary:
		m.SetEmptySummary()
	}
}

func (w *writer) number(dp pmetric.NumberDataPoint, s *lastvalue.Series) {
	if s.Gone {
		w.end(dp, s)
		return
	}
	dp.SetStartTimestamp(pcommon.Timestamp(s.Start))
	dp.SetTimestamp(pcommon.Timestamp(s.Time))
	dp.SetFlags(pmetric.DataPointFlags(s.Flags))
	if s.Kind == lastvalue.KindInt {
		dp.SetIntValue(int64(s.Value))
	} else {
		dp.SetDoubleValue(math.Float64frombits(s.Value))
	}
	w.attributes(dp.Attributes(), s.Attrs)
}

// end makes dp the point that ends a series.
func (w *writer) end(dp interface {
	SetTimestamp(pcommon.Timestamp)
	SetFlags(pmetric.DataPointFlags)
	Attributes() pcommon.Map
}, s *lastvalue.Series,
) {
	dp.SetTimestamp(pcommon.Timestamp(s.Time))
	dp.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
	w.attributes(dp.Attributes(), s.Attrs)
}

func (w *writer) attributes(to pcommon.Map, from []lastvalue.Attr) {
	putAttributes(to, from)
	w.bytes += overhead
	for i := range from {
		w.bytes += len(from[i].Key) + len(from[i].Text) + 10
	}
}

func putAttributes(to pcommon.Map, from []lastvalue.Attr) {
	to.EnsureCapacity(len(from))
	for i := range from {
		a := &from[i]
		switch a.Type {
		case lastvalue.AttrString:
			to.PutStr(a.Key, a.Text)
		case lastvalue.AttrInt:
			to.PutInt(a.Key, int64(a.Num))
		case lastvalue.AttrDouble:
			to.PutDouble(a.Key, math.Float64frombits(a.Num))
		case lastvalue.AttrBool:
			to.PutBool(a.Key, a.Num != 0)
		}
	}
}

// appendHeartbeat adds when the node last reported, so that silence can be told from
// lack of change.
func appendHeartbeat(rm pmetric.ResourceMetrics, at pcommon.Timestamp) {
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
