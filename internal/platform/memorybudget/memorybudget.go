// SPDX-License-Identifier: Apache-2.0

// Package memorybudget gives the components that keep what clients send how much memory
// each may take: so many percent of the process'.
package memorybudget // import "github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"

import (
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strings"
)

// Holder is the configuration of a component that keeps what clients send.
type Holder interface {
	// MemoryBytes is the most that it keeps.
	MemoryBytes() int64
}

const (
	// least is enough for a component to work at all.
	least = 1 << 20
	// withoutLimit is for a process without a configured limit.
	withoutLimit = 2 << 30
)

// Percent is p percent of Limit, at least a MiB.
func Percent(p int64) int64 {
	limit, _ := Limit()
	return max(limit/100*p+limit%100*p/100, least)
}

// Limit is the memory of the process in bytes: the least of GOMEMLIMIT and 80 % of its
// cgroup's memory. Where it has neither it is 2 GiB, and false: others use the machine's
// memory too.
func Limit() (int64, bool) { return limit(debug.SetMemoryLimit(-1), os.DirFS("/")) }

func limit(goLimit int64, root fs.FS) (int64, bool) {
	if memory, ok := cgroupMemory(root); ok {
		goLimit = min(goLimit, memory/100*80)
	}
	if goLimit == math.MaxInt64 {
		return withoutLimit, false
	}
	return goLimit, true
}

// Warning reports where components may fill more memory than there is.
func Warning(bytes map[string]int64) string {
	limit, sum, parts := Percent(100), int64(0), []string(nil)
	for _, name := range slices.Sorted(maps.Keys(bytes)) {
		parts, sum = append(parts, fmt.Sprintf("%s %d", name, bytes[name]>>20)), sum+bytes[name]
	}
	if sum <= limit {
		return ""
	}
	return fmt.Sprintf("clients may fill %d MiB of memory, %d %% of the %d MiB that the process may take "+
		"(the least of GOMEMLIMIT and 80 %% of its cgroup, or 2 GiB): %s; set less in `max_bytes`, or give it more",
		sum>>20, sum*100/limit, limit>>20, strings.Join(parts, ", "))
}
