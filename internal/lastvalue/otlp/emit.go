// SPDX-License-Identifier: Apache-2.0

package otlp // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"

import (
	"math"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// ScopeName is the instrumentation scope of the heartbeats.
const ScopeName = "github.com/gpu-collector/gpu-collector/processor/diffprocessor"

// firstType and firstValue are the pdata types that the table's first ones stand for. Both
// list types of metrics and of attributes in the same order, which the next lines check.
const firstType, firstValue = pmetric.MetricTypeGauge, pcommon.ValueTypeStr

var _, _ = [1]struct{}{}[pmetric.MetricTypeSummary-firstType-pmetric.MetricType(lastvalue.TypeSummary)],
	[1]struct{}{}[pcommon.ValueTypeBool-firstValue-pcommon.ValueType(lastvalue.AttrBool)]

// unbounded is for messages that end with the report that they belong to.
const unbounded = math.MaxInt

// emit adds the dirty series and the heartbeat of the report's open node to its resource,
// about maxBytes of OTLP at most but for a single point. It begins at a position of the node,
// and returns how many bytes that is and where the next message goes on, 0 for nowhere.
func emit(r *lastvalue.Report, rm pmetric.ResourceMetrics, from, maxBytes int) (bytes, next int) {
	w := writer{rm: rm}
	next = r.Emit(from, func(s *lastvalue.Series) bool {
		w.point(s)
		return w.bytes < maxBytes
	})
	// The heartbeat goes with the first of several messages: where it is late, the points
	// show how late.
	if at, dirty := r.Heartbeat(from); dirty {
		appendHeartbeat(rm, pcommon.Timestamp(at))
	}
	return w.bytes, next
}

// appendHeartbeat adds when the node last reported, so that a missing node differs
// from one without a change.
func appendHeartbeat(rm pmetric.ResourceMetrics, at pcommon.Timestamp) {
	w := writer{rm: rm}
	w.point(&lastvalue.Series{Time: uint64(at), Value: uint64(at.AsTime().Unix()), Metric: lastvalue.Metric{
		ScopeName: ScopeName, Name: gpusemconv.MetricNodeHeartbeat, Description: "Time of the node's last report.", Unit: "s",
	}})
}

// writer writes points of series to scopes of its own in a resource.
type writer struct {
	rm     pmetric.ResourceMetrics
	scope  pmetric.ScopeMetrics
	points pmetric.NumberDataPointSlice // of the current metric
	last   lastvalue.Metric             // that they are of
	open   bool                         // another point may go there
	bytes  int                          // about as many as OTLP takes, 0 before the first point
}

// overhead is about what OTLP takes for a point, a metric or a scope besides its texts.
const overhead = 40

// point writes a point of the series. The table has a node's series in the order in which
// they were first reported, so those of a metric follow each other. A point without a value
// has a metric of its own: prometheusexporter (v0.155.0, accumulator.go) skips what comes
// after such a point in the same metric.
func (w *writer) point(s *lastvalue.Series) {
	if !w.open || s.Gone || s.Metric != w.last {
		w.begin(s)
	}
	w.open = !s.Gone
	if s.Metric.Type <= lastvalue.TypeSum {
		putNumber(w.points.AppendEmpty(), s)
	}
	w.bytes += overhead
	for i := range s.Attrs {
		w.bytes += len(s.Attrs[i].Key) + len(s.Attrs[i].Text) + 10
	}
}

// begin writes the metric of a series, with the end of one that is no number: others of those
// the table cannot make.
func (w *writer) begin(s *lastvalue.Series) {
	of := &s.Metric
	if w.bytes == 0 || of.ScopeName != w.last.ScopeName || of.ScopeVersion != w.last.ScopeVersion {
		w.scope = w.rm.ScopeMetrics().AppendEmpty()
		w.scope.Scope().SetName(of.ScopeName)
		w.scope.Scope().SetVersion(of.ScopeVersion)
		w.bytes += overhead + len(of.ScopeName) + len(of.ScopeVersion)
	}
	m := w.scope.Metrics().AppendEmpty()
	m.SetName(of.Name)
	m.SetUnit(of.Unit)
	m.SetDescription(of.Description)
	const cumulative = pmetric.AggregationTemporalityCumulative
	switch of.Type {
	case lastvalue.TypeGauge:
		w.points = m.SetEmptyGauge().DataPoints()
	case lastvalue.TypeSum:
		m.SetEmptySum().SetAggregationTemporality(cumulative)
		m.Sum().SetIsMonotonic(of.Monotonic)
		w.points = m.Sum().DataPoints()
	case lastvalue.TypeHistogram:
		m.SetEmptyHistogram().SetAggregationTemporality(cumulative)
		put(m.Histogram().DataPoints().AppendEmpty(), s)
	case lastvalue.TypeExponentialHistogram:
		m.SetEmptyExponentialHistogram().SetAggregationTemporality(cumulative)
		put(m.ExponentialHistogram().DataPoints().AppendEmpty(), s)
	case lastvalue.TypeSummary:
		put(m.SetEmptySummary().DataPoints().AppendEmpty(), s)
	}
	w.last = *of
	w.bytes += overhead + len(of.Name) + len(of.Unit) + len(of.Description)
}

func putNumber(dp pmetric.NumberDataPoint, s *lastvalue.Series) {
	if put(dp, s); s.Gone {
		return
	}
	dp.SetStartTimestamp(pcommon.Timestamp(s.Start))
	if s.Kind == lastvalue.KindInt {
		dp.SetIntValue(int64(s.Value))
	} else {
		dp.SetDoubleValue(math.Float64frombits(s.Value))
	}
}

// put writes what a point of any type has. One that ends its series has nothing else.
func put[P point](dp P, s *lastvalue.Series) {
	dp.SetTimestamp(pcommon.Timestamp(s.Time))
	flags := pmetric.DataPointFlags(s.Flags)
	if s.Gone {
		flags = pmetric.DefaultDataPointFlags.WithNoRecordedValue(true)
	}
	dp.SetFlags(flags)
	putAttributes(dp.Attributes(), s.Attrs)
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
