// SPDX-License-Identifier: Apache-2.0

// Package statetable remembers the last value of each series that the next hop
// has accepted, so that a full report can be reduced to what changed.
//
// It works in two phases. Observe compares the points of a report with the
// table and says what has to be forwarded; Commit, called once the next hop has
// accepted, makes that the new state, and Abort, called when it has not, leaves
// those series unknown so that the next report carries them again. No lock is
// held between the two.
//
// The rule that everything here keeps: whatever the table holds as known is
// what the next hop holds. A series about which that is in doubt is unknown,
// and an unknown series is always forwarded.
//
// Time is a duration since any fixed moment and is passed in; it should be
// monotonic.
package statetable // import "github.com/gpu-collector/gpu-collector/internal/statetable"

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// shardCount spreads the nodes over locks; a power of two, well above the
// number of cores, so that two nodes seldom meet.
const shardCount = 64

// Settings bound a Table and set its periods.
type Settings struct {
	// MaxNodes and MaxSeries bound what is remembered. What goes over is
	// forwarded without being remembered, and counted.
	MaxNodes  int
	MaxSeries int
	// TTL is how long a node, or a series of a living node, is remembered
	// after it was last heard of. Zero means for ever.
	TTL time.Duration
	// ResyncInterval is the period after which all series of a node are sent
	// again. Zero means never.
	ResyncInterval time.Duration
	// HeartbeatInterval is the least time between two heartbeats of a node.
	// Zero means one with each report.
	HeartbeatInterval time.Duration
	// Rand returns a number in [0,n) for n > 0. It sets each node's resync
	// phase and is called by many goroutines at once.
	Rand func(n int64) int64
}

// Stats are totals since the table was made, except Nodes and Series, which
// are how many are remembered now.
type Stats struct {
	Nodes, Series int64
	// Stale counts points that were older than what is remembered.
	Stale int64
	// Untracked counts points that were forwarded without being remembered
	// because MaxNodes or MaxSeries was reached.
	Untracked int64
	// Resyncs counts the times that a node's series were all sent again.
	Resyncs int64
	// EvictedNodes counts nodes forgotten because of TTL.
	EvictedNodes int64
}

// Table is the state of all nodes. It is safe for concurrent use.
type Table struct {
	set     Settings
	shards  [shardCount]shard
	reports sync.Pool
	lastID  atomic.Uint64

	nodes, series, stale, untracked, resyncs, evicted atomic.Int64
}

type shard struct {
	mu    sync.RWMutex
	nodes map[NodeKey]*node
}

// New returns an empty table.
func New(set Settings) *Table {
	// Positions are kept in 32 bits, with one value to spare for "none".
	set.MaxSeries = min(set.MaxSeries, math.MaxInt32-1)
	t := &Table{set: set}
	for i := range t.shards {
		t.shards[i].nodes = make(map[NodeKey]*node)
	}
	t.reports.New = func() any { return &Report{table: t} }
	return t
}

// Stats returns the table's figures; each is exact, together they are not one
// moment's.
func (t *Table) Stats() Stats {
	return Stats{
		Nodes:        t.nodes.Load(),
		Series:       t.series.Load(),
		Stale:        t.stale.Load(),
		Untracked:    t.untracked.Load(),
		Resyncs:      t.resyncs.Load(),
		EvictedNodes: t.evicted.Load(),
	}
}

// Sweep forgets the nodes and series that were not heard of for TTL. Call it a
// few times per TTL. It holds one node's lock at a time.
func (t *Table) Sweep(now time.Duration) {
	if t.set.TTL <= 0 {
		return
	}
	var (
		batch []*node
		tick  = t.tick(now)
	)
	for i := range t.shards {
		s := &t.shards[i]
		batch = batch[:0]
		s.mu.RLock()
		for _, n := range s.nodes {
			batch = append(batch, n)
		}
		s.mu.RUnlock()
		for _, n := range batch {
			n.mu.Lock()
			// A node with a report under way stays: its commit would go nowhere.
			expired := n.inflight == 0 && now-n.heard >= t.set.TTL
			if expired {
				n.evicted = true
				t.series.Add(-int64(len(n.entries)))
			} else {
				t.series.Add(-int64(n.compact(tick)))
			}
			n.mu.Unlock()
			if expired {
				t.remove(s, n)
			}
		}
	}
}

func (t *Table) remove(s *shard, n *node) {
	s.mu.Lock()
	// A report may have put a successor in its place already.
	if s.nodes[n.key] == n {
		delete(s.nodes, n.key)
	}
	s.mu.Unlock()
	t.nodes.Add(-1)
	t.evicted.Add(1)
}

// open returns the node with its lock held, made if need be, or nil when there
// is no room for it.
func (t *Table) open(key NodeKey, now time.Duration) *node {
	s := &t.shards[key.Lo%shardCount]
	for {
		s.mu.RLock()
		n := s.nodes[key]
		s.mu.RUnlock()
		if n == nil {
			if n = t.add(s, key, nil, now); n == nil {
				return nil
			}
		}
		n.mu.Lock()
		if !n.evicted {
			return n
		}
		n.mu.Unlock()
		if n = t.add(s, key, n, now); n == nil {
			return nil
		}
	}
}

// add puts a new node where old is; if another is there by now, it returns that.
func (t *Table) add(s *shard, key NodeKey, old *node, now time.Duration) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[key]; n != old {
		return n
	}
	if t.nodes.Add(1) > int64(t.set.MaxNodes) {
		t.nodes.Add(-1)
		return nil
	}
	n := &node{key: key, heard: now, heartbeatAt: now}
	if t.set.ResyncInterval > 0 {
		n.resyncAt = now + 1 + time.Duration(t.set.Rand(int64(t.set.ResyncInterval)))
	}
	s.nodes[key] = n
	return n
}

// reserve takes room for up to want series and returns how many there was room for.
func (t *Table) reserve(want int) int {
	if want == 0 {
		return 0
	}
	over := t.series.Add(int64(want)) - int64(t.set.MaxSeries)
	if over <= 0 {
		return want
	}
	over = min(over, int64(want))
	t.series.Add(-over)
	return want - int(over)
}

// tick is the coarse clock by which series expire, see entry.heard.
func (t *Table) tick(now time.Duration) uint16 {
	if t.set.TTL <= 0 {
		return 0
	}
	return uint16(now/max(t.set.TTL/ticksPerTTL, 1)) & heardMask
}
