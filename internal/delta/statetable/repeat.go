// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

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
// is not among them. Opaque ones and sums whose start is not known are counted:
// the tier before sends what is opaque to it, and the others at its own resync.
//
// The time of a series stays what it is: a change from before this moment that
// is still on its way must not be taken for stale.
func (r *Report) Repeated(unixNano uint64) func(yield func(Series) bool) {
	return func(yield func(Series) bool) {
		n := r.node
		if n == nil || !r.lacking || r.again >= maxRepeated || !r.visit().relayed {
			return
		}
		v := r.visit()
		v.repeated = true
		if v.returned {
			return // until that tier says again what has not ended
		}
		at := coarse(unixNano)
		for i := range n.entries {
			e := &n.entries[i]
			if !v.unsure(e) || e.is(gone|repeated) || e.seen == n.visit || older(e.time, at) {
				continue
			}
			start, known := n.starts.of(e.origin)
			if e.opaque() || !known {
				r.unrepeatable++
				continue
			}
			r.again++
			r.pending = append(r.pending, pending{key: e.key, at: int32(i), stands: true})
			s := r.table.name(n, e)
			s.Value, s.Start = e.value, start
			if !yield(s) {
				return
			}
		}
	}
}

// returned is for a node whose tier before was silent for so long that series may
// have ended unsaid. Series that this report does not hold are not repeated any more
// until that tier says them again.
func (n *node) returned() {
	for i := range n.entries {
		if e := &n.entries[i]; e.seen != n.visit {
			e.set(unknown | gone)
		}
	}
}

// most is how many ticks a series that has not ended may be silent.
func (n *node) most(now, ttl time.Duration) uint16 {
	if n.relayed && now-n.relayedAt < 2*ttl {
		return relayedTTLs * ticksPerTTL
	}
	return ticksPerTTL
}
