// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

import (
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// The bounds of the names that nodes share; each cluster has its share of them. A metric
// beyond them has no name, unless the catalogue has it. Each node keeps its own copy of an
// attribute or set beyond them.
const (
	maxMetrics      = 1 << 14
	maxSharedPairs  = 1 << 14
	maxSharedSets   = 1 << 14
	maxSharedKeys   = 1 << 10
	maxValuesPerKey = 64

	// maxNodeNames is how many of each one node may be the first to report.
	maxNodeNames = 1 << 10
	// newcomersShare: nor may it have more than one in so many of what the others
	// leave, so that endless names of some leave room for the next.
	newcomersShare = 8
)

// dictionary holds the names that nodes have in common: metrics, those attributes
// whose key has few values, and sets of attributes. A set refers to attributes by
// number, so nodes that differ in the ids of their GPUs alone share it.
//
// A name is looked up with the lock held of the node that is to have it. A sweep goes
// through all nodes and frees the names that none has.
type dictionary struct {
	mu      sync.RWMutex
	sweeps  uint32
	metrics numbered[Metric]
	pairs   numbered[Attr]
	sets    numbered[string] // as setBytes has them
	keys    map[string]*sharedKey
	keyRoom *fairshare.Ledger[uint64] // by cluster, as the room of the others
	refused atomic.Bool               // a metric had no room since the last sweep
	// bytes are what each cluster holds: a name is of the cluster that brought it. The room
	// for a metric is reserved; without room, attributes and sets are the node's own.
	bytes *fairshare.Ledger[uint64]
	// releases counts the times that numbers became free.
	releases atomic.Uint32
}

// sharedKey is an attribute's key, the node that brought it, and its pairs.
type sharedKey struct {
	by      NodeKey
	cluster uint64 // that node's
	pairs   []uint16
}

// brought is how many names are there because of a node.
type brought struct{ metrics, pairs, keys, sets uint16 }

func newDictionary(bytes *fairshare.Ledger[uint64], clusterShare float64) *dictionary {
	return &dictionary{
		metrics: newNumbered(maxMetrics-catalogued, clusterShare, func(m Metric) int {
			return len(m.ScopeName) + len(m.ScopeVersion) + len(m.Name) + len(m.Unit) + len(m.Description)
		}),
		pairs:   newNumbered(maxSharedPairs, clusterShare, func(a Attr) int { return len(a.Key) + len(a.Text) }),
		sets:    newNumbered(maxSharedSets, clusterShare, func(s string) int { return len(s) }),
		keys:    map[string]*sharedKey{},
		keyRoom: fairshare.New[uint64](maxSharedKeys, clusterShare),
		bytes:   bytes,
	}
}

// numbered gives names numbers from 1 on, and those of what was freed again.
type numbered[K comparable] struct {
	ids   map[K]uint16
	most  int
	room  *fairshare.Ledger[uint64] // of those names, by cluster
	size  func(K) int               // of its text
	slots []slot[K]                 // by number-1
	free  []uint16
}

func newNumbered[K comparable](most int, clusterShare float64, size func(K) int) numbered[K] {
	return numbered[K]{ids: map[K]uint16{}, most: most, room: fairshare.New[uint64](most, clusterShare), size: size}
}

// roomFor reports whether a node that brought so many may bring one more.
func (s *numbered[K]) roomFor(n *node, brought uint16) bool {
	return room(brought, len(s.ids), s.most) && s.room.Room(n.cluster) > 0
}

type slot[K comparable] struct {
	name    K
	by      NodeKey // that brought it
	cluster uint64  // that node's
	used    bool
	lookup  atomic.Uint32 // dictionary.sweeps when it was last asked for
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

// add gives a name that n brings a number.
func (s *numbered[K]) add(d *dictionary, name K, n *node) uint16 {
	var id uint16
	if last := len(s.free) - 1; last >= 0 {
		id, s.free = s.free[last], s.free[:last]
	} else {
		s.slots = append(s.slots, slot[K]{})
		id = uint16(len(s.slots))
	}
	at := &s.slots[id-1]
	at.name, at.by, at.cluster, at.used = name, n.key, n.cluster, true
	at.lookup.Store(d.sweeps)
	s.ids[name] = id
	d.bytes.Hold(n.cluster, s.bytes(name))
	s.room.Hold(n.cluster, 1)
	return id
}

// bytes is what a name takes: it is in a slot and in the map.
func (s *numbered[K]) bytes(name K) int {
	return s.size(name) + int(unsafe.Sizeof(slot[K]{})+unsafe.Sizeof(name)) + slotBytes
}

// room reports whether a node that brought so many may bring one more.
func room(held uint16, used, most int) bool {
	share := (most - used + newcomersShare - 1) / newcomersShare
	return int(held) < min(share, maxNodeNames)
}

// catalogued is how many metrics of the catalogue there can be, by their types.
var catalogued = len(reading.All()) * 2 * (int(TypeSummary) + 1)

// metric returns the number of a metric that n has, 0 when there is no room. There is
// always some for the catalogue, or whoever is the first to make up names would hide
// everybody's series. Its metrics then have neither a scope nor their senders' words.
func (d *dictionary) metric(m *Metric, n *node) uint16 {
	id := share(d, &d.metrics, *m, n, &n.brought.metrics, func(own Metric) Metric {
		for _, s := range [...]*string{&own.ScopeName, &own.ScopeVersion, &own.Name, &own.Unit, &own.Description} {
			*s = strings.Clone(*s)
		}
		return own
	})
	if id != 0 {
		return id
	}
	known := reading.ByName(m.Name)
	if known == nil || known.Unit != m.Unit {
		d.refused.Store(true)
		return 0
	}
	own := Metric{Name: known.Name, Unit: known.Unit, Description: known.About, Type: m.Type, Monotonic: m.Monotonic}
	d.mu.Lock()
	defer d.mu.Unlock()
	if id = d.metrics.get(own, d.sweeps); id == 0 {
		n.brought.metrics++
		id = d.metrics.add(d, own, n)
	}
	return id
}

// set returns the number of a set that n has, 0 when it is not shared.
func (d *dictionary) set(refs string, n *node) uint16 {
	d.mu.RLock()
	id := d.sets.get(refs, d.sweeps)
	d.mu.RUnlock()
	if id != 0 || d.bytes.Room(n.cluster) < d.sets.bytes(refs) {
		return id
	}
	return share(d, &d.sets, refs, n, &n.brought.sets, strings.Clone)
}

// share returns the number of a name that n has, 0 when there is no room. Own makes
// the dictionary's copy.
func share[K comparable](d *dictionary, all *numbered[K], name K, n *node, brought *uint16, own func(K) K) uint16 {
	d.mu.RLock()
	id := all.get(name, d.sweeps)
	full := id == 0 && !all.roomFor(n, *brought)
	d.mu.RUnlock()
	if id != 0 || full {
		return id
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if id := all.get(name, d.sweeps); id != 0 || !all.roomFor(n, *brought) {
		return id
	}
	*brought++
	return all.add(d, own(name), n)
}

// pair returns the number of an attribute that n has, or false when it is not
// shared.
func (d *dictionary) pair(a *Attr, n *node) (uint16, bool) {
	d.mu.RLock()
	id := d.pairs.get(*a, d.sweeps)
	full := id == 0 && (!d.pairRoom(a.Key, n) || d.bytes.Room(n.cluster) < d.pairs.bytes(*a))
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
		key = &sharedKey{by: n.key, cluster: n.cluster}
		d.keys[own.Key] = key
		d.keyRoom.Hold(n.cluster, 1)
		n.brought.keys++
	}
	id = d.pairs.add(d, own, n)
	key.pairs = append(key.pairs, id)
	n.brought.pairs++
	return id, true
}

// pairRoom reports whether n may add a value to a key: of one key's values, up
// to half of what the others leave.
func (d *dictionary) pairRoom(name string, n *node) bool {
	if !d.pairs.roomFor(n, n.brought.pairs) {
		return false
	}
	key := d.keys[name]
	if key == nil {
		return room(n.brought.keys, len(d.keys), maxSharedKeys) && d.keyRoom.Room(n.cluster) > 0
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
	for refs := d.refs(n, set)[1:]; len(refs) > 0; refs = refs[2:] {
		ref := refAt(refs)
		if ref&local == 0 {
			to = append(to, d.pairs.slots[ref-1].name)
			continue
		}
		to = append(to, decodePair(pairBytes(n.bytes[n.pairs[ref&^local]:])))
	}
	return to
}

// refs returns the set that a node's series refers to for its attributes.
func (d *dictionary) refs(n *names, set uint16) string {
	if set&local == 0 {
		return d.sets.slots[set-1].name
	}
	return string(setBytes(n.bytes[n.sets[set&^local]:]))
}

func refAt(refs string) uint16 { return uint16(refs[0]) | uint16(refs[1])<<8 }

func (d *dictionary) describe(id uint16) Metric {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.metrics.slots[id-1].name
}

// marks are the names that the nodes gone through so far have.
type marks struct{ metrics, pairs, sets [maxMetrics + 1]bool }

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
		m.set(n.entries[i].attrs)
	}
	m.set(n.attrs)
	for _, at := range n.names.sets {
		m.refs(string(setBytes(n.names.bytes[at:])))
	}
}

func (m *marks) set(number uint16) {
	if number&local == 0 {
		m.sets[number] = true
	}
}

func (m *marks) refs(set string) {
	for refs := set[1:]; len(refs) > 0; refs = refs[2:] {
		if ref := refAt(refs); ref&local == 0 {
			m.pairs[ref] = true
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
	d.releases.Add(1)
	out := freed{}
	count := func(by NodeKey, b brought) {
		sum := out[by]
		out[by] = brought{sum.metrics + b.metrics, sum.pairs + b.pairs, sum.keys + b.keys, sum.sets + b.sets}
	}
	for _, by := range d.metrics.release(d, &m.metrics) {
		count(by, brought{metrics: 1})
	}
	for _, by := range d.sets.release(d, &m.sets) {
		count(by, brought{sets: 1})
	}
	for set := range d.sets.ids {
		m.refs(set)
	}
	for _, by := range d.pairs.release(d, &m.pairs) {
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
			d.keyRoom.Give(key.cluster, 1)
			count(key.by, brought{keys: 1})
		}
	}
	return out
}

func (s *numbered[K]) release(d *dictionary, marked *[maxMetrics + 1]bool) (by []NodeKey) {
	for i := range s.slots {
		at := &s.slots[i]
		if id := uint16(i + 1); at.used && !marked[id] && at.lookup.Load() != d.sweeps {
			var none K
			d.bytes.Give(at.cluster, s.bytes(at.name))
			s.room.Give(at.cluster, 1)
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
		sets:    b.sets - min(b.sets, f.sets),
	}
}
