// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

import (
	"encoding/binary"
	"strings"
	"sync"
	"sync/atomic"
)

// The bounds of what nodes share of names. A metric beyond them has no name; an
// attribute beyond them is kept by each node that has it.
const (
	maxMetrics      = 1 << 14
	maxSharedPairs  = 1 << 14
	maxSharedKeys   = 1 << 10
	maxValuesPerKey = 64

	// maxNodeNames is how many of each one node may be the first to report.
	maxNodeNames = 1 << 10
	// newcomersShare: nor may it have more than one in so many of what the others
	// leave, so that endless names of some leave room for the next.
	newcomersShare = 8
)

// dictionary holds the names that nodes have in common: metrics, and those
// attributes whose key has few values. A name is looked up with the lock held of
// the node that is to have it, and what no node has any more is found by going
// through them all, see sweep.
type dictionary struct {
	mu      sync.RWMutex
	sweeps  uint32
	metrics numbered[Metric]
	pairs   numbered[Attr]
	keys    map[string]*sharedKey
	refused atomic.Bool // a metric had no room since the last sweep
}

// sharedKey is an attribute's key, the node that brought it, and its pairs.
type sharedKey struct {
	by    NodeKey
	pairs []uint16
}

// brought is how many names are there because of a node.
type brought struct{ metrics, pairs, keys uint16 }

func newDictionary() *dictionary {
	return &dictionary{
		metrics: numbered[Metric]{ids: map[Metric]uint16{}},
		pairs:   numbered[Attr]{ids: map[Attr]uint16{}},
		keys:    map[string]*sharedKey{},
	}
}

// numbered gives names numbers from 1 on, and those of what was freed again.
type numbered[K comparable] struct {
	ids   map[K]uint16
	slots []slot[K] // by number-1
	free  []uint16
}

type slot[K comparable] struct {
	name   K
	by     NodeKey // that brought it
	used   bool
	lookup atomic.Uint32 // dictionary.sweeps when it was last asked for
}

// get returns the number of a name, 0 for none.
func (s *numbered[K]) get(name K, sweeps uint32) uint16 {
	id := s.ids[name]
	if id != 0 {
		if at := &s.slots[id-1].lookup; at.Load() != sweeps {
			at.Store(sweeps)
		}
	}
	return id
}

func (s *numbered[K]) add(name K, by NodeKey, sweeps uint32) uint16 {
	var id uint16
	if last := len(s.free) - 1; last >= 0 {
		id, s.free = s.free[last], s.free[:last]
	} else {
		s.slots = append(s.slots, slot[K]{})
		id = uint16(len(s.slots))
	}
	at := &s.slots[id-1]
	at.name, at.by, at.used = name, by, true
	at.lookup.Store(sweeps)
	s.ids[name] = id
	return id
}

// room reports whether a node that brought so many may bring one more.
func room(held uint16, used, most int) bool {
	share := (most - used + newcomersShare - 1) / newcomersShare
	return int(held) < min(share, maxNodeNames)
}

// metric returns the number of a metric that n has, 0 when there is no room.
func (d *dictionary) metric(m *Metric, n *node) uint16 {
	d.mu.RLock()
	id := d.metrics.get(*m, d.sweeps)
	full := !room(n.brought.metrics, len(d.metrics.ids), maxMetrics)
	d.mu.RUnlock()
	if id != 0 {
		return id
	}
	if full {
		d.refused.Store(true)
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if id := d.metrics.get(*m, d.sweeps); id != 0 {
		return id
	}
	if len(d.metrics.ids) == maxMetrics {
		d.refused.Store(true)
		return 0
	}
	own := *m
	for _, s := range [...]*string{&own.ScopeName, &own.ScopeVersion, &own.Name, &own.Unit, &own.Description} {
		*s = strings.Clone(*s)
	}
	n.brought.metrics++
	return d.metrics.add(own, n.key, d.sweeps)
}

// pair returns the number of an attribute that n has, or false when it is not
// shared.
func (d *dictionary) pair(a *Attr, n *node) (uint16, bool) {
	d.mu.RLock()
	id := d.pairs.get(*a, d.sweeps)
	full := id == 0 && !d.pairRoom(a.Key, n)
	d.mu.RUnlock()
	if id != 0 || full {
		return id, id != 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if id := d.pairs.get(*a, d.sweeps); id != 0 {
		return id, true
	}
	if !d.pairRoom(a.Key, n) {
		return 0, false
	}
	own := *a
	own.Key, own.Text = strings.Clone(a.Key), strings.Clone(a.Text)
	key := d.keys[own.Key]
	if key == nil {
		key = &sharedKey{by: n.key}
		d.keys[own.Key] = key
		n.brought.keys++
	}
	id = d.pairs.add(own, n.key, d.sweeps)
	key.pairs = append(key.pairs, id)
	n.brought.pairs++
	return id, true
}

// pairRoom reports whether n may add a value to a key: of one key's values, up
// to half of what the others leave.
func (d *dictionary) pairRoom(name string, n *node) bool {
	if !room(n.brought.pairs, len(d.pairs.ids), maxSharedPairs) {
		return false
	}
	key := d.keys[name]
	if key == nil {
		return room(n.brought.keys, len(d.keys), maxSharedKeys)
	}
	own := 0
	for _, id := range key.pairs {
		if d.pairs.slots[id-1].by == n.key {
			own++
		}
	}
	others := len(key.pairs) - own
	return own < (maxValuesPerKey-others+1)/2
}

// attributes appends the attributes of a set.
func (d *dictionary) attributes(to []Attr, n *names, set uint16) []Attr {
	if set == 0 {
		return to
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	refs := setBytes(n.bytes[n.sets[set-1]:])[1:]
	for ; len(refs) > 0; refs = refs[2:] {
		ref := binary.LittleEndian.Uint16(refs)
		if ref&localPair == 0 {
			to = append(to, d.pairs.slots[ref-1].name)
			continue
		}
		to = append(to, decodePair(pairBytes(n.bytes[n.pairs[ref&^localPair]:])))
	}
	return to
}

func (d *dictionary) describe(id uint16) Metric {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.metrics.slots[id-1].name
}

// marks are the names that the nodes gone through so far have.
type marks struct{ metrics, pairs [maxMetrics + 1]bool }

// sweep begins to look for the names that no node has: mark each node, and then
// free the rest.
func (d *dictionary) sweep() *marks {
	d.mu.Lock()
	d.sweeps++
	d.mu.Unlock()
	return new(marks)
}

// mark takes note of the names of a node, whose lock is held.
func (m *marks) mark(n *node) {
	for i := range n.entries {
		m.metrics[n.entries[i].metric] = true
	}
	for _, at := range n.names.sets {
		for refs := setBytes(n.names.bytes[at:])[1:]; len(refs) > 0; refs = refs[2:] {
			if ref := binary.LittleEndian.Uint16(refs); ref&localPair == 0 {
				m.pairs[ref] = true
			}
		}
	}
}

// freed is what became free of each node's names.
type freed map[NodeKey]brought

// release frees what was neither marked nor looked up since sweep: a node gone
// through before may have it by now.
func (d *dictionary) release(m *marks) freed {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := freed{}
	count := func(by NodeKey, b brought) {
		sum := out[by]
		out[by] = brought{sum.metrics + b.metrics, sum.pairs + b.pairs, sum.keys + b.keys}
	}
	for _, by := range d.metrics.release(&m.metrics, d.sweeps) {
		count(by, brought{metrics: 1})
	}
	for _, by := range d.pairs.release(&m.pairs, d.sweeps) {
		count(by, brought{pairs: 1})
	}
	for name, key := range d.keys {
		kept := key.pairs[:0]
		for _, id := range key.pairs {
			if d.pairs.slots[id-1].used {
				kept = append(kept, id)
			}
		}
		if key.pairs = kept; len(kept) == 0 {
			delete(d.keys, name)
			count(key.by, brought{keys: 1})
		}
	}
	return out
}

func (s *numbered[K]) release(marked *[maxMetrics + 1]bool, sweeps uint32) (by []NodeKey) {
	for i := range s.slots {
		at := &s.slots[i]
		if id := uint16(i + 1); at.used && !marked[id] && at.lookup.Load() != sweeps {
			var none K
			delete(s.ids, at.name)
			at.name, at.used = none, false
			s.free = append(s.free, id)
			by = append(by, at.by)
		}
	}
	return by
}

// without is what is left when some names were freed; fewer than that are here
// of a node that was forgotten and came back.
func (b brought) without(f brought) brought {
	return brought{
		metrics: b.metrics - min(b.metrics, f.metrics),
		pairs:   b.pairs - min(b.pairs, f.pairs),
		keys:    b.keys - min(b.keys, f.keys),
	}
}
