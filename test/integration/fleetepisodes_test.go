// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
)

// TestFleetViewSaysWhyANodeIsSlow has a node of eight slowed by heat, behind
// the gateway's diff, asks the API for all that is known of it, and restarts
// the gateway.
func TestFleetViewSaysWhyANodeIsSlow(t *testing.T) {
	t.Parallel()
	gp := newGatewayPorts(t)
	dir := t.TempDir()
	gateway := start(t, options{configs: []string{"configs/gateway.yaml", gp.overlay(t)}, env: []string{"STATE_DIRECTORY=" + dir}})
	ap := startAgent(t, gp, "view")
	f := &fleet{cluster: "view", hot: 5}
	f.run(t, ap.grpc)
	awaitWarm(t, gp, "view")
	url := "http://" + gp.fleet + "/api/v1"
	var ranking fleetapi.StragglerList
	eventually(t, "a ranking while nobody is slow", func() bool {
		getJSON(t, url+"/stragglers", &ranking)
		return len(ranking.Stragglers) == 8
	})
	for _, s := range ranking.Stragglers {
		assert.False(t, s.Straggler, s.Node.Node)
		assert.Nil(t, s.Episode, s.Node.Node)
	}

	began := time.Now()
	f.set(5, map[int]float64{5: 0.2})
	var episodes fleetapi.EpisodePage
	found := func() bool {
		getJSON(t, url+"/episodes?open=true", &episodes)
		getJSON(t, url+"/stragglers?limit=3", &ranking)
		return len(episodes.Episodes) > 0 && len(ranking.Stragglers) == 3 && ranking.Stragglers[0].Straggler && ranking.Stragglers[0].Rank != nil
	}
	eventually(t, "the episode, the verdict and the rank", found)
	ep := episodes.Episodes[0]
	assert.Equal(t,
		[]string{"node", "view", "job/worker", "n5", "throughput", "major", "hw_thermal", "check_cooling", "GPU-5-0"},
		[]string{string(ep.Subject), ep.Cluster, ep.Group, ep.Node, ep.Signal, ep.Severity.String(), ep.Reason, ep.Action, ep.GPU})
	// It is the last tick, of a second each, at which nothing was lost yet, in whole seconds.
	assert.WithinRange(t, ep.Since, began.Truncate(time.Second).Add(-time.Second), time.Now())
	assert.Greater(t, *ep.Confidence, 0.6)
	assert.InDelta(t, 0.2, *ep.Gap, 0.05)
	assert.InDelta(t, 0.2*64, *ep.Cost, 0.05*64)
	assert.Equal(t, []int64{1, 8}, []int64{*ep.Rank, *ep.Active})
	assert.Contains(t, ep.Text, "Straggler n5")
	assert.False(t, ep.Observation)
	require.NotEmpty(t, ep.Evidence)
	assert.Equal(t, []string{"hw_thermal", "GPU-5-0", "1"}, []string{ep.Evidence[0].Fact, ep.Evidence[0].GPU, ep.Evidence[0].Unit})
	assert.Equal(t, []float64{1, 0}, []float64{*ep.Evidence[0].Value, *ep.Evidence[0].Peers})

	first := ranking.Stragglers[0]
	assert.Equal(t, "n5", first.Node.Node)
	assert.InDelta(t, 1, *first.Rank, 0)
	require.NotNil(t, first.Episode)
	assert.Equal(t, ep.ID, first.Episode.ID)

	// diff forwards no unchanged value, so the view must have kept these.
	var node fleetapi.Node
	getJSON(t, url+"/nodes/n5", &node)
	assertSlowNode(t, &node)
	require.NotNil(t, node.Episode)
	assert.Equal(t, ep.ID, node.Episode.ID)
	assert.Equal(t, []string{"hw_thermal"}, node.GPUs[0].Throttles)
	assert.InDelta(t, 92, *node.GPUs[0].Temperature, 0)

	eventually(t, "the engine's state of after the onset", func() bool {
		kept, err := os.Stat(filepath.Join(dir, "straggler.state"))
		return err == nil && kept.ModTime().After(began)
	})
	gateway.kill()
	gateway.restart()
	back := time.Now()
	eventually(t, "the gateway listens", func() bool {
		conn, err := net.Dial("tcp", gp.fleet)
		if err != nil {
			return false
		}
		return assert.NoError(t, conn.Close())
	})
	// One push and one comparison later.
	var nodes fleetapi.NodePage
	eventually(t, "all nodes are back, GPUs and signals too", func() bool {
		getJSON(t, url+"/nodes?gpus=true", &nodes)
		whole := 0
		for _, n := range nodes.Nodes {
			if len(n.GPUs) == 8 && len(n.Signals) > 0 && n.Score != nil && n.Group == "job/worker" {
				whole++
			}
		}
		return whole == 8
	})
	t.Logf("whole %s after the restart", time.Since(back).Round(time.Millisecond))
	eventually(t, "the straggler is still known", found)
	require.Len(t, episodes.Episodes, 1, "one node, one open episode")
	again := episodes.Episodes[0]
	assert.Equal(t, ep.ID, again.ID, "it is not told again")
	assert.Equal(t, []string{"n5", "hw_thermal"}, []string{again.Node, again.Reason})
	getJSON(t, url+"/nodes/n5", &node)
	assertSlowNode(t, &node)

	f.move(5)
	eventually(t, "its end", func() bool {
		getJSON(t, url+"/episodes", &episodes)
		return len(episodes.Episodes) > 0 && !episodes.Episodes[0].Open
	})
	over := episodes.Episodes[0]
	assert.Equal(t, []string{again.ID, "moved", "hw_thermal"}, []string{over.ID, over.Cause, over.Reason})
	assert.NotEmpty(t, over.Evidence)
	for _, former := range episodes.Episodes[1:] {
		assert.Equal(t, []string{ep.ID, "restart", "n5"}, []string{former.ID, former.Cause, former.Node})
	}
	node = fleetapi.Node{}
	getJSON(t, url+"/nodes/n5", &node)
	assert.Nil(t, node.Episode)
}

// assertSlowNode expects what a page draws of a node that is a fifth slower
// than its peers.
func assertSlowNode(t *testing.T, n *fleetapi.Node) {
	t.Helper()
	assert.True(t, n.Straggler)
	require.NotNil(t, n.Suspicion)
	assert.Greater(t, *n.Suspicion, 1.0)
	require.Len(t, n.GPUs, 8)
	for what, v := range map[string]*float64{"score": n.Score, "threshold": n.Threshold, "median": n.GroupMedian} {
		require.NotNil(t, v, what)
	}
	assert.Less(t, *n.Score, *n.Threshold)
	assert.Greater(t, *n.GroupMedian, *n.Threshold)
	for _, s := range n.Signals {
		if s.Signal != "throughput" {
			continue
		}
		assert.InDelta(t, 0.8, s.Value, 0.05)
		require.NotNil(t, s.Median)
		assert.InDelta(t, 1, *s.Median, 0.05)
		require.NotNil(t, s.Scale)
		assert.InDelta(t, 0.01, *s.Scale, 0.02)
		return
	}
	require.Fail(t, "no throughput", "%+v", n.Signals)
}
