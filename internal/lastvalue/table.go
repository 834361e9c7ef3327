// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
)

// MaxNodeSeries is the most series that a node can have: 16 bits hold a position or none.
const MaxNodeSeries = 1<<16 - 2

// Settings bound a Table and set its periods.
type Settings struct {
	// MaxNodes, MaxSeries and MaxBytes bound what is remembered. Without MaxBytes the memory
	// is not counted.
	MaxNodes, MaxSeries, MaxBytes int
	// DropOver has points over a bound dropped. Otherwise they go on without being
	// remembered. Known series stay.
	DropOver bool
	// MaxSeriesPerNode bounds a single node, so that one with endless attribute values
	// leaves room for the others. Zero means MaxNodeSeries.
	MaxSeriesPerNode int
	// ClusterShare in (0,1] is the part of the last quarter of nodes, series and bytes that
	// the other clusters leave which one may hold; 0 means all. Nodes that name none are one
	// cluster.
	ClusterShare float64
	// TTL is how long a node, or a series of a living node, is remembered after its last
	// report.
	TTL time.Duration
	// ResyncInterval is after how long all series of a node are sent again. Zero means never.
	ResyncInterval time.Duration
	// OpaqueInterval is a shorter one, for series that a downstream tier cannot send
	// again: those of KindHash and those without a name. Zero means the same.
	OpaqueInterval time.Duration
	// VanishedAfter is how long a node goes on reporting without a series until that is
	// declared gone; up to TTL/16 more. Zero means never.
	VanishedAfter     time.Duration
	HeartbeatInterval time.Duration // the least time between two heartbeats of a node
	Collect           bool          // named numbers wait for Pending, and do not go on with their report
	Watch             bool          // reports go on as they are, and nothing is sent from the table
	// Bands set by a metric's name how far the next hop's value may be from the true one. The
	// first that matches counts.
	Bands []Band
	// OnClock, unless nil, gets each node whose clock is found to be wrong, or right
	// again. No lock is held meanwhile.
	OnClock func(*Clock)
	// Rand returns a number in [0,n) for each node's resync phase, to many goroutines at once.
	Rand func(n int64) int64
}

// Stats are totals since the table was made, but Nodes and Series are remembered now.
type Stats struct {
	Nodes, Series int64
	Stale         int64 // points that were older than what is remembered
	Untracked     int64 // points that went on without being remembered, for want of room
	Unnamed       int64 // new series without a name, which can be neither read nor declared gone
	Resyncs       int64 // times that a node's series were all made dirty
	Repeated      int64 // points that were made of what is known here, and accepted
	EvictedNodes  int64 // nodes forgotten because of TTL, or to make room
}

// Table is the state of all nodes. It is safe for concurrent use.
type Table struct {
	set     Settings
	nodes   sync.Map      // *node by NodeKey
	lastID  atomic.Uint64 // of a push
	losses  atomic.Uint64 // times that the next hop lost its state
	metrics metrics

	// The budgets are what each cluster, by hash, holds of nodes, series and
	// memory.
	nodeBudget, seriesBudget, byteBudget *fairshare.Ledger[uint64]

	vanishedTicks uint64 // VanishedAfter, 0 for never

	stale, untracked, unnamed, resyncs, repeated, evicted atomic.Int64
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
	if set.OpaqueInterval >= set.ResyncInterval {
		set.OpaqueInterval = 0
	}
	ledger := func(most int) *fairshare.Ledger[uint64] {
		return fairshare.NewSlots[uint64](most, set.ClusterShare)
	}
	t := &Table{
		set: set, nodeBudget: ledger(set.MaxNodes), seriesBudget: ledger(set.MaxSeries), byteBudget: ledger(set.MaxBytes),
	}
	t.metrics = metrics{bands: set.Bands, bytes: t.byteBudget, all: map[Metric]*metric{}}
	if set.VanishedAfter > 0 {
		t.vanishedTicks = t.ticks(set.VanishedAfter-1) + 1
	}
	return t
}

// Stats returns the table's figures. Each is exact, together they are not one moment's.
func (t *Table) Stats() Stats {
	return Stats{
		Nodes:        int64(t.nodeBudget.Taken()),
		Series:       int64(t.seriesBudget.Taken()),
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
	return int64([Limits]int{t.set.MaxNodes, t.set.MaxSeries, t.set.MaxSeriesPerNode, t.set.MaxBytes}[l])
}

// Bytes is the memory that the table takes.
func (t *Table) Bytes() int64 { return int64(t.byteBudget.Taken()) }

// Counts returns how many nodes reported within their last few usual intervals, without those
// that report elsewhere by now, and how many wait for Pending.
func (t *Table) Counts(now time.Duration) (reporting, pending int64) {
	for n := range t.all() {
		n.mu.Lock()
		if !n.missing(now, onceReported) {
			reporting++
		}
		if n.pending && !t.set.Watch {
			pending++
		}
		n.mu.Unlock()
	}
	return reporting, pending
}

// Sweep forgets the nodes that are due, and the series that were not reported for TTL. Call it
// a few times per TTL, and each few seconds while the table is pressed. It holds one node's lock
// at a time.
func (t *Table) Sweep(now time.Duration) {
	// The order is that of the keys: tables with the same reports forget the same nodes.
	byKey := func(a, b *node) int { return cmp.Compare(a.key.Hi, b.key.Hi) }
	for _, n := range slices.SortedFunc(t.all(), byKey) {
		n.mu.Lock()
		switch {
		case n.evicted || n.inFlight > 0: // a message knows the positions of its series
		case t.due(n, now):
			t.evict(n)
		default:
			t.expire(n, now)
		}
		n.mu.Unlock()
	}
}

// expire drops the node's series that were missing for long, and those that ended a TTL ago.
// The next hop may remember a missing one for longer, so it gets the end first.
func (t *Table) expire(n *node, now time.Duration) {
	ticks, most, sendEnd := t.ticks(now), uint64(ticksPerTTL), t.vanishedTicks > 0
	if n.reduced(now, t.set.TTL) {
		most, sendEnd = relayedTTLs*ticksPerTTL, false
	}
	kept := n.entries[:0]
	for _, e := range n.entries {
		age, ended := e.age(ticks), e.is(gone)
		if !ended && age > most && sendEnd && e.metric != 0 {
			e.end(ticks)
			n.markPending()
		} else if age > most || ended && age > ticksPerTTL {
			continue
		}
		kept = append(kept, e)
	}
	if dropped := len(n.entries) - len(kept); dropped > 0 {
		t.seriesBudget.Give(n.cluster, dropped)
		n.layout++
		n.entries = trimmed(kept, 8)
		n.reindex()
		n.pruneStarts()
		t.metrics.rebuild(n)
		t.recount(n)
	}
}

// evict forgets a node, whose lock is held.
func (t *Table) evict(n *node) {
	n.evicted = true
	t.nodes.Delete(n.key)
	t.metrics.release(n.names.metrics)
	t.nodeBudget.Give(n.cluster, 1)
	t.seriesBudget.Give(n.cluster, len(n.entries))
	t.byteBudget.Give(n.cluster, n.bytes)
	t.evicted.Add(1)
}

// Resync makes all series dirty because the next hop does not have them. A node's series are
// dirty when it reports next, whatever a message under way makes clean until then.
func (t *Table) Resync() { t.losses.Add(1) }

// Epoch is how often Resync was called.
func (t *Table) Epoch() uint64 { return t.losses.Load() }

// open returns the node with its lock held, or nil where the table has none.
func (t *Table) open(key NodeKey) *node {
	found, ok := t.nodes.Load(key)
	if !ok {
		return nil
	}
	n := found.(*node)
	if n.mu.Lock(); n.evicted {
		n.mu.Unlock()
		return nil
	}
	return n
}

// add makes a node, unless another goroutine has made it meanwhile, or reports which limit
// leaves no room for it.
func (t *Table) add(key NodeKey, attrs []Attr, all bool, now time.Duration) (over Limit, ok bool) {
	names := Identify(attrs)
	n := &node{
		key: key, lastSeen: now, reportingSince: now, losses: t.losses.Load(),
		bytes: nodeBytes + nameSize(nil, attrs), resyncAt: t.phase(t.set.ResyncInterval, now),
		opaqueAt: t.phase(t.set.OpaqueInterval, now), retryAt: never,
	}
	if cluster := names.Cluster("", ""); cluster != "" {
		n.cluster = HashString(cluster)
	}
	if over, ok = t.take(LimitNodes, t.nodeBudget, n.cluster, n.bytes); !ok {
		return over, false
	}
	n.describe(attrs)
	n.inline = !t.set.Collect || !all || n.droppedAttrs > 0
	t.recount(n)
	if _, known := t.nodes.LoadOrStore(key, n); known {
		t.nodeBudget.Give(n.cluster, 1)
		t.byteBudget.Give(n.cluster, n.bytes)
	}
	return 0, true
}

// never is the time of what is not due.
const never = math.MaxInt64

// phase is when something is due first that is due after each interval, 0 for never.
func (t *Table) phase(every, now time.Duration) time.Duration {
	if every <= 0 {
		return never
	}
	return now + 1 + time.Duration(t.set.Rand(int64(every)))
}

// all yields the nodes.
func (t *Table) all() iter.Seq[*node] {
	return func(yield func(*node) bool) {
		t.nodes.Range(func(_, n any) bool { return yield(n.(*node)) })
	}
}

// ticks is the coarse clock of the series, which expire by it, see entry.markSeen.
func (t *Table) ticks(now time.Duration) uint64 {
	return uint64(now/t.set.TTL*ticksPerTTL + now%t.set.TTL*ticksPerTTL/t.set.TTL)
}
