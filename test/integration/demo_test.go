// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/process"
)

// startDemo runs configs/demo.yaml as shipped, with more over it.
func startDemo(t *testing.T, more ...string) *process.Collector {
	t.Helper()
	a := process.NewAddrs(t)
	return process.Run(t, process.Options{
		// However busy the machine is, no push is given up.
		Config: append([]string{"configs/demo.yaml", "exporters: {otlp_grpc: {timeout: 2m, sending_queue: {queue_size: 1000}}}\n"}, more...),
		Addrs:  a,
		Env: []string{
			"DEMO_OTLP_PORT=" + process.Port(a.GRPC), "DEMO_PROMETHEUS_PORT=" + process.Port(a.Prom),
			"DEMO_API_PORT=" + process.Port(a.API), "DEMO_FLEET_PORT=" + process.Port(a.Fleet),
		},
	})
}

// TestDemo replays the recorded training run: the worker that was slowed is named, and no
// other ever, also when the recording begins anew. API, view and `top` are asked here.
func TestDemo(t *testing.T) {
	t.Parallel()
	const slow = "dp0-pp0"
	began := time.Now()
	c := startDemo(t)

	c.WaitLog(1, "Straggler ")
	t.Logf("named after %s", time.Since(began).Round(time.Millisecond))
	process.Eventually(t, "gateway and agent both flag "+slow, func() bool {
		s := process.Scrape(t, c.Prom)
		return s.Is(1, "gpu_node_straggler", labels{"host_name": slow}) && s.Is(1, "gpu_agent_straggler", labels{"host_name": slow})
	})

	// Until well into the second pass: the jump back to the beginning of the
	// recording must not look like a fault. make proof has the minute that it takes.
	var anew time.Time
	process.Eventually(t, "the replay has begun anew and goes on", func() bool {
		require.False(t, c.Ended())
		s := process.Scrape(t, c.Prom)
		require.Len(t, s["gpu_node_straggler"], 16)
		for _, metric := range []string{"gpu_node_straggler", "gpu_agent_straggler"} {
			for host, v := range s.By(metric, "host_name", nil) {
				require.Equal(t, host == slow, v == 1, "%s of %s is %v", metric, host, v)
			}
		}
		if anew.IsZero() && c.Log.Count("replay begins anew") > 0 {
			anew = time.Now()
		}
		return testing.Short() || !anew.IsZero() && time.Since(anew) > 15*time.Second
	})

	stragglers := c.Log.Lines("Straggler ", "\twarn\t", ": ", " behind its peers")
	require.Len(t, stragglers, 1, "one line per episode")
	assert.Contains(t, stragglers[0], "Straggler "+slow+":")
	self := c.Log.Lines("this node takes itself for a straggler")
	require.Len(t, self, 1)
	assert.Contains(t, self[0], `"node": "`+slow+`"`)
	assert.Zero(t, c.Log.Count("no longer takes itself"))
	assert.Zero(t, c.Log.Count(": over"))
	assert.Empty(t, c.Log.Lines("\terror\t"))
	assert.Zero(t, c.Log.Count("grpc: "), "no exporter to this very process dials before it listens")
	assertDemoMetrics(t, process.Scrape(t, c.Prom), slow)
	assertDemoFleetView(t, c.Fleet, slow)
	assertTop(t, c)
}

func assertDemoMetrics(t *testing.T, s process.Scraped, slow string) {
	t.Helper()
	for dp := range 4 {
		for pp := range 4 {
			node := labels{"host_name": fmt.Sprintf("dp%d-pp%d", dp, pp), "k8s_cluster_name": "demo", "gpu_job_id": "AR", "gpu_job_role": fmt.Sprintf("stage-%d", pp)}
			assert.True(t, s.Is(1, "gpu_agent_detection_mode", node.And(labels{"gpu_detection_mode": "fleet"})), "%v judges itself by the fleet", node)
			assert.True(t, s.Is(1, "gpu_agent_gateway_reachable", node))
			assert.True(t, s.Is(1, "gpu_node_state", node.And(labels{"gpu_node_state": "active"})))
			score, ok := s.Value("gpu_node_health_score_ratio", node)
			assert.True(t, ok, "%v has a score", node)
			assert.Equal(t, node["host_name"] == slow, score < 0.6, "%v has %v", node, score)
			threshold, ok := s.Value("gpu_agent_threshold_ratio", node)
			assert.True(t, ok)
			assert.InDelta(t, 0.94, threshold, 0.03)
		}
	}
}
