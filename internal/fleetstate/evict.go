// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
)

// maxCandidates bounds what one look through all nodes remembers.
const maxCandidates = 1024

// evictCheck is how often all nodes are looked through while none is missing:
// a flood of new names must not cost a look each.
const evictCheck = time.Second

// maxEvictors bounds the clusters whose missing nodes are remembered apart.
const maxEvictors = 64

// evictors find the node that has been missing longest: of all, and of a cluster
// that holds its share.
type evictors struct {
	mu  sync.Mutex
	all evictor
	own map[string]*evictor
}

type evictor struct {
	next int64       // Unix milliseconds of the next look
	list []candidate // the longest silent first
}

type candidate struct {
	e    *entry
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
	full := fairshare.Limit(s.cfg.ClusterShare, s.cfg.MaxBytes, s.bytes.Taken()) < leastNode
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
	s.evictors.mu.Lock()
	defer s.evictors.mu.Unlock()
	v := s.evictors.of(cluster, own)
	for {
		for len(v.list) > 0 {
			c := v.list[0]
			v.list[0] = candidate{} // lets go of the view
			v.list = v.list[1:]
			if s.forget(c, now) {
				s.nodes.Pass(c.e.key.Cluster, cluster)
				s.index.stale()
				s.drop(DropEvicted)
				return true
			}
		}
		if now < v.next {
			return false
		}
		if v.list = s.missingLongest(cluster, own, now); len(v.list) < maxCandidates {
			v.next = now + evictCheck.Milliseconds()
		}
		if len(v.list) == 0 {
			return false
		}
	}
}

func (v *evictors) of(cluster string, own bool) *evictor {
	if !own {
		return &v.all
	}
	one := v.own[cluster]
	if one == nil {
		if v.own == nil || len(v.own) >= maxEvictors {
			v.own = map[string]*evictor{}
		}
		one = &evictor{}
		v.own[cluster] = one
	}
	return one
}

// forget forgets a node unless it has given a sign of life or is gone already.
func (s *Store) forget(c candidate, now int64) bool {
	sh := s.shard(c.e.key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.nodes[c.e.key] != c.e || !s.missing(c.seen, now) || !c.e.retire(c.seen) {
		return false
	}
	delete(sh.nodes, c.e.key)
	s.bytes.Give(c.e.key.Cluster, c.e.size)
	return true
}

func (s *Store) missingLongest(cluster string, own bool, now int64) []candidate {
	var list []candidate
	for _, e := range s.index.get().all {
		if own && e.key.Cluster != cluster {
			continue
		}
		// Of a node that is just being made nothing was seen yet.
		if seen := e.seen.Load(); seen != 0 && s.missing(seen, now) && !e.gone.Load() {
			list = append(list, candidate{e, seen})
		}
	}
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.seen, b.seen), a.e.key.Compare(b.e.key))
	})
	// A copy, which does not hold the others.
	return slices.Clone(list[:min(len(list), maxCandidates)])
}
