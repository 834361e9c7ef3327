// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// A next hop that takes a few batches of each flush, and refuses the rest, gets
// every node's in the end, also where all have news each time.
func TestNodesTakeTurnsWhereNotAllAreTaken(t *testing.T) {
	const nodes, taken = 200, 20
	b := NewBuffer(Limits{Points: 1000, NodePoints: 10, BatchBytes: 1}, nil)
	got := map[string]int{}
	for flush := range 2 * nodes / taken {
		md := pmetric.NewMetrics()
		for i := range nodes {
			rm := md.ResourceMetrics().AppendEmpty()
			rm.Resource().Attributes().PutInt("host.id", int64(i))
			m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
			m.SetName("m")
			m.SetEmptyGauge().DataPoints().AppendEmpty().SetIntValue(int64(flush))
		}
		require.Empty(t, take(b, md))
		left := taken
		_, _ = b.Flush(Hop{
			Send: func(md pmetric.Metrics, _, _ int) error {
				if left--; left < 0 {
					return errors.New("busy")
				}
				for _, rm := range md.ResourceMetrics().All() {
					id, _ := rm.Resource().Attributes().Get("host.id")
					got[id.AsString()]++
				}
				return nil
			},
			Permanent: func(error) bool { return false },
			Forget:    func(statetable.NodeKey) {},
		})
	}
	assert.Len(t, got, nodes)
}

// One node that is always refused holds up the others no longer than until it is
// the first that is tried.
func TestARefusedNodeHoldsUpNoOther(t *testing.T) {
	const nodes = 100
	b := NewBuffer(Limits{Points: 1000, NodePoints: 10, BatchBytes: 1}, nil)
	for i := range nodes {
		require.Empty(t, take(b, report("", i)))
	}
	took := map[string]bool{}
	for flushes := 0; len(took) < nodes-1; flushes++ {
		require.Less(t, flushes, 5)
		held, _ := b.Flush(Hop{
			Send: func(md pmetric.Metrics, _, _ int) error {
				id, _ := md.ResourceMetrics().At(0).Resource().Attributes().Get("host.id")
				if id.AsString() == "7" {
					return errors.New("it cannot be sent")
				}
				took[id.AsString()] = true
				return nil
			},
			Permanent: func(error) bool { return false },
			Forget:    func(statetable.NodeKey) {},
		})
		require.Error(t, held)
	}
	assert.EqualValues(t, 1, b.Points())
}

// report is one point of a node.
func report(cluster string, node int) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutInt("host.id", int64(node))
	if cluster != "" {
		rm.Resource().Attributes().PutStr("k8s.cluster.name", cluster)
	}
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("m")
	m.SetEmptyGauge().DataPoints().AppendEmpty()
	return md
}

// A cluster that has more to say than there is room leaves room for others, whose
// nodes do not wait until all of its are through.
func TestAGreedyClusterLeavesRoomAndTurns(t *testing.T) {
	b := NewBuffer(Limits{Points: 1000, ClusterShare: 0.5, NodePoints: 10, BatchBytes: 1}, nil)
	taken := 0
	for i := range 2000 {
		if take(b, report("greedy", i)) == nil {
			taken++
		}
	}
	assert.Equal(t, 500, taken)
	for i := range 10 {
		require.Empty(t, take(b, report("honest", i)))
	}
	var order []string
	_, _ = b.Flush(Hop{
		Send: func(md pmetric.Metrics, _, _ int) error {
			cluster, _ := md.ResourceMetrics().At(0).Resource().Attributes().Get("k8s.cluster.name")
			if order = append(order, cluster.Str()); len(order) > 20 {
				return errors.New("busy")
			}
			return nil
		},
		Permanent: func(error) bool { return false },
		Forget:    func(statetable.NodeKey) {},
	})
	assert.NotContains(t, order[20:], "honest")
	assert.EqualValues(t, 490, b.Points())
	assert.Empty(t, take(b, report("greedy", 5000)), "ten of its were sent")
}

// A tier that repeats what a report lacks goes by the heartbeat, so that comes with
// the last part of a node, although it was there before the other points.
func TestTheHeartbeatComesLast(t *testing.T) {
	b := NewBuffer(Limits{Points: 1000, NodePoints: 100, BatchBytes: 200}, nil)
	for range 2 {
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("host.name", "a")
		heartbeat(rm, 1)
		require.Empty(t, take(b, md))
		md = pmetric.NewMetrics()
		rm = md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("host.name", "a")
		points := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty().SetEmptyGauge().DataPoints()
		for i := range 20 {
			points.AppendEmpty().Attributes().PutInt("gpu", int64(i))
		}
		require.Empty(t, take(b, md))
	}
	var beats []int
	held, dropped := b.Flush(Hop{
		Send: func(_ pmetric.Metrics, _, heartbeats int) error {
			beats = append(beats, heartbeats)
			return nil
		},
	})
	require.NoError(t, errors.Join(held, dropped))
	require.Greater(t, len(beats), 2)
	assert.Equal(t, 1, beats[len(beats)-1])
	assert.NotContains(t, beats[:len(beats)-1], 1)
}

// A sent batch belongs to the next hop, even if the hop refuses it in the end.
func TestARefusedBatchIsHeldAsItWas(t *testing.T) {
	b := NewBuffer(Limits{Points: 1000, NodePoints: 10, BatchBytes: 1 << 20}, nil)
	report := func(value int64) {
		md := pmetric.NewMetrics()
		for _, node := range []string{"a", "b"} {
			rm := md.ResourceMetrics().AppendEmpty()
			rm.Resource().Attributes().PutStr("host.name", node)
			m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
			m.SetName("m")
			points := m.SetEmptyGauge().DataPoints()
			points.AppendEmpty().SetIntValue(value)
			points.AppendEmpty().Attributes().PutInt("gpu", value)
		}
		require.Empty(t, take(b, md))
	}
	var sent []string
	accept := false
	flush := func() (held, dropped error) {
		return b.Flush(Hop{
			Send: func(md pmetric.Metrics, points, _ int) error {
				assert.Equal(t, md.DataPointCount(), points)
				if accept {
					for _, rm := range md.ResourceMetrics().All() {
						dp := rm.ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints()
						node, _ := rm.Resource().Attributes().Get("host.name")
						sent = append(sent, fmt.Sprint(node.Str(), " ", dp.At(0).IntValue(), " of ", dp.Len()))
					}
					return nil
				}
				md.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool {
					rm.Resource().Attributes().Clear()
					rm.ScopeMetrics().At(0).Metrics().At(0).SetName("other")
					return true
				})
				return errors.New("busy")
			},
			Permanent: func(error) bool { return false },
			Forget:    func(statetable.NodeKey) { t.Error("nothing was given up") },
		})
	}
	report(1)
	held, dropped := flush()
	require.Error(t, held)
	require.NoError(t, dropped)
	assert.EqualValues(t, 4, b.Points())
	report(2) // the first point replaces the held one
	assert.EqualValues(t, 6, b.Points())
	assert.EqualValues(t, 2, b.Replaced())
	accept = true
	held, dropped = flush()
	require.NoError(t, errors.Join(held, dropped))
	slices.Sort(sent)
	assert.Equal(t, []string{"a 2 of 3", "b 2 of 3"}, sent)
	assert.Zero(t, b.Points())
}

// A series that is twice in a report is one as soon as a second report comes.
func TestAReportWithOneSeriesTwice(t *testing.T) {
	b := NewBuffer(Limits{Points: 1000, NodePoints: 10, BatchBytes: 1 << 20}, nil)
	report := func(values ...int64) {
		md := pmetric.NewMetrics()
		m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName("m")
		points := m.SetEmptyGauge().DataPoints()
		for _, v := range values {
			points.AppendEmpty().SetIntValue(v)
		}
		require.Empty(t, take(b, md))
	}
	report(1, 2)
	assert.EqualValues(t, 2, b.Points())
	report(3)
	assert.EqualValues(t, 1, b.Points())
	assert.EqualValues(t, 2, b.Replaced())
	held, dropped := b.Flush(Hop{Send: func(md pmetric.Metrics, _, _ int) error {
		require.Equal(t, 1, md.DataPointCount())
		assert.EqualValues(t, 3, md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0).IntValue())
		return nil
	}})
	require.NoError(t, errors.Join(held, dropped))
	assert.Zero(t, b.Points())
}

// News of nodes that were there before do not wait for any number of new ones, and
// those do not wait for ever.
func TestNewNodesTakeTurnsAsOneCluster(t *testing.T) {
	known := statetable.NodeKey{}
	b := NewBuffer(Limits{Points: 10_000, NodePoints: 10, BatchBytes: 1}, func(key statetable.NodeKey) bool { return key == known })
	for i := range 500 {
		require.Empty(t, take(b, report(fmt.Sprint("made up ", i), i)))
	}
	var id identity
	news := report("honest", 1000)
	known = id.node(news.ResourceMetrics().At(0).Resource().Attributes())
	require.Empty(t, take(b, news))
	var order []string
	batches := 0
	flush := func() {
		held, dropped := b.Flush(Hop{
			Send: func(md pmetric.Metrics, _, _ int) error {
				node, _ := md.ResourceMetrics().At(0).Resource().Attributes().Get("host.id")
				order = append(order, node.AsString())
				return nil
			},
			Enough: func() bool { batches++; return batches%10 == 0 },
		})
		require.NoError(t, errors.Join(held, dropped))
	}
	flush()
	assert.Len(t, order, 10, "the rest waits")
	assert.Contains(t, order[:2], "1000")
	assert.EqualValues(t, 491, b.Points())
	require.Empty(t, take(b, report("honest", 1000)))
	flush()
	assert.Contains(t, order[10:12], "1000", "before those that wait since the flush before")
	for b.Points() > 0 {
		flush()
	}
	slices.Sort(order)
	assert.Len(t, slices.Compact(order), 501)
}

// large is a report of so many points of a node.
func large(node, points int) pmetric.Metrics {
	md := report("c", node)
	dps := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints()
	for i := 1; i < points; i++ {
		dps.AppendEmpty().Attributes().PutInt("i", int64(i))
	}
	return md
}

// A turn is of points: for each whole state of a new node, as much news of those
// that are known.
func TestTurnsAreOfPoints(t *testing.T) {
	var id identity
	known := map[statetable.NodeKey]bool{}
	b := NewBuffer(Limits{Points: 10_000, NodePoints: 100, BatchBytes: 1}, func(key statetable.NodeKey) bool { return known[key] })
	for i := range 20 {
		require.Empty(t, take(b, large(i, 100)))
	}
	for i := range 500 {
		md := report("c", 1000+i)
		known[id.node(md.ResourceMetrics().At(0).Resource().Attributes())] = true
		require.Empty(t, take(b, md))
	}
	news, whole := 0, 0
	held, dropped := b.Flush(Hop{
		Send: func(pmetric.Metrics, int, int) error { return nil },
		Sent: func(key statetable.NodeKey) {
			if known[key] {
				news++
			} else {
				whole += 100
			}
			if news < 500 {
				assert.InDelta(t, news, whole, 100)
			}
		},
	})
	require.NoError(t, errors.Join(held, dropped))
	assert.Equal(t, []int{500, 2000}, []int{news, whole})
}

// Where a hop takes no more than the news of each round, a cluster's whole states
// hold none of it up for long, and come through as well.
func TestNewsPassWholeStates(t *testing.T) {
	const wholes, points, perRound = 20, 100, 10
	b := NewBuffer(Limits{Points: 10_000, NodePoints: points, BatchBytes: 1}, nil)
	for i := range wholes {
		require.Empty(t, take(b, large(i, points)))
	}
	var id identity
	since, longest, whole := map[statetable.NodeKey]int{}, 0, 0
	for round := 1; whole < wholes; round++ {
		require.Less(t, round, 3*wholes*points/perRound)
		for i := range perRound {
			news := report("c", 1000+(round*perRound+i)%50)
			if key := id.node(news.ResourceMetrics().At(0).Resource().Attributes()); since[key] == 0 {
				since[key] = round
			}
			require.Empty(t, take(b, news))
		}
		sent := 0
		held, dropped := b.Flush(Hop{
			Send: func(_ pmetric.Metrics, points, _ int) error {
				sent += points
				return nil
			},
			Sent: func(key statetable.NodeKey) {
				if first := since[key]; first > 0 {
					longest = max(longest, round-first)
					delete(since, key)
				} else {
					whole++
				}
			},
			Enough: func() bool { return sent >= perRound },
		})
		require.NoError(t, errors.Join(held, dropped))
	}
	assert.LessOrEqual(t, longest, wholes/2, "rounds; first come, first served would make it as many as there are whole states")
}

// A fleet's whole states that fill the buffer do not make nodes that were heard of
// silent; a heartbeat finds room, and no more than one.
func TestAHeartbeatFindsRoom(t *testing.T) {
	var id identity
	beat := func(node int) pmetric.Metrics {
		md := report("c", node)
		sm := md.ResourceMetrics().At(0).ScopeMetrics().AppendEmpty()
		sm.Scope().SetName(ScopeName)
		m := sm.Metrics().AppendEmpty()
		m.SetName(gpusemconv.MetricNodeHeartbeat)
		dps := m.SetEmptyGauge().DataPoints()
		for i := range 3 {
			dps.AppendEmpty().Attributes().PutInt("made up", int64(i))
		}
		return md
	}
	known := map[statetable.NodeKey]bool{id.node(beat(1).ResourceMetrics().At(0).Resource().Attributes()): true}
	b := NewBuffer(Limits{Points: 100, NodePoints: 100, BatchBytes: 1}, func(key statetable.NodeKey) bool { return known[key] })
	require.Empty(t, take(b, large(0, 100)))
	for range 2 {
		require.NotEmpty(t, take(b, beat(1)))
		require.NotEmpty(t, take(b, beat(2)), "it may be only a name")
		assert.EqualValues(t, 101, b.Points())
	}
	beats := 0
	held, dropped := b.Flush(Hop{
		Send: func(_ pmetric.Metrics, _, n int) error { beats += n; return nil },
	})
	require.NoError(t, errors.Join(held, dropped))
	assert.Equal(t, 1, beats)
	assert.Zero(t, b.Points())
}

// A report of an unknown node, of one resource or several, finds room as a whole or not
// at all. A report that is larger than the buffer gets as much room as there is.
func TestANewNodeFindsRoomAsAWhole(t *testing.T) {
	known := false
	b := NewBuffer(Limits{Points: 100, ClusterShare: 0.5, NodePoints: 100, BatchBytes: 1}, func(statetable.NodeKey) bool { return known })
	node := func(i, resources int) pmetric.Metrics {
		md := pmetric.NewMetrics()
		for r := range resources {
			large(100*i+r, 20).ResourceMetrics().MoveAndAppendTo(md.ResourceMetrics())
		}
		return md
	}
	require.Empty(t, take(b, node(1, 2)))
	assert.EqualValues(t, 40, b.Points())
	require.NotEmpty(t, take(b, node(2, 2)), "of 50")
	assert.EqualValues(t, 40, b.Points(), "not ten of the 40")
	assert.EqualValues(t, 40, b.Dropped())
	known = true
	require.NotEmpty(t, take(b, node(2, 2)))
	assert.EqualValues(t, 50, b.Points(), "what is known has as much as there is")

	// A known node behind an unknown one gets as much room as there is.
	first := true
	b = NewBuffer(Limits{Points: 100, ClusterShare: 0.5, NodePoints: 100, BatchBytes: 1}, func(statetable.NodeKey) bool {
		defer func() { first = false }()
		return !first
	})
	require.NotEmpty(t, take(b, node(6, 4)), "80 of 50")
	assert.EqualValues(t, 50, b.Points())

	b = NewBuffer(Limits{Points: 100, ClusterShare: 0.5, NodePoints: 100, BatchBytes: 1}, func(statetable.NodeKey) bool { return false })
	require.NotEmpty(t, take(b, node(3, 4)))
	assert.EqualValues(t, 50, b.Points())
	_, _ = b.Flush(Hop{Send: func(pmetric.Metrics, int, int) error { return nil }})
	assert.Zero(t, b.Points())
	assert.Zero(t, b.room.Taken(), "no credit is left")
	deltas := node(4, 2)
	sum := deltas.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().AppendEmpty().SetEmptySum()
	sum.SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
	sum.DataPoints().AppendEmpty()
	require.Empty(t, take(b, deltas))
	assert.EqualValues(t, 40, b.Points(), "what does not wait needs no room")
	assert.Equal(t, 1, deltas.DataPointCount())
}

// Of a batch that had to be divided, the first half may be taken and the second not:
// what is held is the second alone, and it is whole.
func TestHalfOfABatchIsTaken(t *testing.T) {
	b := NewBuffer(Limits{Points: 1000, NodePoints: 10, BatchBytes: 1 << 20}, nil)
	const nodes = 8
	for i := range nodes {
		require.Empty(t, take(b, report("c", i)))
	}
	refuse := []error{errors.New("for good"), nil, errors.New("busy")}
	took := map[string]int{}
	sent := 0
	hop := Hop{
		Send: func(md pmetric.Metrics, _, _ int) error {
			if len(refuse) > 0 {
				err := refuse[0]
				if refuse = refuse[1:]; err != nil {
					return err
				}
			}
			for _, rm := range md.ResourceMetrics().All() {
				id, ok := rm.Resource().Attributes().Get("host.id")
				require.True(t, ok, "a node without a name")
				require.Equal(t, 1, rm.ScopeMetrics().Len())
				took[id.AsString()]++
			}
			return nil
		},
		Permanent: func(err error) bool { return err.Error() == "for good" },
		Sent:      func(statetable.NodeKey) { sent++ },
		Forget:    func(statetable.NodeKey) { t.Error("nothing was given up") },
	}
	held, dropped := b.Flush(hop)
	require.Error(t, held)
	require.NoError(t, dropped)
	assert.Len(t, took, nodes/2)
	assert.Equal(t, nodes/2, sent)
	assert.EqualValues(t, nodes/2, b.Points())
	for i := range nodes { // those that were taken have news again
		require.Empty(t, take(b, report("c", i)))
	}
	held, dropped = b.Flush(hop)
	require.NoError(t, errors.Join(held, dropped))
	assert.Len(t, took, nodes)
	assert.Zero(t, b.Points())
}

// A node that is always refused holds up no other cluster either.
func TestARefusedNodeHoldsUpNoOtherCluster(t *testing.T) {
	b := NewBuffer(Limits{Points: 1000, NodePoints: 10, BatchBytes: 1}, nil)
	require.Empty(t, take(b, report("bad", 100)))
	for i := range 50 {
		require.Empty(t, take(b, report("good", i)))
	}
	for range 4 {
		_, _ = b.Flush(Hop{
			Send: func(md pmetric.Metrics, _, _ int) error {
				if id, _ := md.ResourceMetrics().At(0).Resource().Attributes().Get("host.id"); id.AsString() == "100" {
					return errors.New("it cannot be sent")
				}
				return nil
			},
			Permanent: func(error) bool { return false },
			Forget:    func(statetable.NodeKey) {},
		})
	}
	assert.EqualValues(t, 1, b.Points())
}

// A node that speaks while it is being sent is known to be there.
func TestANodeIsKnownByWhatItSaysMeanwhile(t *testing.T) {
	said := 0
	b := NewBuffer(Limits{Points: 1000, NodePoints: 10, BatchBytes: 1}, func(statetable.NodeKey) bool { said++; return said > 1 })
	require.Empty(t, take(b, report("c", 1)))
	_, _ = b.Flush(Hop{
		Send: func(pmetric.Metrics, int, int) error {
			require.Empty(t, take(b, report("c", 1)))
			return errors.New("busy")
		},
		Permanent: func(error) bool { return false },
		Forget:    func(statetable.NodeKey) {},
	})
	held := b.waiting()
	require.Len(t, held, 1)
	assert.True(t, held[0].known)
}

// Nodes of very different size go in messages that hold as many of them as fit,
// and none is encoded to be divided after.
func TestMessagesHoldAsManyNodesAsFit(t *testing.T) {
	const nodes, most = 200, 4096
	rnd := rand.New(rand.NewPCG(1, 2))
	b := NewBuffer(Limits{Points: 1000, NodePoints: 10, BatchBytes: most}, nil)
	for i := range nodes {
		md := report("c", i)
		md.ResourceMetrics().At(0).Resource().Attributes().PutStr("a", strings.Repeat("x", rnd.IntN(most/2)))
		require.Empty(t, take(b, md))
	}
	var size pmetric.ProtoMarshaler
	var sent []pmetric.Metrics
	held, dropped := b.Flush(Hop{
		Send: func(md pmetric.Metrics, _, _ int) error {
			c := pmetric.NewMetrics()
			md.CopyTo(c)
			sent = append(sent, c)
			return nil
		},
		Permanent: func(error) bool { return false },
		Forget:    func(statetable.NodeKey) {},
	})
	require.NoError(t, errors.Join(held, dropped))
	for i, md := range sent {
		require.LessOrEqual(t, size.MetricsSize(md), most, "message %d", i)
		if i > 0 {
			with := sent[i-1]
			md.ResourceMetrics().At(0).CopyTo(with.ResourceMetrics().AppendEmpty())
			require.Greater(t, size.MetricsSize(with), most, "message %d had room for the first node of the next", i-1)
		}
	}
}

// BenchmarkBuffer is a flush of 100 nodes with 25 points of news each, to a next hop
// that takes everything, and what it took to hold them.
func BenchmarkBuffer(b *testing.B) {
	const nodes, points = 100, 25
	all := pmetric.NewMetrics()
	for i := range nodes {
		rm := all.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("k8s.cluster.name", "c")
		rm.Resource().Attributes().PutInt("host.id", int64(i))
		metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
		for j := range points {
			m := metrics.AppendEmpty()
			m.SetName(fmt.Sprint("hw.metric.", j))
			dp := m.SetEmptyGauge().DataPoints().AppendEmpty()
			dp.SetDoubleValue(float64(j))
			dp.Attributes().PutStr("hw.id", "GPU-7f3a")
		}
	}
	buffer := NewBuffer(Limits{Points: 1 << 20, NodePoints: 1000, BatchBytes: 1 << 16}, nil)
	hop := Hop{
		Send:      func(pmetric.Metrics, int, int) error { return nil },
		Permanent: func(error) bool { return false },
		Forget:    func(statetable.NodeKey) {},
	}
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		md := pmetric.NewMetrics()
		all.CopyTo(md)
		b.StartTimer()
		if buffer.Take(md, 0) != nil {
			b.Fatal("no room")
		}
		if held, dropped := buffer.Flush(hop); held != nil || dropped != nil {
			b.Fatal(held, dropped)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/nodes, "ns/node")
}

// A next component that changes a batch although it declares not to, and then refuses
// it, costs the batch's values and not the process.
func TestAHopThatLies(t *testing.T) {
	b := NewBuffer(Limits{Points: 100, NodePoints: 100, BatchBytes: 1 << 20}, nil)
	md := pmetric.NewMetrics()
	for range 2 {
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutInt("host.id", int64(md.ResourceMetrics().Len()))
		m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName("m")
		m.SetEmptyGauge().DataPoints().AppendEmpty().SetIntValue(1)
	}
	require.Empty(t, take(b, md))
	var forgot int
	held, dropped := b.Flush(Hop{
		Send: func(md pmetric.Metrics, _, _ int) error {
			md.ResourceMetrics().RemoveIf(func(pmetric.ResourceMetrics) bool { return true })
			return errors.New("busy")
		},
		Reads:     true,
		Permanent: func(error) bool { return false },
		Forget:    func(statetable.NodeKey) { forgot++ },
	})
	require.NoError(t, held)
	require.ErrorIs(t, dropped, errChanged)
	assert.Equal(t, 2, forgot)
	assert.Zero(t, b.Points())
}

// take tells the buffer how large the report is, as an Engine does.
func take(b *Buffer, md pmetric.Metrics) Missed {
	return b.Take(md, (&pmetric.ProtoMarshaler{}).MetricsSize(md))
}
