// SPDX-License-Identifier: Apache-2.0

// Package gpuholders knows which processes compute on each GPU of the node. The receiver
// that reads NVML reports them, and other receivers of the same Collector ask. Pure.
package gpuholders // import "github.com/gpu-collector/gpu-collector/internal/gpu/gpuholders"

import (
	"slices"
	"sync"
)

// Registry has the last report of each reporter. The zero value is empty. It is safe for
// concurrent use.
type Registry struct {
	mu  sync.Mutex
	all map[any]map[string][]uint32
}

// OfProcess is the registry of this process: it needs no settings, for which components find
// one another by extensions.
var OfProcess Registry

// Report replaces the last report of the reporter: the pids on each GPU or MIG slice by UUID.
// The reporter must not change the map afterwards, and withdraws its report with nil.
func (b *Registry) Report(reporter any, gpus map[string][]uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = map[any]map[string][]uint32{}
	}
	if b.all[reporter] = gpus; gpus == nil {
		delete(b.all, reporter)
	}
}

// GPU returns the UUID of the one that a process computes on, empty for unknown. A process may
// have a context on several, as each rank of a job often has one on the first GPU beside
// its own: for one with a single rank it is the one that the fewest processes share.
func (b *Registry) GPU(pid int, single bool) (uuid string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	least, several := 0, false
	for _, gpus := range b.all {
		for id, pids := range gpus {
			switch n := len(pids); {
			case id == uuid || !slices.Contains(pids, uint32(pid)):
			case uuid == "" || single && n < least:
				uuid, least, several = id, n, false
			case !single || n == least:
				several = true
			}
		}
	}
	if several {
		return ""
	}
	return uuid
}
