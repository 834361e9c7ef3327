// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue/promtext"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
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
	// Monotonic is of a sum. Whatever has a temporality is cumulative.
	Monotonic bool
}

func (m *Metric) text() int {
	return len(m.ScopeName) + len(m.ScopeVersion) + len(m.Name) + len(m.Unit) + len(m.Description)
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

func (a *Attr) text() string { return string(textOf(nil, a.Type, a.appendValue(nil))) }

func (a *Attr) appendValue(to []byte) []byte {
	if a.Type == AttrString {
		return append(to, a.Text...)
	}
	return binary.LittleEndian.AppendUint64(to, a.Num)
}

// textOf is the text of what appendValue appends, as OpenTelemetry's AsString has it, in room.
func textOf(room []byte, t AttrType, value []byte) []byte {
	if t == AttrString {
		return value
	}
	num := binary.LittleEndian.Uint64(value)
	switch t {
	case AttrInt:
		return strconv.AppendInt(room, int64(num), 10)
	case AttrBool:
		return strconv.AppendBool(room, num != 0)
	default:
		return promtext.AppendDouble(room, math.Float64frombits(num))
	}
}

// The bounds of names. A series beyond them has no name: it is compared like any other, but
// can neither be read nor declared gone.
const (
	maxMetricText    = 1 << 10
	maxPairText      = 1 << 10
	maxPairsPerSet   = 32
	maxNodeNames     = 1<<16 - 2 // metrics of a node, and attributes with sets
	maxNodeNameBytes = 1 << 20

	// metricBytes are a metric's, with its slot in the map, beside its text, and ownNameBytes
	// a node's for a metric, an attribute or a set.
	metricBytes  = 300
	ownNameBytes = 8
)

// metrics are those that the series of all nodes have. Each is there once, and counts for the
// cluster that brought it.
type metrics struct {
	bands []Band
	bytes *fairshare.Ledger[uint64]

	mu  sync.Mutex
	all map[Metric]*metric
}

type metric struct {
	Metric
	band    *Band // nil for none
	nodes   int   // that have it
	cluster uint64
}

// take returns a metric that one more node of a cluster has.
func (m *metrics) take(of *Metric, cluster uint64) *metric {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.all[*of]
	if at == nil {
		own := *of
		for _, s := range [...]*string{&own.ScopeName, &own.ScopeVersion, &own.Name, &own.Unit, &own.Description} {
			*s = strings.Clone(*s)
		}
		at = &metric{Metric: own, band: bandOf(m.bands, own.Name), cluster: cluster}
		m.all[own] = at
		m.bytes.Hold(cluster, metricBytes+own.text())
	}
	at.nodes++
	return at
}

// release is for a node that has the metrics no more.
func (m *metrics) release(all []*metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range all {
		if at.nodes--; at.nodes == 0 {
			delete(m.all, at.Metric)
			m.bytes.Give(at.cluster, metricBytes+at.text())
		}
	}
}

// rebuild drops of a node's names what no series has any more.
func (m *metrics) rebuild(n *node) {
	old := n.names
	n.names = names{}
	var w namer
	w.of(n)
	n.attrs = w.addSet(old.attributes(n.attrs))
	for i := range n.entries {
		if e := &n.entries[i]; e.metric != 0 {
			e.metric, e.attrs = w.name(m, n, &old.metrics[e.metric-1].Metric, old.attributes(e.attrs))
		}
	}
	m.release(old.metrics)
	n.names.trim()
}

// names are the names of a node's series. Bytes hold texts, each once and known by its number
// from 1: attributes, and sets of them, which most series share with others.
type names struct {
	metrics []*metric
	bytes   []byte
	ends    []uint32 // of the texts in bytes
}

func (n *names) size() int { return cap(n.metrics)*8 + cap(n.bytes) + cap(n.ends)*4 }

// trim gives back the room that appending took in advance.
func (n *names) trim() {
	n.metrics, n.bytes, n.ends = trimmed(n.metrics, 8), trimmed(n.bytes, 8), trimmed(n.ends, 8)
}

// trimmed is a slice with no more room to spare than a part of its length.
func trimmed[T any](s []T, part int) []T {
	if cap(s)-len(s) <= len(s)/part {
		return s
	}
	return append(make([]T, 0, len(s)), s...)
}

// nameSize is the most that the name of a series takes, or with a nil metric that of a node.
func nameSize(m *Metric, attrs []Attr) int {
	size := ownNameBytes + 2*len(attrs)
	if m != nil {
		size += metricBytes + m.text()
	}
	for i := range attrs {
		size += ownNameBytes + 13 + len(attrs[i].Key) + len(attrs[i].Text)
	}
	return size * 9 / 8 // see trimmed
}

// namer adds to the names of one node. It is scratch of a report: the numbers of the node's
// metrics, and by hash those of its texts.
type namer struct {
	node      *node
	metrics   map[Metric]uint16
	texts     map[uint64]uint16
	pair, set []byte
}

// of turns to a node.
func (w *namer) of(n *node) {
	*w = namer{node: n, metrics: make(map[Metric]uint16, len(n.names.metrics)), texts: make(map[uint64]uint16, len(n.names.ends))}
	for i, m := range n.names.metrics {
		w.metrics[m.Metric] = uint16(i) + 1
	}
	for number := range uint16(len(n.names.ends)) {
		w.texts[HashBytes(n.names.at(number+1))] = number + 1
	}
}

// name returns the numbers that a node's series has by its metric and attributes, from 1, or
// 0 where they are beyond the bounds.
func (w *namer) name(all *metrics, n *node, m *Metric, attrs []Attr) (metric, set uint16) {
	if w.node != n {
		w.of(n)
	}
	if m.text() > maxMetricText || len(n.names.metrics) >= maxNodeNames {
		return 0, 0
	}
	if set = w.addSet(attrs); set == 0 {
		return 0, 0
	}
	metric = w.metrics[*m]
	if metric == 0 {
		own := all.take(m, n.cluster)
		n.names.metrics = append(n.names.metrics, own)
		metric = uint16(len(n.names.metrics))
		w.metrics[own.Metric] = metric
	}
	return metric, set
}

// addSet returns the number of a set of attributes, from 1, or 0 where it is beyond the
// bounds. The text of an attribute is its type, the length of its key, key and value, and
// that of a set the attributes' numbers.
func (w *namer) addSet(attrs []Attr) uint16 {
	if len(attrs) > maxPairsPerSet {
		return 0
	}
	w.set = w.set[:0]
	for i := range attrs {
		a := &attrs[i]
		if len(a.Key)+len(a.Text) > maxPairText {
			return 0
		}
		w.pair = binary.LittleEndian.AppendUint16(append(w.pair[:0], byte(a.Type)), uint16(len(a.Key)))
		w.pair = a.appendValue(append(w.pair, a.Key...))
		number := w.addText(w.pair)
		if number == 0 {
			return 0
		}
		w.set = binary.LittleEndian.AppendUint16(w.set, number)
	}
	return w.addText(w.set)
}

// addText returns the number of a text, from 1, or 0 where it is new and has no room.
func (w *namer) addText(b []byte) uint16 {
	n, hash := &w.node.names, HashBytes(b)
	if number := w.texts[hash]; number != 0 && bytes.Equal(n.at(number), b) {
		return number
	}
	if len(n.ends) >= maxNodeNames || len(n.bytes)+len(b) > maxNodeNameBytes {
		return 0
	}
	n.bytes = append(n.bytes, b...)
	n.ends = append(n.ends, uint32(len(n.bytes)))
	w.texts[hash] = uint16(len(n.ends))
	return w.texts[hash]
}

// at is the text of a number: an attribute's, or the numbers of a set's attributes, of two
// bytes each. That of 0 is empty.
func (n *names) at(number uint16) []byte {
	switch number {
	case 0:
		return nil
	case 1:
		return n.bytes[:n.ends[0]]
	}
	return n.bytes[n.ends[number-2]:n.ends[number-1]]
}

// pair reads the attribute whose number is at the beginning of refs.
func (n *names) pair(refs []byte) (key []byte, kind AttrType, value []byte) {
	b := n.at(binary.LittleEndian.Uint16(refs))
	end := 3 + binary.LittleEndian.Uint16(b[1:])
	return b[3:end], AttrType(b[0]), b[end:]
}

// text is the value of a set's attribute, "" for none.
func (n *names) text(set uint16, key string) string {
	for refs := n.at(set); len(refs) > 0; refs = refs[2:] {
		if k, kind, value := n.pair(refs); string(k) == key {
			return string(textOf(nil, kind, value))
		}
	}
	return ""
}

// attributes are those of a set.
func (n *names) attributes(set uint16) []Attr {
	refs := n.at(set)
	attrs := make([]Attr, 0, len(refs)/2)
	for ; len(refs) > 0; refs = refs[2:] {
		key, kind, value := n.pair(refs)
		a := Attr{Key: string(key), Type: kind}
		if kind == AttrString {
			a.Text = string(value)
		} else {
			a.Num = binary.LittleEndian.Uint64(value)
		}
		attrs = append(attrs, a)
	}
	return attrs
}

// series is a copy of a named series.
func (n *node) series(e *entry) Series {
	return Series{
		Metric: n.names.metrics[e.metric-1].Metric, Attrs: n.names.attributes(e.attrs), Kind: e.kind(),
		Value: e.value, Start: n.startOf(e), Time: n.when(e), Flags: uint8(e.origin), Gone: e.is(gone),
	}
}

// describe names a new node by its resource's attributes, first those that are its
// names.
func (n *node) describe(attrs []Attr) {
	n.isNode = slices.ContainsFunc(attrs, func(a Attr) bool { return identity.IsNode(a.Key) })
	own := slices.DeleteFunc(slices.Clone(attrs), func(a Attr) bool { return len(a.Key)+len(a.Text) > maxPairText })
	rank := func(a Attr) int { return slices.Index(identity.Attributes[:], a.Key) } // -1 for the rest
	slices.SortStableFunc(own, func(a, b Attr) int { return rank(b) - rank(a) })
	own = own[:min(len(own), maxPairsPerSet)]
	n.droppedAttrs = uint16(min(len(attrs)-len(own), math.MaxUint16))
	var w namer
	w.of(n)
	n.attrs = w.addSet(own)
	n.names.trim()
}

// Identify reads the names of the node and the cluster from a resource's attributes, as
// the gpu-node header carries them.
func Identify(attrs []Attr) (names identity.Names) {
	for i := range attrs {
		names.Take(attrs[i].Key, attrs[i].text())
	}
	return names
}
