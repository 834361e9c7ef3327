// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
)

// evictCheck is how often all nodes are looked through for missing ones: a flood of new
// names must not cost a look each.
const evictCheck = time.Second

// evictors find the node that has been missing longest: of all, and of a cluster that
// holds its share.
type evictors struct {
	mu   sync.Mutex
	next int64 // Unix milliseconds of the next look
	// missing has what the last look found, of all and of each cluster, the longest silent first.
	missing map[owner][]candidate
}

// owner is a cluster, or all of them.
type owner struct {
	cluster string
	own     bool
}

// candidate names a node, so that it holds none of its view.
type candidate struct {
	key  Key
	seen int64
}

// reserve makes room for one node, if need be in place of the node that has been
// missing longest. It takes the cluster's own node while the cluster holds its
// share, and any node when no place is left. The caller holds no lock on a shard.
func (s *Store) reserve(cluster string, now time.Time) (Drop, bool) {
	if s.nodes.Take(cluster, 1) == 0 && !s.evict(cluster, !s.nodes.Full(), now.UnixMilli()) {
		return DropMaxNodes, false
	}
	if s.bytes.TakeAll(cluster, leastNode) {
		return 0, true
	}
	// What a newcomer gets nothing of is full: each name would cost a look of its own.
	full := fairshare.Limit(s.cfg.ClusterShare, int(s.cfg.MaxBytes), s.bytes.Taken()) < leastNode
	if s.evict(cluster, !full, now.UnixMilli()) {
		s.nodes.Give(cluster, 1) // that of the node that went
		if s.bytes.TakeAll(cluster, leastNode) {
			return 0, true
		}
	}
	s.nodes.Give(cluster, 1)
	return DropMaxBytes, false
}

// evict hands the place of the node that has been missing longest to a cluster,
// and returns false when none is.
func (s *Store) evict(cluster string, own bool, now int64) bool {
	v := &s.evictors
	v.mu.Lock()
	defer v.mu.Unlock()
	from := owner{}
	if own {
		from = owner{cluster, true}
	}
	for {
		for len(v.missing[from]) > 0 {
			c := v.missing[from][0]
			v.missing[from] = v.missing[from][1:]
			if s.forget(c, now) {
				s.nodes.Pass(c.key.Cluster, cluster)
				s.index.stale()
				s.drop(DropEvicted)
				return true
			}
		}
		if now < v.next {
			return false
		}
		s.findMissing(now)
		v.next = now + evictCheck.Milliseconds()
	}
}

// forget forgets a node unless it has given a sign of life or is gone already.
func (s *Store) forget(c candidate, now int64) bool {
	sh := s.shard(c.key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.nodes[c.key]
	if e == nil || !s.missing(c.seen, now) || !e.retire(c.seen) {
		return false
	}
	delete(sh.nodes, c.key)
	s.bytes.Give(c.key.Cluster, e.size)
	return true
}

// findMissing looks through all nodes.
func (s *Store) findMissing(now int64) {
	var all []candidate
	for _, e := range s.index.get().all {
		// Of a node that is just being made nothing was seen yet.
		if seen := e.seen.Load(); seen != 0 && s.missing(seen, now) && !e.gone.Load() {
			all = append(all, candidate{e.key, seen})
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.seen, b.seen), a.key.Compare(b.key))
	})
	missing := map[owner][]candidate{{}: all}
	for _, c := range all {
		of := owner{c.key.Cluster, true}
		missing[of] = append(missing[of], c)
	}
	s.evictors.missing = missing
}
