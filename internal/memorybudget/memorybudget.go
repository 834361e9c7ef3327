// SPDX-License-Identifier: Apache-2.0

// Package memorybudget divides the memory of the process among the parts that clients
// fill. Each part bounds itself, and together they stay below the limit.
package memorybudget // import "github.com/gpu-collector/gpu-collector/internal/memorybudget"

import (
	"math"
	"runtime/debug"
)

// Part is a part of the memory, in percent.
type Part int64

// The parts. A gateway has all but Pending, and a shard has the first three: it keeps
// neither views nor a history.
const (
	// Pushes are those in flight: as they come, and what they become when decoded.
	Pushes Part = 50
	// Table is the last value of each series, with its name.
	Table Part = 25
	// Pending is what waits for a flush.
	Pending Part = 25
	// History is what waits for the store of the past.
	History Part = 8
	// Views are the fleet's views, comparison and episodes. Nobody enforces it: they are
	// bounded by their number.
	Views Part = 17
)

// withoutLimit is for a process that nobody has told how much memory it may take.
const withoutLimit = 2 << 30

// Limit is GOMEMLIMIT, which should be 80 % of the memory that there is, or 2 GiB
// without it.
func Limit() int64 {
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		return limit
	}
	return withoutLimit
}

// Bytes are the part's of that limit, at least a MiB.
func (p Part) Bytes() int64 { return p.Of(Limit()) }

// Of is the part of a limit, at least a MiB.
func (p Part) Of(limit int64) int64 {
	return max(limit/100*int64(p)+limit%100*int64(p)/100, 1<<20)
}
