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

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/promtext"
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

func (a *Attr) text() string {
	return string(textOf(nil, a.Type, a.appendValue(nil)))
}

func (a *Attr) appendValue(to []byte) []byte {
	if a.Type == AttrString {
		return append(to, a.Text...)
	}
	return binary.LittleEndian.AppendUint64(to, a.Num)
}

// textOf is the text of what appendValue appends, as OpenTelemetry's AsString has it. A
// number's is in room.
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

// The bounds of names. A series beyond them is compared like any other, but has no name: it
// can neither be read nor declared gone.
const (
	maxMetricText    = 1 << 10
	maxPairText      = 1 << 10
	maxPairsPerSet   = 32
	maxNodeNames     = 1<<16 - 2 // metrics of a node, and attributes with sets
	maxNodeNameBytes = 1 << 20
)

const (
	// metricBytes are a metric's, with its place in the map, beside its text.
	metricBytes = 300
	// ownNameBytes are a node's for a metric, an attribute or a set, beside its bytes.
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

func (m *metrics) init(bytes *fairshare.Ledger[uint64], bands []Band) {
	m.bytes, m.bands, m.all = bytes, bands, map[Metric]*metric{}
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

// names are the words of a node's series. Bytes hold texts, each once and known by its
// number: attributes, and sets of them, which most series share with others.
type names struct {
	metrics []*metric
	bytes   []byte
	ends    []uint32 // of the texts in bytes
}

func (n *names) size() int { return cap(n.metrics)*8 + cap(n.bytes) + cap(n.ends)*4 }

// trim gives back the room that appending took in advance.
func (n *names) trim() {
	n.metrics, n.bytes, n.ends = trimmed(n.metrics), trimmed(n.bytes), trimmed(n.ends)
}

func trimmed[T any](s []T) []T {
	if cap(s)-len(s) <= len(s)/8 {
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
	if w.node == n {
		return
	}
	w.node = n
	w.metrics, w.texts = make(map[Metric]uint16, len(n.names.metrics)), make(map[uint64]uint16, len(n.names.ends))
	for i, m := range n.names.metrics {
		w.metrics[m.Metric] = uint16(i)
	}
	for i := range n.names.ends {
		w.texts[HashBytes(n.names.at(uint16(i)))] = uint16(i)
	}
}

// next lets go of the node.
func (w *namer) next() { *w = namer{pair: w.pair, set: w.set} }

// christen returns the numbers that a series has by its metric and attributes, 0 where they
// are beyond the bounds.
func (t *Table) christen(w *namer, n *node, m *Metric, attrs []Attr) (metric, set uint16) {
	w.of(n)
	if m.text() > maxMetricText || len(n.names.metrics) >= maxNodeNames {
		return 0, 0
	}
	if set = w.addSet(attrs); set == 0 {
		return 0, 0
	}
	return w.addMetric(t, m), set
}

// addMetric returns the number of a metric, from 1.
func (w *namer) addMetric(t *Table, m *Metric) uint16 {
	i, known := w.metrics[*m]
	if !known {
		own := t.metrics.take(m, w.node.cluster)
		i = uint16(len(w.node.names.metrics))
		w.node.names.metrics = append(w.node.names.metrics, own)
		w.metrics[own.Metric] = i
	}
	return i + 1
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
		number, ok := w.addText(w.pair)
		if !ok {
			return 0
		}
		w.set = binary.LittleEndian.AppendUint16(w.set, number)
	}
	number, ok := w.addText(w.set)
	if !ok {
		return 0
	}
	return number + 1
}

// addText returns the number of a text, or false where it is new and has no room.
func (w *namer) addText(b []byte) (number uint16, ok bool) {
	n, hash := &w.node.names, HashBytes(b)
	if number, ok = w.texts[hash]; ok && bytes.Equal(n.at(number), b) {
		return number, true
	}
	if len(n.ends) >= maxNodeNames || len(n.bytes)+len(b) > maxNodeNameBytes {
		return 0, false
	}
	number = uint16(len(n.ends))
	n.bytes = append(n.bytes, b...)
	n.ends = append(n.ends, uint32(len(n.bytes)))
	w.texts[hash] = number
	return number, true
}

// at is the text of a number.
func (n *names) at(number uint16) []byte {
	from := uint32(0)
	if number > 0 {
		from = n.ends[number-1]
	}
	return n.bytes[from:n.ends[number]]
}

// set returns the attributes of a set by number, of two bytes each, none for 0.
func (n *names) set(number uint16) []byte {
	if number == 0 {
		return nil
	}
	return n.at(number - 1)
}

// pair reads the attribute whose number is at the beginning of refs.
func (n *names) pair(refs []byte) (key []byte, kind AttrType, value []byte) {
	b := n.at(binary.LittleEndian.Uint16(refs))
	end := 3 + binary.LittleEndian.Uint16(b[1:])
	return b[3:end], AttrType(b[0]), b[end:]
}

// text is the value of a set's attribute, "" for none.
func (n *names) text(set uint16, key string) string {
	for refs := n.set(set); len(refs) > 0; refs = refs[2:] {
		if k, kind, value := n.pair(refs); string(k) == key {
			return string(textOf(nil, kind, value))
		}
	}
	return ""
}

// attributes are those of a set.
func (n *names) attributes(set uint16) []Attr {
	refs := n.set(set)
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

// band is that of a named series, nil for none.
func (n *node) band(e *entry) *Band { return n.names.metrics[e.metric-1].band }

// series is a copy of a named series.
func (n *node) series(e *entry) Series {
	return Series{
		Metric: n.names.metrics[e.metric-1].Metric, Attrs: n.names.attributes(e.attrs), Kind: e.kind(),
		Value: e.value, Start: n.startOf(e), Time: n.when(e), Flags: uint8(e.origin), Gone: e.is(gone),
	}
}

// describe names a new node by its resource's attributes, first those that say what it is
// called.
func (t *Table) describe(n *node, attrs []Attr) {
	n.isNode = slices.ContainsFunc(attrs, func(a Attr) bool { return identity.IsNode(a.Key) })
	own := slices.DeleteFunc(slices.Clone(attrs), func(a Attr) bool { return len(a.Key)+len(a.Text) > maxPairText })
	place := func(a Attr) int { return slices.Index(identity.Attributes[:], a.Key) } // -1 for the rest
	slices.SortStableFunc(own, func(a, b Attr) int { return place(b) - place(a) })
	own = own[:min(len(own), maxPairsPerSet)]
	n.without = uint16(min(len(attrs)-len(own), math.MaxUint16))
	var w namer
	w.of(n)
	n.attrs = w.addSet(own)
	n.names.trim()
}

// releaseNames is for a node that is forgotten.
func (t *Table) releaseNames(n *node) { t.metrics.release(n.names.metrics) }

// rebuildNames drops what no series has any more.
func (t *Table) rebuildNames(n *node) {
	old := n.names
	n.names = names{}
	var w namer
	w.of(n)
	n.attrs = w.addSet(old.attributes(n.attrs))
	sets := map[uint16]uint16{}
	for i := range n.entries {
		e := &n.entries[i]
		if e.metric == 0 {
			continue
		}
		if sets[e.attrs] == 0 {
			sets[e.attrs] = w.addSet(old.attributes(e.attrs))
		}
		e.metric, e.attrs = w.addMetric(t, &old.metrics[e.metric-1].Metric), sets[e.attrs]
	}
	t.metrics.release(old.metrics)
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

// hashCluster is the hash of the cluster that a resource names, 0 for none.
func hashCluster(names *identity.Names) uint64 {
	if cluster := names.Cluster("", ""); cluster != "" {
		return HashString(cluster)
	}
	return 0
}
