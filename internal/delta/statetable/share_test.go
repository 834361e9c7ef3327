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
		r := table.Begin(now)
		r.OpenNode(NodeKey{Hi: HashString(cluster), Lo: HashString(name)})
		if r.Undescribed() {
			r.DescribeNode([]Attr{{Key: gpusemconv.AttrClusterName, Text: cluster}, {Key: gpusemconv.AttrHostName, Text: name}})
		}
		for i := range series {
			if r.Observe(Point{Key: HashString(strconv.Itoa(i)), Value: 7, Time: 1}) == Forward {
				forwarded++
			}
		}
		r.CloseNode()
		r.Commit()
		return forwarded
	}
	for range 3 {
		for i := range 300 {
			push("greedy", strconv.Itoa(i), 2)
		}
		push("greedy", "one node", 10_000)
	}
	require.EqualValues(t, 50, table.Stats().Nodes)
	require.EqualValues(t, 100, table.Stats().Series, "two of each of fifty nodes")
	for i := range 100 {
		push("greedy", "0", 2+i*10)
	}
	require.EqualValues(t, 200, table.Stats().Series)

	for i := range 25 {
		require.Equal(t, 4, push("honest", strconv.Itoa(i), 4))
		require.Zero(t, push("honest", strconv.Itoa(i), 4), "it is remembered")
	}
	assert.EqualValues(t, 75, table.Stats().Nodes)
	assert.EqualValues(t, 300, table.Stats().Series)
	assert.Equal(t, 4, push("honest", "25", 4))
	assert.Equal(t, 4, push("honest", "25", 4), "half of what is left is had")

	now += 2 * time.Hour
	table.Sweep(now)
	assert.Zero(t, table.places.Taken())
	assert.Zero(t, table.room.Taken())
	assert.Zero(t, table.Stats().Nodes)
	assert.EqualValues(t, 75, table.Stats().EvictedNodes, "what never had room is not evicted")
	for i := range 60 {
		push("honest", strconv.Itoa(i), 4)
	}
	assert.EqualValues(t, 50, table.Stats().Nodes)
	assert.EqualValues(t, 200, table.Stats().Series)
}
