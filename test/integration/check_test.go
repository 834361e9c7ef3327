// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

type finding struct{ Check, Status, Text, Next string }

type checkup struct {
	Exit   int
	Checks []finding
}

// of returns the first finding of a check that is not well, else the last.
func (c *checkup) of(check string) (said string) {
	for _, f := range c.Checks {
		if f.Check == check && (said == "" || strings.HasPrefix(said, "ok")) {
			said = f.Status + ": " + f.Text
		}
	}
	return said
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

// check has time enough for any machine, unless args say otherwise.
func (h *gpuHost) check(over string, args ...string) *checkup {
	h.t.Helper()
	require.NoError(h.t, h.state.Write(h.stateFile))
	all := append([]string{"check", "--json", "--timeout", "60s", "--config", "configs/agent.yaml", "--config", "yaml:" + h.config}, args...)
	if over != "" {
		all = append(all, "--config", "yaml:"+over)
	}
	cmd := exec.CommandContext(h.t.Context(), collectorBinary, all...)
	cmd.Dir, cmd.Env = root, h.env
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

// TestCheckAsksTheGateway for what it says of the node, while the node has one peer, and two.
func TestCheckAsksTheGateway(t *testing.T) {
	t.Parallel()
	gp := newGatewayPorts(t)
	start(t, options{configs: []string{"configs/gateway.yaml", gp.overlay(t), "\nprocessors: {straggler: {gateway: {quorum: 3}}}\n"}})
	h, client := newGPUHost(t, gp.grpc), grpcClient(t, gp.grpc)
	var c *checkup
	eventually(t, "the gateway has compared once, and does not know the node", func() bool {
		c = h.check("")
		return c.of("peers") == "warn: The gateway does not know a node n0 of cluster lab."
	})
	assert.Zero(t, c.Exit)
	assert.Equal(t, "ok: The gateway "+gp.grpc+" takes pushes.", c.of("gateway"))
	assert.Equal(t, "ok: NVIDIA's driver 570.86.15 answers.", c.of("driver"))
	assert.Equal(t, "ok: 8 of 8 GPUs answer.", c.of("gpus"))

	for _, want := range []struct {
		nodes          int
		peers, verdict string
	}{
		{2, "warn: 2 of 3 peers: so many nodes work in group job, this one included.", "warn: There is no verdict: too_few_peers."},
		{3, "ok: 3 peers work in group job, 3 are needed.", "ok: The node is compared, and is no straggler."},
	} {
		eventually(t, want.peers+" "+want.verdict, func() bool {
			md := pmetric.NewMetrics()
			for i := range want.nodes {
				metrics := node(md, fmt.Sprintf("n%d", i), map[string]string{"k8s.cluster.name": "lab", "gpu.job.id": "job"})
				gauge(metrics, "gpu.node.health_score", "1", 1)
				gauge(metrics, "gpu.node.signal", "1", 1+0.001*float64(i)).Attributes().PutStr("gpu.signal", "throughput")
			}
			_, err := client.Export(t.Context(), pmetricotlp.NewExportRequestFromMetrics(md))
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

// TestCheckNamesTheLayer at which the way to the gateway ends.
func TestCheckNamesTheLayer(t *testing.T) {
	t.Parallel()
	serve := func(status int, start func(*httptest.Server)) *httptest.Server {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		s.EnableHTTP2 = true
		start(s)
		t.Cleanup(s.Close)
		return s
	}
	secure, locked := serve(http.StatusNotFound, (*httptest.Server).StartTLS), serve(http.StatusUnauthorized, (*httptest.Server).StartTLS)
	plain := serve(http.StatusNotFound, (*httptest.Server).Start)
	strict := serve(http.StatusOK, func(s *httptest.Server) {
		s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
		s.StartTLS()
	})
	own := newAuthority(t).issue()
	authority := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600))
	for _, tt := range []struct{ name, endpoint, tls, want string }{
		{"nobody", loopback.FreeAddr(t), "insecure: true", "connection refused.* -> See whether the gateway runs"},
		{"no name", "nosuch.invalid:4317", "insecure: true", "lookup nosuch.invalid.* -> Correct GPU_COLLECTOR_GATEWAY"},
		{"TLS here alone", plain.Listener.Addr().String(), "insecure: false", "first record does not look like a TLS handshake.* -> Set GPU_COLLECTOR_INSECURE=true"},
		{"TLS there alone", secure.Listener.Addr().String(), "insecure: true", "server preface.* -> Compare `tls` .*GPU_COLLECTOR_INSECURE"},
		{"unknown authority", secure.Listener.Addr().String(), "insecure: false", "certificate signed by unknown authority.* -> Compare `tls` .*ca_file"},
		{"wrong name", secure.Listener.Addr().String(), "insecure: false, server_name_override: gw, ca_file: " + authority, "certificate is valid for example.com.* -> Compare `tls` .*server_name_override"},
		{"no password", locked.Listener.Addr().String(), "insecure: false, ca_file: " + authority, "Unauthenticated.* -> Check the exporter's `auth`"},
		{"no certificate", strict.Listener.Addr().String(), "insecure: false, ca_file: " + authority, "certificate required.* -> Set `tls::cert_file`"},
		{"foreign certificate", strict.Listener.Addr().String(), "insecure: false, ca_file: " + authority + ", cert_file: " + own + "/tls.crt, key_file: " + own + "/tls.key", "unknown certificate authority.* -> Set `tls::cert_file`"},
		{"no OTLP, no TLS", plain.Listener.Addr().String(), "insecure: true", "server preface.* -> .*protocol"},
		{"no OTLP", secure.Listener.Addr().String(), "insecure: false, ca_file: " + authority, "Unimplemented.* -> Point GPU_COLLECTOR_GATEWAY at the gateway's OTLP port"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newGPUHost(t, tt.endpoint).check("exporters: {otlp_grpc: {tls: {" + tt.tls + "}}}")
			assert.Equal(t, 1, c.Exit)
			assert.Contains(t, c.of("gateway"), "fail: The gateway "+tt.endpoint)
			i := slices.IndexFunc(c.Checks, func(f finding) bool { return f.Check == "gateway" })
			assert.Regexp(t, tt.want, c.Checks[i].Text+" -> "+c.Checks[i].Next)
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
	assert.Contains(t, c.of("throttling"), "GPU 3 (00000000:4B:00.0) is held down: hw_thermal.")

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

// TestTheGateKnowsEachRule of the rubric: each GPU has one fault.
func TestTheGateKnowsEachRule(t *testing.T) {
	t.Parallel()
	const margin = ^uint32(4) // 5 degrees too hot
	rules := map[string]struct {
		fault  string // key and value
		status string
		says   string // another finding than the rule, where the rule counts minutes or needs a memory
	}{
		"gpu_lost":                {"present 0", "fail", `"reason": "lost"`},
		"no_reading":              {"readings.return 999", "fail", `"reason": "error", "error": "unknown (999)"`},
		"reset_required":          {"call.nvmlDeviceGetTemperatureV.return 16", "fail", ""},
		"remap_failed":            {"remapped.failed 1", "fail", ""},
		"sram_threshold_exceeded": {"sram.threshold_exceeded 1", "fail", ""},
		"retired_pages":           {"retired.dbe 64", "fail", ""},
		"recovery_reset":          {"field.230 1", "fail", ""},
		"recovery_reboot":         {"field.230 2", "fail", ""},
		"recovery_drain_p2p":      {"field.230 3", "fail", ""},
		"recovery_drain_reset":    {"field.230 4", "fail", ""},
		"recovery_imex":           {"field.230 5", "fail", ""},
		"ecc_uncorrected":         {"ecc.uncorrected.volatile 1", "fail", ""},
		"fabric_unhealthy":        {"fabric.summary 2", "fail", ""},
		"fabric_not_joined":       {"fabric.state 2", "unknown", "cannot be judged: it has not joined its fabric yet"},
		"nvlink_down":             {"nvlink.3.up 0", "warn", "17 of 18 NVLinks"},
		"nvlink_fewer":            {"nvlink.3.up 0", "warn", ""},
		"nvlink_errors_rising":    {"field.161 0+9", "warn", "nvlink_errors"},
		"nvlink_errors":           {"field.161 0+9", "warn", ""},
		"nvlink_recovery_failed":  {"field.214 0+1", "warn", ""},
		"nvlink_crc":              {"field.163 0+9999", "warn", ""},
		"remap_pending":           {"remapped.pending 1", "warn", ""},
		"retirement_pending":      {"retired.pending 1", "warn", ""},
		"repair_pending":          {"repair.tpc 1", "warn", ""},
		"hw_throttle_lasting":     {"throttle 0x80", "warn", "is held down: power_brake"},
		"hw_thermal_slowdown":     {"throttle 0x40", "warn", ""},
		"sw_thermal_slowdown":     {"throttle 0x20", "warn", "is held down: sw_thermal"},
		"thermal_margin":          {fmt.Sprint("temperature.margin ", margin), "warn", ""},
		"memory_hot":              {"temperature.memory 99", "warn", ""},
		"fabric_limited":          {"fabric.summary 3", "warn", ""},
		"pcie_width":              {"pcie.width 8", "warn", ""},
		"pcie_generation":         {"pcie.generation 3", "warn", ""},
		"pcie_replays":            {"field.94 0+9", "warn", ""},
		"pcie_replay_rollover":    {"field.95 0+1", "warn", ""},
		"ecc_corrected_rate":      {"ecc.corrected.volatile 0+9", "warn", ""},
		"memory_history":          {"remapped.uncorrected 1", "warn", ""},
		"ecc_off":                 {"mode.ecc 0", "warn", ""},
	}
	elsewhere := []string{
		"nvml_hang",        // TestCheckIsAGate
		"gpu_missing",      // TestCheckKnowsWhatTheAgentRemembers
		"application_xids", // the driver keeps no events
	}
	for _, r := range gpuhealth.DefaultRubric().Rules() {
		_, ok := rules[r.Name]
		assert.NotEqual(t, slices.Contains(elsewhere, r.Name), ok, r.Name)
	}
	const others = 16
	names := slices.Sorted(maps.Keys(rules))
	for some := range slices.Chunk(names, 12) {
		t.Run(some[0], func(t *testing.T) {
			t.Parallel()
			h := newGPUHost(t, loopback.FreeAddr(t))
			h.state = fakenvml.NewH100(others)
			for i, name := range some {
				key, value, _ := strings.Cut(rules[name].fault, " ")
				h.state.SetGPU(i, key, value)
			}
			c := h.check("", "--gpus")
			for i, name := range some {
				want := cmp.Or(rules[name].says, name)
				assert.True(t, slices.ContainsFunc(c.Checks, func(f finding) bool {
					return f.Status == rules[name].status && strings.Contains(f.Text, want) &&
						(f.Check == "gpus" || strings.HasPrefix(f.Text, fmt.Sprintf("GPU %d ", i)))
				}), "%s: %v", name, c.Checks)
			}
		})
	}
}

// TestCheckKnowsWhatTheAgentRemembers: the driver no longer lists a GPU that the agent saw.
func TestCheckKnowsWhatTheAgentRemembers(t *testing.T) {
	t.Parallel()
	agent, err := agentBinary()
	require.NoError(t, err)
	h := newGPUHost(t, loopback.FreeAddr(t))
	require.NoError(t, h.state.Write(h.stateFile))
	a := start(t, options{binary: agent, configs: []string{"configs/agent.yaml", h.config}, env: h.env})
	remembered := filepath.Join(h.memory, "nvml.state")
	eventually(t, "the agent remembers its GPUs", func() bool { _, err := os.Stat(remembered); return err == nil })
	c := h.check("")
	assert.Contains(t, c.of("ports"), "ok: Taken, as by an agent that runs: ")
	a.stop()
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
	require.NoError(t, syscall.Mkfifo(remembered, 0o600))
	h.state.Set("count", gpus)
	c = h.check("", "--gpus")
	assert.Zero(t, c.Exit, "nothing is wrong but the memory")
	assert.Contains(t, c.of("gpus"), "is no file of the agent's: prw-------, 0 bytes")

	cmd := exec.CommandContext(t.Context(), agent, "check", "--gpus", "--bogus")
	text, err := cmd.CombinedOutput()
	failed := (*exec.ExitError)(nil)
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, 2, failed.ExitCode(), "%s", text)
}
