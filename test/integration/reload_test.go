// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// reloadCommand is what a unit's ExecReload runs, in another directory than the
// collector's.
func reloadCommand(t *testing.T, c *process.Collector, command string) (output string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), process.Binary(t, command), "reload", "--timeout", process.Patience.String(), "--pid", strconv.Itoa(c.PID()))
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// reload makes the collector read its configuration again and waits until it
// runs with it.
func reload(t *testing.T, c *process.Collector) {
	t.Helper()
	ready := c.Log.Count(process.ReadyLine)
	output, err := reloadCommand(t, c, "gpu-collector")
	require.NoError(t, err, output)
	c.WaitLog(ready+1, process.ReadyLine)
}

// settings are of the processor, in YAML.
func settings(text string) string {
	return "processors: {straggler: {push_interval: 200ms, ttl_multiplier: 600, " + text + "}}\n"
}

// startUnderFile runs a gateway, and returns the file of its last configuration.
func startUnderFile(t *testing.T) (g *process.Collector, file string) {
	t.Helper()
	g = startGateway(t, settings("gateway: {quorum: 4}"))
	requireFleet(t, g)
	return g, g.Command.Args[len(g.Command.Args)-1]
}

// TestReloadTakesTheNewConfiguration changes a file under a gateway, one value
// of ours and one address, and has both in force and the state back after the
// next push.
func TestReloadTakesTheNewConfiguration(t *testing.T) {
	t.Parallel()
	g, file := startUnderFile(t)
	after := process.NewAddrs(t)
	quorum := settings("gateway: {quorum: 7}") // more than the fleet has
	require.NoError(t, os.WriteFile(file, []byte(after.Overlay("configs/gateway.yaml")+quorum), 0o600))
	reload(t, g)
	_, err := process.Export(t.Context(), process.Dial(t, after.GRPC), healthyFleet())
	require.NoError(t, err)
	process.Eventually(t, "one push later all six are known, and are too few", func() bool {
		s := process.Scrape(t, after.Prom)
		wide := labels{"k8s_cluster_name": "lab", "gpu_peer_group": ""}
		return s.Is(6, "gpu_straggler_nodes", wide.And(labels{"gpu_node_state": "active"})) && s.Is(0, "gpu_straggler_quorum_met", wide)
	})
	_, err = net.Dial("tcp", g.GRPC)
	assert.Error(t, err, "nothing listens where it did")
}

// TestReloadOfWhatIsNotValid: the command fails with what is wrong in a new configuration,
// and the process runs on with the former one.
func TestReloadOfWhatIsNotValid(t *testing.T) {
	t.Parallel()
	g, file := startUnderFile(t)
	for config, want := range map[string]string{
		"receivers: [":                                      "yaml",
		settings("quorun: 4"):                               "quorun",
		settings("gateway: {max_nodes: 0}"):                 "`gateway::max_nodes` is 0",
		settings(`state_directory: "${file:/nonexistent}"`): "/nonexistent",
	} {
		require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
		output, err := reloadCommand(t, g, "gpu-collector")
		require.Error(t, err, config)
		assert.Contains(t, output, want, config)
	}
	// Another command's process is not sent a signal that would end it.
	output, err := reloadCommand(t, g, "gpu-collector-agent")
	require.Error(t, err)
	assert.Contains(t, output, "is no gpu-collector-agent")

	assert.Equal(t, 1, g.Log.Count(process.ReadyLine), "it has not even restarted its service")
	assert.True(t, process.Scrape(t, g.Prom).Is(6, "gpu_straggler_nodes", labels{"k8s_cluster_name": "lab", "gpu_peer_group": "", "gpu_node_state": "active"}))

	// What only the start finds ends the process, and fails the command.
	taken, err := net.Listen("tcp", loopback.FreeAddr(t))
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "extensions: {exposition: {http: {endpoint: %q}}}\n", taken.Addr()), 0o600))
	output, err = reloadCommand(t, g, "gpu-collector")
	require.Error(t, err)
	assert.Contains(t, output, "was told to take the new configuration, and has ended with it: its log says why")
	process.Eventually(t, "it has ended", g.Ended)
}
