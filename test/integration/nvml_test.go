// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

const gpus = 8

// nvmlPace is that of the nvml receivers. A poll ends when all GPUs have answered, so that
// only a hang meets the deadline.
const nvmlPace = "collection_interval: 5s, deadline: 5s, retry_interval: 200ms"

// gpuNode is configs/all-in-one.yaml with a library of its own.
type gpuNode struct {
	*collector
	prom, telemetry string
	fleet           string // API of the fleet view
	app             string // where the job pushes, OTLP/HTTP
	state           *fakenvml.State
	stateFile       string
}

func startGPUNode(t *testing.T, binary, library string, more ...string) *gpuNode {
	t.Helper()
	n := &gpuNode{prom: loopback.FreeAddr(t), fleet: loopback.FreeAddr(t), telemetry: loopback.FreeAddr(t), state: fakenvml.NewState(gpus), stateFile: filepath.Join(t.TempDir(), "state")}
	require.NoError(t, n.state.Write(n.stateFile))
	n.app = loopback.FreeAddr(t)
	own := loopback.FreeAddr(t)
	n.collector = start(t, options{
		binary: binary,
		configs: append([]string{"configs/all-in-one.yaml", fmt.Sprintf(`
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
`, nvmlPace, library, loopback.FreeAddr(t), n.app, own, own, n.prom, loopback.FreeAddr(t), n.fleet, telemetryReader(t, n.telemetry))}, more...),
		env: []string{fakenvml.StateEnv + "=" + n.stateFile, "GPU_COLLECTOR_CLUSTER=lab", "GPU_COLLECTOR_NODE=gpu-7"},
	})
	return n
}

// uptime is how long the process has run, by its own account.
func (n *gpuNode) uptime() time.Duration {
	n.t.Helper()
	s, _ := scrape(n.t, n.telemetry).value("otelcol_process_uptime", nil)
	return time.Duration(s * float64(time.Second))
}

func (n *gpuNode) await(what string, condition func(scraped) bool) {
	n.t.Helper()
	eventually(n.t, what, func() bool { return condition(scrape(n.t, n.prom)) })
}

// awaitGPUs waits until all GPUs are up at the Prometheus endpoint: what NVML
// said has gone through the agent's pipeline, over OTLP, and through the gateway's.
func (n *gpuNode) awaitGPUs() {
	n.t.Helper()
	n.await("all GPUs are up", func(s scraped) bool {
		for i := range gpus {
			if !s.is(1, "hw_gpu_up_ratio", labels{"hw_id": fakenvml.UUID(i), "reason": "ok", "k8s_cluster_name": "lab"}) {
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
	n := startGPUNode(t, collectorBinary, fakenvml.Library(t))
	n.awaitGPUs()
	limits := scrape(t, n.telemetry).with("otelcol_receiver_fleet_otlp_bytes_limit", nil)
	require.Len(t, limits, 2, "one for each receiver")
	assert.InDelta(t, 160<<20, limits[0].value+limits[1].value, 0, "half of what its memory_limiter allows")
	job := func(s scraped) bool {
		md := pmetric.NewMetrics()
		gauge(node(md, "", map[string]string{"gpu.job.id": "llm"}), "gpu.app.step.duration", "s", 0.5)
		md.ResourceMetrics().At(0).Resource().Attributes().Remove("host.name")
		if status := post(t, "http://"+n.app+"/v1/metrics", protobufType, marshal(t, md)).status; status != http.StatusOK {
			require.Equal(t, http.StatusServiceUnavailable, status) // a busy agent's, to be tried again
			return false
		}
		group := labels{"gpu_peer_group": "llm//NVIDIA-H100-80GB-HBM3", "k8s_cluster_name": "lab"}
		return s.is(1, "gpu_straggler_nodes", group.and(labels{"gpu_node_state": "active"})) &&
			s.is(2, "gpu_node_signal_ratio", labels{"gpu_signal": "throughput", "gpu_job_id": "llm"}) &&
			len(s.with("gpu_node_health_score_ratio", labels{"gpu_job_id": "llm", "host_name": "gpu-7"})) == 1
	}
	elsewhere := func(s scraped) bool {
		return slices.ContainsFunc([]string{"default", "llm", "//NVIDIA-H100-80GB-HBM3"}, func(group string) bool {
			return s.is(1, "gpu_straggler_nodes", labels{"gpu_peer_group": group, "gpu_node_state": "active", "k8s_cluster_name": "lab"})
		})
	}
	n.await("the job's group has the one node, and it is active", func(s scraped) bool { return job(s) && !elsewhere(s) })
	for range 20 {
		n.await("it stays so while both report", func(now scraped) bool {
			assert.False(t, elsewhere(now), "no second node beside it")
			return job(now)
		})
	}
}

func TestGPUsThroughBothTiers(t *testing.T) {
	t.Parallel()
	began := time.Now()
	n := startGPUNode(t, collectorBinary, fakenvml.Library(t))
	n.awaitGPUs()
	s := scrape(t, n.prom)
	for i := range gpus {
		gpu := labels{"hw_id": fakenvml.UUID(i)}
		for metric, want := range map[string]float64{
			"hw_power_watts":            350 + 1.25*float64(i),
			"hw_gpu_memory_limit_bytes": 80 << 30,
			"hw_gpu_memory_usage_bytes": float64((60 + i) << 30),
		} {
			assert.True(t, s.is(want, metric, gpu), "%s of GPU %d is not %v", metric, i, want)
		}
		assert.True(t, s.is(float64(45+i), "hw_temperature_celsius", gpu.and(labels{"hw_sensor_location": "gpu"})))
		assert.True(t, s.is(1980e6, "hw_gpu_clock_frequency_hertz", gpu.and(labels{"clock": "sm"})))
		assert.True(t, s.is(0, "hw_errors_total", gpu.and(labels{"error_type": "corrected", "gpu_ecc_counter": "volatile"})))
	}
	n.await("the node is active and reaches its gateway", func(s scraped) bool {
		return s.is(1, "gpu_straggler_nodes", labels{"k8s_cluster_name": "lab", "gpu_peer_group": "", "gpu_node_state": "active"}) &&
			len(s["gpu_node_health_score_ratio"]) == 1 &&
			len(s["gpu_agent_gateway_reachable"]) == 1 && s["gpu_agent_gateway_reachable"][0].value == 1
	})

	assertViewOfGPUs(t, n, began)
	n.kill()
	n.restart()
	n.awaitGPUs()
}

// TestLostAndHangingGPUs: both are seen, and the others still report.
func TestLostAndHangingGPUs(t *testing.T) {
	long(t)
	t.Parallel()
	n := startGPUNode(t, collectorBinary, fakenvml.Library(t))
	n.awaitGPUs()
	n.state.SetGPU(3, "present", 0).SetGPU(4, "hang", "*").SetGPU(5, "temperature", 92)
	require.NoError(t, n.state.Write(n.stateFile))
	n.await("GPU 3 is lost, GPU 4 hangs, GPU 5 is hot", func(s scraped) bool {
		return s.is(0, "hw_gpu_up_ratio", labels{"hw_id": fakenvml.UUID(3), "reason": "lost"}) &&
			s.is(0, "hw_gpu_up_ratio", labels{"hw_id": fakenvml.UUID(4), "reason": "hang"}) &&
			len(s.with("hw_gpu_up_ratio", nil)) == gpus && len(s.with("hw_gpu_health_score_ratio", nil)) == gpus-1 &&
			s.is(92, "hw_temperature_celsius", labels{"hw_id": fakenvml.UUID(5), "hw_sensor_location": "gpu"})
	})
	for _, i := range []int{3, 4} {
		assert.Equal(t, 1, n.log.Count("GPU does not answer", fakenvml.UUID(i)), "one line per GPU")
	}

	n.state.SetGPU(3, "present", 1).DeleteGPU(4, "hang")
	require.NoError(t, n.state.Write(n.stateFile))
	n.waitLog(2, "GPU answers again")
	n.await("one truth", func(s scraped) bool {
		return len(s.with("hw_gpu_up_ratio", labels{"reason": "ok"})) == gpus && len(s.with("hw_gpu_up_ratio", nil)) == gpus &&
			s.is(0, "hw_gpu_health_reason_ratio", labels{"hw_id": fakenvml.UUID(3), "reason": "gpu_lost"}) &&
			len(s.with("hw_gpu_health_score_ratio", nil)) == gpus
	})
}

// TestNoLibrary starts without NVML, says so once, and takes it when it comes.
func TestNoLibrary(t *testing.T) {
	t.Parallel()
	library := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	n := startGPUNode(t, collectorBinary, library, oftener)
	n.waitLog(1, "warn", "no GPU metrics until the NVML library is there")
	requireQuiet(t, n)

	built, err := os.ReadFile(fakenvml.Library(t))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(library+".new", built, 0o700))
	require.NoError(t, os.Rename(library+".new", library))
	n.awaitGPUs()
}

// oftener is for a test that no false hang can break, as where there are no GPUs.
const oftener = "receivers: {nvml: {collection_interval: 1s, deadline: 1s}}\n"

// requireQuiet lets many scrapes pass: the nvml receiver has said one thing
// and emitted nothing.
func requireQuiet(t *testing.T, n *gpuNode) {
	t.Helper()
	eventually(t, "three seconds of scrapes have passed", func() bool { return n.uptime() >= 3*time.Second })
	assert.Len(t, n.log.Lines("warn", `"otelcol.component.id": "nvml"`), 1)
	assert.Empty(t, n.log.Lines("\terror\t"))
	for metric := range scrape(t, n.prom) {
		assert.NotRegexp(t, "^hw_", metric)
	}
}

// TestALostGPUStaysLost: an agent saw a GPU lost. The next agent says so too, from
// its state file. Without one it waits for the GPU that the PCI bus shows.
func TestALostGPUStaysLost(t *testing.T) {
	t.Parallel()
	library := fakenvml.Library(t)
	for name, own := range map[string]string{
		"state file":   "receivers: {nvml: {state_directory: %[1]q, sys_path: /nonexistent}}\n",
		"PCI bus only": "receivers: {nvml: {sys_path: %[2]q}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sys := t.TempDir()
			for i := range gpus {
				device := filepath.Join(sys, "bus", "pci", "devices", fmt.Sprintf("0000:%02x:00.0", 0x1b+i*0x10))
				require.NoError(t, os.MkdirAll(device, 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(device, "vendor"), []byte("0x10de\n"), 0o600))
				require.NoError(t, os.WriteFile(filepath.Join(device, "class"), []byte("0x030200\n"), 0o600))
			}
			stateFile, prom := filepath.Join(t.TempDir(), "state"), loopback.FreeAddr(t)
			state := fakenvml.NewState(gpus)
			require.NoError(t, state.Write(stateFile))
			c := start(t, options{configs: []string{fmt.Sprintf(`
receivers: {nvml: {%s, library_path: %q}}
exporters: {prometheus: {endpoint: %q}}
service: {telemetry: {metrics: {level: none}}, pipelines: {metrics: {receivers: [nvml], exporters: [prometheus]}}}
`, nvmlPace, library, prom), fmt.Sprintf(own, t.TempDir(), sys)}, env: []string{fakenvml.StateEnv + "=" + stateFile}})
			await := func(what string, found, lost, pending float64) {
				t.Helper()
				eventually(t, what, func() bool {
					s := scrape(t, prom)
					return s.is(pending, "hw_gpu_devices", labels{"state": "pending"}) &&
						s.is(found, "hw_gpu_devices", labels{"state": "found"}) && s.is(lost, "hw_gpu_devices", labels{"state": "lost"}) &&
						s.is(gpus, "hw_gpu_devices", labels{"state": "expected"})
				})
			}
			await("all answer", gpus, 0, 0)
			state.SetGPU(gpus-1, "present", 0)
			require.NoError(t, state.Write(stateFile))
			await("one is lost", gpus-1, 1, 0)
			c.stop()
			state.Set("count", gpus-1) // the driver no longer lists it
			require.NoError(t, state.Write(stateFile))
			c.restart()
			if name == "PCI bus only" {
				await("it has not answered this agent", gpus-1, 0, 1)
			} else {
				await("it is still lost", gpus-1, 1, 0)
				assert.True(t, scrape(t, prom).is(0, "hw_gpu_up_ratio", labels{"hw_id": fakenvml.UUID(gpus - 1), "reason": "lost"}))
			}
			state.Set("count", gpus).SetGPU(gpus-1, "present", 1)
			require.NoError(t, state.Write(stateFile))
			await("it answers again", gpus, 0, 0)
		})
	}
}
