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
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// agentBinary builds the lean distribution.
var agentBinary = sync.OnceValues(func() (string, error) { return build("gpu-collector-agent", "gpu-collector-agent") })

// validate runs the command of that name and returns what it said.
func validate(t *testing.T, binary string, configs ...string) (output string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"validate"}, configArgs(t, configs)...)...)
	cmd.Dir = root
	cmd.Env = []string{"HOME=" + t.TempDir(), "GOMEMLIMIT=1638MiB", "GPU_COLLECTOR_REPLAY=receiver/csvreplayreceiver/testdata/nvidia-smi/driver-580.csv"}
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// valid shows that validate has nothing to say.
func valid(t *testing.T, binary string, configs ...string) {
	t.Helper()
	text, err := validate(t, binary, configs...)
	require.NoError(t, err, text)
	assert.Empty(t, text)
}

func TestShippedConfigsAreValid(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(root + "/configs/*.yaml")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 6)
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			valid(t, collectorBinary, "configs/"+name)
			shipped, err := os.ReadFile(file)
			require.NoError(t, err)
			if strings.Contains(string(shipped), "straggler_threshold/agent:\n") {
				assert.Regexp(t, `straggler_threshold/agent:\n(    .*\n)*    consistent_hash: node\n`, string(shipped), "gRPC's ring_hash dials with the first push: the server of this very process listens by then")
			}
		})
	}
	overlays, err := filepath.Glob(root + "/configs/[or]*/*.yaml") // overlays and replay
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
				valid(t, collectorBinary, base, strings.TrimPrefix(file, root+"/"))
			})
		}
	}
	t.Run("lean agent", func(t *testing.T) {
		t.Parallel()
		binary, err := agentBinary()
		require.NoError(t, err)
		valid(t, binary, "configs/agent.yaml")
		valid(t, binary, "configs/agent.yaml", "configs/overlays/mtls-agent.yaml", "configs/overlays/tenant-agent.yaml")
		valid(t, binary, "configs/agent.yaml", "configs/overlays/nccl.yaml", "configs/overlays/dcgm-names.yaml")
	})
}

// TestBadConfigNamesEveryMistake: one run of validate names them all, each with its key.
// Which mistakes there are is for the components' own tests.
func TestBadConfigNamesEveryMistake(t *testing.T) {
	t.Parallel()
	text, err := validate(t, collectorBinary, `
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

// TestMoreMemoryThanThereIs: validate tells where the parts of the memory are more than all
// of it. TestShippedConfigsAreValid shows that they are not in those that ship.
func TestMoreMemoryThanThereIs(t *testing.T) {
	t.Parallel()
	text, err := validate(t, collectorBinary, "configs/gateway.yaml", `
extensions:
  exposition: {max_bytes: 1048576000}
  exposition/unused: {max_bytes: 1048576000}
  fleet_view: {max_bytes: 104857600, history: {sqlite: {queue_mib: 50}}}
`)
	require.NoError(t, err, text)
	assert.Equal(t, "warning: clients may fill 2034 MiB of memory, 124 % of the 1638 MiB that the process may take "+
		"(the least of GOMEMLIMIT and 80 % of its cgroup, or 2 GiB): exposition 1000, fleet_otlp 819, fleet_view 150, straggler 65; "+
		"set less in `max_bytes`, or give it more\n", text)
}

// TestNamesOfOneNode: validate tells where an agent has two, and one variable names all of it.
func TestNamesOfOneNode(t *testing.T) {
	t.Parallel()
	const renamed = "receivers: {nvml: {resource_attributes: {host.name: {override_value: gpu-7}}}}\n"
	text, err := validate(t, collectorBinary, "configs/agent.yaml", renamed+"processors: {straggler: {agent: {node_name: gpu-8}}}\n")
	require.NoError(t, err, text)
	assert.Equal(t, "warning: this node has several names, so that its GPUs and the ranks of its jobs are different nodes: "+
		"gpu-7 is of `receivers::nvml`, gpu-8 is of `processors::straggler`; name it by GPU_COLLECTOR_NODE (`node_name` of each) alone\n", text)
	valid(t, collectorBinary, "configs/agent.yaml", renamed+"processors: {straggler: {agent: {node_name: gpu-7}}}\n")
}

// TestWhoeverReachesThePortReads: validate tells, but of loopback and where clients are known.
func TestWhoeverReachesThePortReads(t *testing.T) {
	t.Parallel()
	const open = `
extensions:
  fleet_view: {http: {endpoint: "0.0.0.0:8086"}}
  straggler_threshold: {api: {endpoint: ":8085"}}
`
	text, err := validate(t, collectorBinary, "configs/gateway.yaml", open)
	require.NoError(t, err, text)
	assert.Equal(t, "warning: `extensions::fleet_view::http::endpoint` is 0.0.0.0:8086 without `auth`: whoever reaches it reads of all nodes; set `extensions::fleet_view::http::auth`, or listen on loopback\n"+
		"warning: `extensions::straggler_threshold::api::endpoint` is :8085 without `auth`: whoever reaches it reads of all nodes; set `extensions::straggler_threshold::api::auth`, or listen on loopback\n", text)
	dir := newAuthority(t).issue()
	valid(t, collectorBinary, "configs/gateway.yaml", open, fmt.Sprintf(`
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
	for overlay, says := range map[string]string{
		`receivers: {fleet_otlp: {protocols: {grpc: {endpoint: "::1:4317"}}}}`:                                       "`receivers::fleet_otlp::protocols::grpc::endpoint` is \"::1:4317\", must be a host and a port of 0 to 65535, such as 127.0.0.1:4317 or [::1]:4317",
		`receivers: {fleet_otlp: {protocols: {http: {endpoint: "localhost"}}}}`:                                      "`receivers::fleet_otlp::protocols::http::endpoint` is \"localhost\"",
		`extensions: {fleet_view: {http: {endpoint: "0.0.0.0:99999"}}}`:                                              "`extensions::fleet_view::http::endpoint` is",
		`extensions: {straggler_threshold: {api: {endpoint: ":::8085"}}}`:                                            "`extensions::straggler_threshold::api::endpoint` is",
		`extensions: {healthcheckv2: {http: {endpoint: "::"}}}`:                                                      "`extensions::healthcheckv2::http::endpoint` is",
		"exporters: {prometheus: {endpoint: \"::1:9\"}}\nservice: {pipelines: {metrics: {exporters: [prometheus]}}}": "`exporters::prometheus::endpoint` is",
		`service: {telemetry: {metrics: {readers: [{pull: {exporter: {prometheus: {host: "::1", port: 99999}}}}]}}}`: "`service::telemetry::metrics::readers::0::pull::exporter::prometheus` is",
	} {
		said, err := validate(t, collectorBinary, "configs/gateway.yaml", overlay+"\n")
		require.Error(t, err, overlay)
		assert.Contains(t, said, says)
	}
	said, err := validate(t, collectorBinary, "configs/gateway.yaml", `service: {telemetry: {metrics: {readers: [{pull: {exporter: {prometheus: {host: "::1", port: 8888}}}}]}}}`+"\n")
	assert.NoError(t, err, said)
}

// TestValidateSaysWhatWouldBeRight: of components that are misspelt. The start says the same.
func TestValidateSaysWhatWouldBeRight(t *testing.T) {
	t.Parallel()
	said, err := validate(t, collectorBinary, "configs/agent.yaml", "processors: {stragler/a: {}}\n")
	require.Error(t, err)
	assert.Contains(t, said, "`processors` has \"stragler/a\", which is no processor of this distribution: did you mean straggler?")
	cmd := exec.CommandContext(t.Context(), collectorBinary, configArgs(t, []string{"configs/agent.yaml", "service: {extensions: [expositon]}\n"})...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "did you mean exposition?")
}

// TestASecondAgent: its overlay moves each port of an agent, and not where it pushes.
func TestASecondAgent(t *testing.T) {
	t.Parallel()
	printed := func(configs ...string) string {
		cmd := exec.CommandContext(t.Context(), collectorBinary, append([]string{"print-config"}, configArgs(t, configs)...)...)
		cmd.Dir, cmd.Env = root, []string{"GPU_COLLECTOR_GATEWAY=127.0.0.1:4317"}
		text, err := cmd.CombinedOutput()
		require.NoError(t, err, string(text))
		return string(text)
	}
	listens := regexp.MustCompile(`endpoint: 127\.0\.0\.1:(\d+)\n`)
	first := listens.FindAllStringSubmatch(printed("configs/agent.yaml"), -1)
	second := listens.FindAllStringSubmatch(printed("configs/agent.yaml", "configs/overlays/second-agent.yaml"), -1)
	require.Len(t, second, len(first))
	moved := 0
	for i := range first {
		a, err := strconv.Atoi(first[i][1])
		require.NoError(t, err)
		b, err := strconv.Atoi(second[i][1])
		require.NoError(t, err)
		if b == a+100 {
			moved++
		} else {
			assert.Equal(t, a, b)
			assert.Equal(t, 4317, a, "of both exporters")
		}
	}
	assert.Equal(t, len(first)-2, moved)
}

// TestAnAgentSaysThatItsGatewayDoesNotAnswer: once, however often it pushes, and it runs on.
func TestAnAgentSaysThatItsGatewayDoesNotAnswer(t *testing.T) {
	t.Parallel()
	c := start(t, options{
		configs: []string{"configs/agent.yaml", newAgentPorts(t).overlay(t), `
receivers: {nvml: {collection_interval: 200ms, deadline: 200ms}}
service: {pipelines: {metrics: {receivers: [nvml]}}}
`},
		env: []string{"GPU_COLLECTOR_GATEWAY=gateway.invalid:4317"},
	})
	c.waitLog(3, "Exporting failed. Dropping data.", "error")
	assert.Zero(t, c.log.Count("Try enabling"), "it is off on purpose")
	c.waitLog(1, "The gateway does not answer: run the command `check`", "gateway.invalid:4317")
	assert.Equal(t, 1, c.log.Count("run the command `check`"))
}
