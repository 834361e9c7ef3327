// SPDX-License-Identifier: Apache-2.0

// Package resync is how one component asks another for state that the next hop does not have. The
// extension that reads the answers of the next hop, and its epochs, is a Source to which the diff
// processor subscribes.
package resync // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/resync"

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
)

// Request is for the nodes whose state the next hop does not have.
type Request struct {
	Cluster string // of the node; empty means any
	Node    string // as the gpu-node header carries it; empty means all nodes
}

// Source is implemented by the extension that reads the answers of the next hop.
type Source interface {
	// Subscribe calls fn for every request from now on, until cancel is called.
	// fn may be called from several goroutines at once and must not block. No
	// call to fn starts after cancel has returned.
	Subscribe(fn func(Request)) (cancel func())
}

// Subscribers is a Source. The zero value is ready.
type Subscribers struct {
	mu  sync.RWMutex
	fns []*func(Request)
}

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
func ValidEpoch(s string) bool { return len(s) <= MaxEpochLength && pushheaders.ValidName(s) }

const (
	// maxKeys bounds the nodes whose last epoch is kept, in some 10 MB. A client that
	// names more sends full state that it need not send.
	maxKeys = 1 << 18
	// maxShared is how many processes are distinguished in answers to pushes without a node.
	maxShared = 8
)

// Epochs remembers which process of the next hop answered last: each has an epoch, and what
// was pushed to it and nothing else. The zero value is ready.
//
//   - A push of one node is compared with that node's own last epoch. Any change asks for
//     the node, also back to an epoch of before: that process missed what the others got.
//   - Pushes without a node may be spread over several processes, whose epochs alternate.
//     Only an epoch not seen before asks, for all nodes. Neither a
//     process that was out of reach for a while is noticed, nor which nodes it got: that is
//     for periodic resyncs.
//   - A node that pushes for the first time asks when several epochs have answered: its
//     state may have gone to another process, while it had no name or was forgotten here.
type Epochs struct {
	mu      sync.Mutex
	most    int // nodes, 0 for maxKeys
	first   string
	several bool
	shared  []string // of pushes without a node, newest first
	// nodes has the hash of each node's last epoch by the hash of its name. The seed keeps
	// others from choosing names that are taken for one.
	nodes map[uint64]uint64
	seed  maphash.Seed
}

// Observe notes the epoch in the answer to a push, and returns what to resync
// because of it. An empty node stands for a push of any nodes; its cluster
// need not be that of what the push holds.
func (e *Epochs) Observe(cluster, node, epoch string) (what Request, lost bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.first == "" {
		e.first, e.nodes, e.seed = strings.Clone(epoch), make(map[uint64]uint64), maphash.MakeSeed()
	}
	e.several = e.several || epoch != e.first
	if node == "" {
		return what, e.observeShared(epoch)
	}
	what = Request{Cluster: cluster, Node: node}
	return what, e.observeNode(what, epoch)
}

// observeShared reports whether the answer to a push without a node is of a new process.
func (e *Epochs) observeShared(epoch string) (lost bool) {
	at := slices.Index(e.shared, epoch)
	if lost = at < 0 && e.several; at >= 0 {
		e.shared = slices.Delete(e.shared, at, at+1)
	}
	e.shared = slices.Insert(e.shared, 0, strings.Clone(epoch))
	e.shared = e.shared[:min(len(e.shared), maxShared)]
	return lost
}

// observeNode reports whether the node's last answer was, or may have been, of another process.
func (e *Epochs) observeNode(of Request, epoch string) (lost bool) {
	key, now := maphash.Comparable(e.seed, of), maphash.String(e.seed, epoch)
	last, known := e.nodes[key]
	if !known && len(e.nodes) >= cmp.Or(e.most, maxKeys) {
		// Any other goes. Were it the one missing for longest, then nodes that
		// take turns would each go just before theirs.
		for other := range e.nodes {
			delete(e.nodes, other)
			break
		}
	}
	e.nodes[key] = now
	return e.several && (!known || last != now)
}
