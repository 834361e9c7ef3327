// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

const gpus = 8

// nvmlPace is that of the nvml receivers. A poll ends when all GPUs have answered, so that
// only a hang meets the deadline.
const nvmlPace = "collection_interval: 5s, deadline: 5s, retry_interval: 200ms"

// oftener is for a test that no false hang can break, as where there are no GPUs.
const oftener = "receivers: {nvml: {collection_interval: 1s, deadline: 1s}}\n"

// gpuNode is configs/all-in-one.yaml with a library of its own. Its job pushes by HTTP.
type gpuNode struct {
	*process.Collector
	t         *testing.T
	state     *fakenvml.State
	stateFile string
}

func startGPUNode(t *testing.T, binary string, state *fakenvml.State, more ...string) *gpuNode {
	t.Helper()
	n := &gpuNode{t: t, state: state, stateFile: filepath.Join(t.TempDir(), "state")}
	require.NoError(t, n.state.Write(n.stateFile))
	a, own := process.NewAddrs(t), loopback.FreeAddr(t)
	n.Collector = process.Run(t, process.Options{
		Binary: binary, Addrs: a,
		Config: append([]string{"configs/all-in-one.yaml", fmt.Sprintf(`
receivers:
  nvml: {%s, library_path: %q}
  fleet_otlp/app: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}
  fleet_otlp/gateway: {protocols: {grpc: {endpoint: %q}}}
processors:
  straggler/agent: {push_interval: 200ms, ttl_multiplier: 600, agent: {calibration_samples: 1}}
  straggler/gateway: {push_interval: 200ms, ttl_multiplier: 600}
exporters:
  otlp_grpc: {endpoint: %q}
extensions:
  exposition: {http: {endpoint: %q}}
  straggler_threshold/gateway: {api: {endpoint: %q}}
  fleet_view: {http: {endpoint: %q}, stream: {interval: 200ms}}
service:
  telemetry: {metrics: %s}
`, nvmlPace, fakenvml.Library(t), a.GRPC, a.HTTP, own, own, a.Prom, a.API, a.Fleet, process.TelemetryAt(a.Telemetry))}, more...),
		Env: []string{fakenvml.StateEnv + "=" + n.stateFile, "GPU_COLLECTOR_CLUSTER=lab", "GPU_COLLECTOR_NODE=gpu-7"},
	})
	return n
}

func (n *gpuNode) await(what string, condition func(process.Scraped) bool) {
	n.t.Helper()
	process.Eventually(n.t, what, func() bool { return condition(process.Scrape(n.t, n.Prom)) })
}

// awaitGPUs waits until all GPUs are up at the Prometheus endpoint: NVML's
// readings have gone through the agent's pipeline, over OTLP, and through the gateway's.
func (n *gpuNode) awaitGPUs() {
	n.t.Helper()
	n.await("all GPUs are up", func(s process.Scraped) bool {
		for i := range gpus {
			if !s.Is(1, "hw_gpu_up_ratio", labels{"hw_id": fakenvml.UUID(i), "reason": "ok", "k8s_cluster_name": "lab"}) {
				return false
			}
		}
		return true
	})
}

// TestGPUsAndJobAreOneNode: a node has two reports, its GPUs' and its job's.
// They are one node, in the group that both name.
func TestGPUsAndJobAreOneNode(t *testing.T) {
	t.Parallel()
	n := startGPUNode(t, "", fakenvml.NewState(gpus))
	n.awaitGPUs()
	limits := process.Scrape(t, n.Telemetry).With("otelcol_receiver_fleet_otlp_bytes_limit", nil)
	require.Len(t, limits, 2, "one for each receiver")
	assert.InDelta(t, 160<<20, limits[0].Value+limits[1].Value, 0, "half of what its memory_limiter allows")
	job := func(s process.Scraped) bool {
		md := pmetric.NewMetrics()
		process.Gauge(process.Node(md, "", "gpu.job.id", "llm"), "gpu.app.step.duration", "s", 0.5)
		md.ResourceMetrics().At(0).Resource().Attributes().Remove("host.name")
		if status := process.Post(t, n.Push(), process.Protobuf, process.Marshal(t, md)).Status; status != http.StatusOK {
			require.Equal(t, http.StatusServiceUnavailable, status) // a busy agent's, to be tried again
			return false
		}
		// The group of the GPUs alone is served until its series vanish, where a tick
		// came before the job. It counts no node of the cluster then.
		active := func(group string) bool {
			return s.Is(1, "gpu_straggler_nodes", labels{"gpu_peer_group": group, "gpu_node_state": "active", "k8s_cluster_name": "lab"})
		}
		return active("llm//NVIDIA-H100-80GB-HBM3") && active("") &&
			s.Is(2, "gpu_node_signal_ratio", labels{"gpu_signal": "throughput", "gpu_job_id": "llm"}) &&
			len(s.With("gpu_node_health_score_ratio", labels{"gpu_job_id": "llm", "host_name": "gpu-7"})) == 1
	}
	n.await("the job's group has the cluster's one node, and it is active", job)
	for range 20 {
		n.await("it stays so while both report", func(now process.Scraped) bool {
			assert.True(t, now.Is(1, "gpu_straggler_nodes", labels{"gpu_peer_group": "", "gpu_node_state": "active"}), "no second node beside it")
			return job(now)
		})
	}
}

func TestGPUsThroughBothTiers(t *testing.T) {
	t.Parallel()
	began := time.Now()
	n := startGPUNode(t, "", fakenvml.NewState(gpus))
	n.awaitGPUs()
	s := process.Scrape(t, n.Prom)
	for i := range gpus {
		gpu := labels{"hw_id": fakenvml.UUID(i)}
		for metric, want := range map[string]float64{
			"hw_power_watts":            350 + 1.25*float64(i),
			"hw_gpu_memory_limit_bytes": 80 << 30,
			"hw_gpu_memory_usage_bytes": float64((60 + i) << 30),
		} {
			assert.True(t, s.Is(want, metric, gpu), "%s of GPU %d is not %v", metric, i, want)
		}
		assert.True(t, s.Is(float64(45+i), "hw_temperature_celsius", gpu.And(labels{"hw_sensor_location": "gpu"})))
		assert.True(t, s.Is(1980e6, "hw_gpu_clock_frequency_hertz", gpu.And(labels{"clock": "sm"})))
		assert.True(t, s.Is(0, "hw_errors_total", gpu.And(labels{"error_type": "corrected", "gpu_ecc_counter": "volatile"})))
	}
	n.await("the node is active and reaches its gateway", func(s process.Scraped) bool {
		return s.Is(1, "gpu_straggler_nodes", labels{"k8s_cluster_name": "lab", "gpu_peer_group": "", "gpu_node_state": "active"}) &&
			len(s["gpu_node_health_score_ratio"]) == 1 &&
			len(s["gpu_agent_gateway_reachable"]) == 1 && s["gpu_agent_gateway_reachable"][0].Value == 1
	})

	assertViewOfGPUs(t, n, began)
	reload(t, n.Collector) // opens NVML again in the same process
	n.awaitGPUs()
	n.Kill()
	n.Start()
	n.awaitGPUs()
}
