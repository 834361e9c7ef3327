// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// reloadCommand is what a unit's ExecReload runs, in another directory than the
// collector's.
func (c *collector) reloadCommand(binary string) (said string, err error) {
	cmd := exec.CommandContext(c.t.Context(), binary, "reload", "--timeout", patience.String(), "--pid", strconv.Itoa(c.PID()))
	cmd.Dir = c.t.TempDir()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// reload makes the collector read its configuration again and waits until it
// runs with it.
func (c *collector) reload() {
	c.t.Helper()
	ready := c.log.Count(readyLine)
	said, err := c.reloadCommand(collectorBinary)
	require.NoError(c.t, err, said)
	c.waitLog(ready+1, readyLine)
}

// TestReloadOfAGPUNode opens NVML again in the same process.
func TestReloadOfAGPUNode(t *testing.T) {
	t.Parallel()
	n := startGPUNode(t, collectorBinary, fakenvml.Library(t))
	n.awaitGPUs()
	n.reload()
	n.awaitGPUs()
}

// straggler gives an overlay other settings of the processor.
func straggler(overlay, settings string) string {
	return strings.Replace(overlay, "push_interval: 200ms", settings, 1)
}

// TestReloadTakesTheNewConfiguration changes a file under a gateway, one value
// of ours and one address, and has both in force and the state back after the
// next push.
func TestReloadTakesTheNewConfiguration(t *testing.T) {
	t.Parallel()
	before, after := newGatewayPorts(t), newGatewayPorts(t)
	file := filepath.Join(t.TempDir(), "overlay.yaml")
	write := func(p gatewayPorts, quorum int) {
		text := straggler(p.overlay(t), fmt.Sprintf("push_interval: 200ms, gateway: {quorum: %d}", quorum))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write(before, 4)
	g := &target{gatewayPorts: before, collector: start(t, options{configs: []string{"configs/gateway.yaml", file}})}
	g.client = grpcClient(t, before.grpc)
	g.requireFleet("lab")

	write(after, 7) // more than the fleet has
	g.reload()
	g.gatewayPorts = after
	g.client = grpcClient(t, after.grpc)
	md := pmetric.NewMetrics()
	healthyFleet(md, "lab")
	require.NoError(t, g.push(t.Context(), md))
	eventually(t, "one push later all six are known, and are too few", func() bool {
		s := scrape(t, g.prom)
		wide := labels{"k8s_cluster_name": "lab", "gpu_peer_group": ""}
		return s.is(6, "gpu_straggler_nodes", wide.and(labels{"gpu_node_state": "active"})) && s.is(0, "gpu_straggler_quorum_met", wide)
	})
	_, err := net.Dial("tcp", before.grpc)
	assert.Error(t, err, "nobody listens where it did")
}

// TestReloadOfWhatIsNotValid: whatever is wrong with a new configuration, the command
// says it and fails, and the process goes on as if nothing had been asked.
func TestReloadOfWhatIsNotValid(t *testing.T) {
	t.Parallel()
	ports := newGatewayPorts(t)
	file := filepath.Join(t.TempDir(), "overlay.yaml")
	good := ports.overlay(t)
	require.NoError(t, os.WriteFile(file, []byte(good), 0o600))
	g := &target{gatewayPorts: ports, collector: start(t, options{configs: []string{"configs/gateway.yaml", file}})}
	g.client = grpcClient(t, ports.grpc)
	g.requireFleet("lab")
	for _, tc := range []struct{ name, config, says string }{
		{"not YAML", "receivers: [", "yaml"},
		{"an unknown key", straggler(good, "quorun: 4"), "quorun"},
		{"a wrong value", straggler(good, "gateway: {max_nodes: 0}"), "`gateway::max_nodes` is 0"},
		{"no such secret", straggler(good, `push_interval: "${file:/nonexistent}"`), "/nonexistent"},
		{"no such file", "", "no such file"},
	} {
		if tc.config == "" {
			require.NoError(t, os.Remove(file))
		} else {
			require.NoError(t, os.WriteFile(file, []byte(tc.config), 0o600))
		}
		said, err := g.reloadCommand(collectorBinary)
		require.Error(t, err, tc.name)
		assert.Contains(t, said, tc.says, tc.name)
	}
	// Another command's process is not sent a signal that would end it.
	agent, err := agentBinary()
	require.NoError(t, err)
	said, err := g.reloadCommand(agent)
	require.Error(t, err)
	assert.Contains(t, said, "is no gpu-collector-agent")

	assert.Equal(t, 1, g.log.Count(readyLine), "it has not even restarted its service")
	assert.True(t, scrape(t, g.prom).is(6, "gpu_straggler_nodes", labels{"k8s_cluster_name": "lab", "gpu_peer_group": "", "gpu_node_state": "active"}))

	// What only the start finds ends the process, and the command says so.
	taken, err := net.Listen("tcp", loopback.FreeAddr(t))
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(good, ports.prom, taken.Addr().String())), 0o600))
	said, err = g.reloadCommand(collectorBinary)
	require.Error(t, err)
	assert.Contains(t, said, "was told to take the new configuration, and has ended with it: its log says why")
}
