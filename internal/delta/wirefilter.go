// SPDX-License-Identifier: Apache-2.0

package delta // import "github.com/gpu-collector/gpu-collector/internal/delta"

import (
	"bytes"
	"encoding/binary"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
)

// Filter compares what Read has read with the table. It appends a request to out, with
// heartbeats and only what the next hop does not have. A resource without news goes.
func (w *Wire) Filter(out []byte) []byte {
	for i := range w.resources {
		if r := &w.resources[i]; r.points.to > r.points.from {
			w.judgeResource(r)
		}
		w.resources[i].gone = !w.resources[i].left
	}
	for i := range w.resources {
		out = w.writeResource(out, &w.resources[i])
	}
	return out
}

// member is what an element's content consists of.
func (e *element) member(m *element) {
	e.content += m.size() - m.full()
	e.edited = e.edited || m.gone || m.edited
	e.left = e.left || !m.gone
}

func (w *Wire) judgeResource(r *wireResource) {
	w.open(r.node)
	defer w.close()
	if w.Report.Undescribed() {
		w.describeNode(r)
	}
	scopes := w.scopes[r.scopes.from:r.scopes.to]
	for i := range scopes {
		w.judgeScope(&scopes[i])
	}
	if w.isOver() {
		w.readAttributes(r.resource.of(w.msg), tagResourceAttribute)
		w.tell(w.attrs)
		clear(w.attrs)
	}
	// Vanished and repeated series are rare, so pdata writes their points.
	var own pmetric.Metrics
	added := func() pmetric.ResourceMetrics {
		if own == (pmetric.Metrics{}) {
			own = pmetric.NewMetrics()
			own.ResourceMetrics().AppendEmpty()
		}
		return own.ResourceMetrics().At(0)
	}
	from := 0
	w.vanished(func(s *statetable.Series, at pcommon.Timestamp) {
		marker(added(), 0, s, at)
		from = added().ScopeMetrics().Len()
	})
	w.repeated(func(s *statetable.Series, at pcommon.Timestamp) { repeat(added(), from, s, at) })
	if own != (pmetric.Metrics{}) {
		r.added = scopeBytes(own)
		r.add(len(r.added))
	}
	for i := range scopes {
		r.member(&scopes[i].element)
	}
	if at, due := w.heartbeatDue(r.isNode); due {
		r.beatAt = at
		r.add(len(w.beat.scope))
	}
}

// add makes room for what comes after an element's members.
func (e *element) add(bytes int) {
	e.content += int32(bytes)
	e.edited, e.left = true, true
}

func (w *Wire) judgeScope(s *wireScope) {
	for i := s.metrics.from; i < s.metrics.to; i++ {
		m := &w.metrics[i]
		w.judgeMetric(m, &s.scope)
		s.member(&m.element)
	}
	s.gone = !s.left
}

func (w *Wire) judgeMetric(m *wireMetric, scope *scopeIdentityBytes) {
	name := m.name.of(w.msg)
	see(&w.Judge, name, !m.isSum)
	kind, temporality, monotonic := pmetric.MetricTypeGauge, pmetric.AggregationTemporalityUnspecified, false
	if m.isSum {
		kind, temporality, monotonic = pmetric.MetricTypeSum, m.temporality, m.monotonic
	}
	if m.isSum && temporality != pmetric.AggregationTemporalityCumulative {
		m.gone = w.pass(int(m.points.to - m.points.from))
		return
	}
	key := metricIdentity(scope.hash, statetable.HashBytes(name), statetable.HashBytes(m.unit.of(w.msg)),
		kind, temporality, monotonic)
	m.data.gone = true
	points := w.points[m.points.from:m.points.to]
	for i := range points {
		p := &points[i]
		p.drop = w.number(p, key, m.isSum)
		if !p.drop && w.Report.Fresh() && !w.describe(scope, m, p) {
			w.nameless()
			p.drop = true
		}
		if p.drop {
			m.data.content -= p.end - p.from
			m.data.edited = true
			continue
		}
		m.data.gone = false
		m.data.edited = m.data.edited || p.stamped
	}
	m.member(&m.data)
	m.gone = m.data.gone
}

// number reports whether the point is to be removed.
func (w *Wire) number(wp *wirePoint, metric uint64, withStart bool) bool {
	p := statetable.Point{Key: statetable.Mix(metric, wp.attrs), Value: wp.value, Kind: statetable.KindInt}
	if wp.kind == pmetric.NumberDataPointValueTypeDouble {
		p.Kind = statetable.KindDouble
	}
	var start pcommon.Timestamp
	if withStart {
		start = pcommon.Timestamp(wp.start)
	}
	if beat := beatOf(wp.kind, wp.value); w.isBeat && beat != 0 {
		w.relayed(beat)
	}
	w.clock = max(w.clock, pcommon.Timestamp(wp.time))
	drop := w.point(p, start, pcommon.Timestamp(wp.time), pmetric.DataPointFlags(wp.flags),
		wp.kind != pmetric.NumberDataPointValueTypeEmpty)
	if w.stamp != 0 {
		wp.time, wp.stamped = uint64(w.stamp), true
	}
	return drop
}

// writeResource and its siblings write an element with what is left of its
// members, and all that lies between them.
func (w *Wire) writeResource(out []byte, r *wireResource) []byte {
	out, from := w.begin(out, tagResourceMetrics, &r.element)
	if from == r.end {
		return out
	}
	for i := r.scopes.from; i < r.scopes.to; i++ {
		s := &w.scopes[i]
		out = append(out, w.msg[from:s.from]...)
		out = w.writeScope(out, s)
		from = s.end
	}
	out = append(out, w.msg[from:r.end]...)
	out = append(out, r.added...)
	if r.beatAt != 0 {
		out = w.beat.append(out, r.beatAt)
	}
	return out
}

func (w *Wire) writeScope(out []byte, s *wireScope) []byte {
	out, from := w.begin(out, tagScopeMetrics, &s.element)
	if from == s.end {
		return out
	}
	for i := s.metrics.from; i < s.metrics.to; i++ {
		m := &w.metrics[i]
		out = append(out, w.msg[from:m.from]...)
		out = w.writeMetric(out, m)
		from = m.end
	}
	return append(out, w.msg[from:s.end]...)
}

func (w *Wire) writeMetric(out []byte, m *wireMetric) []byte {
	out, from := w.begin(out, tagMetrics, &m.element)
	if from == m.end {
		return out
	}
	out = append(out, w.msg[from:m.data.from]...)
	tag := byte(tagGauge)
	if m.isSum {
		tag = tagSum
	}
	out, from = w.begin(out, tag, &m.data)
	for i := m.points.from; i < m.points.to; i++ {
		p := &w.points[i]
		out = append(out, w.msg[from:p.from]...)
		if from = p.end; !p.drop {
			out = append(out, w.msg[p.from:p.end]...)
			if p.stamped {
				binary.LittleEndian.PutUint64(out[len(out)-int(p.end-p.timeAt):], p.time)
			}
		}
	}
	out = append(out, w.msg[from:m.data.end]...)
	return append(out, w.msg[m.data.end:m.end]...)
}

// begin writes an element that stays whole, or the header of an edited one, and skips
// a gone one. It returns the position up to which the message is done.
func (w *Wire) begin(out []byte, tag byte, e *element) ([]byte, int32) {
	switch {
	case e.gone:
		return out, e.end
	case !e.edited:
		return append(out, w.msg[e.from:e.end]...), e.end
	}
	return binary.AppendUvarint(append(out, tag), uint64(e.content)), e.body
}

// heartbeatBytes is the scope that heartbeat adds, as a field of its resource,
// and where the two numbers in it lie.
type heartbeatBytes struct {
	scope       []byte
	time, value int
}

func newHeartbeatBytes() heartbeatBytes {
	const at = pcommon.Timestamp(0x1122334455667788)
	md := pmetric.NewMetrics()
	heartbeat(md.ResourceMetrics().AppendEmpty(), at)
	b := heartbeatBytes{scope: scopeBytes(md)}
	b.time = bytes.Index(b.scope, binary.LittleEndian.AppendUint64(nil, uint64(at)))
	b.value = bytes.Index(b.scope, binary.LittleEndian.AppendUint64(nil, uint64(at.AsTime().Unix())))
	return b
}

func (b *heartbeatBytes) append(out []byte, at pcommon.Timestamp) []byte {
	from := len(out)
	out = append(out, b.scope...)
	binary.LittleEndian.PutUint64(out[from+b.time:], uint64(at))
	binary.LittleEndian.PutUint64(out[from+b.value:], uint64(at.AsTime().Unix()))
	return out
}
