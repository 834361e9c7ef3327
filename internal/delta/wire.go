// SPDX-License-Identifier: Apache-2.0

package delta // import "github.com/gpu-collector/gpu-collector/internal/delta"

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// Tags of the fields that a regular request consists of: opentelemetry-proto,
// metrics/v1/metrics.proto, all of them in one byte.
const (
	tagResourceMetrics = 1<<3 | wireLen

	tagResource     = 1<<3 | wireLen
	tagScopeMetrics = 2<<3 | wireLen
	tagSchemaURL    = 3<<3 | wireLen // of resource and scope metrics

	tagResourceAttribute = 1<<3 | wireLen
	tagResourceDropped   = 2<<3 | wireVarint

	tagScope   = 1<<3 | wireLen
	tagMetrics = 2<<3 | wireLen

	tagScopeName      = 1<<3 | wireLen
	tagScopeVersion   = 2<<3 | wireLen
	tagScopeAttribute = 3<<3 | wireLen
	tagScopeDropped   = 4<<3 | wireVarint

	tagName        = 1<<3 | wireLen
	tagDescription = 2<<3 | wireLen
	tagUnit        = 3<<3 | wireLen
	tagGauge       = 5<<3 | wireLen
	tagSum         = 7<<3 | wireLen
	tagMetadata    = 12<<3 | wireLen

	tagDataPoints  = 1<<3 | wireLen
	tagTemporality = 2<<3 | wireVarint
	tagMonotonic   = 3<<3 | wireVarint

	tagStartTime = 2<<3 | wireI64
	tagTime      = 3<<3 | wireI64
	tagAsDouble  = 4<<3 | wireI64
	tagAsInt     = 6<<3 | wireI64
	tagAttribute = 7<<3 | wireLen
	tagFlags     = 8<<3 | wireVarint
)

const (
	// maxMessage keeps positions within 32 bits.
	maxMessage = 1 << 30
	// keepElements is how much room is kept from one report for the next.
	keepElements = 1 << 14
)

// Wire takes the bytes of reports through the table. It is reused:
//
//	Read       for each report
//	Filter     when Read has returned true, with Report set
//	Reset
//
// Read is strict. It takes only requests of the form that senders in fact
// write: known fields, none repeated that must not be, gauges and sums only, no time that
// Filter would correct, and only resources that are the client's own. Any other request, legal or malformed, is for pdata
// to decode, and for Filter.
type Wire struct {
	Judge

	// Client is whose push it is: no resource of another is compared.
	Client clientidentity.Identity

	beat heartbeatBytes
	msg  []byte

	resources []wireResource
	scopes    []wireScope
	metrics   []wireMetric
	points    []wirePoint

	// runs are the attributes of the points of the metric before, by position:
	// each metric of a node has the same GPUs in the same order. Since they are
	// compared by byte, this is only a shorter way to the same hash.
	runs []attributeRun
	// known are attributes of this message that were hashed, each at the place that
	// its bytes give it: where sets differ from metric to metric, most of what is
	// in them does not.
	known [knownSlots]attributeRun
	ident wireIdentity
	attrs []statetable.Attr // scratch
}

// NewWire returns a Wire for one report at a time, with the deadbands.
func NewWire(bands *deadband.Cache) *Wire {
	return &Wire{Judge: Judge{Bands: bands}, beat: newHeartbeatBytes()}
}

// element is a field of the message that holds a message: the field is
// msg[from:end], its content msg[body:end].
type element struct {
	from, body, end int32
	// The output has nothing of a gone element, and content bytes of an edited one.
	// Any other element is left as it is.
	content            int32
	gone, edited, left bool
}

func (e *element) full() int32 { return e.end - e.from }

// size is what the element takes in the output.
func (e *element) size() int32 {
	switch {
	case e.gone:
		return 0
	case !e.edited:
		return e.full()
	}
	return 1 + int32(bits.Len32(uint32(e.content)|1)+6)/7 + e.content
}

type wireResource struct {
	element
	scopes   span
	points   span
	resource span // in the message
	node     statetable.NodeKey
	isNode   bool
	added    []byte            // points of vanished and repeated series, as scopes
	beatAt   pcommon.Timestamp // 0 for no heartbeat
}

type wireScope struct {
	element
	metrics span
	scope   scopeIdentityBytes
}

type wireMetric struct {
	element
	data        element
	points      span
	name, unit  span // in the message
	description span
	isSum       bool
	monotonic   bool
	temporality pmetric.AggregationTemporality
}

type wirePoint struct {
	from, end   int32
	timeAt      int32 // where in the message its time is
	flags       uint32
	attrs       uint64
	value       uint64
	start, time uint64
	kind        pmetric.NumberDataPointValueType
	drop        bool
	stamped     bool // time is not the message's
}

// span is from..to of whatever it is said to be.
type span struct{ from, to int32 }

func (s span) of(b []byte) []byte { return b[s.from:s.to] }

type attributeRun struct {
	span
	sum uint64
}

// Reset lets go of the message and the report.
func (w *Wire) Reset() {
	w.Judge.Reset()
	w.msg = nil
	w.ident.reset()
	if cap(w.points)+cap(w.metrics)+cap(w.scopes)+cap(w.resources)+cap(w.runs) > keepElements {
		w.resources, w.scopes, w.metrics, w.points, w.runs = nil, nil, nil, nil, nil
	}
}

// Points is how many points the message has that was read.
func (w *Wire) Points() int { return len(w.points) }

// Read takes note of a request that came now and reports whether it is a regular
// one. It looks at the whole of it and touches no table. Until Reset, msg must
// not change.
func (w *Wire) Read(msg []byte, now time.Time) bool {
	w.msg = msg
	w.Now, w.latest = now, latest(now)
	w.resources, w.scopes, w.metrics, w.points, w.runs = w.resources[:0], w.scopes[:0], w.metrics[:0], w.points[:0], w.runs[:0]
	clear(w.known[:])
	if len(msg) > maxMessage {
		return false
	}
	for pos := 0; pos < len(msg); {
		body, end := chunk(msg, pos+1)
		if msg[pos] != tagResourceMetrics || end < 0 || !w.readResource(pos, body, end) {
			return false
		}
		pos = end
	}
	return true
}

func (w *Wire) readResource(start, body, end int) bool {
	r := wireResource{element: newElement(start, body, end)}
	r.scopes.from, r.points.from = int32(len(w.scopes)), int32(len(w.points))
	b := w.msg[:end]
	w.ident.open()
	seen := false
	for pos := body; pos < end; {
		from, to := chunk(b, pos+1)
		if to < 0 {
			return false
		}
		switch b[pos] {
		case tagResource:
			if seen || !w.ident.resource(b[:to], from) {
				return false
			}
			r.resource, seen = span{int32(from), int32(to)}, true
		case tagScopeMetrics:
			if !w.readScope(pos, from, to) {
				return false
			}
		case tagSchemaURL:
		default:
			return false
		}
		pos = to
	}
	if !w.Client.Owns(w.ident.count) {
		return false
	}
	r.node, r.isNode = w.ident.close()
	r.scopes.to, r.points.to = int32(len(w.scopes)), int32(len(w.points))
	w.resources = append(w.resources, r)
	return true
}

func (w *Wire) readScope(start, body, end int) bool {
	s := wireScope{element: newElement(start, body, end)}
	s.metrics.from = int32(len(w.metrics))
	b := w.msg[:end]
	seen := false
	for pos := body; pos < end; {
		from, to := chunk(b, pos+1)
		if to < 0 {
			return false
		}
		switch b[pos] {
		case tagScope:
			if seen || !s.scope.read(b[:to], from) {
				return false
			}
			seen = true
		case tagMetrics:
			if !w.readMetric(pos, from, to) {
				return false
			}
		case tagSchemaURL:
		default:
			return false
		}
		pos = to
	}
	if !seen {
		s.scope.read(nil, 0)
	}
	s.metrics.to = int32(len(w.metrics))
	w.scopes = append(w.scopes, s)
	return true
}

// scopeIdentityBytes is what tells a scope from others.
type scopeIdentityBytes struct {
	hash          uint64
	name, version span // in the message
	attributed    bool
}

// read reads the scope at b[pos:], where b begins as the message does.
func (s *scopeIdentityBytes) read(b []byte, pos int) bool {
	var attrs uint64
	for pos < len(b) {
		tag := b[pos]
		if tag == tagScopeDropped {
			if _, pos = varint(b, pos+1); pos < 0 {
				return false
			}
			continue
		}
		from, to := chunk(b, pos+1)
		if to < 0 {
			return false
		}
		switch tag {
		case tagScopeName:
			s.name = span{int32(from), int32(to)}
		case tagScopeVersion:
			s.version = span{int32(from), int32(to)}
		case tagScopeAttribute:
			h, ok := keyValueHash(b[from:to])
			if !ok {
				return false
			}
			attrs += h
			s.attributed = true
		default:
			return false
		}
		pos = to
	}
	s.hash = scopeIdentity(statetable.HashBytes(s.name.of(b)), statetable.HashBytes(s.version.of(b)), attrs)
	return true
}

func (w *Wire) readMetric(start, body, end int) bool {
	m := wireMetric{element: newElement(start, body, end)}
	m.points.from = int32(len(w.points))
	b := w.msg[:end]
	for pos := body; pos < end; {
		from, to := chunk(b, pos+1)
		if to < 0 {
			return false
		}
		switch tag := b[pos]; tag {
		case tagName:
			m.name = span{int32(from), int32(to)}
		case tagUnit:
			m.unit = span{int32(from), int32(to)}
		case tagDescription:
			m.description = span{int32(from), int32(to)}
		case tagGauge, tagSum:
			m.isSum = tag == tagSum
			if m.data.end != 0 || !w.readData(&m, b[:to], from) {
				return false
			}
			m.data = newElement(pos, from, to)
		case tagMetadata:
			if _, ok := keyValueHash(b[from:to]); !ok {
				return false
			}
		default:
			return false
		}
		pos = to
	}
	if m.data.end == 0 {
		return false
	}
	m.points.to = int32(len(w.points))
	if string(m.name.of(w.msg)) == gpusemconv.MetricNodeHeartbeat {
		for _, p := range w.points[m.points.from:] {
			if beat := beatOf(p.kind, p.value); !m.isSum && beat != 0 && isOff(beat, w.latest) {
				return false
			}
		}
	}
	w.metrics = append(w.metrics, m)
	return true
}

func (w *Wire) readData(m *wireMetric, b []byte, pos int) bool {
	for at := 0; pos < len(b); {
		if b[pos] == tagDataPoints {
			from, to := chunk(b, pos+1)
			if to < 0 || !w.readPoint(b[:to], pos, from, at) {
				return false
			}
			at++
			pos = to
			continue
		}
		tag := b[pos]
		n, next := varint(b, pos+1)
		if next < 0 || !m.isSum {
			return false
		}
		switch tag {
		case tagTemporality:
			m.temporality = pmetric.AggregationTemporality(int32(n))
		case tagMonotonic:
			m.monotonic = n != 0
		default:
			return false
		}
		pos = next
	}
	return true
}

// readPoint reads the point at b[pos:], the at-th of its metric.
func (w *Wire) readPoint(b []byte, start, pos, at int) bool {
	w.points = append(w.points, wirePoint{})
	p := &w.points[len(w.points)-1]
	p.from, p.end = int32(start), int32(len(b))
	var attributed, ok bool
	for pos < len(b) {
		switch b[pos] {
		case tagAttribute:
			// More after other fields, or more than the metric before had, are
			// added one by one.
			if !attributed {
				p.attrs, pos, ok = w.run(b, pos, at)
				attributed = true
			} else {
				var h uint64
				h, pos, ok = w.attribute(b, pos)
				p.attrs += h
			}
			if !ok {
				return false
			}
			continue
		case tagFlags:
			n, next := varint(b, pos+1)
			if next < 0 {
				return false
			}
			p.flags = uint32(n)
			pos = next
			continue
		}
		if len(b)-pos < 9 {
			return false
		}
		n := binary.LittleEndian.Uint64(b[pos+1:])
		switch b[pos] {
		case tagAsDouble:
			p.value, p.kind = n, pmetric.NumberDataPointValueTypeDouble
		case tagAsInt:
			p.value, p.kind = n, pmetric.NumberDataPointValueTypeInt
		case tagTime:
			if pcommon.Timestamp(n) > w.latest {
				return false
			}
			p.time, p.timeAt = n, int32(pos+1)
		case tagStartTime:
			p.start = n
		default:
			return false
		}
		pos += 9
	}
	// Points behind a point without a value go into another metric; pdata does that.
	return !pmetric.DataPointFlags(p.flags).NoRecordedValue()
}

// attribute returns the hash of the attribute at b[pos:], hashed now or before, and
// the position after it.
func (w *Wire) attribute(b []byte, pos int) (hash uint64, next int, ok bool) {
	from, to := chunk(b, pos+1)
	if to < 0 {
		return 0, 0, false
	}
	kv := b[from:to]
	if len(kv) < 8 {
		hash, ok = keyValueHash(kv)
		return hash, to, ok
	}
	known := &w.known[knownSlot(kv)]
	if known.to > 0 && bytes.Equal(known.of(w.msg), kv) {
		return known.sum, to, true
	}
	if hash, ok = keyValueHash(kv); ok {
		*known = attributeRun{span{int32(from), int32(to)}, hash}
	}
	return hash, to, ok
}

// knownSlots is several times the attributes that the points of a node differ by.
const knownSlots = 256

// knownSlot goes by the end, where attributes of one key differ.
func knownSlot(kv []byte) uint64 {
	end := binary.LittleEndian.Uint64(kv[len(kv)-8:])
	return (end ^ uint64(len(kv))) * 0x9e3779b97f4a7c15 >> (64 - 8)
}

// run hashes the attributes from b[pos:] on, or finds them to be those of the
// metric before. It returns the position after them.
func (w *Wire) run(b []byte, pos, at int) (sum uint64, next int, ok bool) {
	if at < len(w.runs) {
		r := &w.runs[at]
		if seen := w.msg[r.from:r.to]; len(b)-pos >= len(seen) && bytes.Equal(b[pos:pos+len(seen)], seen) {
			return r.sum, pos + len(seen), true
		}
	}
	next = pos
	for next < len(b) && b[next] == tagAttribute {
		var h uint64
		if h, next, ok = w.attribute(b, next); !ok {
			return 0, 0, false
		}
		sum += h
	}
	r := attributeRun{span{int32(pos), int32(next)}, sum}
	switch {
	case at < len(w.runs):
		w.runs[at] = r
	case at == len(w.runs):
		w.runs = append(w.runs, r)
	}
	return sum, next, true
}

func newElement(from, body, end int) element {
	return element{from: int32(from), body: int32(body), end: int32(end), content: int32(end - body)}
}
