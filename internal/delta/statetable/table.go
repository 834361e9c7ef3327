// SPDX-License-Identifier: Apache-2.0

// Package statetable remembers the last value of each series that the next hop
// has accepted, so that a full report can be reduced to what changed.
//
// It works in two phases. Observe compares the points of a report with the table and
// says what has to be forwarded. Commit makes that the new state, once the next hop has
// accepted. Abort, when it has not, leaves those series unknown, so that the next report
// carries them again. No lock is held between the two.
//
// The rule that everything here keeps: whatever the table holds as known is
// what the next hop holds. A series about which that is in doubt is unknown,
// and an unknown series is always forwarded.
//
// A series is known by 64 bits of hash within its node, a node by 128 bits of
// SHA-256. Among n series of a node two share their bits with a chance of
// n^2/2^65: 3e-15 for 320 series, 1e-10 for ten million series on nodes of 320,
// 1e-10 for one node with MaxNodeSeries. Report.Observe notices those that come
// in one report, and then forwards both always.
//
// Time is a duration since any fixed moment and is passed in; it should be
// monotonic.
package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

import (
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
	// memory is not counted. Points over a bound are forwarded without being remembered,
	// and counted.
	MaxNodes  int
	MaxSeries int
	MaxBytes  int
	// DropOver has points over a bound dropped: see Over. Known series stay.
	DropOver bool
	// MaxSeriesPerNode bounds a single node, so that one with endless attribute
	// values leaves room for the others. Zero means MaxNodeSeries, the most there
	// can be.
	MaxSeriesPerNode int
	// ClusterShare in (0,1] is the part of nodes, series and bytes that the other
	// clusters leave which one may hold; 0 means all. Nodes that name none are one.
	ClusterShare float64
	// TTL is how long a node, or a series of a living node, is remembered
	// after it was last heard of. Zero means for ever.
	TTL time.Duration
	// ResyncInterval is the period after which all series of a node are sent
	// again. Zero means never.
	ResyncInterval time.Duration
	// OpaqueInterval is ResyncInterval, where that is longer, for series that a
	// tier after this one cannot repeat: those of KindHash and those without a
	// name. Zero means the same.
	OpaqueInterval time.Duration
	// VanishedAfter is how long a node goes on reporting without a series until
	// that is declared gone, see Report.Vanished; up to TTL/16 more. Zero means
	// never, and so does a zero TTL.
	VanishedAfter time.Duration
	// HeartbeatInterval is the least time between two heartbeats of a node.
	// Zero means one with each report.
	HeartbeatInterval time.Duration
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
	// Untracked counts points that were forwarded without being remembered
	// because MaxNodes, MaxSeries or MaxSeriesPerNode was reached.
	Untracked int64
	// Unnamed counts new series for whose names there was no room: they are
	// compared, but can be neither read nor declared gone.
	Unnamed int64
	// Resyncs counts the times that a node's series were all made due again.
	Resyncs int64
	// Repeated counts points that were made of what is known here and accepted,
	// Unrepeatable those that could not be made, see Report.Repeated.
	Repeated, Unrepeatable int64
	// EvictedNodes counts nodes forgotten because of TTL, or to make room, see Pressed.
	EvictedNodes int64
}

// Table is the state of all nodes. It is safe for concurrent use.
type Table struct {
	set     Settings
	shards  [shardCount]shard
	reports sync.Pool
	lastID  atomic.Uint64
	epoch   atomic.Uint64 // of the next hop, see Resync
	losses  atomic.Uint64 // calls of Resync
	dict    *dictionary

	// places, room and bytes are what each cluster, by hash, holds of nodes, series and
	// memory. Room and bytes include what reports under way have reserved.
	places, room, bytes *fairshare.Ledger[uint64]

	vanishedTicks uint64

	sweeping sync.Mutex
	pressed  atomic.Bool // see Pressed
	rename   bool        // see forgetNames

	nodes, series, stale, untracked, unnamed, resyncs, repeated, unrepeatable, evicted atomic.Int64
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
	if set.MaxBytes <= 0 {
		set.MaxBytes = unbounded
	}
	bytes := fairshare.New[uint64](set.MaxBytes, set.ClusterShare)
	t := &Table{
		set: set, dict: newDictionary(bytes, set.ClusterShare),
		places: fairshare.New[uint64](set.MaxNodes, set.ClusterShare),
		room:   fairshare.New[uint64](set.MaxSeries, set.ClusterShare),
		bytes:  bytes,
	}
	if set.VanishedAfter > 0 && set.TTL > 0 {
		t.vanishedTicks = t.ticks(set.VanishedAfter-1) + 1
	}
	for i := range t.shards {
		t.shards[i].nodes = make(map[NodeKey]*node)
	}
	t.reports.New = func() any { return &Report{table: t, namer: namer{dict: t.dict}} }
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
		Unrepeatable: t.unrepeatable.Load(),
		EvictedNodes: t.evicted.Load(),
	}
}

// A node may be silent for fewReports of its usual intervals and still count as
// reporting. A node that has reported once may be silent for onceReported, the interval
// of the slowest usual source.
const (
	fewReports   = 3
	onceReported = time.Minute
)

// Bytes is the memory that the table takes, with what reports under way have reserved.
func (t *Table) Bytes() int64 { return int64(t.bytes.Taken()) }

// Reporting returns how many of the nodes were heard of within their last few
// usual intervals: unlike Stats.Nodes without those that went elsewhere, but for
// that time. It takes each node's lock once.
func (t *Table) Reporting(now time.Duration) int64 {
	var count int64
	for n := range t.all() {
		n.mu.Lock()
		if n.reports(now) {
			count++
		}
		n.mu.Unlock()
	}
	return count
}

// Sweep forgets the nodes and series that were not heard of for TTL, and the
// names that none has any more. Call it a few times per TTL. It holds one node's
// lock at a time.
func (t *Table) Sweep(now time.Duration) {
	if t.set.TTL <= 0 {
		return
	}
	t.sweeping.Lock()
	defer t.sweeping.Unlock()
	pressed := t.pressed.Swap(false)
	tick := uint16(t.ticks(now)) & heardMask
	namer := namer{dict: t.dict}
	names := t.dict.sweep()
	for n := range t.all() {
		n.mu.Lock()
		if n.evicted { // by the report that made it, since this sweep began
			n.mu.Unlock()
			continue
		}
		// A node with a report under way stays as it is: the report knows its place
		// and those of its series.
		idle := n.inflight == 0
		expired := idle && (now-n.heard >= t.set.TTL || pressed && n.left(now))
		switch {
		case expired:
			n.evicted = true
			t.vacate(n, len(n.entries))
		case !idle:
			names.mark(n)
		default:
			most := n.most(now, t.set.TTL)
			tell := t.vanishedTicks > 0 && most == ticksPerTTL
			if dropped := n.compact(tick, most, tell, t.rename); dropped > 0 {
				t.vacate(n, dropped)
				namer.rebuild(n)
			}
			names.mark(n)
			if n.starts.full && !n.relayed {
				n.pruneStarts()
			}
			t.recount(n)
		}
		n.mu.Unlock()
		if expired {
			t.remove(n)
			t.evicted.Add(1)
		}
	}
	t.forgetNames(names)
}

// Pressed reports whether something found no room since the last Sweep. The next Sweep
// forgets nodes that do not report any more, before their TTL.
func (t *Table) Pressed() bool { return t.pressed.Load() }

func (t *Table) press() {
	if !t.pressed.Load() {
		t.pressed.Store(true)
	}
}

// forgetNames frees the names that the sweep has not marked. Where names had found no
// room and there is some now, the next sweep forgets the series without a name: they
// are new with their next report, and get one.
func (t *Table) forgetNames(names *marks) {
	freed := t.dict.release(names)
	for by, f := range freed {
		if n := t.lookup(by); n != nil {
			n.mu.Lock()
			n.brought = n.brought.without(f)
			n.mu.Unlock()
		}
	}
	if t.rename = len(freed) > 0 && t.dict.refused.Load(); t.rename {
		t.dict.refused.Store(false)
	}
}

// Resync makes all series of some nodes due again, because the next hop does
// not have them: of the node of that name, of all of a cluster when name is
// empty, of all when both are. A node that names no cluster belongs to any. A
// report under way will not make known what the next hop took before.
func (t *Table) Resync(cluster, name string) {
	defer t.losses.Add(1)
	if cluster == "" && name == "" {
		t.epoch.Add(1)
		return
	}
	inCluster, label := HashString(cluster), HashString(name)
	for n := range t.all() {
		n.mu.Lock()
		if (name == "" || n.label == label) && (cluster == "" || n.cluster == 0 || n.cluster == inCluster) {
			n.lost, n.lacking = true, true
			n.outdate()
		}
		n.mu.Unlock()
	}
}

// ResyncNode is Resync for one node. Accepted points of that node have been given up
// on their way. They may have told the end of a series, so each end is told again.
func (t *Table) ResyncNode(key NodeKey) {
	if n := t.lookup(key); n != nil {
		n.mu.Lock()
		n.forgetAll()
		n.heartbeatBy = 0
		n.lacking = true
		n.outdate()
		t.resyncs.Add(1)
		for i := range n.entries {
			if e := &n.entries[i]; e.is(gone) {
				e.unset(unknown)
				n.owes = true
			}
		}
		n.mu.Unlock()
	}
}

// outdate brings whatever is under way into doubt: the next number but one is
// nobody's.
func (n *node) outdate() { n.generation += 2 }

// Known reports whether something of the node was accepted before.
func (t *Table) Known(key NodeKey) bool {
	n := t.lookup(key)
	if n == nil {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.accepted
}

func (t *Table) lookup(key NodeKey) *node {
	s := &t.shards[key.Lo%shardCount]
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.nodes[key]
}

func (t *Table) remove(n *node) {
	s := &t.shards[n.key.Lo%shardCount]
	s.mu.Lock()
	// A report may have put a successor in its place already.
	if s.nodes[n.key] == n {
		delete(s.nodes, n.key)
	}
	s.mu.Unlock()
	t.nodes.Add(-1)
	if n.described {
		t.places.Give(n.cluster, 1)
	}
	t.bytes.Give(n.cluster, n.bytes)
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
	n := &node{key: key, heard: now, since: now, epoch: t.epoch.Load()}
	if t.set.ResyncInterval > 0 {
		n.resyncAt = now + 1 + time.Duration(t.set.Rand(int64(t.set.ResyncInterval)))
	}
	if t.set.OpaqueInterval > 0 {
		n.opaqueAt = now + 1 + time.Duration(t.set.Rand(int64(t.set.OpaqueInterval)))
	}
	s.nodes[key] = n
	return n
}

// vacate gives back room for series of a node, whose lock is held.
func (t *Table) vacate(n *node, series int) {
	t.series.Add(-int64(series))
	t.room.Give(n.cluster, series)
}

// ticks is the coarse clock of the series, which expire by it, see entry.heard.
func (t *Table) ticks(now time.Duration) uint64 {
	if t.set.TTL <= 0 {
		return 0
	}
	return uint64(now/t.set.TTL*ticksPerTTL + now%t.set.TTL*ticksPerTTL/t.set.TTL)
}
