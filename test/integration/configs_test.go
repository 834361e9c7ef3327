// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/authority"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// validate runs the command of that name and returns its output.
func validate(t *testing.T, binary string, configs ...string) (output string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"validate"}, process.ConfigArgs(t, configs...)...)...)
	cmd.Dir = process.Root
	cmd.Env = []string{"HOME=" + t.TempDir(), "GOMEMLIMIT=1638MiB", "GPU_COLLECTOR_REPLAY=receiver/csvreplayreceiver/testdata/nvidia-smi/driver-580.csv"}
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// printed is what the command print-config makes of configurations.
func printed(t *testing.T, env []string, configs ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), process.Binary(t, "gpu-collector"), append([]string{"print-config"}, process.ConfigArgs(t, configs...)...)...)
	cmd.Dir, cmd.Env = process.Root, env
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, string(text))
	return string(text)
}

// valid requires that validate prints nothing.
func valid(t *testing.T, binary string, configs ...string) {
	t.Helper()
	text, err := validate(t, binary, configs...)
	require.NoError(t, err, text)
	assert.Empty(t, text)
}

func TestShippedConfigsAreValid(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(process.Root + "/configs/*.yaml")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 6)
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			valid(t, process.Binary(t, "gpu-collector"), "configs/"+name)
			shipped, err := os.ReadFile(file)
			require.NoError(t, err)
			if strings.Contains(string(shipped), "straggler_threshold/agent:\n") {
				assert.Regexp(t, `straggler_threshold/agent:\n(    .*\n)*    consistent_hash: node\n`, string(shipped), "gRPC's ring_hash dials with the first push: the server of this very process listens by then")
			}
		})
	}
	overlays, err := filepath.Glob(process.Root + "/configs/[or]*/*.yaml") // overlays and replay
	require.NoError(t, err)
	require.NotEmpty(t, overlays)
	below := map[string][]string{
		"dcgm-names.yaml":   {"configs/agent.yaml", "configs/gateway.yaml"},
		"mtls-agent.yaml":   {"configs/agent.yaml", "configs/shard.yaml"},
		"mtls-gateway.yaml": {"configs/gateway.yaml"},
		"mtls-shard.yaml":   {"configs/shard.yaml"},
		"tenants.yaml":      {"configs/gateway.yaml"},
		"root.yaml":         {"configs/gateway.yaml"},
		"tenant-agent.yaml": {"configs/agent.yaml"},
		"remote-write.yaml": {"configs/gateway.yaml"},
		"otlp-push.yaml":    {"configs/gateway.yaml"},
		"nccl.yaml":         {"configs/agent.yaml"},
		"second-agent.yaml": {"configs/agent.yaml"},
		"nvidia-smi.yaml":   {"configs/demo.yaml", "configs/all-in-one.yaml"},
	}
	require.Len(t, below, len(overlays), "what each overlay goes over")
	for _, file := range overlays {
		name := filepath.Base(file)
		require.NotEmpty(t, below[name], "what %s goes over", name)
		for _, base := range below[name] {
			t.Run(name+" over "+base, func(t *testing.T) {
				t.Parallel()
				valid(t, process.Binary(t, "gpu-collector"), base, strings.TrimPrefix(file, process.Root+"/"))
			})
		}
	}
	t.Run("lean agent", func(t *testing.T) {
		t.Parallel()
		binary := process.Binary(t, "gpu-collector-agent")
		valid(t, binary, "configs/agent.yaml")
		valid(t, binary, "configs/agent.yaml", "configs/overlays/mtls-agent.yaml", "configs/overlays/tenant-agent.yaml")
		valid(t, binary, "configs/agent.yaml", "configs/overlays/nccl.yaml", "configs/overlays/dcgm-names.yaml")
	})
}

// TestBadConfigNamesEveryMistake: one run of validate names them all, each with its key.
// Which mistakes there are is for the components' own tests.
func TestBadConfigNamesEveryMistake(t *testing.T) {
	t.Parallel()
	text, err := validate(t, process.Binary(t, "gpu-collector"), `
receivers:
  nvml: {retry_interval: 0s}
  csv_replay: {path: ""}
processors:
  diff: {forward: some}
  straggler: {mode: judge, enter_ticks: 0}
exporters: {nop: }
extensions:
  exposition: {max_nodes: 0}
  straggler_threshold: {received_ttl: 0s}
service:
  extensions: [straggler_threshold]
  pipelines: {metrics: {receivers: [nvml, csv_replay], processors: [diff, straggler], exporters: [nop]}}
`)
	require.Error(t, err)
	for _, want := range []string{
		"receivers::nvml: `retry_interval`", "receivers::csv_replay: `path`", "processors::diff: `table` is not set", "`forward` is",
		"processors::straggler: `mode`", "`enter_ticks` is 0", "`max_nodes` is 0", "extensions::straggler_threshold: `received_ttl`",
	} {
		assert.Contains(t, text, want)
	}
}

// TestMoreMemoryThanThereIs: validate warns where the parts of the memory are more than all
// of it. TestShippedConfigsAreValid shows that they are not in those that ship.
func TestMoreMemoryThanThereIs(t *testing.T) {
	t.Parallel()
	text, err := validate(t, process.Binary(t, "gpu-collector"), "configs/gateway.yaml", `
extensions:
  exposition: {max_bytes: 1048576000}
  exposition/unused: {max_bytes: 1048576000}
  fleet_view: {max_bytes: 104857600}
`)
	require.NoError(t, err, text)
	assert.Equal(t, "warning: clients may fill 1984 MiB of memory, 121 % of the 1638 MiB that the process may take "+
		"(the least of GOMEMLIMIT and 80 % of its cgroup, or 2 GiB): exposition 1000, fleet_otlp 819, fleet_view 100, straggler 65; "+
		"set less in `max_bytes`, or give it more\n", text)
}

// TestNamesOfOneNode: validate warns where an agent has two.
func TestNamesOfOneNode(t *testing.T) {
	t.Parallel()
	const renamed = "receivers: {nvml: {resource_attributes: {host.name: {override_value: gpu-7}}}}\n"
	text, err := validate(t, process.Binary(t, "gpu-collector"), "configs/agent.yaml", renamed+"processors: {straggler: {agent: {node_name: gpu-8}}}\n")
	require.NoError(t, err, text)
	assert.Equal(t, "warning: this node has several names, so that its GPUs and the ranks of its jobs are different nodes: "+
		"gpu-7 is of `receivers::nvml`, gpu-8 is of `processors::straggler`; name it by GPU_COLLECTOR_NODE (`node_name` of each) alone\n", text)
	valid(t, process.Binary(t, "gpu-collector"), "configs/agent.yaml", renamed+"processors: {straggler: {agent: {node_name: gpu-7}}}\n")
}

// TestOpenPortsAreNamed: validate warns, but of loopback and where clients are known.
func TestOpenPortsAreNamed(t *testing.T) {
	t.Parallel()
	const open = `
extensions:
  fleet_view: {http: {endpoint: "0.0.0.0:8086"}}
  straggler_threshold: {api: {endpoint: ":8085"}}
`
	text, err := validate(t, process.Binary(t, "gpu-collector"), "configs/gateway.yaml", open)
	require.NoError(t, err, text)
	assert.Equal(t, "warning: `extensions::fleet_view::http::endpoint` is 0.0.0.0:8086 without `auth`: whoever reaches it reads of all nodes; set `extensions::fleet_view::http::auth`, or listen on loopback\n"+
		"warning: `extensions::straggler_threshold::api::endpoint` is :8085 without `auth`: whoever reaches it reads of all nodes; set `extensions::straggler_threshold::api::auth`, or listen on loopback\n", text)
	dir := issue(t, authority.New(t, "test CA"))
	valid(t, process.Binary(t, "gpu-collector"), "configs/gateway.yaml", open, fmt.Sprintf(`
extensions:
  basicauth: {htpasswd: {inline: "me:secret"}}
  fleet_view: {http: {auth: {authenticator: basicauth}}}
  straggler_threshold: {api: {tls: {cert_file: %[1]s/tls.crt, key_file: %[1]s/tls.key, client_ca_file: %[1]s/ca.crt}}}
service: {extensions: [straggler_threshold, exposition, fleet_view, basicauth]}
`, dir))
}

// TestValidateNamesAnAddressThatIsNone: in receivers, extensions, exporters and the
// collector's own telemetry, ours and others'.
func TestValidateNamesAnAddressThatIsNone(t *testing.T) {
	t.Parallel()
	for overlay, want := range map[string]string{
		`receivers: {fleet_otlp: {protocols: {grpc: {endpoint: "::1:4317"}}}}`:                                       "`receivers::fleet_otlp::protocols::grpc::endpoint` is \"::1:4317\", must be a host and a port of 0 to 65535, such as 127.0.0.1:4317 or [::1]:4317",
		`receivers: {fleet_otlp: {protocols: {http: {endpoint: "localhost"}}}}`:                                      "`receivers::fleet_otlp::protocols::http::endpoint` is \"localhost\"",
		`extensions: {fleet_view: {http: {endpoint: "0.0.0.0:99999"}}}`:                                              "`extensions::fleet_view::http::endpoint` is",
		`extensions: {straggler_threshold: {api: {endpoint: ":::8085"}}}`:                                            "`extensions::straggler_threshold::api::endpoint` is",
		`extensions: {healthcheckv2: {http: {endpoint: "::"}}}`:                                                      "`extensions::healthcheckv2::http::endpoint` is",
		"exporters: {prometheus: {endpoint: \"::1:9\"}}\nservice: {pipelines: {metrics: {exporters: [prometheus]}}}": "`exporters::prometheus::endpoint` is",
		`service: {telemetry: {metrics: {readers: [{pull: {exporter: {prometheus: {host: "::1", port: 99999}}}}]}}}`: "`service::telemetry::metrics::readers::0::pull::exporter::prometheus` is",
	} {
		text, err := validate(t, process.Binary(t, "gpu-collector"), "configs/gateway.yaml", overlay+"\n")
		require.Error(t, err, overlay)
		assert.Contains(t, text, want)
	}
	text, err := validate(t, process.Binary(t, "gpu-collector"), "configs/gateway.yaml", `service: {telemetry: {metrics: {readers: [{pull: {exporter: {prometheus: {host: "::1", port: 8888}}}}]}}}`+"\n")
	assert.NoError(t, err, text)
}

// TestASecondAgent: its overlay moves each port of an agent, and not where it pushes.
func TestASecondAgent(t *testing.T) {
	t.Parallel()
	env, endpoint := []string{"GPU_COLLECTOR_GATEWAY=127.0.0.1:4317"}, regexp.MustCompile(`endpoint: 127\.0\.0\.1:(\d+)\n`)
	first := endpoint.FindAllStringSubmatch(printed(t, env, "configs/agent.yaml"), -1)
	second := endpoint.FindAllStringSubmatch(printed(t, env, "configs/agent.yaml", "configs/overlays/second-agent.yaml"), -1)
	require.Len(t, second, len(first))
	pushes := 0
	for i := range first {
		if first[i][1] == second[i][1] {
			assert.Equal(t, "4317", first[i][1])
			pushes++
			continue
		}
		port, err := strconv.Atoi(first[i][1])
		require.NoError(t, err)
		assert.Equal(t, strconv.Itoa(port+100), second[i][1])
	}
	assert.Equal(t, 2, pushes, "both exporters")
}
