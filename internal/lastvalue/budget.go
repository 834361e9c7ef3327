// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"time"
	"unsafe"

	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
)

// Limit is a bound of the table.
type Limit uint8

// The bounds that a point can be over.
const (
	LimitNodes Limit = iota
	LimitSeries
	LimitNodeSeries
	LimitBytes
	Limits int = iota // how many there are
)

// String is the key of a configuration that sets the bound.
func (l Limit) String() string {
	return [Limits]string{"max_nodes", "max_series", "max_series_per_node", "max_bytes"}[l]
}

// The table's parts take so much memory, with the slack of allocations and of Go's maps:
// TestBytesAreThoseHeld.
const (
	entryBytes = int(unsafe.Sizeof(entry{}))
	// nodeBytes are a node's own, with its slot in the table.
	nodeBytes = int(unsafe.Sizeof(node{})) + 128
	// seriesBytes are an entry, its part of the index, and a start time.
	seriesBytes = entryBytes*33/32 + 3 + 8
)

// unbounded is for Settings without MaxBytes; a float64 and an int hold it.
const unbounded = 1 << 62

// size is the node's part of the memory, without what nodes share.
func (n *node) size() int {
	return nodeBytes + cap(n.entries)*entryBytes + cap(n.index)*2 + cap(n.starts)*8 + n.names.size()
}

// recount brings the ledger to what the node takes. Its lock is held.
func (t *Table) recount(n *node) {
	size := n.size()
	if more := size - n.bytes; more > 0 {
		t.byteBudget.Hold(n.cluster, more)
	} else {
		t.byteBudget.Give(n.cluster, -more)
	}
	n.bytes = size
}

// take gives a cluster one of what a ledger counts, and so many bytes, or reports which limit
// leaves no room for them.
func (t *Table) take(limit Limit, ledger *fairshare.Ledger[uint64], cluster uint64, bytes int) (over Limit, ok bool) {
	switch {
	case !ledger.TakeAll(cluster, 1):
		over = limit
	case !t.byteBudget.TakeAll(cluster, bytes):
		ledger.Give(cluster, 1)
		over = LimitBytes
	default:
		return 0, true
	}
	return over, false
}

// reserve takes room for one more series of the open node, which takes so many bytes, and
// reports whether there is any. One heartbeat has room beyond all bounds: a node without it
// would look missing, and its changes like full reports.
func (r *Report) reserve(bytes int, heartbeat bool) (ok bool) {
	n, t := r.node, r.table
	if len(n.entries) >= t.set.MaxSeriesPerNode {
		r.Limit = LimitNodeSeries
	} else {
		r.Limit, ok = t.take(LimitSeries, t.seriesBudget, n.cluster, bytes)
	}
	if !ok && heartbeat && !n.heartbeatHasRoom {
		n.heartbeatHasRoom, ok = true, true
		t.seriesBudget.Hold(n.cluster, 1)
		t.byteBudget.Hold(n.cluster, bytes)
	}
	if ok {
		n.bytes += bytes
	}
	return ok
}

// Pressed reports whether more than three quarters of the nodes, the series or the bytes are taken.
func (t *Table) Pressed() bool {
	return t.nodeBudget.Pressed() || t.seriesBudget.Pressed() || t.byteBudget.Pressed()
}

// due reports whether a node is forgotten: after the TTL, and under pressure once it was missing
// for longer than it reported. So made-up names make room, and cost no node that reports a slot.
func (t *Table) due(n *node, now time.Duration) bool {
	missing := now - n.lastSeen
	return missing >= t.set.TTL ||
		missing > n.lastSeen-n.reportingSince && n.missing(now, onceReported/2) && t.Pressed()
}
