// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/test/heap"
)

// TestMemoryOfANode: a node with all signals takes about 1.7 kB with its share of
// a group of 50, and a group about 10 kB. With what explains a node, 2.8 kB in
// internal/reason, max_nodes of them are 0.9 GB.
func TestMemoryOfANode(t *testing.T) {
	const nodes = 20_000
	measure := func(groups int) float64 {
		before, e := heap.Live(), New(DefaultConfig())
		now := start
		for range 2 {
			for i := range nodes {
				o := Observation{
					Cluster: "c", Node: fmt.Sprintf("node-%06d.example", i),
					Peers: []string{fmt.Sprint("job-", i%groups), "stage-0", "NVIDIA-H100-80GB-HBM3"}, HasState: true, Score: 0.9, HasScore: true,
				}
				for s := range nodesignal.Score {
					o.Values.Set(s, 0.9)
				}
				require.NoError(t, e.Observe(&o, now))
			}
			now = now.Add(tick)
			e.Tick(now)
		}
		held := heap.Live() - before
		runtime.KeepAlive(e)
		return float64(held)
	}
	few, many := measure(nodes/50), measure(nodes/10)
	node, group := few/nodes, (many-few)/(nodes/10-nodes/50)
	t.Logf("%.0f bytes per node, %.0f per group", node, group)
	assert.Less(t, node, 1800.0)
	assert.Less(t, group, 11_000.0)
}
