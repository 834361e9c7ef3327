// SPDX-License-Identifier: Apache-2.0

// Package resync is how one component tells another of the same Collector
// that the next hop lacks state: an extension that hears the next hop offers a
// Source, and what keeps state for that hop, such as the diff processor,
// subscribes to it. The epochs of the next hop tell what it lacks.
package resync // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/resync"

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	"github.com/gpu-collector/gpu-collector/internal/wire"
)

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

// Subscribers hands requests to whoever subscribed. The zero value is ready.
type Subscribers struct {
	mu  sync.RWMutex
	fns []*func(Request)
}

var _ Source = (*Subscribers)(nil)

// Subscribe implements Source. Neither fn nor what it calls may cancel.
func (s *Subscribers) Subscribe(fn func(Request)) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fns = append(s.fns, &fn)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fns = slices.DeleteFunc(s.fns, func(f *func(Request)) bool { return f == &fn })
	}
}

// Publish calls every subscriber with r. The lock is held meanwhile, so that
// no call can outlast a cancel; subscribers do not block.
func (s *Subscribers) Publish(r Request) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, fn := range s.fns {
		(*fn)(r)
	}
}

// MaxEpochLength bounds the text of an epoch.
const MaxEpochLength = 64

// ValidEpoch reports whether s can be an epoch: 1 to MaxEpochLength printable
// ASCII characters without meaning.
func ValidEpoch(s string) bool { return len(s) <= MaxEpochLength && wire.ValidName(s) }

const (
	// maxKeys bounds the nodes whose last epoch is kept, in some 10 MB. A
	// connection that names more in its pushes pays with full state it need not
	// send: of the nodes beyond, and of about as many others.
	maxKeys = 1 << 18
	// maxShared is how many gateways behind one name are told apart when the
	// pushes do not name a node.
	maxShared = 8
)

// Epochs remembers which life of the next hop answered last. A new life lacks state.
// The zero value is ready.
//
// An epoch is of the next hop's process. Behind one name there may be several
// processes, each with what was pushed to it and nothing else:
//
//   - A push of one node is compared with that node's own last epoch. Any
//     change asks for the node, also back to an epoch known from before, for
//     its owner has missed what the others got meanwhile.
//   - Pushes without a node may be spread over several processes, whose epochs
//     then alternate. Only an epoch not seen before asks, for all nodes; a
//     return to a process that lived on but was out of reach goes unnoticed,
//     until the periodic resync.
//     It also goes unnoticed which nodes such pushes took to another process:
//     an agent names its node in every push or in none.
//   - A node that speaks for the first time asks when more than one epoch has
//     been heard before: its state may have gone to another process, in a push
//     that named no node or before its own epoch was forgotten here. The first
//     epoch of all asks for nothing, since nothing was forwarded before it.
type Epochs struct {
	mu      sync.Mutex
	most    int // nodes, 0 for maxKeys
	first   string
	several bool
	shared  []string // of pushes without a node, newest first
	// nodes holds the hash of each node's last epoch by the hash of its name. Two
	// of n nodes are taken for one with a chance of n^2/2^65; what the second then
	// does not ask for comes with the periodic resync. The seed keeps others from
	// choosing such names.
	nodes map[uint64]uint64
	seed  maphash.Seed
}

// Hear notes the epoch in the answer to a push, and returns what to resync
// because of it. An empty node stands for a push of any nodes; its cluster
// says nothing about what the push holds.
func (e *Epochs) Hear(cluster, node, epoch string) (what Request, lost bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.first == "" {
		e.first, e.nodes, e.seed = strings.Clone(epoch), make(map[uint64]uint64), maphash.MakeSeed()
	}
	e.several = e.several || epoch != e.first
	var known, same bool
	if node == "" {
		known, same = e.hearShared(epoch)
	} else {
		what = Request{Cluster: cluster, Node: node}
		known, same = e.hearNode(what, epoch)
	}
	return what, !same && (known || e.several)
}

// hearShared reports whether a push without a node was answered before, and by this process.
func (e *Epochs) hearShared(epoch string) (known, same bool) {
	known = len(e.shared) > 0
	at := slices.Index(e.shared, epoch)
	if at >= 0 {
		e.shared = slices.Delete(e.shared, at, at+1)
	}
	e.shared = slices.Insert(e.shared, 0, strings.Clone(epoch))
	e.shared = e.shared[:min(len(e.shared), maxShared)]
	return known, at >= 0
}

// hearNode reports whether a push of the node was answered before, and the last by this process.
func (e *Epochs) hearNode(of Request, epoch string) (known, same bool) {
	key, now := maphash.Comparable(e.seed, of), maphash.String(e.seed, epoch)
	last, known := e.nodes[key]
	if !known && len(e.nodes) >= cmp.Or(e.most, maxKeys) {
		// Any other goes. Were it the one not heard for longest, then nodes that
		// take turns would each go just before theirs.
		for other := range e.nodes {
			delete(e.nodes, other)
			break
		}
	}
	e.nodes[key] = now
	return known, known && last == now
}
