// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

// Losses is how often Resync was called.
func (t *Table) Losses() uint64 { return t.losses.Load() }

// Said notes, in Unix nanoseconds, the time of the open node's report by the node's own
// clock, and when the first tier received it, which is the node's heartbeat.
func (r *Report) Said(unixNano, received uint64) {
	if r.node != nil {
		v := r.visit()
		v.said, v.received = unixNano, received
	}
}

// Lag is by how much the time of the open node's last report was before its heartbeat.
func (r *Report) Lag() uint64 {
	if n := r.node; n != nil && n.said < n.beat {
		return n.beat - n.said
	}
	return 0
}

// Heard notes a heartbeat that another tier tells of the open node, in Unix nanoseconds of
// that tier's clock. It returns the node's last heartbeat, 0 where that tier told none, and
// whether this one is news.
func (r *Report) Heard(unixNano uint64) (last uint64, news bool) {
	n := r.node
	if n == nil {
		return 0, false
	}
	r.visit().told = unixNano
	if n.told == 0 {
		return 0, false
	}
	return n.beat, unixNano > n.told
}

// OpenHeld opens a node whose state is to be sent again, see Table.Resync, and that did
// not report since; Held yields that state. OpenHeld returns the node's attributes and
// its last heartbeat, in Unix nanoseconds, or that there is no such node.
// CloseNode follows. None of this counts as a report of the node.
func (r *Report) OpenHeld(key NodeKey) (attrs []Attr, unixNano uint64, ok bool) {
	n := r.table.lookup(key)
	if n == nil {
		return nil, 0, false
	}
	n.mu.Lock()
	if n.evicted || n.beat == 0 || (n.epoch == r.table.epoch.Load() && !n.lost) {
		n.mu.Unlock()
		return nil, 0, false
	}
	r.node = n
	n.inflight++
	r.run = run{}
	r.visits = append(r.visits, visit{node: n, from: len(r.pending), runFrom: len(r.runs), held: true})
	return r.table.dict.attributes(nil, &n.names, n.attrs), n.beat, true
}

// Held yields the last values of the open node's series, each with the time at which
// it was known to be true. Opaque series, and sums whose start is not known, are not
// among them: the node's next report brings those, as it does all whose values here
// were in doubt before.
func (r *Report) Held(yield func(s Series, unixNano uint64) bool) {
	n := r.node
	v := r.visit()
	n.epoch, n.lost = r.table.epoch.Load(), false
	v.generation, v.epoch = n.generation, n.epoch
	n.lacking = true
	n.heartbeatAt, n.heartbeatBy = 0, 0
	r.resyncs++
	stop := false
	for i := range n.entries {
		e := &n.entries[i]
		sure := !e.is(unknown)
		e.doubt()
		start, known := n.starts.of(e.origin)
		if stop || e.is(gone|repeated) || e.opaque() || !known {
			continue
		}
		if sure {
			r.pending = append(r.pending, pending{key: e.key, at: int32(i), stands: true})
		}
		s := r.table.name(n, e)
		s.Value, s.Start = e.value, start
		stop = !yield(s, n.when(e))
	}
}

// when is the time at which the node is known to have said what the entry holds. What
// another tier did not say again was so until that tier's last word.
func (n *node) when(e *entry) uint64 {
	if e.time == 0 || n.relayed {
		return n.said
	}
	behind := int32(coarse(n.said) - e.time)
	return n.said - uint64(max(behind, 0))<<timeShift
}
