// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// TestFleetsimExample runs the example of cmd/fleetsim/README.md: the nodes with a
// fault find out by what the gateway returned, the gateway names them, and no other node
// is named.
func TestFleetsimExample(t *testing.T) {
	long(t)
	t.Parallel()
	text, err := os.ReadFile(process.Root + "/cmd/fleetsim/README.md")
	require.NoError(t, err)
	var over string
	var sim []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "bin/gpu-collector --config configs/gateway.yaml --config '"); ok {
			over = strings.TrimSuffix(rest, "'")
		}
		if rest, ok := strings.CutPrefix(line, "bin/fleetsim "); ok && strings.Contains(rest, "-endpoint ") && sim == nil {
			sim = strings.Fields(rest)
		}
	}
	require.NotEmpty(t, over)
	gateway := startGateway(t, strings.TrimPrefix(over, "yaml:")+"\n")
	at := slices.Index(sim, "127.0.0.1:4317")
	require.Positive(t, at)
	sim[at] = gateway.GRPC
	file := filepath.Join(t.TempDir(), "report.json")
	out, err := exec.CommandContext(t.Context(), process.Binary(t, "fleetsim"), append(sim, "-json", file)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	text, err = os.ReadFile(file)
	require.NoError(t, err)
	var r fleetpush.Report
	require.NoError(t, json.Unmarshal(text, &r))

	slow := []string{"node-000007", "node-000009"}
	assert.Equal(t, 40, r.Nodes)
	assert.Equal(t, 40, r.NodesWithThreshold)
	assert.Equal(t, r.Pushes, r.Accepted, "%v", r.Refusals)
	assert.Positive(t, r.Latency.P99)
	require.Len(t, r.Faults, len(slow))
	for i, f := range r.Faults {
		assert.Equal(t, slow[i], f.Node)
		if assert.NotNil(t, f.Delay, "%s found out\n%s", f.Node, out) {
			t.Logf("%s found out after %.0f s", f.Node, *f.Delay)
		}
		assert.Equal(t, "fleet", f.By)
	}
	assert.Zero(t, r.FalseVerdicts, "%v", r.FalseNodes)

	for _, line := range gateway.Log.Lines("Straggler ") {
		assert.True(t, strings.Contains(line, "Straggler "+slow[0]) || strings.Contains(line, "Straggler "+slow[1]), line)
	}
	for _, node := range slow {
		assert.Positive(t, gateway.Log.Count("Straggler "+node), node)
	}
	s := process.Scrape(t, gateway.Prom)
	require.Len(t, s["gpu_node_straggler"], 40)
	for host, v := range s.By("gpu_node_straggler", "host_name", nil) {
		assert.Equal(t, host == slow[0] || host == slow[1], v == 1, "%s is %v", host, v)
	}
}
