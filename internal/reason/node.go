// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"math"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// Node holds what is known of one node.
type Node struct {
	store       *Store
	bytes       int // that its cluster holds for it
	key         nodeKey
	first, seen uint32 // of its reports, seconds
	added       uint32 // when it last told of a new GPU, or of fewer
	// When a counter of the first GPU started, and when one came that had started before.
	start, older uint32
	startOf      reading.Field
	gauges       [lastOfNode - firstOfNode + 1]float32
	gpus         []gpu
	next         int // the GPU that the last reading was of
	adapters     []adapter
	series       []series
	moved        []history
	holdings     reading.Holdings
}

// gpu holds the newest readings of a GPU or MIG slice.
type gpu struct {
	id       string
	counters [numCounters]float64 // NaN while unknown
	gauges   [numGauges]float32   // NaN while unknown
	held     [numFlags]uint32     // when the flag was last seen to hold, or to end
	began    [numFlags]uint32     // since when it holds, or held
	worsened [len(steps)]uint32   // when the gauge last took a step for the worse
	upAt     uint32               // when up was last told anew
	on       uint8                // flags that hold
	told     uint8                // flags that are known
	up       Up
	xid      uint8 // the newest Xid with a fact; the codes of all these fit
	xidAt    uint32
	seen     uint32
}

type adapter struct {
	id        string
	bandwidth float32
}

// series is the last value of a counter that only some nodes have.
type series struct {
	of   uint8 // index of GPU or adapter
	fact Fact
	sub  uint32 // Xid, or hash of the attributes
	from uint32 // start of the series, seconds
	raw  float64
}

// gpuQuiet is the time in seconds after which a GPU that says nothing makes room for a
// new one: more than twice the hour in which a shard says everything once.
const gpuQuiet = 9000

// settled is the age at which a node's whole state is known: missing state is
// asked for within a few pushes. A state that appears later is new.
const settled = 120

// hear keeps the time from running backwards.
func (n *Node) hear(at uint32) { n.seen = max(n.seen, at) }

// GPU returns the index of the GPU or MIG slice of that hw.id, for Put and its
// siblings; it is good until the next call of GPU. The id is copied when it is
// new.
func (n *Node) GPU(id string) (int, error) {
	// Reports name the GPUs one after the other, or one many times in a row.
	last := n.next
	next := last + 1
	if next >= len(n.gpus) {
		next = 0
	}
	for _, i := range [...]int{next, last} {
		if i < len(n.gpus) && n.gpus[i].id == id {
			n.next = i
			return i, nil
		}
	}
	for i := range n.gpus {
		if n.gpus[i].id == id {
			n.next = i
			return i, nil
		}
	}
	return n.addGPU(id)
}

// Has reports whether a GPU or MIG slice of that hw.id is known.
func (n *Node) Has(id string) bool {
	return slices.ContainsFunc(n.gpus, func(g gpu) bool { return g.id == id })
}

func (n *Node) addGPU(id string) (int, error) {
	if id == "" || len(id) > maxName {
		return 0, ErrName
	}
	i := len(n.gpus)
	if i >= MaxGPUs {
		i = 0
		for j := range n.gpus {
			if n.gpus[j].seen < n.gpus[i].seen {
				i = j
			}
		}
		if n.gpus[i].seen+gpuQuiet > n.seen {
			return 0, ErrTooManyDevices
		}
		n.forget(ofGPU, i)
	} else if !push(n, &n.gpus, gpu{}, len(id)) {
		return 0, ErrTooManyBytes
	}
	g := &n.gpus[i]
	*g = gpu{id: strings.Clone(id), seen: n.seen}
	for j := range g.gauges {
		g.gauges[j] = unknown
	}
	for j := range g.counters {
		g.counters[j] = math.NaN()
	}
	n.next, n.added = i, n.seen
	return i, nil
}

// Put takes a reading of a GPU, a field that is OfGPU; gpu is what GPU returned in this report.
// Counters are cumulative. The value is in the range of the catalogue, see
// internal/reading; so are those of its siblings.
func (n *Node) Put(gpu int, f reading.Field, v float64) {
	g := &n.gpus[gpu]
	g.seen = n.seen
	switch {
	case f < firstGauge:
		f -= firstFlag
		bit := uint8(1) << f
		if v != 0 {
			if g.on&bit == 0 {
				g.began[f] = n.begin(g.began[f], g.held[f], g.told&bit != 0)
			}
			g.on |= bit
			g.held[f] = n.seen
		} else if g.on&bit != 0 {
			g.on &^= bit
			g.held[f] = n.seen
		}
		g.told |= bit
	case f < firstCounter:
		g.step(f, float32(v), n.seen)
		g.gauges[f-firstGauge] = float32(v)
	default:
		raw := &g.counters[f-firstCounter]
		if d := grown(*raw, v); d > 0 {
			n.add(uint8(gpu), counted[f-firstCounter], d)
		}
		*raw = v
	}
}

// Started takes when a counter of a GPU started. At one agent it only starts anew: one that
// started before the last is another agent's.
func (n *Node) Started(gpu int, f reading.Field, at time.Time) {
	if gpu != 0 || n.start != 0 && f != n.startOf {
		return
	}
	start := uint32(at.UnixMilli()) // of 49 days
	if n.start != 0 && int32(start-n.start) < 0 {
		n.older = n.seen
	}
	n.start, n.startOf = start, f
}

// Drop forgets a reading: its series has ended.
func (n *Node) Drop(gpu int, f reading.Field) {
	g := &n.gpus[gpu]
	switch {
	case f < firstGauge:
		f -= firstFlag
		bit := uint8(1) << f
		if g.on&bit != 0 {
			g.held[f] = n.seen
		}
		g.on &^= bit
		g.told &^= bit
	case f < firstCounter:
		g.gauges[f-firstGauge] = unknown
	default:
		g.counters[f-firstCounter] = math.NaN()
	}
}

// PutUp says whether the GPU answers.
func (n *Node) PutUp(gpu int, u Up) {
	g := &n.gpus[gpu]
	g.seen = n.seen
	if g.up != u {
		g.upAt = n.begin(0, 0, g.up != UpUnknown)
		g.up = u
	}
}

// DropUp ends the series that said u. It says nothing when another one has
// told since: the state of a GPU moves from one series to the next.
func (n *Node) DropUp(gpu int, u Up) {
	if n.gpus[gpu].up == u {
		n.gpus[gpu].up = UpUnknown
	}
}

// PutXid takes the cumulative number of Xids of one code since from, when their
// receiver began to listen. A series that appears on a node known for two minutes
// tells of new Xids, and so does a series that begins anew. A series that is there
// when the node is first heard of is history.
func (n *Node) PutXid(gpu int, code uint16, v float64, from time.Time) error {
	fact, ok := xidFacts[code]
	if !ok {
		return nil // an application's, or nothing to act on
	}
	g := &n.gpus[gpu]
	g.seen = n.seen
	of, begin := uint8(gpu), seconds(from)
	var d float64
	if s := n.find(of, fact, uint32(code)); s == nil {
		if !n.keep(series{of, fact, uint32(code), begin, v}) {
			return ErrTooManyDevices
		}
		if n.seen-n.first >= settled {
			d = v
		}
	} else {
		if begin > s.from {
			s.raw = 0
		}
		d = grown(s.raw, v)
		s.raw, s.from = v, begin
	}
	if d > 0 {
		g.xid, g.xidAt = uint8(code), n.seen
		n.add(of, fact, d)
	}
	return nil
}

// PutNode takes a reading of the node, a field that is OfNode.
func (n *Node) PutNode(f reading.Field, v float64) {
	if f == reading.GPUsFound && float32(v) < n.gauges[f-firstOfNode] {
		n.added = n.seen
	}
	n.gauges[f-firstOfNode] = float32(v)
}

// DropNode forgets a reading of the node.
func (n *Node) DropNode(f reading.Field) { n.gauges[f-firstOfNode] = unknown }

// PutBandwidth takes the bandwidth of a network adapter's link, in bytes per second.
func (n *Node) PutBandwidth(id string, v float64) error {
	i, err := n.adapter(id)
	if err == nil {
		n.adapters[i].bandwidth = float32(v)
	}
	return err
}

// DropBandwidth forgets the bandwidth of an adapter.
func (n *Node) DropBandwidth(id string) {
	if i, err := n.adapter(id); err == nil {
		n.adapters[i].bandwidth = unknown
	}
}

// PutNetworkErrors takes the cumulative errors of one kind of a network
// adapter; sub tells its kinds apart.
func (n *Node) PutNetworkErrors(id string, sub uint32, v float64) error {
	i, err := n.adapter(id)
	if err != nil {
		return err
	}
	of := uint8(i)
	s := n.find(of, NetworkErrors, sub)
	if s == nil {
		if !n.keep(series{of, NetworkErrors, sub, 0, v}) {
			return ErrTooManyDevices
		}
		return nil
	}
	if d := grown(s.raw, v); d > 0 {
		n.add(of, NetworkErrors, d)
	}
	s.raw = v
	return nil
}

func (n *Node) adapter(id string) (int, error) {
	for i := range n.adapters {
		if n.adapters[i].id == id {
			return i, nil
		}
	}
	switch {
	case id == "" || len(id) > maxName:
		return 0, ErrName
	case len(n.adapters) >= MaxAdapters:
		return 0, ErrTooManyDevices
	}
	if !push(n, &n.adapters, adapter{strings.Clone(id), unknown}, len(id)) {
		return 0, ErrTooManyBytes
	}
	return len(n.adapters) - 1, nil
}

func (n *Node) find(of uint8, fact Fact, sub uint32) *series {
	for i := range n.series {
		if s := &n.series[i]; s.sub == sub && s.of == of && s.fact == fact {
			return s
		}
	}
	return nil
}

func (n *Node) keep(s series) bool {
	return len(n.series) < maxSeries && push(n, &n.series, s, 0)
}

// nodeBytes is a node without devices, and its places in the store.
const nodeBytes = int(unsafe.Sizeof(Node{})) + 128

// sizeText is what the allocator adds to a text, about.
const sizeText = 12

// pay has the node's cluster hold so many bytes more, and returns false where they are
// more than it may.
func (n *Node) pay(bytes int) bool {
	if !n.store.bytes.TakeAll(n.key.cluster, bytes) {
		return false
	}
	n.bytes += bytes
	return true
}

// push adds v to one of the node's lists, which pays for the room to grow too, before
// anything is allocated.
func push[T any](n *Node, list *[]T, v T, text int) bool {
	if text > 0 {
		text += sizeText
	}
	room := 0
	if len(*list) == cap(*list) {
		room = max(len(*list), 1)
	}
	if !n.pay(room*int(unsafe.Sizeof(v)) + text) {
		return false
	}
	if room > 0 {
		*list = append(make([]T, 0, len(*list)+room), *list...)
	}
	*list = append(*list, v)
	return true
}

// forget drops what is kept beside a GPU whose place is taken.
func (n *Node) forget(sc scope, of int) {
	gone := func(fact Fact, dev uint8) bool { return facts[fact].scope == sc && int(dev) == of }
	n.series = slices.DeleteFunc(n.series, func(s series) bool { return gone(s.fact, s.of) })
	n.moved = slices.DeleteFunc(n.moved, func(h history) bool { return gone(h.fact, h.of) })
	if sc == ofGPU {
		gone := func(h reading.Holding) bool { return h.GPU == n.gpus[of].id }
		_ = n.setHoldings(slices.DeleteFunc(slices.Clone(n.holdings), gone)) // which takes no more
	}
}

// grown is what a counter has added since its last value. One that fell was
// reset, so that all of it is new.
func grown(last, v float64) float64 {
	switch {
	case v >= last:
		return v - last
	case v < last:
		return v
	default:
		return 0 // the first value
	}
}
