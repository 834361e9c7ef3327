// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"math"
	"time"
	"unsafe"
)

// unbounded is room for all that a node may tell.
const unbounded = math.MaxInt

// unnamedBytes are those of one entry of a map of the size of table.unnamed, and of what
// the map leaves empty.
const unnamedBytes = 64

// Bytes is what the node takes of memory.
func (n *Node) Bytes() int {
	t := &n.table
	sum := int(unsafe.Sizeof(*n)) + cap(t.rows)*int(unsafe.Sizeof(row{})) + cap(t.best)*8 + len(t.unnamed)*unnamedBytes
	for i := range t.rows {
		r := &t.rows[i]
		sum += len(r.of.GPU) + cap(r.cells)*int(unsafe.Sizeof(cell{})) + cap(r.counts)*int(unsafe.Sizeof(count{}))
	}
	return sum
}

// ObserveWithin is Observe of a node that may take no more than room bytes more. Short
// is how many readings it left out for that.
func (n *Node) ObserveWithin(room int, r *Reading, now time.Time) (dropped, short int) {
	n.table.room, n.table.short = room, 0
	dropped = n.table.observe(r, n.plan, now)
	return dropped - n.table.short, n.table.short
}

// rowBytes are those of a row that tells all inputs.
func (p *Plan) rowBytes() int {
	return int(unsafe.Sizeof(row{})) + p.count*int(unsafe.Sizeof(cell{})) + p.counts*int(unsafe.Sizeof(count{}))
}
