// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"sync"
	"time"
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
// TestBytesAreThoseHeld compares the sum with the heap.
const (
	entryBytes = int(unsafe.Sizeof(entry{}))
	// nodeBytes are a node's own, with its place in the table.
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

// reserve takes room for one more series of the open node, which takes so many bytes, and
// reports whether there is any.
func (r *Report) reserve(bytes int) bool {
	n, t := r.node, r.table
	switch {
	case len(n.entries) >= t.set.MaxSeriesPerNode:
		r.limit = LimitNodeSeries
	case !t.room.TakeAll(n.cluster, 1):
		r.limit = t.pressure.on(LimitSeries, n.cluster)
	case !t.bytes.TakeAll(n.cluster, bytes):
		t.room.Give(n.cluster, 1)
		r.limit = t.pressure.on(LimitBytes, n.cluster)
	default:
		n.bytes += bytes
		return true
	}
	return false
}

// holdBeat makes room for the node's heartbeat beyond its cluster's share, once. A
// node that is over its room must not look silent, nor its changes like full reports.
func (r *Report) holdBeat(bytes int) bool {
	n := r.node
	if n.beats {
		return false
	}
	n.beats = true
	r.table.room.Hold(n.cluster, 1)
	r.table.bytes.Hold(n.cluster, bytes)
	n.bytes += bytes
	return true
}

// maxPressed bounds the clusters that pressure tells apart.
const maxPressed = 1024

// pressure is the clusters, by hash, whose nodes or series found no room since the last
// Sweep. The next Sweep makes room for them.
type pressure struct {
	mu       sync.Mutex
	clusters map[uint64]bool
}

// on notes that a cluster found no room, and returns the limit.
func (p *pressure) on(limit Limit, cluster uint64) Limit {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clusters == nil {
		p.clusters = map[uint64]bool{}
	}
	if len(p.clusters) < maxPressed {
		p.clusters[cluster] = true
	}
	return limit
}

// Pressed reports whether something found no room since the last Sweep.
func (t *Table) Pressed() bool {
	t.pressure.mu.Lock()
	defer t.pressure.mu.Unlock()
	return len(t.pressure.clusters) > 0
}

// wanted is the room that a Sweep makes.
type wanted struct {
	clusters map[uint64]bool
	nodes    int // that may leave though they report
}

// take begins the pressure of the next Sweep. A Sweep takes no more than one in 16 nodes
// from clusters over their share, so that one node of another cluster does not cost them half.
func (p *pressure) take(t *Table) wanted {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := wanted{p.clusters, t.set.MaxNodes/16 + 1}
	p.clusters = nil
	return w
}

// leaves reports whether a node makes room: one that does not report any more, for its own
// cluster, and any of a cluster that is over its share, where another cluster wants room.
func (w *wanted) leaves(t *Table, n *node, now time.Duration) bool {
	// Nobody has to come back under a name that was made up, so one report buys little time.
	if w.clusters[n.cluster] && n.silent(now, onceReported/2) {
		return true
	}
	over := len(w.clusters) > 0 && w.nodes > 0 && max(t.places.Excess(n.cluster), t.room.Excess(n.cluster), t.bytes.Excess(n.cluster)) > 0
	if over {
		w.nodes--
	}
	return over
}
