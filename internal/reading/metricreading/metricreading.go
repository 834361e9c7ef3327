// SPDX-License-Identifier: Apache-2.0

// Package metricreading reads OTLP metrics by the catalogue of internal/reading:
// it gives the points that count, with what they say of whom in the catalogue's
// unit, and refuses the others.
package metricreading // import "github.com/gpu-collector/gpu-collector/internal/reading/metricreading"

import (
	"iter"
	"math"
	"strconv"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
)

// Reader reads for one component and logs the mistakes of senders, each once.
// It may be used by several goroutines.
type Reader struct {
	log        *zap.Logger
	complaints reading.Complaints
}

// New returns a reader that logs to log.
func New(log *zap.Logger) *Reader { return &Reader{log: log} }

// Resource is a resource that is being read. Refused counts what of it was not
// used, by reason.
type Resource struct {
	reader        *Reader
	cluster, node string
	attrs         pcommon.Map
	Refused       [reading.NumRefusals]int64
}

// Resource begins a resource.
func (r *Reader) Resource(attrs pcommon.Map) Resource { return Resource{reader: r, attrs: attrs} }

// Metric is a metric that is being read.
type Metric struct {
	*reading.Metric
	Points pmetric.NumberDataPointSlice
	// Scale takes the sender's numbers to the catalogue's unit.
	Scale float64
	from  *Resource
}

// Foreign takes the name of a metric that the catalogue does not have.
func (r *Resource) Foreign(name string) {
	if known := r.reader.complaints.Almost(name); known != "" {
		cluster, node := r.names()
		r.reader.log.Warn("metric is not known, its name is nearly that of another one",
			zap.String("metric", name), zap.String("known", known), zap.String("cluster", cluster), zap.String("node", node))
	}
}

// Open begins a metric of the catalogue. It is false for one that has another
// instrument or unit than it must have.
func (r *Resource) Open(known *reading.Metric, m pmetric.Metric) (Metric, bool) {
	points, instrument := points(m)
	if unit := m.Unit(); !known.Takes(instrument) || unit != "" && unit != known.Unit {
		return r.mend(known, m, points, instrument)
	}
	return Metric{known, points, 1, r}, true
}

// mend is Open for a metric that is not written as the catalogue has it.
//
//go:noinline
func (r *Resource) mend(known *reading.Metric, m pmetric.Metric, points pmetric.NumberDataPointSlice, instrument reading.Instrument) (Metric, bool) {
	factor, certain := known.Factor(m.Unit())
	switch {
	case !known.Takes(instrument):
		if n := count(m); n > 0 {
			r.refuse(n, reading.Refused{Metric: known, Why: reading.WrongType, Instrument: instrument})
		}
		return Metric{}, false
	case !certain:
		if n := points.Len(); n > 0 {
			r.refuse(n, reading.Refused{Metric: known, Why: reading.WrongUnit, Unit: m.Unit()})
		}
		return Metric{}, false
	}
	return Metric{known, points, factor, r}, true
}

// Point is a point that was read. Its strings are those of the push.
type Point struct {
	pmetric.NumberDataPoint
	Field   reading.Field
	Subject reading.Subject
	// ID and Parent are hw.id and hw.parent.
	ID, Parent string
	// Texts are the values of the metric's keys, as many as it has.
	Texts reading.Texts
	// Value is in the catalogue's unit, NaN where the series has ended and where
	// the value was refused.
	Value float64
	Ended bool

	hwType string
}

// Read reads a point and reports whether it may be used. A point whose value
// was refused still says whose series has none.
func (m *Metric) Read(dp pmetric.NumberDataPoint, p *Point) reading.Refusal {
	m.attributes(dp, p)
	p.Field, p.Subject = m.Select(p.hwType, &p.Texts)
	if p.Parent != "" && p.Subject == reading.GPU {
		p.Subject = reading.Slice
	}
	if why := m.Whom(p.Subject, p.ID, p.hwType); why != reading.Accepted {
		return m.refuse(why, p)
	}
	if p.Ended = dp.Flags().NoRecordedValue(); p.Ended {
		p.Value = math.NaN()
		return reading.Accepted
	}
	p.Value = value(dp) * m.Scale
	if why := m.Judge(p.Value); why != reading.Accepted {
		return m.refuse(why, p)
	}
	return reading.Accepted
}

// refuse is apart from Read for what a complaint takes of the stack.
//
//go:noinline
func (m *Metric) refuse(why reading.Refusal, p *Point) reading.Refusal {
	m.from.refuse(1, reading.Refused{Metric: m.Metric, Why: why, HWType: p.hwType, Value: p.Value})
	p.Value = math.NaN()
	return why
}

// All reads the points of any metric that have a value: those of the catalogue by
// it, of the others all that are finite. The point is good until the next one.
func (r *Resource) All(m pmetric.Metric) iter.Seq[*Point] {
	return func(yield func(*Point) bool) {
		var p Point
		known := reading.ByName(m.Name())
		if known == nil {
			foreign := Metric{Metric: &anything, Points: Points(m)}
			for _, dp := range foreign.Points.All() {
				foreign.attributes(dp, &p)
				p.Subject = reading.GPU
				if p.Value = Number(dp); p.Value-p.Value == 0 && !yield(&p) { // neither NaN nor infinite
					return
				}
			}
			return
		}
		metric, ok := r.Open(known, m)
		if !ok {
			return
		}
		for _, dp := range metric.Points.All() {
			if metric.Read(dp, &p) == reading.Accepted && !p.Ended && !yield(&p) {
				return
			}
		}
	}
}

var anything reading.Metric

// Xid returns the code of an Xid, false for one that has none.
func (p *Point) Xid() (int, bool) {
	v, ok := p.Attributes().Get(gpusemconv.AttrXIDCode)
	if !ok {
		return 0, false
	}
	if v.Type() == pcommon.ValueTypeInt {
		return int(v.Int()), true
	}
	code, err := strconv.Atoi(Text(v))
	return code, err == nil
}

func (m *Metric) attributes(dp pmetric.NumberDataPoint, p *Point) {
	p.NumberDataPoint, p.ID, p.Parent, p.hwType, p.Ended = dp, "", "", "", false
	keys := m.Keys
	for i := range keys {
		p.Texts[i] = ""
	}
next:
	for key, v := range dp.Attributes().All() {
		var to *string
		switch key {
		case gpusemconv.AttrHWID:
			to = &p.ID
		case gpusemconv.AttrHWParent:
			to = &p.Parent
		case gpusemconv.AttrHWType:
			to = &p.hwType
		default:
			i := 0
			for ; i < len(keys) && key != keys[i].Name && key != keys[i].Alias; i++ {
			}
			if i == len(keys) {
				continue next
			}
			to = &p.Texts[i]
		}
		// As Text does; only of those that are wanted.
		if *to = v.Str(); *to == "" {
			*to = otherText(v)
		}
	}
}

func (r *Resource) refuse(points int, what reading.Refused) {
	r.Refused[what.Why] += int64(points)
	if cluster, node := r.names(); r.reader.complaints.First(cluster, node, what.Metric, what.Why) {
		r.reader.log.Warn("reading refused: "+what.String(), zap.String("cluster", cluster), zap.String("node", node))
	}
}

// names names the resource in the log.
func (r *Resource) names() (cluster, node string) {
	if r.node == "" {
		names := Identify(r.attrs, false)
		r.cluster, r.node = names.Cluster("", ""), names.Node()
	}
	return r.cluster, r.node
}

// Identify reads who a resource is.
func Identify(attrs pcommon.Map, ingero bool) identity.Names {
	names := identity.Names{Ingero: ingero}
	for key, v := range attrs.All() {
		names.Take(key, Text(v))
	}
	return names
}

// points returns the points of a gauge or sum, and what wrote them.
func points(m pmetric.Metric) (pmetric.NumberDataPointSlice, reading.Instrument) {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints(), reading.IsGauge
	case pmetric.MetricTypeSum:
		sum := m.Sum()
		switch {
		case sum.AggregationTemporality() != pmetric.AggregationTemporalityCumulative:
			return sum.DataPoints(), reading.IsDelta
		case sum.IsMonotonic():
			return sum.DataPoints(), reading.IsCounter
		default:
			return sum.DataPoints(), reading.IsUpDownCounter
		}
	default:
		return none, reading.IsOther
	}
}

var none = pmetric.NewNumberDataPointSlice()

// Points returns the points of a gauge or a cumulative sum of any metric, none
// for others: readers hold last values, which deltas are not.
func Points(m pmetric.Metric) pmetric.NumberDataPointSlice {
	list, instrument := points(m)
	if instrument == reading.IsDelta {
		return none
	}
	return list
}

// count counts the points of a metric of any type.
func count(m pmetric.Metric) int {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints().Len()
	case pmetric.MetricTypeSum:
		return m.Sum().DataPoints().Len()
	case pmetric.MetricTypeHistogram:
		return m.Histogram().DataPoints().Len()
	case pmetric.MetricTypeExponentialHistogram:
		return m.ExponentialHistogram().DataPoints().Len()
	case pmetric.MetricTypeSummary:
		return m.Summary().DataPoints().Len()
	default:
		return 0
	}
}

// Number returns a point's value, NaN when it has none.
func Number(p pmetric.NumberDataPoint) float64 {
	if p.Flags().NoRecordedValue() {
		return math.NaN()
	}
	return value(p)
}

func value(p pmetric.NumberDataPoint) float64 {
	switch p.ValueType() {
	case pmetric.NumberDataPointValueTypeDouble:
		return p.DoubleValue()
	case pmetric.NumberDataPointValueTypeInt:
		return float64(p.IntValue())
	default:
		return math.NaN()
	}
}

// Text returns a string value as it is, without a copy, numbers and flags as
// text, and "" for what is not worth a name.
func Text(v pcommon.Value) string {
	if s := v.Str(); s != "" { // of other types it is empty
		return s
	}
	return otherText(v)
}

func otherText(v pcommon.Value) string {
	switch v.Type() {
	case pcommon.ValueTypeInt, pcommon.ValueTypeBool:
		return v.AsString()
	default:
		return ""
	}
}
