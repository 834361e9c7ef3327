// SPDX-License-Identifier: Apache-2.0

// Package metricreading reads OTLP metrics by the catalogue of internal/reading:
// it returns the points that count, with their field, subject and value in the
// catalogue's unit, and refuses the others.
package metricreading // import "github.com/gpu-collector/gpu-collector/internal/reading/metricreading"

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue/promtext"
	"github.com/gpu-collector/gpu-collector/internal/platform/sharedinstance"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
)

// Reader reads for one component, and reports the mistakes of senders: it counts
// each by reason, and logs each once. It may be used by several goroutines.
type Reader struct {
	log        *zap.Logger
	rejected   metric.Int64Counter
	reasons    [reading.NumRefusals]metric.MeasurementOption
	complaints *reading.Complaints
	room       *room // nil before Join

	// Drops: the log states that points with refused values go no further.
	Drops bool
}

type room = sharedinstance.Handle[*reading.Complaints]

// rooms has the complaints of the process while one of its components reads: the
// same point may pass several of them.
var rooms sharedinstance.Instances[struct{}, *reading.Complaints]

// New returns a reader that logs to log and counts with rejected.
func New(log *zap.Logger, rejected metric.Int64Counter) *Reader {
	r := &Reader{log: log, rejected: rejected, complaints: new(reading.Complaints)}
	for why := range r.reasons {
		r.reasons[why] = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", reading.Refusal(why).String())))
	}
	return r
}

// Join leaves out of the log what another reader of the process has logged. It comes
// before the first resource, Leave after the last.
func (r *Reader) Join() {
	own := r.complaints
	r.room, _ = rooms.Acquire(struct{}{}, func() (*reading.Complaints, error) { return own, nil })
	r.complaints = r.room.Get()
}

// Leave ends Join. Without it, Leave does nothing.
func (r *Reader) Leave() {
	if r.room != nil {
		_ = r.room.Shutdown(func() error { return nil })
	}
}

// Once reports whether a complaint about a cluster has not been logged.
func (r *Reader) Once(cluster, complaint string) bool {
	return r.complaints.Once(cluster, complaint, time.Now())
}

// Resource is a resource that is being read, from Begin to End, metric by
// metric. Refused counts what of it was not used, by reason.
type Resource struct {
	Refused [reading.NumRefusals]int64

	reader        *Reader
	attrs         pcommon.Map
	cluster, node string
	// caller and defaultCluster are clusters of resources that name none.
	caller, defaultCluster string
	// Open opened metric; scale takes the sender's numbers to its unit.
	metric *reading.Metric
	scale  float64
}

// Begin begins a resource. Where it names no cluster it is of the caller's, else of
// the default one.
func (r *Resource) Begin(reader *Reader, attrs pcommon.Map, caller, defaultCluster string) {
	r.reader, r.attrs, r.cluster, r.node = reader, attrs, "", ""
	r.caller, r.defaultCluster = caller, defaultCluster
}

// End counts what was refused, and keeps nothing of the resource.
func (r *Resource) End(ctx context.Context) {
	for why, n := range r.Refused {
		if n > 0 {
			r.reader.rejected.Add(ctx, n, r.reader.reasons[why])
		}
	}
	*r = Resource{}
}

// Open begins a metric of the catalogue and returns its points, for Read. It is
// false for a metric that has another instrument or unit than it must have.
func (r *Resource) Open(known *reading.Metric, m pmetric.Metric) (pmetric.NumberDataPointSlice, bool) {
	points, instrument := points(m)
	r.metric, r.scale = known, 1
	if unit := m.Unit(); !known.Takes(instrument) || unit != "" && unit != known.Unit {
		return points, r.mend(m, points.Len(), instrument)
	}
	return points, true
}

// mend is Open for a metric that is not written as the catalogue has it.
//
//go:noinline
func (r *Resource) mend(m pmetric.Metric, points int, instrument reading.Instrument) (ok bool) {
	refused := reading.Refused{Metric: r.metric, Why: reading.WrongUnit, Unit: m.Unit()}
	if !r.metric.Takes(instrument) {
		refused = reading.Refused{Metric: r.metric, Why: reading.WrongType, Instrument: instrument}
		points = Count(m)
	} else if r.scale, ok = r.metric.Factor(m.Unit()); ok {
		return true
	}
	if points > 0 {
		r.refuse(points, refused)
	}
	return false
}

// Point is a point that was read. Its strings are those of the push.
type Point struct {
	pmetric.NumberDataPoint
	Field   reading.Field
	Subject reading.Subject
	// ID is hw.id, and Parent the hw.parent of a slice.
	ID, Parent string
	// Texts are the values of the metric's keys, as many as it has.
	Texts reading.Texts
	// Value is in the catalogue's unit, NaN where the series has ended and where
	// the value was refused.
	Value float64
	Ended bool
	// Vague points have no hw.type: they are of a GPU
	// only where another point has named it.
	Vague bool

	hwType string
}

// Read reads a point of the metric that is open, and reports whether it may be
// used. A point whose value was refused still has its subject.
func (r *Resource) Read(dp pmetric.NumberDataPoint, p *Point) reading.Refusal {
	m := r.metric
	attributes(m, dp, p)
	p.Field, p.Subject = m.Select(p.hwType, &p.Texts)
	if p.Parent != "" && p.Subject == reading.GPU {
		if IsSlice(p.ID, p.Parent) {
			p.Subject = reading.Slice
		} else {
			p.Parent = ""
		}
	}
	if why := m.JudgeSubject(p.Subject, p.ID, p.hwType, &p.Texts); why != reading.Accepted {
		return r.refusePoint(why, p)
	}
	p.Vague = p.hwType == "" && m.Vague()
	if p.Ended = dp.Flags().NoRecordedValue(); p.Ended {
		p.Value = math.NaN()
		return reading.Accepted
	}
	sent := value(dp)
	p.Value = sent * r.scale
	if why := m.Judge(sent, r.scale); why != reading.Accepted {
		return r.refusePoint(why, p)
	}
	return reading.Accepted
}

// IsSlice reports whether hw.id and hw.parent are those of a MIG slice, by the form of NVML's
// UUIDs. The parent of a whole GPU may be the enclosure that it is in.
func IsSlice(id, parent string) bool {
	return parent != "" && (strings.HasPrefix(id, "MIG-") || strings.HasPrefix(parent, "GPU-"))
}

// refusePoint is apart from Read for what a complaint takes of the stack.
//
//go:noinline
func (r *Resource) refusePoint(why reading.Refusal, p *Point) reading.Refusal {
	r.refuse(1, reading.Refused{Metric: r.metric, Why: why, ID: p.ID, HWType: p.hwType, Value: p.Value})
	p.Value = math.NaN()
	return why
}

// Xid returns the code of an Xid, false where there is none.
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

// Holder returns the holder of the GPU, of a point of hw.gpu.allocation.
func (p *Point) Holder() (h reading.Holder) {
	for key, v := range p.Attributes().All() {
		if key == gpusemconv.AttrShared {
			h.Shared = Text(v) == "true"
		} else {
			h.Name(key, Text(v))
		}
	}
	return h
}

func attributes(m *reading.Metric, dp pmetric.NumberDataPoint, p *Point) {
	p.NumberDataPoint, p.ID, p.Parent, p.hwType, p.Ended = dp, "", "", "", false
	keys := m.Keys
	clear(p.Texts[:len(keys)])
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
			i := slices.IndexFunc(keys, func(k reading.Key) bool { return key == k.Name || key == k.Alias })
			if i < 0 {
				continue
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
	if cluster, node := r.names(); r.reader.complaints.First(cluster, node, what.Metric, what.Why, time.Now()) {
		fields := []zap.Field{zap.String("cluster", cluster), zap.String("node", node)}
		if r.reader.Drops && (what.Why == reading.ValueRange || what.Why == reading.NotFinite) {
			fields = append(fields, zap.Bool("dropped", true))
		}
		r.reader.log.Warn("reading refused: "+what.String(), fields...)
	}
}

// Check judges the values of a metric that is not read. It counts and logs as Read does.
func (r *Resource) Check(known *reading.Metric, m pmetric.Metric) {
	judge(known, m, func(_ pmetric.NumberDataPoint, v float64, why reading.Refusal) bool {
		r.refuse(1, reading.Refused{Metric: known, Why: why, Value: v})
		return false
	})
}

// Drop takes the points out of a metric of the catalogue whose values are refused, whatever
// their subject. Where ends is set they end their series instead.
func Drop(known *reading.Metric, m pmetric.Metric, ends bool) {
	judge(known, m, func(dp pmetric.NumberDataPoint, _ float64, _ reading.Refusal) bool {
		if ends {
			dp.SetIntValue(0)
			dp.SetFlags(dp.Flags().WithNoRecordedValue(true))
		}
		return !ends
	})
}

// judge removes the points whose values are refused and for which remove is true. It judges none of
// a unit that is not certain, and no deltas.
func judge(known *reading.Metric, m pmetric.Metric, remove func(dp pmetric.NumberDataPoint, v float64, why reading.Refusal) bool) {
	points := Points(m)
	factor, ok := known.Factor(m.Unit())
	if !ok || points.Len() == 0 { // all share one of length 0, which RemoveIf would write
		return
	}
	points.RemoveIf(func(dp pmetric.NumberDataPoint) bool {
		sent := value(dp)
		why := known.Judge(sent, factor)
		return why != reading.Accepted && !dp.Flags().NoRecordedValue() && remove(dp, sent*factor, why)
	})
}

// names names the resource in the log.
func (r *Resource) names() (cluster, node string) {
	if r.node == "" {
		var names identity.Names
		Identify(&names, r.attrs)
		r.cluster, r.node = names.Cluster(r.caller, r.defaultCluster), names.Node()
	}
	return r.cluster, r.node
}

// Identify reads the names of a resource.
func Identify(names *identity.Names, attrs pcommon.Map) {
	names.Reset()
	for key, v := range attrs.All() {
		names.Take(key, Text(v))
	}
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

// Count counts the points of a metric of any type.
func Count(m pmetric.Metric) int {
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

// Text returns a string value as it is, without a copy, and numbers and flags as
// text: a name that is sent as a number is the same name. Other values give "".
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
	case pcommon.ValueTypeDouble:
		return string(promtext.AppendDouble(nil, v.Double()))
	default:
		return ""
	}
}
