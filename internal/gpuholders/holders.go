// SPDX-License-Identifier: Apache-2.0

// Package gpuholders knows which processes and containers hold each GPU of the node. The
// receiver that reads NVML tells it, and other receivers of the same Collector ask: NVML
// and the kubelet are read once. Pure.
package gpuholders // import "github.com/gpu-collector/gpu-collector/internal/gpuholders"

import "sync"

// Container names a container of a pod. UID is empty where the kubelet does not say it.
type Container struct {
	UID, Pod, Namespace, Name string
}

// GPU is one GPU or MIG slice, and who holds it.
type GPU struct {
	UUID string
	// Slice says that it is a part of a GPU; the GPU may list its processes too.
	Slice bool
	// PIDs are of processes with a compute context, as the driver tells them.
	PIDs []uint32
	// Containers are those that the kubelet gave it to.
	Containers []Container
}

// Book has the last word of each teller. The zero value is empty. It is safe for
// concurrent use.
type Book struct {
	mu  sync.Mutex
	all map[any][]GPU // by teller
}

// OfProcess is the book of this process: the components of a Collector find one another
// by extensions alone, and this fact needs no settings.
var OfProcess Book

// Tell replaces what the teller has told, which keeps its hands off gpus from here on.
// With no GPU it takes everything back.
func (b *Book) Tell(teller any, gpus []GPU) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(gpus) == 0 {
		delete(b.all, teller)
		return
	}
	if b.all == nil {
		b.all = map[any][]GPU{}
	}
	b.all[teller] = gpus
}

// Of returns the GPU that a process computes on. Where it has a context on several, that
// is the one with the fewest processes: each rank of a job often has one on the first GPU
// beside its own. known is false where there is none, or no one of them.
func (b *Book) Of(pid int) (found GPU, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	least := 0
	for _, gpus := range b.all {
		for i := range gpus {
			g := &gpus[i]
			if !g.has(pid) || g.UUID == found.UUID || known && found.Slice && !g.Slice {
				continue
			}
			switch n := len(g.PIDs); {
			case least == 0, n < least, g.Slice && !found.Slice:
				found, least, known = *g, n, true
			case n == least:
				known = false
			}
		}
	}
	if !known {
		return GPU{}, false
	}
	return found, true
}

func (g *GPU) has(pid int) bool {
	for _, p := range g.PIDs {
		if int(p) == pid {
			return true
		}
	}
	return false
}
