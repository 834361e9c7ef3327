// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"math"
	"time"
)

// moment is when a report is of, and since when its counters count, in Unix
// nanoseconds.
type moment struct{ now, start uint64 }

func nanos(t time.Time) uint64 { return uint64(t.UnixNano()) }

// maxMetrics is more than a report has.
const maxMetrics = 96

// write appends the report of a node to dst, as one resource of a request.
func (l *layout) write(dst []byte, id *identity, at moment, node *values, gpus []values) []byte {
	var sizes [maxMetrics]int // of the points
	scope := len(l.scopeBefore) + len(l.scopeAfter)
	for i := range l.metrics {
		m := &l.metrics[i]
		size := 0
		for p := range m.node {
			if m.node[p].there(node.facts) {
				size += len(m.node[p].bytes)
			}
		}
		if m.gpus != nil {
			for g := range gpus {
				for p := range m.gpus[g] {
					if m.gpus[g][p].there(gpus[g].facts) {
						size += len(m.gpus[g][p].bytes)
					}
				}
				if m.extra != noExtra {
					size += l.extraSize(m.extra, &gpus[g])
				}
			}
		}
		if sizes[i] = size; size > 0 {
			n := m.size(size)
			scope += head(n) + n
		}
	}
	dst = appendHead(dst, fieldResourceMetrics, len(l.before)+head(scope)+scope+len(l.after))
	dst = append(dst, l.before...)
	dst = appendHead(dst, fieldScopeMetrics, scope)
	dst = append(dst, l.scopeBefore...)
	for i := range l.metrics {
		if sizes[i] > 0 {
			dst = l.metrics[i].write(dst, sizes[i], l.extras, id, at, node, gpus)
		}
	}
	dst = append(dst, l.scopeAfter...)
	from := len(dst)
	dst = append(dst, l.after...)
	id.write(dst[from:], l.names)
	return dst
}

// size of the metric with points of so many bytes.
func (m *metric) size(points int) int {
	data := len(m.dataBefore) + points + len(m.dataAfter)
	return len(m.before) + head(data) + data + len(m.after)
}

func (m *metric) write(dst []byte, size int, extras *extras, id *identity, at moment, node *values, gpus []values) []byte {
	dst = appendHead(dst, fieldMetrics, m.size(size))
	dst = append(dst, m.before...)
	dst = appendHead(dst, m.number, len(m.dataBefore)+size+len(m.dataAfter))
	dst = append(dst, m.dataBefore...)
	for i := range m.node {
		if p := &m.node[i]; p.there(node.facts) {
			dst = p.write(dst, at, p.shows(node))
		}
	}
	if m.gpus != nil {
		for g := range gpus {
			for i := range m.gpus[g] {
				p := &m.gpus[g][i]
				if !p.there(gpus[g].facts) {
					continue
				}
				dst = p.writeGPU(dst, at, p.shows(&gpus[g]), &id.gpus[g])
			}
			switch m.extra {
			case extraReasons:
				for _, r := range gpus[g].reasons {
					dst = r.point.writeGPU(dst, at, flag(r.holds), &id.gpus[g])
				}
			case extraXids:
				for _, x := range gpus[g].xids {
					if x.Count > 0 {
						dst = extras.xid(x.Code).writeGPU(dst, at, float64(x.Count), &id.gpus[g])
					}
				}
			}
		}
	}
	dst = append(dst, m.dataAfter...)
	return append(dst, m.after...)
}

// there reports whether a GPU, or node, of which facts hold has the point.
func (p *point) there(facts facts) bool { return facts&p.facts == p.facts }

// shows is the value of the point for a GPU.
func (p *point) shows(v *values) float64 { return v.v[p.source] }

func (p *point) writeGPU(dst []byte, at moment, value float64, id *gpuIdentity) []byte {
	from := len(dst)
	dst = p.write(dst, at, value)
	copy(dst[from+p.gpu:], id.uuid[:])
	if p.serial > 0 {
		copy(dst[from+p.serial:], id.serial[:])
	}
	return dst
}

func (p *point) write(dst []byte, at moment, value float64) []byte {
	from := len(dst)
	dst = append(dst, p.bytes...)
	b := dst[from:]
	put64(b[p.time:], at.now)
	if p.start > 0 {
		put64(b[p.start:], at.start)
	}
	switch {
	case p.source == fixed:
	case p.integer:
		put64(b[p.value:], uint64(int64(value)))
	default:
		put64(b[p.value:], math.Float64bits(value))
	}
	return dst
}

// extraSize is how long the points of such a metric are for a GPU.
func (l *layout) extraSize(kind extra, v *values) (size int) {
	switch kind {
	case extraReasons:
		for _, r := range v.reasons {
			size += len(r.point.bytes)
		}
	case extraXids:
		for _, x := range v.xids {
			if x.Count > 0 {
				size += len(l.extras.xid(x.Code).bytes)
			}
		}
	}
	return size
}
