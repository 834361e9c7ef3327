// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// demo are the addresses of configs/demo.yaml.
type demo struct{ prom, api, fleet string }

// startDemo runs it as shipped, with more over it.
func startDemo(t *testing.T, more ...string) (*collector, demo) {
	t.Helper()
	d := demo{loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t)}
	return start(t, options{
		configs: append([]string{"configs/demo.yaml", `
# However busy the machine is, no push is given up.
exporters:
  otlp_grpc: {timeout: 2m, sending_queue: {queue_size: 1000}}
`}, more...),
		env: []string{
			"DEMO_OTLP_PORT=" + portOf(t, loopback.FreeAddr(t)), "DEMO_PROMETHEUS_PORT=" + portOf(t, d.prom),
			"DEMO_API_PORT=" + portOf(t, d.api), "DEMO_FLEET_PORT=" + portOf(t, d.fleet),
		},
	}), d
}

// TestDemo replays the recorded training run: the worker that was slowed is named, and
// nobody else ever, also when the recording begins anew. All that shows the demo asks
// this one.
func TestDemo(t *testing.T) {
	t.Parallel()
	const slow = "dp0-pp0"
	began := time.Now()
	c, d := startDemo(t)

	c.waitLog(1, "Straggler ")
	t.Logf("named after %s", time.Since(began).Round(time.Millisecond))
	eventually(t, "gateway and agent both flag "+slow, func() bool {
		s := scrape(t, d.prom)
		return s.is(1, "gpu_node_straggler", labels{"host_name": slow}) && s.is(1, "gpu_agent_straggler", labels{"host_name": slow})
	})

	// Until well into the second pass: the jump back to the beginning of the
	// recording must not look like a fault. make proof has the minute that it takes.
	var anew time.Time
	eventually(t, "the replay has begun anew and goes on", func() bool {
		require.False(t, c.Ended())
		s := scrape(t, d.prom)
		require.Len(t, s["gpu_node_straggler"], 16)
		for _, metric := range []string{"gpu_node_straggler", "gpu_agent_straggler"} {
			for host, v := range s.by(metric, "host_name", nil) {
				require.Equal(t, host == slow, v == 1, "%s of %s is %v", metric, host, v)
			}
		}
		if anew.IsZero() && c.log.Count("replay begins anew") > 0 {
			anew = time.Now()
		}
		return testing.Short() || !anew.IsZero() && time.Since(anew) > 15*time.Second
	})

	stragglers := c.log.Lines("Straggler ", "\twarn\t", ": ", " behind its peers")
	require.Len(t, stragglers, 1, "one line per episode")
	assert.Contains(t, stragglers[0], "Straggler "+slow+":")
	self := c.log.Lines("this node takes itself for a straggler")
	require.Len(t, self, 1)
	assert.Contains(t, self[0], `"node": "`+slow+`"`)
	assert.Zero(t, c.log.Count("no longer takes itself"))
	assert.Zero(t, c.log.Count(": over"))
	assert.Empty(t, c.log.Lines("\terror\t"))
	assert.Zero(t, c.log.Count("grpc: "), "who pushes to this very process does not dial before it listens")
	assertDemoMetrics(t, scrape(t, d.prom), slow)
	assertDemoAPI(t, d.api)
	assertDemoFleetView(t, d.fleet, slow)
	assertTop(t, c, d)
}

func assertDemoMetrics(t *testing.T, s scraped, slow string) {
	t.Helper()
	for dp := range 4 {
		for pp := range 4 {
			node := labels{"host_name": fmt.Sprintf("dp%d-pp%d", dp, pp), "k8s_cluster_name": "demo", "gpu_job_id": "AR", "gpu_job_role": fmt.Sprintf("stage-%d", pp)}
			assert.True(t, s.is(1, "gpu_agent_detection_mode", node.and(labels{"gpu_detection_mode": "fleet"})), "%v judges itself by the fleet", node)
			assert.True(t, s.is(1, "gpu_agent_gateway_reachable", node))
			assert.True(t, s.is(1, "gpu_node_state", node.and(labels{"gpu_node_state": "active"})))
			score, ok := s.value("gpu_node_health_score_ratio", node)
			assert.True(t, ok, "%v has a score", node)
			if node["host_name"] == slow {
				assert.Less(t, score, 0.6)
			} else {
				assert.Greater(t, score, 0.95)
			}
			threshold, ok := s.value("gpu_agent_threshold_ratio", node)
			assert.True(t, ok)
			assert.InDelta(t, 0.94, threshold, 0.03)
		}
	}
	for _, g := range []struct {
		group       labels
		nodes, slow float64
	}{
		{labels{"gpu_peer_group": "AR/stage-0"}, 4, 1},
		{labels{"gpu_peer_group": "AR/stage-1"}, 4, 0},
		{labels{"gpu_peer_group": "AR/stage-2"}, 4, 0},
		// Five percent slower than the others by design, and healthy.
		{labels{"gpu_peer_group": "AR/stage-3"}, 4, 0},
		{labels{"gpu_peer_group": ""}, 16, 1},
	} {
		l := g.group.and(labels{"k8s_cluster_name": "demo"})
		for metric, want := range map[string]float64{
			"gpu_straggler_stragglers": g.slow, "gpu_straggler_coverage_low": 0, "gpu_straggler_quorum_met": 1,
		} {
			assert.True(t, s.is(want, metric, l), "%s of %v is not %v", metric, l, want)
		}
		for state, want := range map[string]float64{"active": g.nodes, "idle": 0, "calibrating": 0, "missing": 0} {
			assert.True(t, s.is(want, "gpu_straggler_nodes", l.and(labels{"gpu_node_state": state})), "%s nodes of %v", state, l)
		}
		for metric, within := range map[string][2]float64{
			"gpu_straggler_threshold_ratio": {0.91, 0.95},
			"gpu_straggler_median_ratio":    {0.97, 1},
			"gpu_straggler_mad_ratio":       {0, 0.02},
		} {
			v, ok := s.value(metric, l)
			assert.True(t, ok, "%s of %v", metric, l)
			assert.GreaterOrEqual(t, v, within[0], metric)
			assert.LessOrEqual(t, v, within[1], metric)
		}
	}
}

func assertDemoAPI(t *testing.T, addr string) {
	t.Helper()
	var clusters []struct {
		Cluster   string  `json:"cluster"`
		Threshold float64 `json:"threshold"`
		QuorumMet bool    `json:"quorum_met"`
		Groups    []struct {
			Group string  `json:"group"`
			Ref   float64 `json:"ref"`
		} `json:"groups"`
	}
	getJSON(t, "http://"+addr+"/api/v1/thresholds", &clusters)
	require.Len(t, clusters, 1)
	assert.Equal(t, "demo", clusters[0].Cluster)
	assert.True(t, clusters[0].QuorumMet)
	require.Len(t, clusters[0].Groups, 4)
	// Each stage has a reference of its own, in steps per second, and the last
	// one's is lower: what is slow for the others is normal there.
	first, last := clusters[0].Groups[0], clusters[0].Groups[3]
	assert.Equal(t, "AR/stage-3", last.Group)
	assert.InDelta(t, 1/19.3, first.Ref, 0.003)
	assert.Greater(t, last.Ref/first.Ref, 0.9)
	assert.Less(t, last.Ref/first.Ref, 0.99)
}
