// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os/exec"
	"path/filepath"
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
	cmd.Env = []string{"HOME=" + t.TempDir()}
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

// TestBadConfigNamesEveryMistake: one run of validate names them all, each with its key.
// Which mistakes there are is for the components' own tests.
func TestBadConfigNamesEveryMistake(t *testing.T) {
	t.Parallel()
	text, err := validate(t, collectorBinary, `
receivers:
  nvml: {retry_interval: 0s}
  csv_replay: {path: ""}
processors:
  diff: {ttl: 0s, max_nodes: 0}
  straggler: {mode: judge, enter_ticks: 0}
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
		"processors::straggler: `mode`", "`enter_ticks` is 0", "`max_nodes` is 0", "extensions::straggler_threshold: `received_ttl`",
	} {
		assert.Contains(t, text, want)
	}
}

// TestKeysOverTheMemoryAreRefused sets more bytes than memory_limiter allows, by each key
// that bounds a part of the memory, and then too many by all together.
func TestKeysOverTheMemoryAreRefused(t *testing.T) {
	t.Parallel()
	over := func(mib string) string {
		bytes := mib + "048576"
		return `
processors:
  memory_limiter: {limit_mib: 500, limit_percentage: 0, spike_limit_mib: 100, spike_limit_percentage: 0}
  straggler: {max_bytes: ` + bytes + `}
  diff: {max_bytes: ` + bytes + `, flush_interval: 1s, max_pending_points: ` + mib + `000}
extensions:
  admission: {max_bytes: ` + bytes + `}
  fleet_view: {max_bytes: ` + bytes + `, history: {sqlite: {queue_mib: ` + mib + `}}}
`
	}
	text, err := validate(t, collectorBinary, "configs/gateway.yaml", over("500"))
	require.Error(t, err)
	const than = " bytes are more than the 419430400 that the process may take: the least of what `memory_limiter` allows, GOMEMLIMIT and 80 % of its cgroup; set less, or 0 for "
	for _, want := range []string{
		"processors::straggler: `max_bytes`: 500048576" + than + "8 %", "extensions::admission: `max_bytes`: 500048576" + than + "50 %",
		"`max_bytes`: 500048576" + than + "25 %", "`max_pending_points` of 500000, at 1 KiB each: 512000000" + than + "25 %",
		"`max_bytes`: 500048576" + than + "9 %", "`history::sqlite::queue_mib` of 500: 524288000" + than + "8 %",
	} {
		assert.Contains(t, text, want)
	}
	text, err = validate(t, collectorBinary, "configs/gateway.yaml", over("100"))
	require.Error(t, err)
	assert.Contains(t, text, "100048576 bytes make 607451904 with those of other keys, more than the 419430400")
	text, err = validate(t, collectorBinary, "configs/gateway.yaml", over("50"))
	require.NoError(t, err, text)
}
