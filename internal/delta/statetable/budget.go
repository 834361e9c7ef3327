// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

import (
	"unsafe"
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

// The table's parts take so much memory, with the slack of allocations and of Go's maps.
// TestBytesAreTheHeaps compares the sum with the heap.
const (
	entryBytes = int(unsafe.Sizeof(entry{}))
	// nodeBytes are a node's own, with its place in the table.
	nodeBytes = int(unsafe.Sizeof(node{})) + 128
	// seriesBytes are an entry and its part of the index, with what grow adds.
	seriesBytes = entryBytes*33/32 + 3
	// nameBytes are a series' set of attributes, and where that and they are.
	nameBytes = 24
	// metricBytes are a metric's in the dictionary, beside its text.
	metricBytes = int(unsafe.Sizeof(slot[Metric]{})+unsafe.Sizeof(Metric{})) + slotBytes
	// startBytes are one of starts.more.
	startBytes = 32
	// slotBytes are the dictionary's for a name, beside the name.
	slotBytes = 64
)

// A node takes room for some of its series at once, and gives back the rest.
const (
	seriesAhead = 64
	bytesAhead  = 8 << 10
)

// unbounded is for Settings without MaxBytes; a float64 and an int hold it.
const unbounded = 1 << 62

// size is the node's part of the memory, without the names that nodes share.
func (n *node) size() int {
	return nodeBytes + cap(n.entries)*entryBytes + cap(n.index)*2 +
		cap(n.names.bytes) + (cap(n.names.pairs)+cap(n.names.sets))*4 + len(n.starts.more)*startBytes
}

// recount has the ledger say what the node takes. Its lock is held.
func (t *Table) recount(n *node) {
	size := n.size()
	if more := size - n.bytes; more > 0 {
		t.bytes.Hold(n.cluster, more)
	} else {
		t.bytes.Give(n.cluster, -more)
	}
	n.bytes = size
}

// spare is room that the open node has taken ahead. Dry says that the ledger had no more.
type spare struct {
	series, bytes int
	dry, dryBytes bool
}

// reserve takes room for what the report adds to the open node, and reports whether
// there is any.
func (r *Report) reserve(series, bytes int) bool {
	n, t, s := r.node, r.table, &r.spare
	if series > 0 && len(n.entries)+n.reserved+series > t.set.MaxSeriesPerNode {
		r.limit = LimitNodeSeries
		return false
	}
	if s.series < series && !s.dry {
		s.series += t.room.Take(n.cluster, seriesAhead)
		s.dry = s.series < seriesAhead
	}
	if want := bytes + bytesAhead; s.bytes < bytes && !s.dryBytes {
		s.bytes += t.bytes.Take(n.cluster, want-s.bytes)
		s.dryBytes = s.bytes < want
	}
	switch {
	case s.series < series:
		r.limit = LimitSeries
		r.pressed = true
		return false
	case s.bytes < bytes:
		r.limit = LimitBytes
		r.pressed = true
		return false
	}
	s.series -= series
	s.bytes -= bytes
	r.visit().reserve(series, bytes)
	return true
}

func (v *visit) reserve(series, bytes int) {
	v.series += series
	v.bytes += bytes
	v.node.reserved += series
}

// withdraw undoes the point of a new series that was observed last.
func (r *Report) withdraw() {
	r.pending = r.pending[:len(r.pending)-1]
	r.visit().reserve(-1, -seriesBytes)
	r.spare.series++
	r.spare.bytes += seriesBytes
	r.fresh = false
}

// giveSpare gives back what the open node took ahead.
func (r *Report) giveSpare() {
	r.table.room.Give(r.node.cluster, r.spare.series)
	r.table.bytes.Give(r.node.cluster, r.spare.bytes)
	r.spare = spare{}
}

// release gives back what a visit has reserved and not used. The node's lock is held.
func (t *Table) release(v *visit) {
	if v.bytes == 0 {
		return
	}
	t.room.Give(v.node.cluster, v.series)
	t.bytes.Give(v.node.cluster, v.bytes)
	v.reserve(-v.series, -v.bytes)
}

// unplaced is the verdict on each point of a node that there is no room for.
func (r *Report) unplaced() Verdict {
	if r.table.set.DropOver {
		return Over
	}
	r.untracked++
	return Forward
}

// Drops reports whether all points of the open node are over a limit.
func (r *Report) Drops() bool { return r.node == nil && r.table.set.DropOver }

// Limit is the one that the last point was over.
func (r *Report) Limit() Limit { return r.limit }

// holdBeat makes room for the node's heartbeat beyond its cluster's share, once. A
// node that is over its room must not look silent, nor its changes like full reports.
func (r *Report) holdBeat() bool {
	n := r.node
	if n.beats {
		return false
	}
	n.beats, r.visit().beats = true, true
	r.table.room.Hold(n.cluster, 1)
	r.table.bytes.Hold(n.cluster, seriesBytes)
	r.visit().reserve(1, seriesBytes)
	return true
}
