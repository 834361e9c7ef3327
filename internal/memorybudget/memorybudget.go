// SPDX-License-Identifier: Apache-2.0

// Package memorybudget divides the memory of the process among the parts that clients
// fill. Each part bounds itself, and together they stay below the limit.
package memorybudget // import "github.com/gpu-collector/gpu-collector/internal/memorybudget"

import (
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"sync/atomic"
)

// Part is a part of the memory, in percent.
type Part int64

// The parts. A gateway has all but Pending and Scores, and a shard has the first three: it
// keeps neither views nor a history, and compares nobody. An agent has Pushes and Scores.
const (
	// Pushes are those in flight: as they come, and what they become when decoded.
	Pushes Part = 50
	// Table is the last value of each series, with its name.
	Table Part = 25
	// Pending is what waits for a flush.
	Pending Part = 25
	// History is what waits for the store of the past.
	History Part = 8
	// Views are the fleet's nodes, groups and episodes for people.
	Views Part = 9
	// Comparison is what a gateway knows of nodes and groups to compare them.
	Comparison Part = 8
	// Scores is what an agent knows of its nodes to score them.
	Scores Part = 8
)

// PendingPoint is about what a point takes that waits for a flush, in bytes.
const PendingPoint = 1 << 10

// Division says what a configuration has: the parts, and what it gave bytes of its own.
type Division struct {
	// Limit is the memory of all parts and of Fixed together, in bytes, and Known whether
	// anybody has set it.
	Limit int64
	Known bool
	// Fixed are the bytes that keys of the configuration set.
	Fixed int64
	// Parts are those that divide the rest; two tables are Table twice.
	Parts []Part
}

// current is of the process, set by the main that has read its configuration.
var current atomic.Pointer[Division]

// Divide makes d the process' division. Components that are built afterwards go by it.
func Divide(d Division) {
	d.Parts = slices.Clone(d.Parts)
	current.Store(&d)
}

// Bytes are the part's, at least a MiB. Without Divide it is the part of Limit.
func (p Part) Bytes() int64 { return whole().Of(p) }

// whole is the process' division.
func whole() *Division {
	if d := current.Load(); d != nil {
		return d
	}
	d := &Division{}
	d.Limit, d.Known = Limit(0)
	return d
}

// Check reports that the bytes which a key sets for the part are more than the process
// may take, by themselves or together with those of other keys.
func (p Part) Check(bytes int64) error {
	d := whole()
	const of = "the process may take: the least of what `memory_limiter` allows, GOMEMLIMIT and 80 %% of its cgroup"
	switch {
	case !d.Known || bytes == 0:
		return nil
	case bytes > d.Limit:
		return fmt.Errorf("%d bytes are more than the %d that "+of+"; set less, or 0 for %d %% of that", bytes, d.Limit, p)
	case d.Fixed > d.Limit:
		return fmt.Errorf("%d bytes make %d with those of other keys, more than the %d that "+of+"; set less, or 0 for a part of what the other keys leave", bytes, d.Fixed, d.Limit)
	}
	return nil
}

// Of is one part's share of the division, at least a MiB: never more than its percent,
// and less where there are more parts than fit.
func (d *Division) Of(p Part) int64 {
	sum := Part(0)
	for _, other := range d.Parts {
		sum += other
	}
	rest := max(d.Limit-d.Fixed, 0)
	return min(p.Of(d.Limit), max(rest/int64(max(sum, 1))*int64(p), least))
}

// least is enough for a part to work at all.
const least = 1 << 20

// Of is the part of a limit, at least a MiB.
func (p Part) Of(limit int64) int64 {
	return max(limit/100*int64(p)+limit%100*int64(p)/100, least)
}

// withoutLimit is for a process that nobody has told how much memory it may take.
const withoutLimit = 2 << 30

// Limit is the least of what is known to bound the process: what its configuration
// allows in bytes (0 for nothing), GOMEMLIMIT, and 80 % of its cgroup's memory. Where
// nothing is known it is 2 GiB, and false.
func Limit(allowed int64) (int64, bool) {
	memory, _ := Memory()
	return limit(allowed, debug.SetMemoryLimit(-1), memory)
}

func limit(allowed, goLimit, memory int64) (int64, bool) {
	bounds := []int64{math.MaxInt64}
	for _, bound := range []int64{allowed, goLimit, memory / 100 * 80} {
		if bound > 0 {
			bounds = append(bounds, bound)
		}
	}
	if least := slices.Min(bounds); least < math.MaxInt64 {
		return least, true
	}
	return withoutLimit, false
}

// Memory is what the kernel lets the process have, in bytes. It returns false for a
// process without a memory cgroup: others use the machine's memory too.
func Memory() (int64, bool) { return cgroupMemory(os.DirFS("/")) }
