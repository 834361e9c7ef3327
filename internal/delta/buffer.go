// SPDX-License-Identifier: Apache-2.0

package delta // import "github.com/gpu-collector/gpu-collector/internal/delta"

import (
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// bufferShards spreads the nodes over locks, as in statetable.
const bufferShards = 64

// Limits bound a Buffer.
type Limits struct {
	// Points are those held, with those that are being sent.
	Points int
	// ClusterShare in (0,1] is the part of the points that the other clusters leave
	// which one may hold; 0 means all. Nodes that name none are one.
	ClusterShare float64
	// NodePoints are those of one node, and a heartbeat besides.
	NodePoints int
	// BatchBytes is the OTLP sent at a time, unless a single point is larger.
	BatchBytes int
}

// Buffer holds the last point of each series until the next hop has taken it.
// A later point takes the place of an earlier one, so however long the next hop
// is away, the buffer holds at most the state itself, and during a Flush that
// twice. It is safe for concurrent use, Flush by one goroutine at a time.
type Buffer struct {
	limits Limits
	shards [bufferShards]bufferShard
	idents sync.Pool // of *identity
	room   *fairshare.Ledger[uint64]
	known  func(statetable.NodeKey) bool

	round atomic.Uint64 // counts the flushes

	replaced, dropped atomic.Int64
}

type bufferShard struct {
	mu    sync.Mutex
	nodes map[statetable.NodeKey]*bufferNode
}

// NewBuffer returns an empty buffer. Nodes that are known, which is asked when there
// is news of them, do not wait for all the others; nil stands for all.
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

// Points returns how many points are held, with those being sent.
func (b *Buffer) Points() int64 { return int64(b.room.Taken()) }

// Replaced returns how many points made room for a later one before they were
// taken by the next hop.
func (b *Buffer) Replaced() int64 { return b.replaced.Load() }

// Dropped returns how many points found no room.
func (b *Buffer) Dropped() int64 { return b.dropped.Load() }

// Take moves into the buffer the points of md that are last values, and returns the
// nodes for which there was not room for all; points without are gone. What is left in
// md does not replace what came before it: deltas, and types that are not known.
//
// Of a report that begins with a node that is not known all finds room or nothing:
// a node of which the next hop knows a part must not be silent until there is room
// for the rest.
func (b *Buffer) Take(md pmetric.Metrics) (missed Missed) {
	id := b.idents.Get().(*identity)
	defer b.idents.Put(id)
	credit, first := credit{}, true
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
			all = b.take(key, rm, &credit)
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

// extend takes room for a report. One that is more than could ever have is taken for
// as much of it as there is.
func (b *Buffer) extend(c *credit, cluster uint64, md pmetric.Metrics) {
	points := 0
	for _, rm := range md.ResourceMetrics().All() {
		points += min(resourcePoints(rm), b.limits.NodePoints+1) // the heartbeat besides
	}
	if points > b.room.Most() {
		return
	}
	if c.void = !b.reserve(cluster, points); !c.void {
		c.cluster, c.points = cluster, points
	}
}

func (b *Buffer) take(key statetable.NodeKey, rm pmetric.ResourceMetrics, c *credit) bool {
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
			rm.MoveTo(n.rm)
			n.points, n.markers = points, markers
			s.nodes[key] = n
			return true
		}
		n.empty(rm)
	}
	n.known = n.known || b.known(key) // one that speaks again is not only a name
	t := tally{most: b.limits.NodePoints, reserve: func() bool { return b.spend(c, n.cluster, 1) }}
	if n.known {
		t.beat = func() { b.room.Hold(n.cluster, 1) }
	}
	b.room.Give(n.cluster, n.indexed(&t))
	n.take(rm, &t)
	if n.points > 0 {
		s.nodes[key] = n
	}
	b.replaced.Add(t.replaced)
	b.dropped.Add(t.dropped)
	return t.dropped == 0
}

// clusterOf is the hash of the cluster that a resource names, 0 for none.
func clusterOf(attrs pcommon.Map) uint64 {
	if name, ok := attrs.Get(gpusemconv.AttrClusterName); ok && name.Type() == pcommon.ValueTypeStr && name.Str() != "" {
		return statetable.HashString(name.Str())
	}
	return 0
}

// spend takes room for points, for all or for none, of what their report has or else
// anew.
func (b *Buffer) spend(c *credit, cluster uint64, points int) bool {
	if c.cluster == cluster && c.points >= points {
		c.points -= points
		return true
	}
	return b.reserve(cluster, points)
}

// reserve takes room for points, for all or for none.
func (b *Buffer) reserve(cluster uint64, points int) bool {
	got := b.room.Take(cluster, points)
	if got < points {
		b.room.Give(cluster, got)
		return false
	}
	return true
}

// Flush sends what is held, in batches. What was refused, and what was not tried
// after that, is held again, beneath what came meanwhile: held is that error. Of
// a batch that is refused for good, no more is given up than has to be, and
// dropped is the first error of that. Where not all are taken, clusters take turns
// of as many points each, as one of which count all nodes that are new: names are
// made up easily. In a cluster those are first that wait long for how much they
// have to say.
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
		// Who is always refused must not be before others for ever.
		for _, n := range left {
			n.late, n.since = true, round
		}
		nodes = append(left, nodes[len(next.nodes):]...)
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
		b.room.Give(n.cluster, n.points)
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
		}
		s.nodes[n.key] = n
		s.mu.Unlock()
		b.replaced.Add(t.replaced)
		if b.dropped.Add(t.dropped); t.dropped > 0 {
			forget(n.key)
		}
	}
}
