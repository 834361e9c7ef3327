// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
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

// text is the attribute's value.
func (a *Attr) text() string {
	if a.Type == AttrString {
		return a.Text
	}
	return string(appendNumber(nil, a.Type, a.Num))
}

// appendNumber appends a value that is no text, as OpenTelemetry's AsString has it.
func appendNumber(to []byte, t AttrType, num uint64) []byte {
	switch t {
	case AttrInt:
		return strconv.AppendInt(to, int64(num), 10)
	case AttrBool:
		return strconv.AppendBool(to, num != 0)
	case AttrDouble, AttrString:
	}
	return promtext.AppendDouble(to, math.Float64frombits(num))
}

// textOf is the value of a key, "" for none.
func textOf(attrs []Attr, key string) string {
	if i := slices.IndexFunc(attrs, func(a Attr) bool { return a.Key == key }); i >= 0 {
		return attrs[i].text()
	}
	return ""
}

// The bounds of names. A series beyond them is compared like any other, but has no name: it
// can neither be read nor declared gone.
const (
	maxMetricText    = 1 << 10
	maxPairText      = 1 << 10
	maxPairsPerSet   = 32
	maxNodeNames     = 1<<16 - 2 // metrics, attributes or sets of a node
	maxNodeNameBytes = 1 << 20
)

const (
	// metricBytes are a metric's, with its place in the map, beside its text.
	metricBytes = 300
	// ownNameBytes are what a node has for a metric, an attribute or a set beside its bytes.
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

// names are the words of a node's series. Bytes hold its attributes, and sets of them by
// number: most series of a node share their attributes with others.
type names struct {
	metrics []*metric
	bytes   []byte
	pairs   []uint32 // where in bytes
	sets    []uint32
}

func (n *names) size() int {
	return cap(n.metrics)*8 + cap(n.bytes) + (cap(n.pairs)+cap(n.sets))*4
}

// trim gives back the room that appending took in advance.
func (n *names) trim() {
	n.metrics, n.bytes, n.pairs, n.sets = trimmed(n.metrics), trimmed(n.bytes), trimmed(n.pairs), trimmed(n.sets)
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

// namer adds to the names of one node. It is scratch of a report, by hash of what the node
// has; bytes tell whether it is the same.
type namer struct {
	node        *node
	metrics     map[Metric]uint16
	pairs, sets map[uint64]uint16
	pair, set   []byte
}

// of turns to a node.
func (w *namer) of(n *node) {
	if w.node == n {
		return
	}
	if w.node = n; w.metrics == nil {
		w.metrics, w.pairs, w.sets = map[Metric]uint16{}, map[uint64]uint16{}, map[uint64]uint16{}
	}
	for i, m := range n.names.metrics {
		w.metrics[m.Metric] = uint16(i)
	}
	for i, at := range n.names.pairs {
		w.pairs[HashBytes(pairBytes(n.names.bytes[at:]))] = uint16(i)
	}
	for i, at := range n.names.sets {
		w.sets[HashBytes(setBytes(n.names.bytes[at:]))] = uint16(i)
	}
}

// next lets go of the node.
func (w *namer) next() {
	if w.node != nil {
		w.node = nil
		clear(w.metrics)
		clear(w.pairs)
		clear(w.sets)
	}
}

// christen returns the numbers that a series has by its metric and attributes, 0 where they
// are beyond the bounds.
func (t *Table) christen(w *namer, n *node, m *Metric, attrs []Attr) (metric, set uint16) {
	w.of(n)
	if m.text() > maxMetricText || len(n.names.metrics) >= maxNodeNames {
		return 0, 0
	}
	if set = w.addSet(n, attrs); set == 0 {
		return 0, 0
	}
	i, known := w.metrics[*m]
	if !known {
		own := t.metrics.take(m, n.cluster)
		i = uint16(len(n.names.metrics))
		n.names.metrics = append(n.names.metrics, own)
		w.metrics[own.Metric] = i
	}
	return i + 1, set
}

// addSet returns the number of a set of attributes, 0 where it is beyond the bounds.
func (w *namer) addSet(n *node, attrs []Attr) uint16 {
	if len(attrs) > maxPairsPerSet {
		return 0
	}
	w.set = append(w.set[:0], byte(len(attrs)))
	for i := range attrs {
		if len(attrs[i].Key)+len(attrs[i].Text) > maxPairText {
			return 0
		}
		w.pair = appendPair(w.pair[:0], &attrs[i])
		at, ok := n.names.add(&n.names.pairs, w.pairs, w.pair, pairBytes)
		if !ok {
			return 0
		}
		w.set = binary.LittleEndian.AppendUint16(w.set, at)
	}
	at, ok := n.names.add(&n.names.sets, w.sets, w.set, setBytes)
	if !ok {
		return 0
	}
	return at + 1
}

// add returns the place of what b encodes among those that the node has, and adds it where
// it has not and there is room.
func (n *names) add(to *[]uint32, known map[uint64]uint16, b []byte, read func([]byte) []byte) (uint16, bool) {
	h := HashBytes(b)
	if i, ok := known[h]; ok && string(read(n.bytes[(*to)[i]:])) == string(b) {
		return i, true
	}
	if len(*to) >= maxNodeNames || len(n.bytes)+len(b) > maxNodeNameBytes {
		return 0, false
	}
	*to = append(*to, uint32(len(n.bytes)))
	n.bytes = append(n.bytes, b...)
	known[h] = uint16(len(*to) - 1)
	return uint16(len(*to) - 1), true
}

// appendPair encodes an attribute: the lengths of key and value, the type, key and value.
func appendPair(to []byte, a *Attr) []byte {
	size := len(a.Text)
	if a.Type != AttrString {
		size = 8
	}
	to = binary.LittleEndian.AppendUint16(to, uint16(len(a.Key)))
	to = binary.LittleEndian.AppendUint16(to, uint16(size))
	to = append(append(to, byte(a.Type)), a.Key...)
	if a.Type == AttrString {
		return append(to, a.Text...)
	}
	return binary.LittleEndian.AppendUint64(to, a.Num)
}

// pairBytes returns the attribute that b starts with, setBytes the set.
func pairBytes(b []byte) []byte {
	return b[:5+int(binary.LittleEndian.Uint16(b))+int(binary.LittleEndian.Uint16(b[2:]))]
}

func setBytes(b []byte) []byte { return b[:1+2*int(b[0])] }

// set returns the attributes of a set by number, of two bytes each, none for 0.
func (n *names) set(number uint16) []byte {
	if number == 0 {
		return nil
	}
	return setBytes(n.bytes[n.sets[number-1]:])[1:]
}

// pair reads the attribute whose number is at the beginning of refs.
func (n *names) pair(refs []byte) (key []byte, kind AttrType, value []byte) {
	b := pairBytes(n.bytes[n.pairs[binary.LittleEndian.Uint16(refs)]:])
	end := 5 + int(binary.LittleEndian.Uint16(b))
	return b[5:end], AttrType(b[4]), b[end:]
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
	called := func(a *Attr) bool { return a.Key == gpusemconv.AttrClusterName || identity.IsNode(a.Key) }
	var own []Attr
	for _, first := range [...]bool{true, false} {
		for i := range attrs {
			a := &attrs[i]
			n.isNode = n.isNode || identity.IsNode(a.Key)
			if called(a) == first && len(own) < maxPairsPerSet && len(a.Key)+len(a.Text) <= maxPairText {
				own = append(own, *a)
			}
		}
	}
	n.without = uint16(min(len(attrs)-len(own), math.MaxUint16))
	var w namer
	w.of(n)
	n.attrs = w.addSet(n, own)
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
	n.attrs = w.addSet(n, old.attributes(n.attrs))
	sets := map[uint16]uint16{}
	for i := range n.entries {
		e := &n.entries[i]
		if e.metric == 0 {
			continue
		}
		if sets[e.attrs] == 0 {
			sets[e.attrs] = w.addSet(n, old.attributes(e.attrs))
		}
		m := old.metrics[e.metric-1]
		at, known := w.metrics[m.Metric]
		if !known {
			at = uint16(len(n.names.metrics))
			n.names.metrics = append(n.names.metrics, t.metrics.take(&m.Metric, n.cluster))
			w.metrics[m.Metric] = at
		}
		e.attrs, e.metric = sets[e.attrs], at+1
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
