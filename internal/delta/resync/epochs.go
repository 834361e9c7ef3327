// SPDX-License-Identifier: Apache-2.0

package resync

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	"github.com/gpu-collector/gpu-collector/internal/wire"
)

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
	most    int // nodes, maxKeys by default
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
func (e *Epochs) Hear(cluster, node, epoch string) (Request, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.first == "" {
		e.first = strings.Clone(epoch)
	}
	e.several = e.several || epoch != e.first
	if node == "" {
		return Request{}, e.hearShared(epoch)
	}
	of := Request{Cluster: cluster, Node: node}
	return of, e.hearNode(of, epoch)
}

func (e *Epochs) hearShared(epoch string) bool {
	at := slices.Index(e.shared, epoch)
	if at == 0 {
		return false
	}
	known := len(e.shared) > 0
	if at > 0 {
		e.shared = slices.Delete(e.shared, at, at+1)
	} else if len(e.shared) == maxShared {
		e.shared = e.shared[:maxShared-1]
	}
	e.shared = slices.Insert(e.shared, 0, strings.Clone(epoch))
	if !known {
		return e.several
	}
	return at < 0
}

func (e *Epochs) hearNode(of Request, epoch string) bool {
	if e.nodes == nil {
		e.nodes, e.seed = make(map[uint64]uint64), maphash.MakeSeed()
	}
	if e.most == 0 {
		e.most = maxKeys
	}
	key, now := maphash.Comparable(e.seed, of), maphash.String(e.seed, epoch)
	last, known := e.nodes[key]
	if !known && len(e.nodes) >= e.most {
		// Any other goes. Were it the one not heard for longest, then nodes that
		// take turns would each go just before theirs.
		for other := range e.nodes {
			delete(e.nodes, other)
			break
		}
	}
	e.nodes[key] = now
	if !known {
		return e.several
	}
	return last != now
}
