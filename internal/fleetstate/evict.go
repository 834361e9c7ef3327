// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// maxCandidates bounds what one look through all nodes remembers.
const maxCandidates = 1024

// evictCheck is how often all nodes are looked through while none is missing:
// a flood of new names must not cost a look each.
const evictCheck = time.Second

// evictor finds the node that has been missing longest.
type evictor struct {
	mu   sync.Mutex
	next int64       // Unix milliseconds of the next look
	list []candidate // the one that has been silent longest first
}

type candidate struct {
	e    *entry
	seen int64
}

// reserve makes room for one node, if need be in place of the one that has
// been missing longest. No shard is locked.
func (s *Store) reserve(now time.Time) bool {
	if s.nodes.Add(1) <= int64(s.cfg.MaxNodes) {
		return true
	}
	if s.evict(now.UnixMilli()) {
		// The new node is counted in place of the former.
		s.nodes.Add(-1)
		return true
	}
	s.nodes.Add(-1)
	s.drop(DropMaxNodes)
	return false
}

// evict forgets the node that has been missing longest, and returns false when
// none is.
func (s *Store) evict(now int64) bool {
	v := &s.evictor
	v.mu.Lock()
	defer v.mu.Unlock()
	for {
		for len(v.list) > 0 {
			c := v.list[0]
			v.list[0] = candidate{} // lets go of the view
			v.list = v.list[1:]
			if s.forget(c, now) {
				s.index.stale()
				s.drop(DropEvicted)
				return true
			}
		}
		if now < v.next {
			return false
		}
		if v.list = s.missingLongest(now); len(v.list) < maxCandidates {
			v.next = now + evictCheck.Milliseconds()
		}
		if len(v.list) == 0 {
			return false
		}
	}
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
	return true
}

func (s *Store) missingLongest(now int64) []candidate {
	var list []candidate
	rows := s.index.get()
	for i := range rows.all {
		r := &rows.all[i]
		// Of a node that is just being made nothing was seen yet.
		if seen := r.live.seen.Load(); seen != 0 && s.missing(seen, now) && !r.live.gone() {
			list = append(list, candidate{r.e, seen})
		}
	}
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.seen, b.seen), a.e.key.Compare(b.e.key))
	})
	// A copy, which does not hold the others.
	return slices.Clone(list[:min(len(list), maxCandidates)])
}
