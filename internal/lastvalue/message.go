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
	Value  uint64 // the true one, within the series' Band
	// Start is that of a sum, and Time that of the value: the node is known to have had it
	// then. For an end it is the node's last report.
	Start, Time uint64
	Flags       uint8
	Gone        bool // the series ended: its point has no value
}

// Emit yields the dirty series of the open node from a position on, that no message has. What
// cannot be made of the table stays dirty: the node's next report brings it.
//
// Where yield returns false, the rest waits for another message, which goes on at next. That
// is 0 where nothing is left.
func (r *Report) Emit(from int, yield func(*Series) bool) (next int) {
	n, full := r.node, false
	for i := from; i < len(n.entries); i++ {
		e := &n.entries[i]
		if !e.sendable() {
			continue
		}
		if full {
			return i
		}
		e.set(sending)
		r.positions = append(r.positions, int32(i))
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
	// Since the message before this one something may have changed before that position.
	n.pending = from > 0 && n.heartbeatDirty
	for i := range n.entries[:min(from, len(n.entries))] {
		n.pending = n.pending || n.entries[i].sendable()
	}
	return 0
}

// sendable reports whether a message can have the series.
func (e *entry) sendable() bool {
	if !e.is(dirty) || e.is(sending) || e.metric == 0 {
		return false
	}
	return e.is(gone) || e.kind() != KindHash && !e.is(repeated) && e.seen != unseen
}

// Heartbeat returns the open node's heartbeat in Unix nanoseconds, where the message is to have
// it: the first of the node, which begins at 0.
func (r *Report) Heartbeat(from int) (unixNano uint64, dirty bool) {
	n := r.node
	if from > 0 || !n.heartbeatDirty || n.heartbeatMessage == r.id {
		return 0, false
	}
	r.sent.heartbeat, n.heartbeatMessage = n.heartbeat, r.id
	r.Heartbeats++
	return n.heartbeat, true
}

// Done ends a node's part of the message.
func (r *Report) Done() {
	n := r.node
	if n == nil {
		return
	}
	r.sent.to = len(r.positions)
	if r.sent.to > r.sent.from || r.sent.heartbeat != 0 {
		n.overlapped = n.overlapped || n.inFlight > 0 && n.lastMessage != r.id
		n.lastMessage = r.id
		n.inFlight++
		r.parts = append(r.parts, r.sent)
	}
	n.trim()
	r.table.recount(n)
	r.namer = namer{}
	n.mu.Unlock()
	r.node = nil
	if r.clock != nil {
		r.table.set.OnClock(r.clock)
		r.clock = nil
	}
}

// OpenPending opens a node whose dirty series are to be sent from the table, and returns the
// attributes of its resource. It reports false where there is no such node.
func (r *Report) OpenPending(key NodeKey) (attrs []Attr, ok bool) {
	n := r.table.open(key)
	if n == nil {
		return nil, false
	}
	r.begin(n)
	if n.losses != r.table.losses.Load() {
		r.table.resync(n, r.now)
		n.heartbeatDirty = n.heartbeat != 0 && n.isNode
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
	}
	var nodes []waiting
	for n := range t.all() {
		n.mu.Lock()
		if n.pending && !n.evicted {
			w := waiting{key: n.key, since: n.pendingSince}
			if n.accepted {
				w.cluster = n.cluster | 1
			}
			nodes = append(nodes, w)
		}
		n.mu.Unlock()
	}
	slices.SortFunc(nodes, func(a, b waiting) int { return cmp.Compare(a.since, b.since) })
	var rounds [][]NodeKey
	turns := map[uint64]int{}
	for _, w := range nodes {
		turn := turns[w.cluster]
		if turns[w.cluster]++; turn == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[turn] = append(rounds[turn], w.key)
	}
	return slices.Concat(rounds...)
}

// retryAfter is when a node goes again of which the next hop refused something for good.
const retryAfter = time.Minute

// Accepted ends a message that the next hop has taken: what it has is clean, unless it
// changed meanwhile, or another message had it too.
func (r *Report) Accepted() { r.settle(true, true) }

// Refused ends a message that failed. The next hop may have taken some of it all the same:
// one of two exporters, or all of it before a timeout. So all stays dirty.
func (r *Report) Refused() { r.settle(false, false) }

// GaveUp ends a message that the next hop refused for good. What it has counts as clean, so
// that it does not go on and on to another exporter that takes it, and all of its nodes goes
// again after a minute.
func (r *Report) GaveUp() { r.settle(true, false) }

func (r *Report) settle(counts, accepted bool) {
	t := r.table
	for _, p := range r.parts {
		n := p.node
		n.mu.Lock()
		clean := counts && !n.overlapped
		for _, at := range r.positions[p.from:p.to] {
			e := &n.entries[at]
			if e.is(sending) && clean {
				e.unset(dirty)
			}
			e.unset(sending)
		}
		if p.heartbeat != 0 && p.heartbeat == n.heartbeat && clean {
			n.heartbeatDirty, n.heartbeatAt = false, max(n.heartbeatAt, r.now+t.set.HeartbeatInterval)
		}
		switch {
		case !clean && !n.inline:
			n.pending, n.pendingSince = true, r.now // behind the others
		case clean && accepted:
			n.accepted = true
		case clean:
			n.retryAt = r.now + retryAfter
		}
		n.inFlight--
		n.overlapped = n.overlapped && n.inFlight > 0
		n.mu.Unlock()
	}
	if accepted {
		t.repeated.Add(r.Repeated)
	}
}

// Nodes are those that the message has something of.
func (r *Report) Nodes() (nodes []NodeKey) {
	for i := range r.parts {
		nodes = append(nodes, r.parts[i].node.key)
	}
	return nodes
}
