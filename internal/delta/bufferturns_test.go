// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
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
