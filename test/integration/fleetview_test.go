// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// assertViewOfGPUs asks the API of configs/all-in-one.yaml for the node.
func assertViewOfGPUs(t *testing.T, n *gpuNode, began time.Time) {
	t.Helper()
	url := n.URL("/api/v1")
	var nodes fleetapi.NodePage
	process.Eventually(t, "the node is there with its GPUs", func() bool {
		process.FetchJSON(t, url+"/nodes?gpus=true", &nodes)
		return len(nodes.Nodes) == 1 && len(nodes.Nodes[0].GPUs) == gpus && nodes.Nodes[0].Group != ""
	})
	node := nodes.Nodes[0]
	assert.Equal(t, "lab", node.Cluster)
	assert.Equal(t, "healthy", node.Health)
	assert.Less(t, node.AgeSeconds, time.Since(began).Seconds())
	for i, g := range node.GPUs {
		require.NotNil(t, g.Index)
		assert.Equal(t, i, *g.Index)
		require.NotNil(t, g.Temperature, g.UUID)
		require.NotNil(t, g.Power, g.UUID)
		require.NotNil(t, g.MemoryLimit, g.UUID)
		assert.NotEmpty(t, g.Model)
	}
	var stragglers fleetapi.StragglerList
	process.FetchJSON(t, url+"/stragglers", &stragglers)
	require.Len(t, stragglers.Stragglers, 1, "a list although no node is one")
	assert.False(t, stragglers.Stragglers[0].Straggler)
}

func assertDemoFleetView(t *testing.T, addr, slow string) {
	t.Helper()
	url := "http://" + addr + "/api/v1"
	var list fleetapi.NodePage
	process.FetchJSON(t, url+"/nodes?straggler=true", &list)
	require.Len(t, list.Nodes, 1)
	assert.Equal(t, slow, list.Nodes[0].Node)
	assert.Equal(t, 1, list.Total)
	process.FetchJSON(t, url+"/nodes?limit=10&page=2", &list)
	assert.Len(t, list.Nodes, 6)
	assert.Equal(t, 16, list.Total)
	var ranking fleetapi.StragglerList
	process.FetchJSON(t, url+"/stragglers?limit=10", &ranking)
	require.Len(t, ranking.Stragglers, 10)
	assert.Equal(t, slow, ranking.Stragglers[0].Node.Node)
	require.NotNil(t, ranking.Stragglers[0].Episode)
	assert.True(t, ranking.Stragglers[0].Episode.Open)
	assert.Contains(t, ranking.Stragglers[0].Episode.Text, "Straggler "+slow)
	var groups fleetapi.GroupPage
	process.FetchJSON(t, url+"/groups", &groups)
	require.Len(t, groups.Groups, 5, "four stages and the cluster")
	for _, g := range groups.Groups {
		assert.True(t, g.QuorumMet, g.Group)
	}
}
