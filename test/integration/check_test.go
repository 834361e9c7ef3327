// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

type finding struct{ Check, Status, Text, Next string }

type checkup struct {
	Exit   int
	Checks []finding
}

// of returns the first finding of a check that is not well, else the last.
func (c *checkup) of(check string) (verdict string) {
	for _, f := range c.Checks {
		if f.Check == check && (verdict == "" || strings.HasPrefix(verdict, "ok")) {
			verdict = f.Status + ": " + f.Text
		}
	}
	return verdict
}

// gpuHost is a node with GPUs, an agent's configuration and no agent.
type gpuHost struct {
	t         *testing.T
	state     *fakenvml.State
	stateFile string
	memory    string // the agent's state directory
	config    string
	env       []string
}

func newGPUHost(t *testing.T, gateway string) *gpuHost {
	t.Helper()
	h := &gpuHost{t: t, state: fakenvml.NewH100(gpus), stateFile: filepath.Join(t.TempDir(), "state"), memory: t.TempDir()}
	h.config = fmt.Sprintf(`
receivers:
  nvml: {library_path: %q, resource_attributes: {host.name: {override_value: n0}}, sys_path: /nonexistent, deadline: 60s}
  fleet_otlp: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}
exporters: {otlp_grpc: {endpoint: %q}}
extensions: {healthcheckv2: {http: {endpoint: %q}}, exposition: {http: {endpoint: %q}}}
service: {telemetry: {metrics: {level: none}}}
`, fakenvml.Library(t), loopback.FreeAddr(t), loopback.FreeAddr(t), gateway, loopback.FreeAddr(t), loopback.FreeAddr(t))
	h.env = []string{
		"PATH=" + os.Getenv("PATH"), fakenvml.StateEnv + "=" + h.stateFile, "STATE_DIRECTORY=" + h.memory,
		"GPU_COLLECTOR_CLUSTER=lab", "GPU_COLLECTOR_INSECURE=true",
	}
	return h
}

// check runs the command with time enough for any machine, unless args set less.
func (h *gpuHost) check(over string, args ...string) *checkup {
	h.t.Helper()
	require.NoError(h.t, h.state.Write(h.stateFile))
	all := append([]string{"check", "--json", "--timeout", "60s", "--config", "configs/agent.yaml", "--config", "yaml:" + h.config}, args...)
	if over != "" {
		all = append(all, "--config", "yaml:"+over)
	}
	cmd := exec.CommandContext(h.t.Context(), process.Binary(h.t, "gpu-collector"), all...)
	cmd.Dir, cmd.Env = process.Root, h.env
	text, err := cmd.Output()
	out := &checkup{}
	require.NoError(h.t, json.Unmarshal(text, out), "%s %v", text, err)
	status := 0
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		status = failed.ExitCode()
	}
	assert.Equal(h.t, out.Exit, status)
	return out
}

// TestCheckAsksTheGateway for its verdict on the node, while the node has one peer, and two.
func TestCheckAsksTheGateway(t *testing.T) {
	t.Parallel()
	gp := startGateway(t, "processors: {straggler: {gateway: {quorum: 3}}}\n")
	h, client := newGPUHost(t, gp.GRPC), process.Dial(t, gp.GRPC)
	var c *checkup
	process.Eventually(t, "the gateway has compared once, and does not know the node", func() bool {
		c = h.check("")
		return c.of("peers") == "warn: The gateway does not know a node n0 of cluster lab."
	})
	assert.Zero(t, c.Exit)
	assert.Equal(t, "ok: The gateway "+gp.GRPC+" takes pushes.", c.of("gateway"))
	assert.Equal(t, "ok: NVIDIA's driver 570.86.15 answers.", c.of("driver"))
	assert.Equal(t, "ok: 8 of 8 GPUs answer.", c.of("gpus"))

	for _, want := range []struct {
		nodes          int
		peers, verdict string
	}{
		{2, "warn: 2 of 3 peers: so many nodes work in group job, this one included.", "warn: There is no verdict: too_few_peers."},
		{3, "ok: 3 peers work in group job, 3 are needed.", "ok: The node is compared, and is no straggler."},
	} {
		process.Eventually(t, want.peers+" "+want.verdict, func() bool {
			md := pmetric.NewMetrics()
			for i := range want.nodes {
				metrics := process.Node(md, fmt.Sprintf("n%d", i), "k8s.cluster.name", "lab", "gpu.job.id", "job")
				process.Gauge(metrics, "gpu.node.health_score", "1", 1)
				process.Gauge(metrics, "gpu.node.signal", "1", 1+0.001*float64(i), "gpu.signal", "throughput")
			}
			_, err := process.Export(t.Context(), client, md)
			require.NoError(t, err)
			c = h.check("")
			return c.of("peers") == want.peers && strings.HasPrefix(c.of("verdict"), want.verdict)
		})
		assert.Zero(t, c.Exit)
	}
	assert.Regexp(t, `^ok: A threshold comes back: [\d.]+ for job\.$`, c.of("threshold"))
	left, err := os.ReadDir(h.memory)
	require.NoError(t, err)
	assert.Empty(t, left, "it writes nothing that is the agent's")
}

// TestCheckSaysWhyAPushFails by the error of the exporter.
func TestCheckSaysWhyAPushFails(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	secure.EnableHTTP2 = true
	secure.StartTLS()
	t.Cleanup(secure.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600))
	for _, tt := range []struct{ name, endpoint, tls, want string }{
		{"no server", loopback.FreeAddr(t), "insecure: true", "connection refused"},
		{"unknown authority", secure.Listener.Addr().String(), "insecure: false", "certificate signed by unknown authority"},
		{"no password", secure.Listener.Addr().String(), "insecure: false, ca_file: " + ca, "Unauthenticated"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newGPUHost(t, tt.endpoint).check("exporters: {otlp_grpc: {tls: {" + tt.tls + "}}}")
			assert.Equal(t, 1, c.Exit)
			assert.Contains(t, c.of("gateway"), "fail: The gateway "+tt.endpoint)
			assert.Contains(t, c.of("gateway"), tt.want)
		})
	}
}

// TestCheckIsAGate: with --gpus the status is that of the GPUs, wherever the gateway is.
func TestCheckIsAGate(t *testing.T) {
	t.Parallel()
	h := newGPUHost(t, loopback.FreeAddr(t))
	assert.Zero(t, h.check("", "--gpus").Exit)
	h.state.SetGPU(2, "ecc.uncorrected.volatile", 7).SetGPU(3, "throttle", "0x40")
	c := h.check("", "--gpus")
	assert.Equal(t, 1, c.Exit)
	assert.Equal(t, "fail: GPU 2 (00000000:3B:00.0) is unhealthy: ecc_uncorrected.", c.of("health"))

	h.state = fakenvml.NewH100(gpus).SetGPU(6, "call.nvmlDeviceGetRemappedRows.return", 999)
	c = h.check("", "--gpus")
	assert.Equal(t, 3, c.Exit)
	assert.Contains(t, c.of("readings"), "unknown: What these functions of NVML tell is not judged, since they fail: nvmlDeviceGetRemappedRows (unknown).")

	h.state = fakenvml.NewH100(gpus).Set("hang", "nvmlInit_v2")
	c = h.check("", "--gpus", "--timeout", "2s")
	assert.Equal(t, 1, c.Exit)
	assert.Contains(t, c.of("driver"), "not")
	h.state = fakenvml.NewH100(gpus)
	assert.Equal(t, 2, h.check("receivers: {nvml: {library_path: /nonexistent}}", "--gpus").Exit, "it saw no GPU: that is no pass")
	c = h.check("receivers: {nvml: {deadlin: 3s}}")
	assert.Equal(t, 2, c.Exit)
	assert.Contains(t, c.of("configuration"), "deadlin")

	taken := httptest.NewServer(http.NotFoundHandler())
	defer taken.Close()
	c = h.check(fmt.Sprintf("receivers: {fleet_otlp: {protocols: {grpc: {endpoint: %q}}}}", taken.Listener.Addr()))
	h.config = strings.Replace(h.config, "service: {telemetry: {metrics: {level: none}}}", "", 1)
	assert.Contains(t, fmt.Sprint(h.check("").Checks), "localhost:8888", "the collector's own metrics, free or taken")
	assert.Contains(t, c.of("ports"), "fail: "+taken.Listener.Addr().String()+" is taken, and not by this agent")
}

// TestCheckKnowsWhatTheAgentRemembers: the driver no longer lists a GPU that the agent saw.
func TestCheckKnowsWhatTheAgentRemembers(t *testing.T) {
	t.Parallel()
	agent := process.Binary(t, "gpu-collector-agent")
	h := newGPUHost(t, loopback.FreeAddr(t))
	require.NoError(t, h.state.Write(h.stateFile))
	a := process.Run(t, process.Options{Binary: agent, Config: []string{"configs/agent.yaml", h.config, "service: {pipelines: {metrics: {receivers: [nvml]}}}\n"}, Env: h.env})
	remembered := filepath.Join(h.memory, "nvml.state")
	process.Eventually(t, "the agent remembers its GPUs", func() bool { _, err := os.Stat(remembered); return err == nil })
	c := h.check("")
	assert.Contains(t, c.of("ports"), "ok: Taken, as by an agent that runs: ")
	a.Stop()
	before, err := os.ReadFile(remembered)
	require.NoError(t, err)
	h.state.Set("count", gpus-1)
	c = h.check("", "--gpus")
	assert.Equal(t, 1, c.Exit)
	assert.Contains(t, c.of("gpus"), "fail: 7 of 8 GPUs answer.")
	after, err := os.ReadFile(remembered)
	require.NoError(t, err)
	assert.Equal(t, before, after)

	require.NoError(t, os.Remove(remembered))
	require.NoError(t, os.Mkdir(remembered, 0o700))
	h.state.Set("count", gpus)
	c = h.check("", "--gpus")
	assert.Zero(t, c.Exit, "nothing is wrong but the memory")
	assert.Contains(t, c.of("gpus"), "is a directory")

	cmd := exec.CommandContext(t.Context(), agent, "check", "--gpus", "--bogus")
	text, err := cmd.CombinedOutput()
	failed := (*exec.ExitError)(nil)
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, 2, failed.ExitCode(), "%s", text)
}
