// SPDX-License-Identifier: Apache-2.0

// Package otlp is the table of last values seen as OTLP: decoded reports come in, and
// messages with what the next hop does not have go out.
package otlp // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"

import (
	"math"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	nodeidentity "github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// OpaqueInterval is a table's setting of that name. A tier after this one cannot send
// opaque series again, so they are due as often as Prometheus wants a point: within half of
// the 5 m of its query.lookback-delta.
const OpaqueInterval = 2 * time.Minute

// MaxAhead is how far in the future a point's time may be, and how far a heartbeat's from
// ours: far more than clocks in step differ by. A receiver keeps the newest point, so a
// point from further ahead would hide all later ones, and a silent node would not look
// silent.
const MaxAhead = time.Minute

// Counts are of a push.
type Counts struct {
	// Received are the points that came in, also those that Reduce has dropped of this push.
	Received int64
	// Ahead got the time of receipt because theirs was to come.
	Ahead int64
	// Over are the points that were dropped for want of room.
	Over []Over
}

// Over are points of a cluster that the table had no room for, by its limit.
type Over struct {
	Cluster string
	Limit   lastvalue.Limit
	Points  int64
}

// maxOver bounds how many of a report's clusters are told apart: a push of a hundred
// thousand made-up clusters must not compare each with all others.
const maxOver = 64

// observer takes decoded reports through the table. It is reused, and keeps nothing of a
// report after reset.
type observer struct {
	report *lastvalue.Report
	now    pcommon.Timestamp
	latest pcommon.Timestamp // that is believed
	counts Counts

	ident identity
	drop  []bool           // of the metric at hand, for each point whether it goes
	attrs []lastvalue.Attr // scratch

	// Of the resource, scope or metric at hand:
	scope   pcommon.InstrumentationScope
	metric  pmetric.Metric
	isBeat  bool              // it is a heartbeat from another tier
	newest  pcommon.Timestamp // latest timestamp of the points, without heartbeats
	clock   pcommon.Timestamp // likewise, as the sender had it
	beat    pcommon.Timestamp // the heartbeat from another tier, 0 for none
	hasBeat bool              // there is a heartbeat from another tier
	alive   bool              // the node itself reported, and not a gateway about it
	over    [lastvalue.Limits]int64
}

func (o *observer) reset() {
	o.counts = Counts{}
	o.report = nil
	o.scope, o.metric = pcommon.InstrumentationScope{}, pmetric.Metric{}
}

// observe removes from md what the next hop has, and adds what else it is to get. With
// Collect the table keeps the numbers, and md is left with what the table cannot make.
func (o *observer) observe(md pmetric.Metrics, report *lastvalue.Report, now time.Time) {
	o.report = report
	o.now, o.latest = pcommon.NewTimestampFromTime(now), pcommon.NewTimestampFromTime(now.Add(MaxAhead))
	md.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool { return o.resource(rm, now) })
}

// resource and its siblings below report whether nothing is left.
func (o *observer) resource(rm pmetric.ResourceMetrics, now time.Time) bool {
	points := resourcePoints(rm)
	if points == 0 {
		return true // it says nothing, not even that the node is there
	}
	o.counts.Received += int64(points)
	o.newest, o.clock, o.beat, o.hasBeat, o.alive = 0, 0, 0, false, false
	attrs := rm.Resource().Attributes()
	known := o.report.Open(o.ident.node(attrs), func() ([]lastvalue.Attr, bool) {
		all := o.attributes(attrs)
		return o.attrs, all
	})
	rm.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool {
		o.scope = sm.Scope()
		scope := scopeHash(o.scope)
		sm.Metrics().RemoveIf(func(m pmetric.Metric) bool { return o.metrics(m, scope) })
		return sm.Metrics().Len() == 0
	})
	o.tell(attrs)
	o.close(now)
	switch {
	case !known:
		if o.alive && !o.hasBeat && rm.ScopeMetrics().Len() > 0 && isNode(attrs) {
			appendHeartbeat(rm, o.now)
			o.report.Heartbeats++
		}
	case o.report.Inline() && o.alive: // what is said about a dead node is no sign of life
		emit(o.report, rm, 0, unbounded)
	}
	o.report.Done()
	return rm.ScopeMetrics().Len() == 0
}

func (o *observer) close(now time.Time) {
	f := lastvalue.Facts{Time: uint64(o.time()), Beat: uint64(o.beat), Relayed: o.hasBeat, Alive: o.alive}
	if !o.hasBeat {
		f.Beat = uint64(o.now)
		f.Behind, f.Timed = now.Sub(o.clock.AsTime()), o.clock != 0
	}
	o.report.Close(f)
}

// time is that of the resource's report by the node's own clock, which orders all that is
// sent of the node. With a heartbeat alone it is as far behind that as it was before.
func (o *observer) time() pcommon.Timestamp {
	switch {
	case o.newest != 0:
		return min(o.newest, o.now)
	case o.beat != 0:
		return min(o.beat-pcommon.Timestamp(o.report.Lag()), o.now)
	default:
		return o.now
	}
}

// tell notes in whose name points of the resource at hand were over a limit.
func (o *observer) tell(attrs pcommon.Map) {
	if o.over == [lastvalue.Limits]int64{} {
		return
	}
	var names nodeidentity.Names
	metricreading.Identify(&names, attrs)
	cluster := names.Cluster("", "")
	for limit, points := range o.over {
		if points == 0 {
			continue
		}
		over := Over{Cluster: cluster, Limit: lastvalue.Limit(limit)}
		same := func(o Over) bool { return o.Cluster == over.Cluster && o.Limit == over.Limit }
		at := slices.IndexFunc(o.counts.Over, same)
		if at < 0 && len(o.counts.Over) >= maxOver {
			over.Cluster = wire.Overflow
			at = slices.IndexFunc(o.counts.Over, same)
		}
		if at < 0 {
			at = len(o.counts.Over)
			o.counts.Over = append(o.counts.Over, over)
		}
		o.counts.Over[at].Points += points
	}
	o.over = [lastvalue.Limits]int64{}
}

func (o *observer) metrics(m pmetric.Metric, scope uint64) bool {
	name := m.Name()
	o.metric = m
	o.alive = o.alive || !reading.OfGateway(name)
	o.isBeat = name == gpusemconv.MetricNodeHeartbeat && m.Type() == pmetric.MetricTypeGauge
	o.hasBeat = o.hasBeat || o.isBeat
	hash, compared := metricHash(m, scope), isLastValue(m)
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		// The start time of a gauge has no meaning, and some SDKs move it with
		// each collection.
		return o.numbers(m.Gauge().DataPoints(), hash, false)
	case pmetric.MetricTypeSum:
		if compared {
			return o.numbers(m.Sum().DataPoints(), hash, true)
		}
		return pass(o, m.Sum().DataPoints())
	case pmetric.MetricTypeHistogram:
		if compared {
			return hashed(o, m.Histogram().DataPoints(), hash, histogramHash)
		}
		return pass(o, m.Histogram().DataPoints())
	case pmetric.MetricTypeExponentialHistogram:
		if compared {
			return hashed(o, m.ExponentialHistogram().DataPoints(), hash, exponentialHash)
		}
		return pass(o, m.ExponentialHistogram().DataPoints())
	case pmetric.MetricTypeSummary:
		return hashed(o, m.Summary().DataPoints(), hash, summaryHash)
	default:
		// A type that this version of pdata does not know is not compared.
		return o.report.Drops()
	}
}

// numbers observes all points before it removes any: most often all are dropped,
// and then the metric goes as a whole, without each point being cleared first.
func (o *observer) numbers(points pmetric.NumberDataPointSlice, metric uint64, withStart bool) bool {
	o.drop = o.drop[:0]
	kept := 0
	for _, dp := range points.All() {
		drop := o.number(dp, metric, withStart)
		o.drop = append(o.drop, drop)
		if !drop {
			kept++
		}
	}
	if kept > 0 && kept < len(o.drop) {
		i := -1
		points.RemoveIf(func(pmetric.NumberDataPoint) bool {
			i++
			return o.drop[i]
		})
	}
	return kept == 0
}

func (o *observer) number(dp pmetric.NumberDataPoint, metric uint64, withStart bool) bool {
	p := lastvalue.Point{Key: seriesKey(metric, dp.Attributes()), End: dp.Flags().NoRecordedValue()}
	if withStart {
		p.Start = uint64(dp.StartTimestamp())
	}
	switch dp.ValueType() {
	case pmetric.NumberDataPointValueTypeInt:
		p.Kind, p.Value = lastvalue.KindInt, uint64(dp.IntValue())
	case pmetric.NumberDataPointValueTypeDouble:
		p.Kind, p.Value = lastvalue.KindDouble, math.Float64bits(dp.DoubleValue())
	default:
		p.End = true
	}
	if beat := beatOf(dp.ValueType(), p.Value); o.isBeat && beat != 0 && !p.End {
		if at := o.relayed(beat); at != beat {
			dp.SetTimestamp(at)
			dp.SetIntValue(at.AsTime().Unix())
			p.Kind, p.Value = lastvalue.KindInt, uint64(dp.IntValue())
		}
	}
	return point(o, dp, &p)
}

// beatOf is the time of a heartbeat in seconds, 0 for none that can be.
func beatOf(kind pmetric.NumberDataPointValueType, value uint64) pcommon.Timestamp {
	seconds := float64(int64(value))
	if kind == pmetric.NumberDataPointValueTypeDouble {
		seconds = math.Float64frombits(value)
	}
	if !(seconds > 0) { // also NaN
		return 0
	}
	return pcommon.Timestamp(min(seconds*1e9, math.MaxInt64))
}

// relayed takes a heartbeat from another tier, and returns the time that it gets.
// Where that tier's clock is off, it is that of receipt if the node has reported there
// since, and else the last one: what a tier repeats of a silent node is no sign of life.
func (o *observer) relayed(beat pcommon.Timestamp) pcommon.Timestamp {
	last, newer := o.report.Heartbeat(uint64(beat))
	switch isOff := beat > o.latest || beat+2*pcommon.Timestamp(MaxAhead) < o.latest; {
	case !isOff:
	case newer || last == 0 && beat > o.latest:
		beat = o.now
	case last != 0:
		beat = pcommon.Timestamp(last)
	}
	o.beat = max(o.beat, beat)
	return beat
}

type pointSlice[P any] interface {
	Len() int
	At(int) P
	RemoveIf(func(P) bool)
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
func timeOf[P stamped](o *observer, dp P) pcommon.Timestamp {
	at := dp.Timestamp()
	o.clock = max(o.clock, at)
	if at > o.latest {
		o.counts.Ahead++
		at = o.now
		dp.SetTimestamp(at)
	}
	return at
}

// pass lets points go on that are not compared: a delta that is dropped is lost for good,
// for the next one does not include it. So points are dropped with their node alone.
func pass[S pointSlice[P], P stamped](o *observer, points S) bool {
	for i := range points.Len() {
		timeOf(o, points.At(i))
	}
	if o.report.Drops() {
		o.over[o.report.Limit()] += int64(points.Len())
		return true
	}
	return points.Len() == 0
}

// point reports whether the point is to be removed.
func point[P stamped](o *observer, dp P, p *lastvalue.Point) bool {
	at := timeOf(o, dp)
	if !o.isBeat {
		o.newest = max(o.newest, at)
	}
	p.Heartbeat, p.Flags = o.isBeat, uint8(dp.Flags())
	p.Time, p.Received = uint64(at), uint64(o.now)
	verdict := o.report.Observe(p)
	if verdict == lastvalue.Unknown {
		verdict = o.add(dp.Attributes(), p)
	}
	if stamp := pcommon.Timestamp(o.report.Stamp()); stamp != 0 {
		dp.SetTimestamp(stamp)
		if !o.isBeat {
			o.newest = max(o.newest, stamp)
		}
	}
	if verdict == lastvalue.Over {
		o.over[o.report.Limit()]++
	}
	return verdict != lastvalue.Pass
}

// add names a new series. A series whose name does not fit the table's form has none.
func (o *observer) add(attrs pcommon.Map, p *lastvalue.Point) lastvalue.Verdict {
	if !o.attributes(attrs) || o.scope.Attributes().Len() > 0 {
		return o.report.Add(p, nil, nil)
	}
	m := lastvalue.Metric{
		ScopeName: o.scope.Name(), ScopeVersion: o.scope.Version(),
		Name: o.metric.Name(), Unit: o.metric.Unit(), Description: o.metric.Description(),
		Type: lastvalue.MetricType(o.metric.Type() - firstType), Monotonic: isMonotonic(o.metric),
	}
	return o.report.Add(p, &m, o.attrs)
}

// attributes fills attrs and reports whether all of them fit.
func (o *observer) attributes(attrs pcommon.Map) bool {
	o.attrs = o.attrs[:0]
	all := true
	for k, v := range attrs.All() {
		a := lastvalue.Attr{Key: k}
		switch v.Type() {
		case pcommon.ValueTypeStr:
			a.Type, a.Text = lastvalue.AttrString, v.Str()
		case pcommon.ValueTypeInt:
			a.Type, a.Num = lastvalue.AttrInt, uint64(v.Int())
		case pcommon.ValueTypeDouble:
			a.Type, a.Num = lastvalue.AttrDouble, math.Float64bits(v.Double())
		case pcommon.ValueTypeBool:
			a.Type, a.Num = lastvalue.AttrBool, boolBit(v.Bool())
		default:
			all = false
			continue
		}
		o.attrs = append(o.attrs, a)
	}
	return all
}

// hashed observes points whose content is compared by its hash.
func hashed[S pointSlice[P], P hashable](o *observer, points S, metric uint64, content func(P) uint64) bool {
	points.RemoveIf(func(dp P) bool {
		return point(o, dp, &lastvalue.Point{
			Key: seriesKey(metric, dp.Attributes()), Kind: lastvalue.KindHash, Value: content(dp),
			Start: uint64(dp.StartTimestamp()), End: dp.Flags().NoRecordedValue(),
		})
	})
	return points.Len() == 0
}

type hashable interface {
	stamped
	StartTimestamp() pcommon.Timestamp
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

func resourcePoints(rm pmetric.ResourceMetrics) (points int) {
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			points += metricreading.Count(m)
		}
	}
	return points
}
