// SPDX-License-Identifier: Apache-2.0

// Package otlp is the table of last values seen as OTLP: decoded reports come in, and
// messages with what the next hop does not have go out.
package otlp // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"

import (
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	nodeidentity "github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// OpaqueInterval is a table's setting of that name. A downstream tier cannot send
// opaque series again, so they are due as often as Prometheus wants a point: within half of
// the 5 m of its query.lookback-delta.
const OpaqueInterval = 2 * time.Minute

// MaxAhead is how far in the future a point's time may be, and how far a heartbeat's from
// ours: far more than clocks in step differ by. A receiver keeps the newest point, so a
// point from further ahead would hide all later ones, and a missing node would not look
// missing.
const MaxAhead = time.Minute

// Counts are of a push.
type Counts struct {
	// Received are the points that came in, also those that Reduce has dropped of this push.
	Received int64
	// Ahead got the time of receipt because theirs was to come.
	Ahead int64
	// Over is how many points were dropped for want of room, nil for none.
	Over map[Over]int64
}

// Over is a node that the table had no room for, one of its metrics, and the limit.
type Over struct {
	Cluster, Node, Metric string
	Limit                 lastvalue.Limit
}

// observer takes decoded reports through the table. It is reused, and keeps nothing of a
// report after reset.
type observer struct {
	report *lastvalue.Report
	watch  bool // nothing is removed or added
	now    pcommon.Timestamp
	latest pcommon.Timestamp // that is believed
	counts Counts

	resourceFacts
	scope       pcommon.InstrumentationScope // of the current metric
	metric      pmetric.Metric               // the current one
	isHeartbeat bool                         // that is a heartbeat from an upstream tier

	// isGauge: the start time has no meaning, and some SDKs move it with each collection.
	isGauge bool

	drop  []bool           // of the current metric, for each point whether it goes
	attrs []lastvalue.Attr // scratch
}

// resourceFacts are of the current resource.
type resourceFacts struct {
	newest       pcommon.Timestamp // of the points that are compared, without heartbeats
	clock        pcommon.Timestamp // of all points, as the sender had it
	heartbeat    pcommon.Timestamp // the heartbeat from an upstream tier, 0 for none that can be
	hasHeartbeat bool              // there is a heartbeat from an upstream tier
	alive        bool              // the node itself reported, and not a gateway about it
	over         [lastvalue.Limits]int64
	overMetrics  [lastvalue.Limits]string // the metric of the last of these points
}

func (o *observer) reset() { *o = observer{drop: o.drop, attrs: o.attrs} }

// observe removes from md what the next hop has, and adds what else it is to get. With
// Collect the table keeps the numbers, and md is left with what the table cannot make.
func (o *observer) observe(md pmetric.Metrics, report *lastvalue.Report, now time.Time) {
	o.report = report
	o.now, o.latest = pcommon.NewTimestampFromTime(now), pcommon.NewTimestampFromTime(now.Add(MaxAhead))
	md.ResourceMetrics().RemoveIf(o.resource)
}

// resource and its siblings below report whether nothing is left.
func (o *observer) resource(rm pmetric.ResourceMetrics) bool {
	received := resourcePoints(rm)
	if received == 0 {
		return !o.watch // it has nothing, not even a sign of life
	}
	o.counts.Received += int64(received)
	o.resourceFacts = resourceFacts{}
	attrs := rm.Resource().Attributes()
	known := o.report.Open(nodeKey(attrs), func() ([]lastvalue.Attr, bool) {
		all := o.attributes(attrs)
		return o.attrs, all
	})
	rm.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool {
		o.scope = sm.Scope()
		scope := scopeHash(o.scope)
		sm.Metrics().RemoveIf(func(m pmetric.Metric) bool { return o.points(m, scope) })
		return sm.Metrics().Len() == 0 && !o.watch
	})
	o.countOver(attrs)
	o.report.Close(o.facts())
	switch {
	case o.watch || !o.alive: // what a gateway reports about a dead node is no sign of life
	case known && o.report.Inline():
		emit(o.report, rm, 0, unbounded)
	case !known && !o.hasHeartbeat && rm.ScopeMetrics().Len() > 0 && isNode(attrs):
		appendHeartbeat(rm, o.now)
		o.report.Heartbeats++
	}
	o.report.Done()
	return rm.ScopeMetrics().Len() == 0 && !o.watch
}

func (o *observer) countOver(resource pcommon.Map) {
	for limit, points := range o.over {
		if points == 0 {
			continue
		}
		if o.counts.Over == nil {
			o.counts.Over = map[Over]int64{}
		}
		var names nodeidentity.Names
		metricreading.Identify(&names, resource)
		o.counts.Over[Over{names.Cluster("", ""), names.Node(), o.overMetrics[limit], lastvalue.Limit(limit)}] += points
	}
}

// facts are what the resource has besides series. Its time is that of the report by the node's own
// clock, which orders all that is sent of the node. With a heartbeat alone it is as far behind
// that as it was before.
func (o *observer) facts() lastvalue.Facts {
	f := lastvalue.Facts{Heartbeat: uint64(o.heartbeat), Relayed: o.hasHeartbeat, Alive: o.alive}
	if !o.hasHeartbeat {
		f.Heartbeat = uint64(o.now)
		f.Behind, f.Timed = o.now.AsTime().Sub(o.clock.AsTime()), o.clock != 0
	}
	at := o.now
	if o.newest != 0 {
		at = min(at, o.newest)
	} else if o.heartbeat != 0 {
		at = min(at, o.heartbeat-pcommon.Timestamp(o.report.Lag()))
	}
	f.Time = uint64(at)
	return f
}

func (o *observer) points(m pmetric.Metric, scope uint64) bool {
	name := m.Name()
	o.metric = m
	o.alive = o.alive || !reading.OfGateway(name)
	o.isGauge = m.Type() == pmetric.MetricTypeGauge
	o.isHeartbeat = o.isGauge && name == gpusemconv.MetricNodeHeartbeat
	o.hasHeartbeat = o.hasHeartbeat || o.isHeartbeat
	temporality, _ := aggregation(m)
	hash, cumulative := metricHash(m, scope), temporality == pmetric.AggregationTemporalityCumulative
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		if o.isHeartbeat {
			for _, dp := range m.Gauge().DataPoints().All() {
				o.relayedHeartbeat(dp)
			}
		}
		return points(o, m.Gauge().DataPoints(), hash, true, numberValue)
	case pmetric.MetricTypeSum:
		return points(o, m.Sum().DataPoints(), hash, cumulative, numberValue)
	case pmetric.MetricTypeHistogram:
		return points(o, m.Histogram().DataPoints(), hash, cumulative, histogramValue)
	case pmetric.MetricTypeExponentialHistogram:
		return points(o, m.ExponentialHistogram().DataPoints(), hash, cumulative, exponentialValue)
	case pmetric.MetricTypeSummary:
		return points(o, m.Summary().DataPoints(), hash, true, summaryValue)
	default:
		// A type that this version of pdata does not know is not compared.
		return o.report.Drops()
	}
}

// relayedHeartbeat takes a heartbeat from an upstream tier, and gives it the time that it gets here.
// Where that tier's clock is off, it is that of receipt if the node has reported there
// since, and else the last one: what a tier repeats of a missing node is no sign of life. A
// clock that was right with the last heartbeat is right now: this one is late.
func (o *observer) relayedHeartbeat(dp pmetric.NumberDataPoint) {
	seconds := metricreading.Number(dp)
	if !(seconds > 0) { // also NaN, for a point without a value
		return
	}
	beat := pcommon.Timestamp(min(seconds*1e9, math.MaxInt64))
	ahead, behind, at := beat > o.latest, beat+2*pcommon.Timestamp(MaxAhead) < o.latest, beat
	last, newer, right := o.report.RelayedHeartbeat(uint64(beat), !ahead && !behind)
	switch {
	case !ahead && !behind, behind && newer && right:
	case newer || last == 0 && ahead:
		at = o.now
	case last != 0:
		at = pcommon.Timestamp(last)
	}
	if at != beat {
		dp.SetTimestamp(at)
		dp.SetIntValue(at.AsTime().Unix())
	}
	o.heartbeat = max(o.heartbeat, at)
}

type pointSlice[P any] interface {
	Len() int
	At(int) P
	RemoveIf(func(P) bool)
}

// point is a point of any type.
type point interface {
	StartTimestamp() pcommon.Timestamp
	Timestamp() pcommon.Timestamp
	SetTimestamp(pcommon.Timestamp)
	Flags() pmetric.DataPointFlags
	SetFlags(pmetric.DataPointFlags)
	Attributes() pcommon.Map
}

// value is what a point has besides times and attributes.
type value struct {
	kind lastvalue.Kind
	bits uint64
	none bool // of a number
}

func numberValue(dp pmetric.NumberDataPoint) value {
	switch dp.ValueType() {
	case pmetric.NumberDataPointValueTypeInt:
		return value{lastvalue.KindInt, uint64(dp.IntValue()), false}
	case pmetric.NumberDataPointValueTypeDouble:
		return value{lastvalue.KindDouble, math.Float64bits(dp.DoubleValue()), false}
	default:
		return value{none: true}
	}
}

// points takes those of a metric through the table. It removes none before it has seen all:
// most often all are dropped, and then the metric goes as a whole, without each point being
// cleared first.
func points[S pointSlice[P], P point](o *observer, all S, metric uint64, compared bool, read func(P) value) bool {
	o.drop = o.drop[:0]
	kept := 0
	for i := range all.Len() {
		verdict := lastvalue.Pass
		if dp := all.At(i); compared {
			verdict = compare(o, dp, metric, read(dp))
		} else if timeOf(o, dp); o.report.Drops() {
			// A delta that is dropped is lost for good, for the next one does not include it.
			// So those are dropped with their node alone.
			verdict = lastvalue.Over
		}
		if verdict == lastvalue.Over {
			o.over[o.report.Limit]++
			o.overMetrics[o.report.Limit] = o.metric.Name()
		}
		if verdict == lastvalue.Pass {
			kept++
		}
		o.drop = append(o.drop, verdict != lastvalue.Pass)
	}
	if o.watch {
		return false
	}
	if kept > 0 && kept < len(o.drop) {
		i := -1
		all.RemoveIf(func(P) bool {
			i++
			return o.drop[i]
		})
	}
	return kept == 0
}

// timeOf is the point's time, or the time of receipt, which the point gets where
// its own is not to be believed.
func timeOf[P point](o *observer, dp P) pcommon.Timestamp {
	at := dp.Timestamp()
	o.clock = max(o.clock, at)
	if at > o.latest {
		o.counts.Ahead++
		at = o.now
		dp.SetTimestamp(at)
	}
	return at
}

func compare[P point](o *observer, dp P, metric uint64, v value) lastvalue.Verdict {
	at, flags := timeOf(o, dp), dp.Flags()
	p := lastvalue.Point{
		Key: lastvalue.Mix(metric, attributesHash(dp.Attributes())), Kind: v.kind, Value: v.bits, End: v.none || flags.NoRecordedValue(),
		Time: uint64(at), Received: uint64(o.now), Flags: uint8(flags), Heartbeat: o.isHeartbeat,
	}
	if !o.isGauge {
		p.Start = uint64(dp.StartTimestamp())
	}
	verdict := o.report.Observe(&p)
	if verdict == lastvalue.Unknown {
		verdict = o.add(dp.Attributes(), &p)
	}
	if stamp := pcommon.Timestamp(p.Time); stamp != at {
		dp.SetTimestamp(stamp)
		at = max(at, stamp)
	}
	if !o.isHeartbeat {
		o.newest = max(o.newest, at)
	}
	return verdict
}

// add names a new series. A series whose name does not fit the table's form has none.
func (o *observer) add(attrs pcommon.Map, p *lastvalue.Point) lastvalue.Verdict {
	if !o.attributes(attrs) || o.scope.Attributes().Len() > 0 {
		return o.report.Add(p, nil, nil)
	}
	_, monotonic := aggregation(o.metric)
	m := lastvalue.Metric{
		ScopeName: o.scope.Name(), ScopeVersion: o.scope.Version(),
		Name: o.metric.Name(), Unit: o.metric.Unit(), Description: o.metric.Description(),
		Type: lastvalue.MetricType(o.metric.Type() - firstType), Monotonic: monotonic,
	}
	return o.report.Add(p, &m, o.attrs)
}

// attributes fills attrs and reports whether all of them fit.
func (o *observer) attributes(attrs pcommon.Map) bool {
	o.attrs = o.attrs[:0]
	all := true
	for k, v := range attrs.All() {
		a := lastvalue.Attr{Key: k, Type: lastvalue.AttrType(v.Type() - firstValue), Text: v.Str(), Num: numberOf(v)}
		if a.Type > lastvalue.AttrBool { // also an empty one, which is before the first
			all = false
			continue
		}
		o.attrs = append(o.attrs, a)
	}
	return all
}

// isNode reports whether a resource is a node: only nodes have a heartbeat.
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
