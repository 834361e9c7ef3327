// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// requireCounted compares the ledgers with what the table holds, while no node is open.
func requireCounted(t require.TestingT, tb *Table) {
	bytes, series := map[uint64]int{}, map[uint64]int{}
	var allBytes, allSeries, nodes int
	for n := range tb.all() {
		require.Equal(t, n.size(), n.bytes)
		bytes[n.cluster] += n.size()
		series[n.cluster] += len(n.entries)
		allBytes, allSeries, nodes = allBytes+n.size(), allSeries+len(n.entries), nodes+1
	}
	for _, m := range tb.metrics.all {
		bytes[m.cluster] += metricBytes + m.text()
		allBytes += metricBytes + m.text()
	}
	require.Equal(t, nodes, tb.nodeBudget.Taken())
	require.EqualValues(t, nodes, tb.Stats().Nodes)
	require.Equal(t, allSeries, tb.seriesBudget.Taken())
	require.EqualValues(t, allSeries, tb.Stats().Series)
	require.Equal(t, allBytes, tb.byteBudget.Taken())
	for cluster := range bytes {
		require.Equal(t, bytes[cluster], tb.byteBudget.Held(cluster))
		require.Equal(t, series[cluster], tb.seriesBudget.Held(cluster))
	}
}

func requireEmpty(t require.TestingT, tb *Table) {
	require.Zero(t, tb.Stats().Nodes)
	require.Zero(t, tb.Stats().Series)
	require.Zero(t, tb.nodeBudget.Taken())
	require.Zero(t, tb.seriesBudget.Taken())
	require.Zero(t, tb.byteBudget.Taken())
}

// What is over a bound is dropped, or goes on each time and is not remembered.
func TestLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		set   Settings
		known int64
		limit Limit
	}{
		"series":           {Settings{MaxNodes: 9, MaxSeries: 2}, 2, LimitSeries},
		"series of a node": {Settings{MaxNodes: 9, MaxSeries: 100, MaxSeriesPerNode: 2}, 3, LimitNodeSeries},
		"nodes":            {Settings{MaxNodes: 1, MaxSeries: 100}, 3, LimitNodes},
		"bytes":            {Settings{MaxNodes: 9, MaxSeries: 100, MaxBytes: nodeBytes + seriesBytes + 600}, 1, LimitBytes},
	} {
		for _, drop := range []bool{false, true} {
			t.Run(name+" "+strconv.FormatBool(drop), func(t *testing.T) {
				tt.set.DropOver, tt.set.TTL = drop, time.Hour
				p := push{Table: New(tt.set)}
				for round := range int64(3) {
					a := p.begin(integer(1, round), integer(2, round), integer(3, round))
					limit := a.Limit
					a.Accepted()
					b := push{Table: p.Table, node: "b"}.begin(integer(1, round))
					if tt.limit == LimitNodes {
						limit = b.Limit
					}
					b.Accepted()
					assert.Equal(t, tt.limit, limit)
					over := int64(0)
					for _, verdict := range append(a.verdicts, b.verdicts...) {
						if verdict == Over {
							over++
						}
					}
					assert.Equal(t, 4-over, int64(len(a.has)+len(b.has)), "known series go on")
					assert.Equal(t, tt.known, p.Stats().Series)
					if drop {
						assert.Equal(t, 4-tt.known, over)
						assert.Zero(t, p.Stats().Untracked)
					} else {
						assert.Zero(t, over)
						assert.Equal(t, (round+1)*(4-tt.known), p.Stats().Untracked)
					}
				}
				requireCounted(t, p.Table)
			})
		}
	}
}

// A node without room for a further series goes on with its heartbeat.
func TestAHeartbeatFindsRoomBeyondTheShare(t *testing.T) {
	p := push{Table: newTable(func(s *Settings) { s.MaxSeries, s.DropOver = 1, true })}
	beat := func(key uint64, at int64) Verdict {
		point := integer(key, at)
		point.Heartbeat = true
		return p.send(integer(1, 1), point).verdicts[1]
	}
	assert.Equal(t, Pass, beat(2, 1))
	assert.Equal(t, Pass, beat(2, 2))
	assert.Equal(t, Over, beat(3, 1), "one of each node, or made-up ones would pass")
	assert.EqualValues(t, 2, p.Stats().Series)
	requireCounted(t, p.Table)
}

// A lone cluster has three quarters of the room, and another that comes a half of the rest. No
// node is taken from a cluster for another.
func TestAShareBindsUnderPressure(t *testing.T) {
	tb := New(Settings{MaxNodes: 100, MaxSeries: 1000, ClusterShare: 0.5, TTL: time.Hour})
	now := second
	send := func(cluster string, nodes int) (known int) {
		for i := range nodes {
			if len(push{Table: tb, at: now, cluster: cluster, node: strconv.Itoa(i)}.send(integer(1, 7)).has) == 0 {
				known++
			}
		}
		return known
	}
	for range 20 {
		send("first", 120)
		send("second", 60)
		tb.Sweep(now)
		now += 10 * second
	}
	assert.Equal(t, 75, send("first", 120))
	assert.Equal(t, 13, send("second", 60))
	assert.Zero(t, tb.Stats().EvictedNodes)
	now += 2 * time.Hour
	tb.Sweep(now)
	requireEmpty(t, tb)
}

// While the table is pressed, nodes that do not come back are forgotten within a minute, whatever
// the TTL is. A node that reports stays, however slow it is, and so do all while there is room.
func TestMadeUpNamesGiveWay(t *testing.T) {
	tb := newTable(func(s *Settings) { s.MaxSeries, s.TTL = 1000, time.Hour })
	now := second
	send := func(node string) { push{Table: tb, at: now, node: node}.send(integer(1, 7)) }
	known := func(node string) bool { return tb.lookup(push{node: node}.key()) != nil }
	for range 2 {
		send("quick")
		send("slow")
		now += time.Minute
	}
	send("quick")
	now += 10 * second
	send("quick")
	send("0")
	now += 40 * second
	tb.Sweep(now)
	require.True(t, known("0"), "its room is not needed")
	for i := range 8 {
		send(strconv.Itoa(i))
	}
	require.True(t, tb.Pressed())
	for range 4 {
		now += 10 * second
		send("quick")
	}
	tb.Sweep(now)
	assert.False(t, tb.Pressed())
	assert.True(t, known("quick"))
	assert.True(t, known("slow"), "its interval is a minute")
	assert.EqualValues(t, 3, tb.Stats().EvictedNodes, "no more than were in the way")
}

// TestAFloodOfClustersTakesNoNode draws an honest cluster beside a flood of made-up ones that
// fills the table: no node that reports is forgotten.
func TestAFloodOfClustersTakesNoNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const maxNodes = 400
		honest := rapid.IntRange(1, maxNodes/4).Draw(t, "honest nodes")
		flood := rapid.IntRange(1, 40).Draw(t, "clusters made up in a second")
		interval := rapid.IntRange(1, 30).Draw(t, "seconds between two reports of a node")
		tb := New(Settings{MaxNodes: maxNodes, MaxSeries: 1 << 20, ClusterShare: 0.5, TTL: 10 * time.Minute, DropOver: true})
		known := map[string]bool{}
		for second := range 300 {
			now := time.Duration(second) * time.Second
			send := func(cluster, node string) {
				push{Table: tb, at: now, cluster: cluster, node: node}.send(integer(1, 7))
			}
			for i := range flood {
				send(strconv.Itoa(second*flood+i), "x")
			}
			for i := second % interval; i < honest; i += interval {
				node := strconv.Itoa(i)
				send("honest", node)
				found := tb.lookup(push{cluster: "honest", node: node}.key()) != nil
				if known[node] && !found {
					t.Fatalf("%s was forgotten, %d s after the start", node, second)
				}
				known[node] = found
			}
			if second%9 == 8 {
				tb.Sweep(now)
			}
		}
	})
}
