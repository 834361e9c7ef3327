// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// TestDemoNamesTheStraggler replays the recorded training run until it has
// begun anew: the worker that was slowed is named within the first half
// minute, and nobody else ever.
func TestDemoNamesTheStraggler(t *testing.T) {
	t.Parallel()
	const slow = "dp0-pp0"
	prom, api, fleet := loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t)
	began := time.Now()
	c := start(t, options{
		configs: []string{"configs/demo.yaml"},
		env: []string{
			"DEMO_OTLP_PORT=" + portOf(t, loopback.FreeAddr(t)),
			"DEMO_PROMETHEUS_PORT=" + portOf(t, prom),
			"DEMO_API_PORT=" + portOf(t, api),
			"DEMO_FLEET_PORT=" + portOf(t, fleet),
			"DEMO_DATA=configs/demo/step-times-AR.csv",
		},
	})

	c.waitLog(1, "STRAGGLER ")
	t.Logf("named after %s", time.Since(began).Round(time.Millisecond))
	eventually(t, "gateway and agent both flag "+slow, func() bool {
		s := scrape(t, prom)
		return s.is(1, "gpu_node_straggler", labels{"host_name": slow}) && s.is(1, "gpu_agent_straggler", labels{"host_name": slow})
	})

	// Until well into the second pass: the jump back to the beginning of the
	// recording must not look like a fault.
	var anew time.Time
	eventually(t, "the replay has begun anew and goes on", func() bool {
		require.False(t, c.Ended())
		s := scrape(t, prom)
		require.Len(t, s["gpu_node_straggler"], 16)
		for _, metric := range []string{"gpu_node_straggler", "gpu_agent_straggler"} {
			for host, v := range s.by(metric, "host_name", nil) {
				require.Equal(t, host == slow, v == 1, "%s of %s is %v", metric, host, v)
			}
		}
		if anew.IsZero() && c.log.Count("replay begins anew") > 0 {
			anew = time.Now()
		}
		return !anew.IsZero() && time.Since(anew) > 15*time.Second
	})

	stragglers := c.log.Lines("STRAGGLER ")
	require.Len(t, stragglers, 1, "one line per episode")
	assert.Contains(t, stragglers[0], "STRAGGLER "+slow+":")
	self := c.log.Lines("this node takes itself for a straggler")
	require.Len(t, self, 1)
	assert.Contains(t, self[0], `"node": "`+slow+`"`)
	assert.Zero(t, c.log.Count("no longer takes itself"))
	assert.Zero(t, c.log.Count("no straggler any more"))
	assert.Zero(t, c.log.Count("panic mode"))
	assert.Empty(t, c.log.Lines("\terror\t"))
	assertDemoMetrics(t, scrape(t, prom), slow)
	assertDemoAPI(t, api)
	assertDemoFleetView(t, fleet, slow)
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
			"gpu_straggler_stragglers": g.slow, "gpu_straggler_coverage_low": 0, "gpu_straggler_panic_mode": 0, "gpu_straggler_quorum_met": 1,
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
		Cluster   string  `json:"cluster_id"`
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

// TestMakeRun plays `make run`: the straggler of the recording, a hot GPU, a lost GPU
// and a slow rack are named, nobody else is, and few lines come before the first verdict.
func TestMakeRun(t *testing.T) {
	t.Parallel()
	demo, err := build("demo", "demo")
	require.NoError(t, err)
	collector, err := filepath.Abs(collectorBinary)
	require.NoError(t, err)
	fleet := loopback.FreeAddr(t)
	cmd := exec.CommandContext(t.Context(), demo, "-collector", collector, "-log", filepath.Join(t.TempDir(), "demo.log"))
	cmd.Dir = root
	cmd.Env = append(os.Environ(),
		"STATE_DIRECTORY="+t.TempDir(),
		"DEMO_OTLP_PORT="+portOf(t, loopback.FreeAddr(t)),
		"DEMO_PROMETHEUS_PORT="+portOf(t, loopback.FreeAddr(t)),
		"DEMO_API_PORT="+portOf(t, loopback.FreeAddr(t)),
		"DEMO_FLEET_PORT="+portOf(t, fleet),
	)
	var out syncBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	all := inTime(func() bool { return strings.Contains(out.String(), "All 4 faults are named.") })
	require.True(t, all, "%s", &out)
	assertDoctor(t, collector, fleet)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait(), "%s", &out)

	text := out.String()
	before, _, found := strings.Cut(text, "STRAGGLER ")
	require.True(t, found, text)
	assert.LessOrEqual(t, strings.Count(before, "\n"), 15, text)
	page := "http://" + fleet + "/#in="
	for _, want := range []string{
		`STRAGGLER dp0-pp0: .* s a step against a median of .* s among .*\n +` + page + `demo&node=dp0-pp0\n`,
		`STRAGGLER node-000011: .* s a step .* reason gpu_lost of GPU 2, GPU-.*\n +` + page + `west&node=node-000011\n`,
		`STRAGGLER node-000005: .* reason hw_thermal of GPU 3, GPU-.*\n +` + page + `west&node=node-000005\n`,
		`rack rack-2: 7 of 8 nodes; reason sm_clock_low`,
	} {
		assert.Regexp(t, want, text)
	}
	named := regexp.MustCompile(`STRAGGLER (\S+):`).FindAllStringSubmatch(text, -1)
	assert.Len(t, named, 3, text)
}

// assertDoctor asks the real command about nodes of the demo.
func assertDoctor(t *testing.T, binary, fleet string) {
	t.Helper()
	ask := func(args ...string) (string, error) {
		// Nothing of this machine's own collector, if there is one.
		args = append([]string{"doctor", "--endpoint", fleet, "--telemetry", "http://" + loopback.FreeAddr(t)}, args...)
		out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
		return string(out), err
	}
	empty := t.TempDir()
	text, err := ask("--node", "node-000005", "--root", empty)
	require.NoError(t, err, text)
	assert.Contains(t, text, "knows 56 nodes")
	assert.Contains(t, text, "16 active nodes in group")
	assert.Contains(t, text, "the node is a straggler")
	device := filepath.Join(empty, "sys/bus/pci/devices/0000:1b:00.0")
	require.NoError(t, os.MkdirAll(device, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(device, "vendor"), []byte("0x10de"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(device, "class"), []byte("0x030200"), 0o600))
	text, err = ask("--node", "nobody", "--root", empty, "--json")
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, text)
	assert.Equal(t, 1, exit.ExitCode())
	assert.Contains(t, text, "driver is not loaded")
	assert.Contains(t, text, `does not know a node \"nobody\"`)
}

// syncBuffer is written and read at once.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
