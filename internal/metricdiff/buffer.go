// SPDX-License-Identifier: Apache-2.0

package metricdiff // import "github.com/gpu-collector/gpu-collector/internal/metricdiff"

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/statetable"
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

// bufferNode is what is held of one node. Most often that is a single report,
// which it has taken as it was: only with a second one it has to know which point
// takes the place of which.
type bufferNode struct {
	key     statetable.NodeKey
	cluster uint64 // hash of its name, 0 for none
	known   bool
	since   uint64 // round from which on it waits
	late    bool   // it was refused, and is the last next time
	done    bool   // the next hop has all of it, or it was given up
	rm      pmetric.ResourceMetrics
	points  int
	markers bool         // some points may be without a value
	index   *bufferIndex // nil for a single report
}

// bufferIndex finds what a node holds. Handles of pdata's elements, and positions
// in its slices, stay good while nothing is removed.
type bufferIndex struct {
	scopes  map[uint64]pmetric.ScopeMetrics
	metrics map[uint64]pmetric.Metric
	points  map[uint64]int // by series, its place among the metric's points
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

// Take moves into the buffer the points of md that are last values, and reports
// whether there was room for all; those without are gone. What is left in md does
// not replace what came before it: deltas, and types that are not known.
//
// Of a report that begins with a node that is not known all finds room or nothing:
// a node of which the next hop knows a part must not be silent until there is room
// for the rest.
func (b *Buffer) Take(md pmetric.Metrics) bool {
	id := b.idents.Get().(*identity)
	defer b.idents.Put(id)
	all, credit := true, credit{}
	first := true
	md.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool {
		key := id.node(rm.Resource().Attributes())
		if first && !b.known(key) {
			all = b.extend(&credit, clusterOf(rm.Resource().Attributes()), md)
		}
		first = false
		if credit.void {
			b.dropped.Add(int64(dropLastValues(rm)))
		} else {
			all = b.take(key, rm, &credit) && all
			rm.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool {
				sm.Metrics().RemoveIf(isLastValue)
				return sm.Metrics().Len() == 0
			})
		}
		return rm.ScopeMetrics().Len() == 0
	})
	if !credit.void {
		b.room.Give(credit.cluster, credit.points)
	}
	return all
}

// credit is room that a report has taken for all of its points, those of a cluster.
type credit struct {
	cluster uint64
	points  int
	void    bool // there was none
}

// extend takes room for a report, and reports whether there was room. One that is
// more than could ever have is taken for as much of it as there is.
func (b *Buffer) extend(c *credit, cluster uint64, md pmetric.Metrics) bool {
	points := 0
	for _, rm := range md.ResourceMetrics().All() {
		of := 0
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				of += pointsOf(m)
			}
		}
		points += min(of, b.limits.NodePoints+1) // the heartbeat besides
	}
	if points > b.room.Most() {
		return true
	}
	c.cluster, c.points, c.void = cluster, points, !b.reserve(cluster, points)
	return !c.void
}

// dropLastValues removes them and returns how many points they had.
func dropLastValues(rm pmetric.ResourceMetrics) (points int) {
	rm.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool {
		sm.Metrics().RemoveIf(func(m pmetric.Metric) bool {
			if !isLastValue(m) {
				return false
			}
			points += pointsOf(m)
			return true
		})
		return sm.Metrics().Len() == 0
	})
	return points
}

func isLastValue(m pmetric.Metric) bool {
	switch m.Type() {
	case pmetric.MetricTypeGauge, pmetric.MetricTypeSummary:
		return true
	case pmetric.MetricTypeSum, pmetric.MetricTypeHistogram, pmetric.MetricTypeExponentialHistogram:
		return temporality(m) == pmetric.AggregationTemporalityCumulative
	case pmetric.MetricTypeEmpty:
	}
	return false
}

func temporality(m pmetric.Metric) pmetric.AggregationTemporality {
	switch m.Type() {
	case pmetric.MetricTypeSum:
		return m.Sum().AggregationTemporality()
	case pmetric.MetricTypeHistogram:
		return m.Histogram().AggregationTemporality()
	case pmetric.MetricTypeExponentialHistogram:
		return m.ExponentialHistogram().AggregationTemporality()
	case pmetric.MetricTypeGauge, pmetric.MetricTypeSummary, pmetric.MetricTypeEmpty:
	}
	return pmetric.AggregationTemporalityUnspecified
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

// lastValues is how many points rm has, 0 where some are not last values, and
// whether some have no value.
func lastValues(rm pmetric.ResourceMetrics) (points int, markers bool) {
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			if !isLastValue(m) {
				return 0, false
			}
			points += pointsOf(m)
			markers = markers || hasMarker(m)
		}
	}
	return points, markers
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
		next := d.next(nodes).nodes
		held = d.deliver(whole(next))
		left := b.delivered(next, to.Sent)
		// Who is always refused must not be before others for ever.
		for _, n := range left {
			n.late, n.since = true, round
		}
		nodes = append(left, nodes[len(next):]...)
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

// waiting takes out what is held, in the order in which it is to be sent.
func (b *Buffer) waiting() []*bufferNode {
	var nodes, late []*bufferNode
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		for _, n := range s.nodes {
			if n.late {
				n.late = false
				late = append(late, n)
			} else {
				nodes = append(nodes, n)
			}
		}
		clear(s.nodes)
		s.mu.Unlock()
	}
	bySlowness(nodes, b.round.Load())
	known, fresh := byCluster(nodes)
	if len(known)+len(fresh) > 1 {
		nodes = turns(append(known, turns(fresh)))
	}
	return append(nodes, late...)
}

// bySlowness sorts nodes by how long they wait for each point, the longest first:
// the highest response ratio next (Brinch Hansen 1971). What is new of a node passes
// whole states, which else hold it up until the next hop takes it for silent, and
// those are not passed for ever.
func bySlowness(nodes []*bufferNode, round uint64) {
	slowness := func(n *bufferNode) float64 { return float64(round-n.since+1) / float64(n.points) }
	slices.SortStableFunc(nodes, func(a, b *bufferNode) int { return cmp.Compare(slowness(b), slowness(a)) })
}

// turns has queues take turns, that with who waits longest first: deficit round robin
// (Shreedhar and Varghese 1995). A turn is of as many points as the largest node has.
func turns(queues [][]*bufferNode) []*bufferNode {
	queues = slices.DeleteFunc(queues, func(q []*bufferNode) bool { return len(q) == 0 })
	if len(queues) == 1 {
		return queues[0]
	}
	type queue struct {
		nodes  []*bufferNode
		since  uint64
		points int // of those that had their turn
	}
	var waiting []*queue
	turn, count := 0, 0
	for _, nodes := range queues {
		q := &queue{nodes: nodes, since: nodes[0].since}
		for _, n := range nodes {
			q.since, turn = min(q.since, n.since), max(turn, n.points)
		}
		count += len(nodes)
		waiting = append(waiting, q)
	}
	slices.SortStableFunc(waiting, func(a, b *queue) int { return cmp.Compare(a.since, b.since) })
	out := make([]*bufferNode, 0, count)
	for points := turn; len(waiting) > 0; points += turn {
		for _, q := range waiting {
			n := 0
			for ; n < len(q.nodes) && q.points < points; n++ {
				q.points += q.nodes[n].points
			}
			out, q.nodes = append(out, q.nodes[:n]...), q.nodes[n:]
		}
		waiting = slices.DeleteFunc(waiting, func(q *queue) bool { return len(q.nodes) == 0 })
	}
	return out
}

// byCluster divides nodes, those that are known and those that are not.
func byCluster(nodes []*bufferNode) (known, fresh [][]*bufferNode) {
	type cluster struct {
		name  uint64
		known bool
	}
	at := map[cluster]int{}
	for _, n := range nodes {
		all := &known
		if !n.known {
			all = &fresh
		}
		i, ok := at[cluster{n.cluster, n.known}]
		if !ok {
			i = len(*all)
			at[cluster{n.cluster, n.known}] = i
			*all = append(*all, nil)
		}
		(*all)[i] = append((*all)[i], n)
	}
	return known, fresh
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

// empty has the node hold nothing of the resource yet.
func (n *bufferNode) empty(of pmetric.ResourceMetrics) {
	n.rm, n.points = pmetric.NewResourceMetrics(), 0
	n.index = &bufferIndex{
		scopes: map[uint64]pmetric.ScopeMetrics{}, metrics: map[uint64]pmetric.Metric{}, points: map[uint64]int{},
	}
	of.Resource().CopyTo(n.rm.Resource())
	n.rm.SetSchemaUrl(of.SchemaUrl())
}

// indexed has the node know what it holds, and returns how many points that is less
// than before: those of series that the report had twice.
func (n *bufferNode) indexed(t *tally) (less int) {
	if n.index != nil {
		return 0
	}
	report, points := n.rm, n.points
	n.empty(report)
	own := tally{most: points, reserve: func() bool { return true }}
	n.take(report, &own)
	t.replaced += own.replaced
	return points - n.points
}

// tally is what becomes of points that a node takes.
type tally struct {
	most              int         // that the node may have
	reserve           func() bool // takes room for one
	beat              func()      // unless nil, makes room for one
	replaced, dropped int64
}

func (n *bufferNode) take(rm pmetric.ResourceMetrics, t *tally) {
	for _, sm := range rm.ScopeMetrics().All() {
		scope := scopeHash(sm.Scope())
		for _, m := range sm.Metrics().All() {
			if !isLastValue(m) {
				continue
			}
			key := metricHash(m, scope, temporality(m), m.Type() == pmetric.MetricTypeSum && m.Sum().IsMonotonic())
			// Made with its first point, or names without room would pile up.
			own := func() pmetric.Metric { return n.metric(key, scope, m, sm) }
			in := intake{tally: t, metric: key, most: t.most, room: t.reserve}
			if m.Name() == gpusemconv.MetricNodeHeartbeat && sm.Scope().Name() == ScopeName {
				// A node with too much to say is not silent, nor is one of a fleet that has.
				in.most++
				in.room = func() bool {
					if t.reserve() {
						return true
					}
					first := t.beat != nil && pointsOf(own()) == 0
					if first {
						t.beat()
					}
					return first
				}
			}
			switch m.Type() {
			case pmetric.MetricTypeGauge:
				takePoints(n, &in, m.Gauge().DataPoints(), func() pmetric.NumberDataPointSlice { return own().Gauge().DataPoints() })
			case pmetric.MetricTypeSum:
				takePoints(n, &in, m.Sum().DataPoints(), func() pmetric.NumberDataPointSlice { return own().Sum().DataPoints() })
			case pmetric.MetricTypeHistogram:
				takePoints(n, &in, m.Histogram().DataPoints(), func() pmetric.HistogramDataPointSlice { return own().Histogram().DataPoints() })
			case pmetric.MetricTypeExponentialHistogram:
				takePoints(n, &in, m.ExponentialHistogram().DataPoints(), func() pmetric.ExponentialHistogramDataPointSlice { return own().ExponentialHistogram().DataPoints() })
			case pmetric.MetricTypeSummary:
				takePoints(n, &in, m.Summary().DataPoints(), func() pmetric.SummaryDataPointSlice { return own().Summary().DataPoints() })
			case pmetric.MetricTypeEmpty:
			}
		}
	}
}

// metric returns the node's metric of that key, made like m if need be.
func (n *bufferNode) metric(key, scope uint64, m pmetric.Metric, sm pmetric.ScopeMetrics) pmetric.Metric {
	if own, ok := n.index.metrics[key]; ok {
		return own
	}
	in, ok := n.index.scopes[scope]
	if !ok {
		in = n.rm.ScopeMetrics().AppendEmpty()
		sm.Scope().CopyTo(in.Scope())
		in.SetSchemaUrl(sm.SchemaUrl())
		n.index.scopes[scope] = in
	}
	own := in.Metrics().AppendEmpty()
	likeMetric(m, own)
	n.index.metrics[key] = own
	return own
}

// intake is the points of a metric on their way in.
type intake struct {
	*tally
	metric uint64
	most   int
	room   func() bool // takes room for one
}

// takePoints copies points in, each over what is there of its series.
func takePoints[S pointSlice[P], P point[P]](n *bufferNode, in *intake, from S, to func() S) {
	for i := range from.Len() {
		dp := from.At(i)
		n.markers = n.markers || dp.Flags().NoRecordedValue()
		series := seriesKey(in.metric, dp.Attributes())
		at, ok := n.index.points[series]
		switch {
		case ok:
			in.replaced++
			dp.CopyTo(to().At(at))
		case n.points < in.most && in.room():
			own := to()
			n.index.points[series] = own.Len()
			n.points++
			dp.CopyTo(own.AppendEmpty())
		default:
			in.dropped++
		}
	}
}
