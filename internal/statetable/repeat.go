// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/statetable"

import "time"

// maxRepeated is how many points are repeated in one report, give or take a
// node: what many nodes share must not outgrow a message when the next hop
// restarts. The others' turn comes with the reports after it.
const maxRepeated = 1 << 14

// Repeated yields what the next hop is to get again of the open node, which the
// report does not hold and will not: another tier reduced it, see Relayed. Those
// are its series that are unknown since a resync, with their last values. The
// caller forwards each as a point of the given Unix time in nanoseconds, at which
// that tier knew of no other value. Call it once the node's points are observed.
//
// A series that did not say anything since, that ended, or that the report holds
// is not among them. Opaque ones and sums whose start is not known are counted,
// and wait for their sender.
//
// The time of a series stays what it is: a change from before this moment that
// is still on its way must not be taken for stale.
func (r *Report) Repeated(unixNano uint64) func(yield func(Series) bool) {
	return func(yield func(Series) bool) {
		n := r.node
		if n == nil || !n.relayed || !n.lacking || r.again >= maxRepeated {
			return
		}
		r.visits[len(r.visits)-1].repeated = true
		at := coarse(unixNano)
		for i := range n.entries {
			e := &n.entries[i]
			if !e.is(unknown) || e.is(gone|repeated) || e.seen == n.visit || older(e.time, at) {
				continue
			}
			start, known := n.starts[e.origin]
			if e.opaque() || (e.origin != 0 && !known) {
				r.table.unrepeatable.Add(1)
				continue
			}
			r.again++
			r.changed = true
			r.pending = append(r.pending, pending{key: e.key, at: int32(i), stands: true})
			s := r.table.name(n, e)
			s.Value, s.Start = e.value, start
			if !yield(s) {
				return
			}
		}
	}
}

// returned is for a node that another tier was silent about, so long that it may
// have forgotten the node. It then sends whatever there is, since the node paused
// or this end was out of its reach, see Reached; what this report does not hold
// has to come, or is gone: the node may have been rebuilt.
func (n *node) returned() {
	for i := range n.entries {
		if e := &n.entries[i]; e.seen != n.visit {
			e.set(unknown | gone)
		}
	}
}

// Reached takes note of whether the next hop took what it was sent. When it was
// out of reach for half a TTL, all is due again: it may have forgotten the nodes,
// for which it waits five eighths of its own, see Relayed.
func (t *Table) Reached(now time.Duration, taken bool) {
	since := t.awaySince.Load()
	switch {
	case !taken && since == 0:
		t.awaySince.CompareAndSwap(0, max(int64(now), 1))
	case taken && since != 0 && t.awaySince.CompareAndSwap(since, 0) && t.set.TTL > 0 && now-time.Duration(since) >= t.set.TTL/2:
		t.Resync("", "")
	}
}

// began remembers the start of a sum, of which its entry has only a hash. Most
// sums of a node share theirs.
func (n *node) began(p *pending) {
	if !n.relayed || p.start == 0 || n.starts[p.origin] == p.start {
		return
	}
	if len(n.starts) > len(n.entries) {
		n.pruneStarts()
	}
	if n.starts == nil {
		n.starts = map[uint32]uint64{}
	}
	n.starts[p.origin] = p.start
}

// pruneStarts drops those that no series has any more.
func (n *node) pruneStarts() {
	old := n.starts
	n.starts = map[uint32]uint64{}
	for i := range n.entries {
		if start, ok := old[n.entries[i].origin]; ok {
			n.starts[n.entries[i].origin] = start
		}
	}
}

// most is how many ticks a series may be silent.
func (n *node) most(now, ttl time.Duration) uint16 {
	if n.relayed && now-n.relayedAt < 2*ttl {
		return relayedTTLs * ticksPerTTL
	}
	return ticksPerTTL
}
