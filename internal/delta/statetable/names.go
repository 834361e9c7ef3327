// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

import (
	"encoding/binary"
)

// MetricType is the type of a metric's points.
type MetricType uint8

// The types of a metric.
const (
	TypeGauge MetricType = iota
	TypeSum
	TypeHistogram
	TypeExponentialHistogram
	TypeSummary
)

// Metric is what the series of a metric have in common.
type Metric struct {
	ScopeName, ScopeVersion string
	Name, Unit, Description string
	Type                    MetricType
	// Monotonic is of a sum. Each metric with a temporality is cumulative.
	Monotonic bool
}

// AttrType is the type of an attribute's value.
type AttrType uint8

// The types that are remembered; a series with others has no name here.
const (
	AttrString AttrType = iota
	AttrInt             // Num holds an int64
	AttrDouble          // Num holds the bits of a float64
	AttrBool            // Num holds 0 or 1
)

// Attr is an attribute of a series or of a node.
type Attr struct {
	Key  string
	Text string // of AttrString
	Num  uint64 // of the others
	Type AttrType
}

// The bounds of a node's names; dictionary has the bounds of names that nodes share. A
// series beyond them is compared like any other, but has no name. Nobody can read it or
// declare it gone.
const (
	maxMetricText    = 1 << 10
	maxPairText      = 1 << 10
	maxPairsPerSet   = 32
	maxNodeNameBytes = 1 << 20
	local            = 1 << 15 // in the number of an attribute or set: of the node, not shared
)

// names are what a node has of its own. Bytes hold attributes, such as the ids of
// its GPUs, and the sets that found no room among the shared ones.
type names struct {
	bytes []byte
	pairs []uint32 // where in bytes
	sets  []uint32
}

// namer adds to a node's names. It is scratch of a report.
type namer struct {
	dict *dictionary
	// By hash, what the node at hand has; bytes tell whether it is the same.
	pairs, sets map[uint64]uint16
	loaded      bool // pairs and sets are those of the node at hand
	refs        []byte
	attrs       []Attr
}

// next turns to another node.
func (w *namer) next() {
	if w.loaded {
		clear(w.pairs)
		clear(w.sets)
		w.loaded = false
	}
}

// load learns what the node has.
func (w *namer) load(n *names) {
	if w.loaded {
		return
	}
	if w.pairs == nil {
		w.pairs, w.sets = map[uint64]uint16{}, map[uint64]uint16{}
	}
	w.loaded = true
	for i := range n.pairs {
		w.pairs[HashBytes(pairBytes(n.bytes[n.pairs[i]:]))] = uint16(i)
	}
	for i := range n.sets {
		w.sets[HashBytes(setBytes(n.bytes[n.sets[i]:]))] = uint16(i)
	}
}

// add returns the number of the set of attributes that from encodes, or 0 when
// there is no room for it. The node's lock is held.
func (w *namer) add(of *node, from []byte) uint16 {
	n := &of.names
	w.load(n)
	w.refs = append(w.refs[:0], 0)
	for len(from) > 0 {
		p := pairBytes(from)
		from = from[len(p):]
		ref, ok := w.ref(of, p)
		if !ok || int(w.refs[0]) == maxPairsPerSet {
			return 0
		}
		w.refs[0]++
		w.refs = binary.LittleEndian.AppendUint16(w.refs, ref)
	}
	h := HashBytes(w.refs)
	if i, ok := w.sets[h]; ok && string(setBytes(n.bytes[n.sets[i]:])) == string(w.refs) {
		return i | local
	}
	if id := w.dict.set(string(w.refs), of); id != 0 {
		return id
	}
	if len(n.sets) == local || len(n.bytes)+len(w.refs) > maxNodeNameBytes {
		return 0
	}
	n.sets = append(n.sets, uint32(len(n.bytes)))
	n.bytes = append(n.bytes, w.refs...)
	w.sets[h] = uint16(len(n.sets) - 1)
	return uint16(len(n.sets)-1) | local
}

func (w *namer) ref(of *node, p []byte) (uint16, bool) {
	n := &of.names
	h := HashBytes(p)
	if i, ok := w.pairs[h]; ok && string(pairBytes(n.bytes[n.pairs[i]:])) == string(p) {
		return i | local, true
	}
	a := decodePair(p)
	if id, ok := w.dict.pair(&a, of); ok {
		return id, true
	}
	if len(n.pairs) == local-1 || len(n.bytes)+len(p) > maxNodeNameBytes {
		return 0, false
	}
	n.pairs = append(n.pairs, uint32(len(n.bytes)))
	n.bytes = append(n.bytes, p...)
	w.pairs[h] = uint16(len(n.pairs) - 1)
	return uint16(len(n.pairs)-1) | local, true
}

// trim gives back the room that appending took in advance.
func (n *names) trim() {
	n.bytes, n.pairs, n.sets = trimmed(n.bytes), trimmed(n.pairs), trimmed(n.sets)
}

func trimmed[T any](s []T) []T {
	if cap(s)-len(s) <= len(s)/8 {
		return s
	}
	return append(make([]T, 0, len(s)), s...)
}

// encodePairs appends attributes in the form that pairBytes and decodePair
// read, and reports whether they are all within bounds.
func encodePairs(to []byte, attrs []Attr) ([]byte, bool) {
	if len(attrs) > maxPairsPerSet {
		return to, false
	}
	for i := range attrs {
		a := &attrs[i]
		if len(a.Key)+len(a.Text) > maxPairText {
			return to, false
		}
		to = binary.LittleEndian.AppendUint16(to, uint16(len(a.Key)))
		to = append(to, byte(a.Type))
		if a.Type == AttrString {
			to = binary.LittleEndian.AppendUint16(to, uint16(len(a.Text)))
			to = append(to, a.Key...)
			to = append(to, a.Text...)
			continue
		}
		to = append(to, a.Key...)
		to = binary.LittleEndian.AppendUint64(to, a.Num)
	}
	return to, true
}

// encodeMetric appends a metric in the form that decodeMetric reads, and reports
// whether it is within bounds.
func encodeMetric(to []byte, m *Metric) ([]byte, bool) {
	if len(m.ScopeName)+len(m.ScopeVersion)+len(m.Name)+len(m.Unit)+len(m.Description) > maxMetricText {
		return to, false
	}
	var monotonic byte
	if m.Monotonic {
		monotonic = 1
	}
	to = append(to, byte(m.Type), monotonic)
	for _, s := range [...]string{m.ScopeName, m.ScopeVersion, m.Name, m.Unit, m.Description} {
		to = binary.LittleEndian.AppendUint16(to, uint16(len(s)))
		to = append(to, s...)
	}
	return to, true
}

func decodeMetric(b []byte) Metric {
	m := Metric{Type: MetricType(b[0]), Monotonic: b[1] != 0}
	b = b[2:]
	for _, s := range [...]*string{&m.ScopeName, &m.ScopeVersion, &m.Name, &m.Unit, &m.Description} {
		end := 2 + int(binary.LittleEndian.Uint16(b))
		*s, b = string(b[2:end]), b[end:]
	}
	return m
}

// pairBytes returns the attribute that b starts with.
func pairBytes(b []byte) []byte {
	size := 3 + int(binary.LittleEndian.Uint16(b))
	if AttrType(b[2]) == AttrString {
		return b[:size+2+int(binary.LittleEndian.Uint16(b[3:]))]
	}
	return b[:size+8]
}

func setBytes(b []byte) []byte { return b[:1+2*int(b[0])] }

func decodePair(b []byte) Attr {
	key := int(binary.LittleEndian.Uint16(b))
	a := Attr{Type: AttrType(b[2])}
	if a.Type == AttrString {
		a.Key, a.Text = string(b[5:5+key]), string(b[5+key:])
		return a
	}
	a.Key, a.Num = string(b[3:3+key]), binary.LittleEndian.Uint64(b[3+key:])
	return a
}

// rebuild drops the sets that no entry has any more; the node's own is kept.
func (w *namer) rebuild(n *node) {
	old := n.names
	n.names = names{}
	w.next()
	renamed := map[uint16]uint16{}
	move := func(set uint16) uint16 {
		if set == 0 {
			return 0
		}
		if renamed[set] == 0 {
			w.attrs = w.dict.attributes(w.attrs[:0], &old, set)
			b, _ := encodePairs(nil, w.attrs)
			renamed[set] = w.add(n, b)
		}
		return renamed[set]
	}
	n.attrs = move(n.attrs)
	for i := range n.entries {
		n.entries[i].attrs = move(n.entries[i].attrs)
	}
	n.names.trim()
}
