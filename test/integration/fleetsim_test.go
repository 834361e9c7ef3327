// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
)

// TestFleetsimExample runs the example of cmd/fleetsim/README.md: the nodes with a
// fault find out for themselves by what the gateway returned, the gateway names
// them, and nobody names anybody else.
func TestFleetsimExample(t *testing.T) {
	long(t)
	t.Parallel()
	gateway, p, r, out := runFleetsimExample(t, 0)

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

	for _, line := range gateway.log.Lines("Straggler ") {
		assert.True(t, strings.Contains(line, "Straggler "+slow[0]) || strings.Contains(line, "Straggler "+slow[1]), line)
	}
	for _, node := range slow {
		assert.Positive(t, gateway.log.Count("Straggler "+node), node)
	}
	s := scrape(t, p.prom)
	require.Len(t, s["gpu_node_straggler"], 40)
	for host, v := range s.by("gpu_node_straggler", "host_name", nil) {
		assert.Equal(t, host == slow[0] || host == slow[1], v == 1, "%s is %v", host, v)
	}
}

// fleetsim is built once for both.
var fleetsim = sync.OnceValues(func() (string, error) { return build("fleetsim", "fleetsim") })

// runFleetsimExample runs an example of the document, the first or the second,
// against a gateway of its own.
func runFleetsimExample(t *testing.T, which int) (*collector, gatewayPorts, fleetpush.Report, string) {
	t.Helper()
	pace, examples := fleetsimExamples(t)
	require.Len(t, examples, 2)
	simArgs := examples[which]
	binary, err := fleetsim()
	require.NoError(t, err)
	p := newGatewayPorts(t)
	gateway := start(t, options{configs: []string{"configs/gateway.yaml", p.overlay(t), pace}})
	const documented = "127.0.0.1:4317"
	require.Contains(t, simArgs, documented)
	for i := range simArgs {
		if simArgs[i] == documented {
			simArgs[i] = p.grpc
		}
	}
	file := filepath.Join(t.TempDir(), "report.json")
	out, err := exec.CommandContext(t.Context(), binary, append(simArgs, "-json", file)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var r fleetpush.Report
	require.NoError(t, json.Unmarshal(text, &r))
	return gateway, p, r, string(out)
}

// fleetsimExamples returns what the document puts over the gateway's
// configuration, and the arguments of fleetsim in each example.
func fleetsimExamples(t *testing.T) (overlay string, sims [][]string) {
	t.Helper()
	text, err := os.ReadFile(root + "/cmd/fleetsim/README.md")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "bin/gpu-collector --config configs/gateway.yaml --config '"); ok {
			overlay = strings.TrimSuffix(rest, "'")
		}
		if rest, ok := strings.CutPrefix(line, "bin/fleetsim "); ok && strings.Contains(rest, "-endpoint ") {
			sims = append(sims, strings.Fields(rest))
		}
	}
	require.NotEmpty(t, overlay)
	return overlay, sims
}
