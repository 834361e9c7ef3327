// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"cmp"
	"slices"
	"time"
)

// Series is a named series and its last value, a copy.
type Series struct {
	Metric Metric
	Attrs  []Attr
	Kind   Kind
	// Value is as in Point: what the next hop has or is to get, which is the true value
	// within the series' Band.
	Value uint64
	// Start is the start time of a sum, in Unix nanoseconds, and Time that of the value: the
	// node is known to have had it then. For an end it is the node's last report.
	Start, Time uint64
	Flags       uint8
	// Gone is set for a series that ended: its point has no value.
	Gone bool
}

// Emit yields the dirty series of the open node from a place on, that no message has.
// Without Collect these are what earlier messages did not bring to the next hop, and with it
// all. What cannot be made of the table stays dirty: the node's next report brings it.
//
// Where yield returns false, the rest waits for another message, which goes on at next. That
// is 0 where nothing is left.
func (r *Report) Emit(from int, yield func(*Series) bool) (next int) {
	n := r.node
	if n == nil {
		return 0
	}
	full := false
	for i := from; i < len(n.entries); i++ {
		e := &n.entries[i]
		if !n.waits(e) {
			continue
		}
		if full {
			return i
		}
		e.set(sending)
		r.places = append(r.places, int32(i))
		s := n.series(e)
		if e.time != 0 {
			e.setTime(coarse(s.Time)) // the next hop takes nothing older any more
		}
		if s.Gone {
			r.Markers++
		} else if e.seen != n.visit {
			r.Repeated++
		}
		full = !yield(&s)
	}
	// Since the message before this one something may have changed before that place.
	n.pending = from > 0 && n.beatDirty
	for i := range n.entries[:min(from, len(n.entries))] {
		n.pending = n.pending || n.waits(&n.entries[i])
	}
	return 0
}

// waits reports whether a message can have the series.
func (n *node) waits(e *entry) bool {
	return e.is(dirty) && !e.is(sending) && e.metric != 0 && (e.is(gone) || e.kind() != KindHash && !e.is(repeated) && !n.doubted(e))
}

// Beat returns the open node's heartbeat in Unix nanoseconds, where the message is to have
// it: the first of the node, which begins at 0.
func (r *Report) Beat(from int) (unixNano uint64, dirty bool) {
	n := r.node
	if n == nil || from > 0 || !n.beatDirty || n.beatMessage == r.id {
		return 0, false
	}
	r.sent.beat, n.beatMessage = n.beat, r.id
	r.Heartbeats++
	return n.beat, true
}

// Done ends a node's part of the message.
func (r *Report) Done() {
	n := r.node
	if n == nil {
		return
	}
	r.sent.to = len(r.places)
	if r.sent.to > r.sent.from || r.sent.beat != 0 {
		if r.sent.first = n.message != r.id; r.sent.first {
			n.overlap = n.overlap || n.messages > 0
			n.messages++
			n.message = r.id
		}
		r.parts = append(r.parts, r.sent)
	}
	if cap(n.entries) > len(n.entries) {
		n.trim()
	}
	r.table.recount(n)
	r.namer.next()
	n.mu.Unlock()
	r.node = nil
}

// OpenPending opens a node whose dirty series are to be sent from the table, and returns the
// attributes of its resource. It reports false where there is no such node.
func (r *Report) OpenPending(key NodeKey) (attrs []Attr, ok bool) {
	n := r.table.open(key)
	if n == nil {
		return nil, false
	}
	r.begin(n)
	if n.epoch != r.sent.epoch || n.requests < r.table.requests.of(n.label) {
		r.table.resync(n, r.now)
		n.beatDirty = n.beat != 0 && n.isNode
	}
	return n.names.attributes(n.attrs), true
}

// Pending returns the nodes that have something to be sent. Clusters take turns, and in a
// cluster the node is first that waits longest. All nodes that the next hop does not know
// count as one cluster, since names are made up easily.
func (t *Table) Pending() []NodeKey {
	type waiting struct {
		key     NodeKey
		cluster uint64
		since   time.Duration
		turn    int
	}
	var nodes []waiting
	for n := range t.all() {
		n.mu.Lock()
		if n.pending && !n.evicted {
			w := waiting{key: n.key, since: n.waitsSince}
			if n.accepted {
				w.cluster = n.cluster | 1
			}
			nodes = append(nodes, w)
		}
		n.mu.Unlock()
	}
	slices.SortFunc(nodes, func(a, b waiting) int { return cmp.Compare(a.since, b.since) })
	turns := map[uint64]int{}
	for i := range nodes {
		w := &nodes[i]
		w.turn = turns[w.cluster]
		turns[w.cluster]++
	}
	slices.SortStableFunc(nodes, func(a, b waiting) int { return cmp.Compare(a.turn, b.turn) })
	keys := make([]NodeKey, len(nodes))
	for i := range nodes {
		keys[i] = nodes[i].key
	}
	return keys
}

// retryAfter is when all of a node goes again of which the next hop has refused something
// for good.
const retryAfter = time.Minute

// outcome is what became of a message.
type outcome uint8

const (
	refused outcome = iota
	accepted
	gaveUp
)

// Accepted ends a message that the next hop has taken: what it has is clean, unless it
// changed meanwhile, another message had it too, or the next hop lost its state.
func (r *Report) Accepted() { r.settle(accepted) }

// Refused ends a message that failed. The next hop may have taken some of it all the same:
// one of two exporters, or all of it before a timeout. So all stays dirty.
func (r *Report) Refused() { r.settle(refused) }

// GaveUp ends a message that the next hop refused for good. What it has counts as clean, so
// that it does not go on and on to another exporter that takes it, and all of its nodes goes
// again after a minute.
func (r *Report) GaveUp() { r.settle(gaveUp) }

func (r *Report) settle(what outcome) {
	t := r.table
	for _, p := range slices.Backward(r.parts) {
		n := p.node
		n.mu.Lock()
		clean := what != refused && !n.overlap && p.epoch == t.epoch.Load()
		for _, at := range r.places[p.from:p.to] {
			e := &n.entries[at]
			if e.is(sending) && clean {
				e.unset(dirty)
			}
			e.unset(sending)
		}
		if p.beat != 0 && p.beat == n.beat && clean {
			n.beatDirty, n.beatAt = false, max(n.beatAt, r.now+t.set.HeartbeatInterval)
		}
		switch {
		case !clean && !n.inline:
			n.pending, n.waitsSince = true, r.now // behind the others
		case !clean:
		case what == gaveUp:
			n.gaveUp, n.retryAt = true, r.now+retryAfter
		default:
			n.accepted = true
		}
		if p.first {
			n.messages--
			n.overlap = n.overlap && n.messages > 0
		}
		n.mu.Unlock()
	}
	if what == accepted {
		t.repeated.Add(r.Repeated)
	}
	for i := range r.clocks {
		t.set.OnClock(&r.clocks[i])
	}
	clear(r.parts) // no node is kept alive by the pool
	r.parts, r.places, r.clocks, r.Counts = r.parts[:0], r.places[:0], nil, Counts{}
	if cap(r.places) > keepPlaces {
		r.places, r.parts, r.namer = nil, nil, namer{}
	}
	t.reports.Put(r)
}

// keepPlaces is how much room a large message leaves for the next.
const keepPlaces = 1 << 16

// Nodes are those that the message has something of.
func (r *Report) Nodes(to []NodeKey) []NodeKey {
	for i := range r.parts {
		to = append(to, r.parts[i].node.key)
	}
	return to
}
