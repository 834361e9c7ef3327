// SPDX-License-Identifier: Apache-2.0

package delta // import "github.com/gpu-collector/gpu-collector/internal/delta"

import (
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	ids "github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// bufferShards spreads the nodes over locks, as in statetable.
const bufferShards = 64

// Limits bound a Buffer.
type Limits struct {
	// Points are those held, with those that are being sent. As OTLP a point has
	// pointBytes of them; longer ones count for several.
	Points int
	// ClusterShare in (0,1] is the part of the points that the other clusters leave
	// which one may hold; 0 means all. Nodes that name none are one.
	ClusterShare float64
	// NodePoints are those of one node, and a heartbeat besides.
	NodePoints int
	// BatchBytes is the OTLP sent at a time, unless a single point is larger.
	BatchBytes int
}

// Buffer holds the last point of each series until the next hop has taken it. A later
// point replaces an earlier one, so the buffer never holds more than the state, and
// twice that during a Flush. It is safe for concurrent use; one goroutine may Flush.
type Buffer struct {
	limits Limits
	shards [bufferShards]bufferShard
	idents sync.Pool // of *identity
	room   *fairshare.Ledger[uint64]
	known  func(statetable.NodeKey) bool
	proto  pmetric.ProtoMarshaler

	round atomic.Uint64 // counts the flushes

	replaced, dropped atomic.Int64
}

// pointBytes is about what a usual point takes of memory, and several times what it
// takes as OTLP. Long texts are as long in either.
const pointBytes = 1 << 10

type bufferShard struct {
	mu    sync.Mutex
	nodes map[statetable.NodeKey]*bufferNode
}

// NewBuffer returns an empty buffer. Known nodes do not wait for all the others; a nil
// known means all of them.
func NewBuffer(limits Limits, known func(statetable.NodeKey) bool) *Buffer {
	if known == nil {
		known = func(statetable.NodeKey) bool { return true }
	}
	b := &Buffer{limits: limits, room: fairshare.New[uint64](limits.Points, limits.ClusterShare), known: known}
	for i := range b.shards {
		b.shards[i].nodes = map[statetable.NodeKey]*bufferNode{}
	}
	b.idents.New = func() any { return new(identity) }
	return b
}

// Points returns how many points are held, with those being sent, as Limits counts them.
func (b *Buffer) Points() int64 { return int64(b.room.Taken()) }

// Replaced returns how many points made room for a later one before they were
// taken by the next hop.
func (b *Buffer) Replaced() int64 { return b.replaced.Load() }

// Dropped returns how many points found no room.
func (b *Buffer) Dropped() int64 { return b.dropped.Load() }

// Take moves the last values among the points of md into the buffer. Points without
// room are gone, and Take returns their nodes. Deltas and unknown types stay in md,
// because they do not replace an earlier point.
//
// A report that begins with an unknown node finds room as a whole or not at all. Else
// the next hop would know a part of the node, and take it for silent.
//
// Bytes are Counts.Bytes. With them, nobody measures a report of one node again.
func (b *Buffer) Take(md pmetric.Metrics, bytes int) (missed Missed) {
	id := b.idents.Get().(*identity)
	defer b.idents.Put(id)
	credit, first := credit{}, true
	if md.ResourceMetrics().Len() > 1 {
		bytes = 0
	}
	md.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool {
		key := id.node(rm.Resource().Attributes())
		if first && !b.known(key) {
			b.extend(&credit, clusterOf(rm.Resource().Attributes()), md)
		}
		first = false
		var all bool
		if credit.void && !b.known(key) {
			dropped := dropLastValues(rm)
			b.dropped.Add(int64(dropped))
			all = dropped == 0
		} else {
			all = b.take(key, rm, bytes, &credit)
			rm.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool {
				sm.Metrics().RemoveIf(isLastValue)
				return sm.Metrics().Len() == 0
			})
		}
		if !all {
			if missed == nil {
				missed = Missed{}
			}
			missed[key] = struct{}{}
		}
		return rm.ScopeMetrics().Len() == 0
	})
	b.room.Give(credit.cluster, credit.points)
	return missed
}

// credit is room that a report has taken for all of its points, those of a cluster.
type credit struct {
	cluster uint64
	points  int
	void    bool // there was none
}

// extend takes room for a whole report. A report that is larger than the buffer gets
// as much room as there is, point by point.
func (b *Buffer) extend(c *credit, cluster uint64, md pmetric.Metrics) {
	points := 0
	for _, rm := range md.ResourceMetrics().All() {
		points += min(resourcePoints(rm), b.limits.NodePoints+1) // the heartbeat besides
	}
	if points > b.room.Most() {
		return
	}
	if c.void = !b.room.TakeAll(cluster, points); !c.void {
		c.cluster, c.points = cluster, points
	}
}

func (b *Buffer) take(key statetable.NodeKey, rm pmetric.ResourceMetrics, bytes int, c *credit) bool {
	s := &b.shards[key.Lo%bufferShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[key]
	if n == nil {
		n = &bufferNode{
			key: key, cluster: clusterOf(rm.Resource().Attributes()), known: b.known(key),
			since: b.round.Load(), rm: pmetric.NewResourceMetrics(),
		}
		if points, markers := lastValues(rm); points > 0 && points <= b.limits.NodePoints && b.spend(c, n.cluster, points) {
			if b.lengthen(n, rm, bytes) {
				rm.MoveTo(n.rm)
				n.points, n.markers = points, markers
				s.nodes[key] = n
				return true
			}
			b.room.Give(n.cluster, points)
		}
		n.empty(rm)
	}
	full := !b.lengthen(n, rm, bytes)
	n.known = n.known || b.known(key) // a made-up name does not speak again
	t := tally{most: b.limits.NodePoints, full: full, reserve: func() bool { return !full && b.spend(c, n.cluster, 1) }}
	if n.known {
		t.beat = func() { b.room.Hold(n.cluster, 1) }
	}
	b.room.Give(n.cluster, n.indexed(&t))
	n.take(rm, &t)
	b.measure(n)
	if n.points > 0 {
		s.nodes[key] = n
	} else {
		b.room.Give(n.cluster, n.extra)
	}
	b.replaced.Add(t.replaced)
	b.dropped.Add(t.dropped)
	return t.dropped == 0
}

// lengthen takes room for what the resource adds to the node beyond the usual length of
// its points, for all or for none. Bytes are those of the resource's message, 0 where
// nobody has counted.
func (b *Buffer) lengthen(n *bufferNode, rm pmetric.ResourceMetrics, bytes int) bool {
	if bytes == 0 {
		n.bytes += b.proto.ResourceMetricsSize(rm)
	} else {
		n.bytes += bytes - (sizeIn(bytes) - bytes)
	}
	extra := max(n.bytes/pointBytes-n.points-resourcePoints(rm), n.extra)
	if !b.room.TakeAll(n.cluster, extra-n.extra) {
		return false
	}
	n.extra = extra
	return true
}

// measure has the node hold the room that its points need by now. Bytes are an upper
// bound, since later points replace earlier ones, until they matter.
func (b *Buffer) measure(n *bufferNode) {
	if n.bytes > n.points*pointBytes {
		n.bytes = b.proto.ResourceMetricsSize(n.rm)
	}
	extra := max(n.bytes/pointBytes-n.points, 0)
	if extra > n.extra {
		b.room.Hold(n.cluster, extra-n.extra)
	} else {
		b.room.Give(n.cluster, n.extra-extra)
	}
	n.extra = extra
}

// clusterOf is the hash of the cluster that a resource names, 0 for none.
func clusterOf(attrs pcommon.Map) uint64 {
	var names ids.Names
	metricreading.Identify(&names, attrs)
	return statetable.HashCluster(&names)
}

// spend takes room for points, for all or for none: the report's room first, or else
// new room.
func (b *Buffer) spend(c *credit, cluster uint64, points int) bool {
	if c.cluster == cluster && c.points >= points {
		c.points -= points
		return true
	}
	return b.room.TakeAll(cluster, points)
}

// Flush sends the held points in batches. After a refusal, with the error held, the
// rest is held again beneath later points. Of a batch that is refused for good, Flush
// drops as few points as it can; dropped is the first such error.
//
// Clusters take turns of equally many points. All new nodes count as one cluster,
// since names are made up easily. Within a cluster see bySlowness.
func (b *Buffer) Flush(to Hop) (held, dropped error) {
	nodes := b.waiting()
	round, all := b.round.Add(1), len(nodes)
	d := delivery{Hop: to, maxBytes: b.limits.BatchBytes}
	for len(nodes) > 0 && held == nil {
		if len(nodes) < all && to.Enough != nil && to.Enough() {
			break
		}
		next := d.next(nodes)
		held = d.deliver(next)
		left := b.delivered(next.nodes, to.Sent)
		// A node that is always refused must not be before others for ever.
		for _, n := range left {
			n.late, n.since = true, round
		}
		nodes = nodes[len(next.nodes)-copy(nodes[len(next.nodes)-len(left):], left):]
	}
	b.giveBack(nodes, to.Forget)
	b.dropped.Add(int64(d.given))
	return held, d.dropped
}

// delivered settles what is done with, and returns the others.
func (b *Buffer) delivered(nodes []*bufferNode, sent func(statetable.NodeKey)) (left []*bufferNode) {
	for _, n := range nodes {
		if !n.done {
			left = append(left, n)
			continue
		}
		b.room.Give(n.cluster, n.points+n.extra)
		if sent != nil {
			sent(n.key)
		}
	}
	return left
}

func (b *Buffer) giveBack(nodes []*bufferNode, forget func(statetable.NodeKey)) {
	for _, n := range nodes {
		s := &b.shards[n.key.Lo%bufferShards]
		// Both were counted; a node that has more by now than it may loses some.
		t := tally{most: b.limits.NodePoints, reserve: func() bool { return true }}
		s.mu.Lock()
		if newer := s.nodes[n.key]; newer != nil {
			n.known = n.known || newer.known
			counted := n.points + newer.points
			n.indexed(&t)
			n.take(newer.rm, &t)
			b.room.Give(n.cluster, counted-n.points)
			n.bytes, n.extra = n.bytes+newer.bytes, n.extra+newer.extra
			b.measure(n)
		}
		s.nodes[n.key] = n
		s.mu.Unlock()
		b.replaced.Add(t.replaced)
		if b.dropped.Add(t.dropped); t.dropped > 0 {
			forget(n.key)
		}
	}
}
