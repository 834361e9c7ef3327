// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// TestOneClusterLeavesRoom: however many nodes and series a cluster makes up,
// another one's are remembered, and what the greedy one gives up is for all.
func TestOneClusterLeavesRoom(t *testing.T) {
	table := New(Settings{MaxNodes: 100, MaxSeries: 400, ClusterShare: 0.5, TTL: time.Hour})
	now := time.Second
	push := func(cluster, name string, series int) (forwarded int) {
		in(table, now, NodeKey{Hi: HashString(cluster), Lo: HashString(name)}, func(r *Report) {
			if r.Undescribed() {
				r.DescribeNode([]Attr{{Key: gpusemconv.AttrClusterName, Text: cluster}, {Key: gpusemconv.AttrHostName, Text: name}})
			}
			for i := range series {
				if r.Observe(&Point{Key: HashString(strconv.Itoa(i)), Value: 7, Time: 1}) == Forward {
					forwarded++
				}
			}
		})
		return forwarded
	}
	for i := range 300 {
		push("greedy", strconv.Itoa(i), 2)
	}
	require.EqualValues(t, 50, table.Stats().Nodes)
	require.EqualValues(t, 100, table.Stats().Series, "two of each of fifty nodes")
	push("greedy", "0", 1000)
	require.EqualValues(t, 200, table.Stats().Series)

	for i := range 25 {
		require.Equal(t, 4, push("honest", strconv.Itoa(i), 4))
		require.Zero(t, push("honest", strconv.Itoa(i), 4), "it is remembered")
	}
	for range 2 {
		assert.Equal(t, 4, push("honest", "25", 4), "half of what is left is had")
	}
	now += 2 * time.Hour
	table.Sweep(now)
	assert.Zero(t, table.Stats().Nodes)
	assert.EqualValues(t, 75, table.Stats().EvictedNodes, "what never had room is not evicted")
	for i := range 60 {
		push("honest", strconv.Itoa(i), 4)
	}
	assert.EqualValues(t, 50, table.Stats().Nodes)
	assert.EqualValues(t, 200, table.Stats().Series)
}

// TestMadeUpNamesGiveWay: while something finds no room, nodes that do not come back are
// forgotten within a minute, whatever the TTL is. A node that reports stays, however
// slow it is, and so does everybody while there is room.
func TestMadeUpNamesGiveWay(t *testing.T) {
	for _, drop := range []bool{false, true} {
		table := New(Settings{MaxNodes: 10, MaxSeries: 1000, TTL: time.Hour, DropOver: drop})
		now := time.Second
		push := func(name string) {
			in(table, now, KeyOf([]byte(name)), func(r *Report) {
				if r.Undescribed() {
					r.DescribeNode(host(name, name))
				}
				r.Observe(&Point{Key: 1, Value: 7, Time: 1})
			})
		}
		known := func(name string) bool { return table.Known(KeyOf([]byte(name))) }
		for range 2 {
			push("quick")
			push("slow")
			now += time.Minute
		}
		push("quick")
		now += 10 * time.Second
		push("quick")
		for i := range 8 {
			push(strconv.Itoa(i))
		}
		now += 40 * time.Second
		assert.False(t, table.Pressed())
		table.Sweep(now)
		require.True(t, known("0"), "nobody needs its room")

		push("quick")
		push("new")
		require.False(t, known("new"))
		require.True(t, table.Pressed())
		table.Sweep(now)
		assert.False(t, table.Pressed())
		assert.False(t, known("0"))
		assert.True(t, known("quick"))
		assert.True(t, known("slow"), "its interval is a minute")
		push("new")
		assert.True(t, known("new"))
		assert.EqualValues(t, 8, table.Stats().EvictedNodes)
	}
}
