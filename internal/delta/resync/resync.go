// SPDX-License-Identifier: Apache-2.0

// Package resync is how one component tells another of the same Collector
// that the next hop lacks state: an extension that hears the next hop offers a
// Source, and what keeps state for that hop, such as the diff processor,
// subscribes to it. The epochs of the next hop tell what it lacks.
package resync // import "github.com/gpu-collector/gpu-collector/internal/delta/resync"

// Request says whose state the next hop does not have.
type Request struct {
	// Cluster is the cluster of the node; empty means any.
	Cluster string
	// Node is the node's name as the gpu-node header carries it; empty means
	// all nodes.
	Node string
}

// Source is implemented by the extension that hears the next hop.
type Source interface {
	// Subscribe calls fn for every request from now on, until cancel is called.
	// fn may be called from several goroutines at once and must not block. No
	// call to fn starts after cancel has returned.
	Subscribe(fn func(Request)) (cancel func())
}
