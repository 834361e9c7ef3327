// SPDX-License-Identifier: Apache-2.0

// Package gpuholders knows which processes compute on each GPU of the node. The receiver
// that reads NVML tells it, and other receivers of the same Collector ask. Pure.
package gpuholders // import "github.com/gpu-collector/gpu-collector/internal/gpu/gpuholders"

import "sync"

// Book has the last word of each teller. The zero value is empty. It is safe for
// concurrent use.
type Book struct {
	mu  sync.Mutex
	all map[any]map[string][]uint32
}

// OfProcess is the book of this process: it needs no settings, for which components find
// one another by extensions.
var OfProcess Book

// Tell replaces what the teller has told: the pids on each GPU or MIG slice by its UUID.
// The teller keeps its hands off them from here on, and takes them back with nil.
func (b *Book) Tell(teller any, gpus map[string][]uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = map[any]map[string][]uint32{}
	}
	if b.all[teller] = gpus; gpus == nil {
		delete(b.all, teller)
	}
}

// GPU returns the one that a process computes on, empty where nobody knows. A process may
// have a context on several, as each rank of a job often has one on the first GPU beside
// its own: for one with a single rank it is the one that the fewest processes share.
func (b *Book) GPU(pid int, single bool) (uuid string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	least, several := 0, false
	for _, gpus := range b.all {
		for id, pids := range gpus {
			has := false
			for _, p := range pids {
				has = has || int(p) == pid
			}
			switch n := len(pids); {
			case !has || id == uuid:
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
