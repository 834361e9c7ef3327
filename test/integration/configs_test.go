// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os/exec"
	"path/filepath"
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
	cmd.Env = []string{"HOME=" + t.TempDir(), "GOMEMLIMIT=1638MiB"}
	text, err := cmd.CombinedOutput()
	return string(text), err
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
			text, err := validate(t, collectorBinary, "configs/"+name)
			require.NoError(t, err, text)
			assert.Empty(t, text)
		})
	}
	overlays, err := filepath.Glob(root + "/configs/overlays/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, overlays)
	below := map[string][]string{
		"prometheus.yaml":   {"configs/agent.yaml"},
		"mtls-agent.yaml":   {"configs/agent.yaml", "configs/shard.yaml"},
		"mtls-gateway.yaml": {"configs/gateway.yaml", "configs/shard.yaml"},
		"tenants.yaml":      {"configs/gateway.yaml"},
		"root.yaml":         {"configs/gateway.yaml"},
		"tenant-agent.yaml": {"configs/agent.yaml"},
		"remote-write.yaml": {"configs/gateway.yaml"},
		"otlp-push.yaml":    {"configs/gateway.yaml"},
	}
	require.Len(t, below, len(overlays), "what each overlay goes over")
	for _, file := range overlays {
		name := filepath.Base(file)
		require.NotEmpty(t, below[name], "what %s goes over", name)
		for _, base := range below[name] {
			t.Run(name+" over "+base, func(t *testing.T) {
				t.Parallel()
				text, err := validate(t, collectorBinary, base, "configs/overlays/"+name)
				require.NoError(t, err, text)
				assert.Empty(t, text)
			})
		}
	}
	t.Run("lean agent", func(t *testing.T) {
		t.Parallel()
		binary, err := agentBinary()
		require.NoError(t, err)
		for _, configs := range [][]string{
			{"configs/agent.yaml"},
			{"configs/agent.yaml", "configs/overlays/mtls-agent.yaml", "configs/overlays/tenant-agent.yaml"},
		} {
			text, err := validate(t, binary, configs...)
			require.NoError(t, err, text)
			assert.Empty(t, text)
		}
	})
}

// TestBadConfigNamesEveryMistake has several mistakes in each of our
// components: one run of validate names them all, one sentence each.
func TestBadConfigNamesEveryMistake(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		component string // as validate names it
		config    string
		want      []string // what the sentences have, in any order
	}{
		{
			component: "receivers::nvml",
			config:    "receivers: {nvml: {collection_interval: 1s, deadline: 5s, retry_interval: 0s, library_path: lib/libnvidia-ml.so.1}}",
			want: []string{
				"`deadline` is 5s", "`retry_interval` is 0s", "`library_path` is \"lib/libnvidia-ml.so.1\"",
			},
		},
		{
			component: "receivers::csv_replay",
			config:    "receivers: {csv_replay: {speed: 0, step_window: -1s}}",
			want: []string{
				"`path` is empty", "`speed` is 0", "`step_window` is -1s", "`table::time::column` is empty",
				"`table::resource` has no host.name", "`table::metrics` is empty",
			},
		},
		{
			component: "receivers::csv_replay",
			config: `receivers:
  csv_replay:
    path: x.csv
    cluster: here
    table:
      time: {unit: parsec}
      resource: {host.name: "{host", k8s.cluster.name: there}
      metrics: [{name: a, type: gouge}]
`,
			want: []string{
				"`table::time::column` is empty", "`table::time::unit` is \"parsec\"", "`table::resource`: host.name: template",
				"`cluster` and `table::resource`", "`table::metrics[0]::column` is empty", "`table::metrics[0]::type` is \"gouge\"",
			},
		},
		{
			component: "processors::diff",
			config:    "processors: {diff: {resync_interval: -1s, heartbeat_interval: -1s, ttl: 1ms, max_nodes: 0, max_series: -1}}",
			want: []string{
				"`resync_interval` is -1s", "`heartbeat_interval` is -1s", "`ttl` is 1ms", "`vanished_after` is 3m0s", "`max_nodes` is 0", "`max_series` is -1",
			},
		},
		{
			component: "processors::straggler",
			config: `processors:
  straggler:
    mode: gateway
    enter_ticks: 0
    default_cluster: ""
    group_by: ["", a, a]
    compatibility: [igneous]
    gateway: {k: 0, min_gap: 1, alpha: 2, quorum: 1, panic_fraction: 0, coverage_fraction: 2, retention: 1s, max_nodes: 0}
`,
			want: []string{
				"enter_ticks` is 0", "`default_cluster` is \"\"", "`group_by` has an empty name", "`group_by` names \"a\" twice",
				"`compatibility` has \"igneous\"", "k` is 0", "min_gap` is 1", "alpha` is 2", "quorum` is 1", "panic_fraction` is 0",
				"coverage_fraction` is 2", "retention` is 1s", "max_nodes` is 0",
			},
		},
		{
			component: "processors::straggler",
			config: `processors:
  straggler:
    mode: agent
    leave_ticks: 0
    signals:
      speed: {weight: 1}
      cpu: {weight: 2}
      memory: {floor: 1}
    agent:
      idle_after: 0s
      calibration_samples: 0
      local_fraction: 1
      max_nodes: 0
`,
			want: []string{
				"leave_ticks` is 0", "unknown signal \"speed\"", "signals::cpu::weight` is 2", "signals::memory::floor` is 1", "idle_after` is 0s",
				"calibration_samples` is 0", "local_fraction` is 1", "max_nodes` is 0",
			},
		},
		{
			component: "processors::straggler",
			config: `processors:
  straggler:
    mode: gateway
    decision: vote
    signals: {power: {min_gap: 5}, speed: {}}
    gateway: {warmup_ticks: -1, cusum: {mid: {reach: 0}}, split: {min_side: 1}, incident: {fall: 0}, episodes: {max_ranked: 1000}}
`,
			want: []string{
				"`decision` is \"vote\"", "`signals::power::min_gap` is 5", "unknown signal \"speed\"", "`gateway::warmup_ticks` is -1",
				"`gateway::cusum::mid::reach` is 0", "`gateway::split::min_side` is 1", "`gateway::incident::fall` is 0", "`gateway::episodes::max_ranked` is 1000",
			},
		},
		{
			component: "processors::straggler",
			config:    "processors: {straggler: {default_cluster: \"\"}}",
			want:      []string{"`mode` is \"\"", "`default_cluster` is \"\""},
		},
		{
			component: "extensions::admission",
			config:    "extensions: {admission: {max_concurrent: 0, cluster_share: 2, max_clusters: 0, receive_timeout: 1h, retry_after: {min: 2s, max: 1500ms}, cluster_header: a b}}",
			want: []string{
				"`max_concurrent` is 0", "`cluster_share` is 2", "`max_clusters` is 0", "`receive_timeout` is 1h0m0s", "`retry_after::max` is 1.5s, must be whole seconds",
				"`retry_after::max` is 1.5s, must not be less", "`cluster_header` is \"a b\"",
			},
		},
		{
			component: "extensions::straggler_threshold",
			config:    "extensions: {straggler_threshold: {cluster: \"\\t\", received_ttl: 0s, consistent_hash: gpu, compatibility: [igneous], headers: {cluster: a b, node: grpc-x, group: gpu-straggler-params}}}",
			want: []string{
				"`cluster` is \"\\t\"", "`received_ttl` is 0s", "`consistent_hash` is \"gpu\"", "`compatibility` has \"igneous\"", "`headers::cluster` is \"a b\"",
				"`headers::node` is \"grpc-x\"", "which `headers::group` is already",
			},
		},
	} {
		t.Run(tt.component, func(t *testing.T) {
			t.Parallel()
			// One valid pipeline around it: only the mistakes are wrong.
			base := `
receivers: {nop: }
exporters: {nop: }
service: {pipelines: {metrics: {receivers: [nop], exporters: [nop]}}}
`
			text, err := validate(t, collectorBinary, base, tt.config+"\n")
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, text)
			assert.NotZero(t, exit.ExitCode())
			text = strings.TrimPrefix(strings.TrimSpace(text), "Error: ")
			assert.Contains(t, text, tt.component+": ")
			sentences := strings.Split(text, "\n")
			assert.Len(t, sentences, len(tt.want), text)
			for _, want := range tt.want {
				assert.Contains(t, text, want)
			}
			for _, s := range sentences {
				assert.Regexp(t, "`[a-z_:.\\[\\]0-9]+`", s, "a sentence without its key")
			}
		})
	}

	t.Run("an agent in a logs pipeline", func(t *testing.T) {
		t.Parallel()
		text, err := validate(t, collectorBinary, `
receivers: {nop: }
processors: {straggler: {mode: agent}}
exporters: {nop: }
service: {pipelines: {logs: {receivers: [nop], processors: [straggler], exporters: [nop]}}}
`)
		require.Error(t, err)
		assert.Contains(t, text, "`mode` is \"agent\"")
	})

	t.Run("all at once", func(t *testing.T) {
		t.Parallel()
		text, err := validate(t, collectorBinary, `
receivers:
  nvml: {retry_interval: 0s}
  csv_replay: {path: ""}
processors:
  diff: {ttl: 0s}
  straggler: {mode: judge}
exporters: {nop: }
extensions:
  straggler_threshold: {received_ttl: 0s}
service:
  extensions: [straggler_threshold]
  pipelines: {metrics: {receivers: [nvml, csv_replay], processors: [diff, straggler], exporters: [nop]}}
`)
		require.Error(t, err)
		for _, want := range []string{
			"receivers::nvml: `retry_interval`", "receivers::csv_replay: `path`", "processors::diff: `ttl`",
			"processors::straggler: `mode`", "extensions::straggler_threshold: `received_ttl`",
		} {
			assert.Contains(t, text, want)
		}
	})
}

// TestMoreMemoryThanThereIs: validate tells where the parts of the memory are more than all
// of it. TestShippedConfigsAreValid shows that they are not in those that ship.
func TestMoreMemoryThanThereIs(t *testing.T) {
	t.Parallel()
	text, err := validate(t, collectorBinary, "configs/gateway.yaml", `
processors:
  diff: {max_bytes: 1048576000, max_pending_points: 1048576000}
  diff/unused: {max_bytes: 1048576000}
extensions:
  fleet_view: {max_bytes: 104857600, history: {sqlite: {queue_mib: 50}}}
`)
	require.NoError(t, err, text)
	assert.Equal(t, "warning: clients may fill 2100 MiB of memory, 128 % of the 1638 MiB that the process may take "+
		"(the least of GOMEMLIMIT and 80 % of its cgroup, or 2 GiB): admission 819, diff 1000, fleet_view 150, straggler 131; "+
		"set less in `max_bytes`, or give it more\n", text)
}
