// SPDX-License-Identifier: Apache-2.0

// Package lastvalue remembers the last value of each series of each node, so that a full
// report can be reduced to what the next hop does not have.
//
// A series has one value and one dirty bit. The rule that everything here keeps: what the
// table holds as clean is what the next hop has. A report writes what differs and makes it
// dirty. A message has dirty series, and makes them clean once the next hop has accepted
// it. Whatever is in doubt stays dirty, and goes with another message.
//
// A series is known by 64 bits of hash within its node, a node by 128 bits of
// SHA-256. Among n series of a node two share their bits with a chance of
// n^2/2^65: 3e-15 for 320 series, 1e-10 for ten million series on nodes of 320,
// 1e-10 for one node with MaxNodeSeries. Report.Observe notices those that come
// in one report, and then both go on always.
//
// Time is a duration since any fixed moment and is passed in; it should be
// monotonic.
package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"iter"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
)

// shardCount spreads the nodes over locks; a power of two, well above the
// number of cores, so that two nodes seldom meet.
const shardCount = 64

// MaxNodeSeries is the most series that a node can have: positions are kept in
// 16 bits, with one value for "none".
const MaxNodeSeries = 1<<16 - 2

// Settings bound a Table and set its periods.
type Settings struct {
	// MaxNodes, MaxSeries and MaxBytes bound what is remembered. Without MaxBytes the
	// memory is not counted. Points over a bound are counted.
	MaxNodes  int
	MaxSeries int
	MaxBytes  int
	// DropOver has points over a bound dropped. Otherwise they go on without being
	// remembered. Known series stay.
	DropOver bool
	// MaxSeriesPerNode bounds a single node, so that one with endless attribute
	// values leaves room for the others. Zero means MaxNodeSeries, the most there
	// can be.
	MaxSeriesPerNode int
	// ClusterShare in (0,1] is the part of nodes, series and bytes that the other
	// clusters leave which one may hold where another wants room; 0 means all. Nodes that
	// name none are one cluster.
	ClusterShare float64
	// TTL is how long a node, or a series of a living node, is remembered
	// after its last report. Zero means for ever.
	TTL time.Duration
	// ResyncInterval is the period after which all series of a node are sent
	// again. Zero means never.
	ResyncInterval time.Duration
	// OpaqueInterval is ResyncInterval, where that is longer, for series that a
	// tier after this one cannot send again: those of KindHash and those without a
	// name. Zero means the same.
	OpaqueInterval time.Duration
	// VanishedAfter is how long a node goes on reporting without a series until
	// that is declared gone; up to TTL/16 more. Zero means never, and so does a zero TTL.
	VanishedAfter time.Duration
	// HeartbeatInterval is the least time between two heartbeats of a node.
	// Zero means one with each report.
	HeartbeatInterval time.Duration
	// Collect has named numbers wait in the table for Pending, instead of going on with
	// their report.
	Collect bool
	// Watch has reports go on as they are: the table remembers what they say, and nothing
	// is sent from it.
	Watch bool
	// Bands say by a metric's name how far the next hop's value may be from the true one.
	// The first that matches counts.
	Bands []Band
	// OnClock, unless nil, is told of each node whose clock is found to be wrong, or right
	// again.
	OnClock func(*Clock)
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
	// Untracked counts points that went on without being remembered, for want of room.
	Untracked int64
	// Unnamed counts new series that have no name in the table: they are compared, but can
	// be neither read nor declared gone.
	Unnamed int64
	// Resyncs counts the times that a node's series were all made dirty.
	Resyncs int64
	// Repeated counts points that were made of what is known here and accepted.
	Repeated int64
	// EvictedNodes counts nodes forgotten because of TTL, or to make room.
	EvictedNodes int64
}

// Table is the state of all nodes. It is safe for concurrent use.
type Table struct {
	set      Settings
	shards   [shardCount]shard
	reports  sync.Pool
	lastID   atomic.Uint64
	epoch    atomic.Uint64 // of the next hop, see Resync
	metrics  metrics
	requests requests

	// places, room and bytes are what each cluster, by hash, holds of nodes, series and
	// memory.
	places, room, bytes *fairshare.Ledger[uint64]
	pressure            pressure

	vanishedTicks uint64
	sweeping      sync.Mutex

	nodes, series, stale, untracked, unnamed, resyncs, repeated, evicted atomic.Int64
}

type shard struct {
	mu    sync.RWMutex
	nodes map[NodeKey]*node
}

// New returns an empty table.
func New(set Settings) *Table {
	set.MaxSeries = min(set.MaxSeries, math.MaxInt32-1)
	if set.MaxSeriesPerNode <= 0 || set.MaxSeriesPerNode > MaxNodeSeries {
		set.MaxSeriesPerNode = MaxNodeSeries
	}
	set.Collect = set.Collect || set.Watch
	if set.MaxBytes <= 0 {
		set.MaxBytes = unbounded
	}
	t := &Table{
		set:    set,
		places: fairshare.NewLending[uint64](set.MaxNodes, set.ClusterShare, time.Now),
		room:   fairshare.NewLending[uint64](set.MaxSeries, set.ClusterShare, time.Now),
		bytes:  fairshare.NewLending[uint64](set.MaxBytes, set.ClusterShare, time.Now),
	}
	t.metrics.init(t.bytes, set.Bands)
	if set.VanishedAfter > 0 && set.TTL > 0 {
		t.vanishedTicks = t.ticks(set.VanishedAfter-1) + 1
	}
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
		Unnamed:      t.unnamed.Load(),
		Resyncs:      t.resyncs.Load(),
		Repeated:     t.repeated.Load(),
		EvictedNodes: t.evicted.Load(),
	}
}

// Max is a bound of the table.
func (t *Table) Max(l Limit) int64 {
	switch l {
	case LimitNodes:
		return int64(t.set.MaxNodes)
	case LimitSeries:
		return int64(t.set.MaxSeries)
	case LimitNodeSeries:
		return int64(t.set.MaxSeriesPerNode)
	case LimitBytes:
	}
	return int64(t.set.MaxBytes)
}

// Bytes is the memory that the table takes.
func (t *Table) Bytes() int64 { return int64(t.bytes.Taken()) }

// Counts returns how many nodes reported within their last few usual intervals, unlike
// Stats.Nodes without those that report elsewhere by now, and how many wait for Pending.
// It takes each node's lock once.
func (t *Table) Counts(now time.Duration) (reporting, pending int64) {
	for n := range t.all() {
		n.mu.Lock()
		if !n.silent(now, onceReported) {
			reporting++
		}
		if n.pending && !t.set.Watch {
			pending++
		}
		n.mu.Unlock()
	}
	return reporting, pending
}

// Sweep forgets the nodes and series that were not reported for TTL, and makes room for
// clusters that found none. Call it a few times per TTL. It holds one node's lock at a time.
func (t *Table) Sweep(now time.Duration) {
	if t.set.TTL <= 0 {
		return
	}
	t.sweeping.Lock()
	defer t.sweeping.Unlock()
	tick := uint16(t.ticks(now)) & heardMask
	wanted := t.pressure.take(t)
	for n := range t.all() {
		n.mu.Lock()
		// A message knows the places of its series.
		if n.evicted || n.messages > 0 {
			n.mu.Unlock()
			continue
		}
		if now-n.heard >= t.set.TTL || wanted.leaves(t, n, now) {
			t.evict(n)
		} else {
			t.compact(n, now, tick)
		}
		n.mu.Unlock()
	}
}

// compact drops the node's series that ended or were silent for long.
func (t *Table) compact(n *node, now time.Duration, tick uint16) {
	most := n.most(now, t.set.TTL)
	// The next hop may remember a series for longer, so it is told of its end first.
	if dropped := n.compact(tick, most, t.vanishedTicks > 0 && most == ticksPerTTL); dropped > 0 {
		t.series.Add(-int64(dropped))
		t.room.Give(n.cluster, dropped)
		t.rebuildNames(n)
	}
	n.markPending()
	t.recount(n)
}

// evict forgets a node, whose lock is held.
func (t *Table) evict(n *node) {
	n.evicted = true
	s := &t.shards[n.key.Lo%shardCount]
	s.mu.Lock()
	delete(s.nodes, n.key)
	s.mu.Unlock()
	t.releaseNames(n)
	t.nodes.Add(-1)
	t.series.Add(-int64(len(n.entries)))
	t.places.Give(n.cluster, 1)
	t.room.Give(n.cluster, len(n.entries))
	t.bytes.Give(n.cluster, n.bytes)
	t.evicted.Add(1)
}

// Resync makes series dirty because the next hop does not have them: those of the nodes of
// a name, or of all nodes when it is empty. A node's series are dirty when it reports next.
// A message under way will not make them clean.
func (t *Table) Resync(name string) {
	if name == "" || !t.requests.add(HashString(name), t.epoch.Load()) {
		t.epoch.Add(1)
	}
}

// Epoch is how often Resync was called for all nodes.
func (t *Table) Epoch() uint64 { return t.epoch.Load() + t.requests.count.Load() }

// maxRequests bounds the names that Resync remembers.
const maxRequests = 1024

// requests are the names of nodes whose state the next hop asked for, by hash, each with
// the number of the request. They are of one epoch: the next epoch makes all series dirty.
type requests struct {
	count atomic.Uint64
	mu    sync.Mutex
	epoch uint64
	names map[uint64]uint64
}

// add reports whether there is room for the name.
func (r *requests) add(name, epoch uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.names == nil || r.epoch != epoch {
		r.names, r.epoch = map[uint64]uint64{}, epoch
	}
	if _, known := r.names[name]; !known && len(r.names) >= maxRequests {
		return false
	}
	r.names[name] = r.count.Add(1)
	return true
}

// of returns the number of the last request for a name, 0 for none.
func (r *requests) of(name uint64) uint64 {
	if r.count.Load() == 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names[name]
}

func (t *Table) lookup(key NodeKey) *node {
	s := &t.shards[key.Lo%shardCount]
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.nodes[key]
}

// open returns the node with its lock held, or nil where the table has none.
func (t *Table) open(key NodeKey) *node {
	n := t.lookup(key)
	if n == nil {
		return nil
	}
	n.mu.Lock()
	if n.evicted {
		n.mu.Unlock()
		return nil
	}
	return n
}

// add makes a node with its lock held, or reports that a limit leaves no room for it. It
// returns none where another goroutine has made it meanwhile.
func (t *Table) add(key NodeKey, attrs []Attr, all bool, now time.Duration) (n *node, over Limit, full bool) {
	names := Identify(attrs)
	n = &node{
		key: key, heard: now, since: now, epoch: t.epoch.Load(), requests: t.requests.count.Load(),
		cluster: hashCluster(&names), label: HashString(names.Node()), bytes: nodeBytes + nameSize(nil, attrs),
	}
	if !t.places.TakeAll(n.cluster, 1) {
		return nil, t.pressure.on(LimitNodes, n.cluster), true
	}
	if !t.bytes.TakeAll(n.cluster, n.bytes) {
		t.places.Give(n.cluster, 1)
		return nil, t.pressure.on(LimitBytes, n.cluster), true
	}
	if t.set.ResyncInterval > 0 {
		n.resyncAt = now + 1 + time.Duration(t.set.Rand(int64(t.set.ResyncInterval)))
	}
	if t.set.OpaqueInterval > 0 {
		n.opaqueAt = now + 1 + time.Duration(t.set.Rand(int64(t.set.OpaqueInterval)))
	}
	n.mu.Lock()
	s := &t.shards[key.Lo%shardCount]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[key] != nil {
		t.places.Give(n.cluster, 1)
		t.bytes.Give(n.cluster, n.bytes)
		return nil, 0, false
	}
	s.nodes[key] = n
	t.nodes.Add(1)
	t.describe(n, attrs)
	n.inline = !t.set.Collect || !all || n.without > 0
	t.recount(n)
	return n, 0, false
}

// all yields the nodes, holding no lock meanwhile.
func (t *Table) all() iter.Seq[*node] {
	return func(yield func(*node) bool) {
		var batch []*node
		for i := range t.shards {
			s := &t.shards[i]
			batch = batch[:0]
			s.mu.RLock()
			for _, n := range s.nodes {
				batch = append(batch, n)
			}
			s.mu.RUnlock()
			for _, n := range batch {
				if !yield(n) {
					return
				}
			}
		}
	}
}

// ticks is the coarse clock of the series, which expire by it, see entry.heard.
func (t *Table) ticks(now time.Duration) uint64 {
	if t.set.TTL <= 0 {
		return 0
	}
	return uint64(now/t.set.TTL*ticksPerTTL + now%t.set.TTL*ticksPerTTL/t.set.TTL)
}
