// SPDX-License-Identifier: Apache-2.0

package otlp // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"

import (
	"bytes"
	"encoding/binary"
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Reduce hides points of an encoded report that Consume would drop, before it is decoded:
// their fields get a number that pdata passes over. What is left is for Consume, which also
// learns from it that the nodes reported: each resource keeps its newest point.
//
// It reports false, and changes nothing, for a request that is to be decoded whole. A regular
// one is of the form that agents in fact write: known fields, no metric or scope without
// points and none with attributes of its own, gauges and sums only whose attributes are texts
// and integers, and only resources of attributes that the client owns.
func (e *Engine) Reduce(owns func(pcommon.Map) bool, msg []byte) (regular bool) {
	s := e.scanners.Get().(*scanner)
	now := e.Now()
	if regular = s.read(msg, owns, now); regular {
		e.reduced.Add(s.skim(e.Table, now.Sub(e.Epoch)))
	}
	s.msg, s.owns = nil, nil
	clear(s.runs) // they are of the message
	e.scanners.Put(s)
	return regular
}

// scanner finds the points in the bytes of a report. It is reused.
type scanner struct {
	msg       []byte
	owns      func(pcommon.Map) bool
	latest    uint64 // time that is believed
	irregular bool   // the request is not regular

	resources []scannedResource
	elements  []element
	newest    int            // point of the current resource that may be hidden, negative for none
	runs      []attributeRun // of the points of the metric before

	// known are attributes, several times as many as the points of a node differ by.
	known   [256]struct{ of, hash uint64 }
	request []byte // scratch
}

type attributeRun struct {
	bytes []byte
	sum   uint64
}

// scannedResource has the elements from one on to before another.
type scannedResource struct {
	node     lastvalue.NodeKey
	from, to int
}

// element is a point, or a metric or scope, which comes after the elements in it.
type element struct {
	tag      int32 // its offset in the request
	first    int32 // element in it; a point has none but itself
	compared bool  // with the table: the point may be hidden
	lastvalue.Point
}

// skim hides what the table has, and returns how many points that are. A metric or scope is
// hidden with the last of its points.
func (s *scanner) skim(t *lastvalue.Table, now time.Duration) (points int64) {
	skim := t.Skim(now)
	for _, r := range s.resources {
		if r.from == r.to || !skim.Open(r.node) { // one without points is no report
			continue
		}
		left := r.from - 1 // the last point that goes on
		for i := r.from; i < r.to; i++ {
			switch e := &s.elements[i]; {
			case int(e.first) < i:
				if left < int(e.first) {
					s.msg[e.tag] = tagNone
				}
			case skim.Known(&e.Point, e.compared):
				s.msg[e.tag] = tagNone
				points++
			default:
				left = i
			}
		}
		skim.Close()
	}
	return points
}

// read reports whether a request is regular. It looks at the whole of it and at no table.
func (s *scanner) read(msg []byte, owns func(pcommon.Map) bool, now time.Time) bool {
	s.msg, s.owns = msg, owns
	s.latest = uint64(pcommon.NewTimestampFromTime(now.Add(MaxAhead)))
	s.elements, s.resources, s.irregular = s.elements[:0], s.resources[:0], len(msg) > math.MaxInt32
	f := fields{b: msg}
	for !s.irregular && f.next() {
		if f.tag == tagResourceMetrics {
			s.resource(&f)
		} else {
			f.refuse()
		}
	}
	return !s.irregular && f.ok()
}

// resource and its siblings read the message that is the current field, and set irregular
// where it is not regular.
func (s *scanner) resource(at *fields) {
	r := scannedResource{from: len(s.elements)}
	s.newest = -1
	var resource []byte
	f := at.inner()
	for f.next() {
		switch {
		case f.tag == tagScopeMetrics:
			s.scope(&f)
		case f.tag == tagResource && resource == nil:
			resource = f.b[f.from:f.pos]
		case f.tag == tagSchemaURL:
		default:
			f.refuse()
		}
	}
	if s.newest >= 0 {
		s.elements[s.newest].compared = false
	}
	r.to = len(s.elements)
	s.irregular = s.irregular || !f.ok() || !s.identify(resource, &r.node)
	s.resources = append(s.resources, r)
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
	*key = nodeKey(attrs)
	return s.owns(attrs)
}

func (s *scanner) scope(at *fields) {
	first, scopes := len(s.elements), 0
	hash, ok := scopeBytesHash(fields{})
	f := at.inner()
	for f.next() { // pdata writes the scope after the metrics
		if f.tag == tagScope {
			hash, ok = scopeBytesHash(f.inner())
			scopes++
		}
	}
	for f = at.inner(); f.next(); {
		switch f.tag {
		case tagMetrics:
			s.metric(&f, hash)
		case tagScope, tagSchemaURL:
		default:
			f.refuse()
		}
	}
	s.irregular = s.irregular || scopes > 1 || !ok || !f.ok()
	s.group(at, first)
}

// group ends a metric or scope that has the elements from first on. One without any is not
// regular: hidden with others it would not be seen.
func (s *scanner) group(at *fields, first int) {
	s.irregular = s.irregular || first == len(s.elements)
	s.elements = append(s.elements, element{tag: int32(at.from), first: int32(first)})
}

type scannedMetric struct {
	name, unit  []byte
	kind        pmetric.MetricType
	temporality pmetric.AggregationTemporality
	monotonic   bool
}

func (s *scanner) metric(at *fields, scope uint64) {
	first := len(s.elements)
	var m scannedMetric
	f := at.inner()
	for f.next() {
		switch {
		case f.tag == tagName:
			m.name = f.content()
		case f.tag == tagUnit:
			m.unit = f.content()
		case f.tag == tagDescription:
		case f.tag == tagMetadata: // of receivers that scrape Prometheus
			s.attribute(&f)
		case f.tag == tagGauge && m.kind == pmetric.MetricTypeEmpty:
			m.kind = pmetric.MetricTypeGauge
			s.data(&f, &m, first)
		case f.tag == tagSum && m.kind == pmetric.MetricTypeEmpty:
			m.kind = pmetric.MetricTypeSum
			s.data(&f, &m, first)
		default:
			f.refuse()
		}
	}
	s.irregular = s.irregular || !f.ok()
	s.compare(&m, first, scope)
	s.group(at, first)
}

func (s *scanner) data(at *fields, m *scannedMetric, first int) {
	f := at.inner()
	for f.next() {
		switch {
		case f.tag == tagDataPoints:
			s.point(&f, len(s.elements)-first)
		case f.tag == tagTemporality && at.tag == tagSum:
			m.temporality = pmetric.AggregationTemporality(int32(f.n))
		case f.tag == tagMonotonic && at.tag == tagSum:
			m.monotonic = f.n != 0
		default:
			f.refuse()
		}
	}
	s.irregular = s.irregular || !f.ok()
}

// compare marks the points of a metric that may be hidden. None of a gateway's may: they are no
// sign of life of the node.
func (s *scanner) compare(m *scannedMetric, first int, scope uint64) {
	gauge := m.kind == pmetric.MetricTypeGauge
	if !gauge && m.temporality != pmetric.AggregationTemporalityCumulative ||
		reading.OfGateway(m.name) || string(m.name) == gpusemconv.MetricNodeHeartbeat {
		return
	}
	key := metricIdentity(scope, lastvalue.HashBytes(m.name), lastvalue.HashBytes(m.unit), m.kind, m.temporality, m.monotonic)
	for i := first; i < len(s.elements); i++ {
		p := &s.elements[i]
		p.Key = lastvalue.Mix(key, p.Key)
		if gauge {
			p.Start = 0
		}
		p.compared = !p.End && p.Time <= s.latest
		if s.newest < 0 || p.Time > s.elements[s.newest].Time {
			s.newest = i
		}
	}
}

// point reads the nth point of its metric, in whose Key attributes, metric and scope come
// together.
func (s *scanner) point(at *fields, nth int) {
	s.elements = append(s.elements, element{tag: int32(at.from), first: int32(len(s.elements))})
	p, valued := &s.elements[len(s.elements)-1].Point, false
	f := at.inner()
	for f.next() {
		switch f.tag {
		case tagAttribute:
			p.Key += s.run(&f, nth)
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
			f.refuse()
		}
	}
	s.irregular = s.irregular || !f.ok()
	p.End = !valued || pmetric.DataPointFlags(p.Flags).NoRecordedValue()
}

// run adds up the hashes of the attributes from the current one on, or finds them to be those
// of the nth point of the metric before: each metric of a node has the same GPUs in the same
// order. The last of them is then the current one.
func (s *scanner) run(f *fields, nth int) (sum uint64) {
	for nth >= len(s.runs) {
		s.runs = append(s.runs, attributeRun{})
	}
	from, before := f.from, &s.runs[nth]
	if len(before.bytes) > 0 && bytes.HasPrefix(f.b[from:], before.bytes) {
		f.pos = from + len(before.bytes)
		return before.sum
	}
	sum = s.attribute(f)
	for f.pos < len(f.b) && f.b[f.pos] == tagAttribute && f.next() {
		sum += s.attribute(f)
	}
	if f.ok() {
		*before = attributeRun{f.b[from:f.pos], sum}
	}
	return sum
}

// attribute returns the hash of an attribute, hashed now or before: where the attributes of
// points differ from metric to metric, most of what is in them does not. It is known by a
// hash of its bytes, which distinguishes attributes as well as that of key and value.
func (s *scanner) attribute(f *fields) uint64 {
	of := lastvalue.HashBytes(f.content())
	known := &s.known[of%uint64(len(s.known))]
	if known.of != of {
		hash, ok := keyValueHash(f.inner())
		if !ok {
			s.irregular = true
			return 0
		}
		known.of, known.hash = of, hash
	}
	return known.hash
}
