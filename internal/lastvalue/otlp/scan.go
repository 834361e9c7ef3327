// SPDX-License-Identifier: Apache-2.0

package otlp // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"

import (
	"encoding/binary"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

const (
	// maxMessage keeps positions within 32 bits.
	maxMessage = 1 << 30
	// keepElements is how much room is kept from one report for the next.
	keepElements = 1 << 14
)

// Reduce drops points from an encoded report that Consume would drop, before it is decoded.
// What is left is for Consume, which also learns from it that the nodes reported: each
// resource keeps the point with the newest time. The bytes are Reduce's, and left is a part
// of them.
//
// It reports false for a request that is to be decoded whole. A regular one is of the form
// that senders in fact write: known fields, none repeated that must not be, gauges and sums
// only, and only resources of attributes that the client owns.
func (e *Engine) Reduce(owns func(pcommon.Map) bool, msg []byte) (left []byte, ok bool) {
	s := e.scanners.Get().(*scanner)
	defer e.scanners.Put(s)
	defer s.reset()
	now := e.Now()
	if !s.read(msg, owns, now) {
		return nil, false
	}
	e.reduced.Add(s.skim(e.Table, now.Sub(e.Epoch)))
	return s.left(), true
}

// scanner finds the points in the bytes of a report. It is reused.
type scanner struct {
	msg    []byte
	owns   func(pcommon.Map) bool
	latest uint64 // time that is believed

	elements  []element
	resources []scannedResource
	metrics   []scannedMetric // of the scope at hand
	// alive and newest are the places of the point with the newest time that is no gateway's
	// own, and of all, in the resource at hand; negative for none.
	alive, newest int

	// runs are the attributes of the points of the metric before, by position:
	// each metric of a node has the same GPUs in the same order. Since they are
	// compared by byte, this is only a shorter way to the same hash.
	runs []attributeRun
	// known are attributes of this message that were hashed, each at the place that
	// its bytes give it: where sets differ from metric to metric, most of what is
	// in them does not.
	known [knownSlots]attributeRun

	request []byte // scratch
	ident   identity
}

// element is a field of the request with others in it, or a point: the field is
// msg[from:end], its content msg[body:end]. Those within lie right before it, from first on.
type element struct {
	from, body, end int32
	first           int32
	state           state
	lastvalue.Point // in whose Key attributes, metric and scope come together
}

type state uint8

const (
	holds    state = iota // others, and goes with the last of them
	stays                 // a point that is not dropped
	compared              // a point that may be
	dropped
)

type scannedResource struct {
	node     lastvalue.NodeKey
	at       int  // in elements
	compared bool // it has points for the table
}

type attributeRun struct {
	from, to int32 // in the message
	sum      uint64
}

// reset lets go of the message.
func (s *scanner) reset() {
	s.msg = nil
	clear(s.metrics[:cap(s.metrics)])
	if cap(s.elements)+cap(s.resources)+cap(s.metrics)+cap(s.runs)+cap(s.request) > keepElements {
		*s = scanner{}
	}
}

// read reports whether a request is regular. It looks at the whole of it and at no table.
func (s *scanner) read(msg []byte, owns func(pcommon.Map) bool, now time.Time) bool {
	s.msg, s.owns = msg, owns
	s.latest = uint64(pcommon.NewTimestampFromTime(now.Add(MaxAhead)))
	s.elements, s.resources, s.runs = s.elements[:0], s.resources[:0], s.runs[:0]
	clear(s.known[:])
	if len(msg) > maxMessage {
		return false
	}
	f := fields{b: msg}
	for f.next() {
		if f.tag != tagResourceMetrics || !s.resource(&f) {
			return false
		}
	}
	return f.ok()
}

// resource and its siblings read the message that is the field at hand.
func (s *scanner) resource(at *fields) bool {
	first := len(s.elements)
	var resource []byte
	s.alive, s.newest = -1, -1
	f := at.inner()
	for f.next() {
		switch f.tag {
		case tagResource:
			if resource != nil {
				return false
			}
			resource = f.b[f.from:f.pos]
		case tagScopeMetrics:
			if !s.scope(&f) {
				return false
			}
		case tagSchemaURL:
		default:
			return false
		}
	}
	for _, i := range []int{s.alive, s.newest} {
		if i >= 0 {
			s.elements[i].state = stays
		}
	}
	s.resources = append(s.resources, scannedResource{at: s.group(at, first), compared: s.newest >= 0})
	return f.ok() && s.identify(resource, &s.resources[len(s.resources)-1].node)
}

// identify has pdata read the field of a resource: each resource is one node in all ways in.
func (s *scanner) identify(field []byte, key *lastvalue.NodeKey) bool {
	s.request = binary.AppendUvarint(append(s.request[:0], tagResourceMetrics), uint64(len(field)))
	s.request = append(s.request, field...)
	req := pmetricotlp.NewExportRequest()
	if err := req.UnmarshalProto(s.request); err != nil {
		return false
	}
	attrs := req.Metrics().ResourceMetrics().At(0).Resource().Attributes()
	*key = s.ident.node(attrs)
	return s.owns(attrs)
}

// group ends an element that holds those from first on, and returns its place.
func (s *scanner) group(at *fields, first int) int {
	s.elements = append(s.elements, element{from: int32(at.from), body: int32(at.body), end: int32(at.pos), first: int32(first)})
	return len(s.elements) - 1
}

func (s *scanner) scope(at *fields) bool {
	first := len(s.elements)
	s.metrics = s.metrics[:0]
	seen, hash := false, scopeIdentity(lastvalue.HashString(""), lastvalue.HashString(""), 0)
	f := at.inner()
	for f.next() {
		switch f.tag {
		case tagScope:
			var ok bool
			if hash, ok = scopeBytesHash(f.inner()); seen || !ok {
				return false
			}
			seen = true
		case tagMetrics:
			if !s.metric(&f) {
				return false
			}
		case tagSchemaURL:
		default:
			return false
		}
	}
	for i := range s.metrics {
		s.compare(&s.metrics[i], hash)
	}
	s.group(at, first)
	return f.ok()
}

type scannedMetric struct {
	name, unit  []byte
	kind        pmetric.MetricType
	temporality pmetric.AggregationTemporality
	monotonic   bool
	first, end  int // of the points in elements
}

func (s *scanner) metric(at *fields) bool {
	m := scannedMetric{first: len(s.elements)}
	f := at.inner()
	for f.next() {
		switch f.tag {
		case tagName:
			m.name = f.content()
		case tagUnit:
			m.unit = f.content()
		case tagDescription:
		case tagGauge, tagSum:
			if m.kind != pmetric.MetricTypeEmpty || !s.data(&f, &m) {
				return false
			}
		case tagMetadata:
			if _, ok := keyValueHash(f.content()); !ok {
				return false
			}
		default:
			return false
		}
	}
	s.metrics = append(s.metrics, m)
	s.group(at, m.first)
	return f.ok() && m.kind != pmetric.MetricTypeEmpty
}

func (s *scanner) data(at *fields, m *scannedMetric) bool {
	m.kind = pmetric.MetricTypeGauge
	if at.tag == tagSum {
		m.kind = pmetric.MetricTypeSum
	}
	f := at.inner()
	for f.next() {
		switch {
		case f.tag == tagDataPoints:
			if !s.point(&f, len(s.elements)-m.first) {
				return false
			}
		case f.tag == tagTemporality && at.tag == tagSum:
			m.temporality = pmetric.AggregationTemporality(int32(f.n))
		case f.tag == tagMonotonic && at.tag == tagSum:
			m.monotonic = f.n != 0
		default:
			return false
		}
	}
	m.end = len(s.elements)
	s.group(at, m.first)
	return f.ok()
}

// compare says which points of a metric may be dropped.
func (s *scanner) compare(m *scannedMetric, scope uint64) {
	gauge := m.kind == pmetric.MetricTypeGauge
	if m.first == m.end || !gauge && m.temporality != pmetric.AggregationTemporalityCumulative || gauge && string(m.name) == gpusemconv.MetricNodeHeartbeat {
		return
	}
	key := metricIdentity(scope, lastvalue.HashBytes(m.name), lastvalue.HashBytes(m.unit), m.kind, m.temporality, m.monotonic)
	newest := m.first
	for i := m.first; i < m.end; i++ {
		p := &s.elements[i]
		p.Key = lastvalue.Mix(key, p.Key)
		if gauge {
			p.Start = 0
		}
		if !p.End && p.Time <= s.latest {
			p.state = compared
		}
		newest = s.newer(newest, i)
	}
	s.newest = s.newer(s.newest, newest)
	if !reading.OfGateway(m.name) {
		s.alive = s.newer(s.alive, newest)
	}
}

// newer returns the first of two points that has the newer time; a is negative for none.
func (s *scanner) newer(a, b int) int {
	if a >= 0 && s.elements[a].Time >= s.elements[b].Time {
		return a
	}
	return b
}

// point reads the nth point of its metric.
func (s *scanner) point(at *fields, nth int) bool {
	s.elements = append(s.elements, element{
		from: int32(at.from), body: int32(at.body), end: int32(at.pos), first: int32(len(s.elements)), state: stays,
	})
	p, valued, attributed := &s.elements[len(s.elements)-1].Point, false, false
	f := at.inner()
	for f.next() {
		switch f.tag {
		case tagAttribute:
			// More after other fields, or more than the metric before had, are
			// added one by one.
			var hash uint64
			var ok bool
			if attributed {
				hash, ok = s.attribute(&f)
			} else {
				hash, ok = s.run(&f, nth)
				attributed = true
			}
			if !ok {
				return false
			}
			p.Key += hash
		case tagAsDouble:
			p.Value, p.Kind, valued = f.n, lastvalue.KindDouble, true
		case tagAsInt:
			p.Value, p.Kind, valued = f.n, lastvalue.KindInt, true
		case tagTime:
			p.Time = f.n
		case tagStartTime:
			p.Start = f.n
		case tagFlags:
			p.Flags = uint8(f.n)
		default:
			return false
		}
	}
	p.End = !valued || pmetric.DataPointFlags(p.Flags).NoRecordedValue()
	return f.ok()
}
