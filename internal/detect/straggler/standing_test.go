// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

func TestHowANodeStands(t *testing.T) {
	f := newFleet(t, nil)
	stands := func(node string) (int, unjudged.Reason) {
		group, active, why, known := f.e.Standing("c", node)
		assert.True(t, known)
		assert.Equal(t, f.e.clusters["c"].nodes[node].group.name, group)
		return active, why
	}
	f.round(0.9, 0.9, 0.9)
	f.push(nodeName("n", 3), nil, 0.9)
	active, why := stands(nodeName("n", 3))
	assert.Equal(t, 3, active)
	assert.Equal(t, unjudged.Calibrating, why, "nobody has compared it yet")
	for range warmTicks {
		f.round(0.9, 0.9, 0.9)
	}
	_, why = stands(nodeName("n", 2))
	assert.Equal(t, unjudged.Judged, why)
	_, _, _, known := f.e.Standing("c", "stranger") //nolint:dogsled // who it is counts
	assert.False(t, known)
	_, _, _, known = f.e.Standing("elsewhere", nodeName("n", 1)) //nolint:dogsled // who it is counts
	assert.False(t, known)
}

// A shard repeats by heartbeats what it told. The value after a heartbeat is the same node's.
func TestAHeartbeatContradictsNobody(t *testing.T) {
	e := New(DefaultConfig())
	now := time.Unix(1.8e9, 0)
	for tick := range 30 {
		for i := range 4 {
			o := nodesignal.Observation{Cluster: "c", Node: nodeName("n", i), Heartbeat: true}
			require.NoError(t, e.Observe(&o, now))
			o = nodesignal.Observation{Cluster: "c", Node: nodeName("n", i), State: nodesignal.StateActive, HasState: true}
			o.Values.Set(nodesignal.CPU, 0.3+0.5*float64(tick%2))
			require.NoError(t, e.Observe(&o, now))
		}
		now = now.Add(10 * time.Second)
		for _, n := range e.Tick(now).Nodes {
			assert.NotEqual(t, unjudged.Contested, n.Unjudged)
		}
	}
}
