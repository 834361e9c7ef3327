// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// reload makes the collector read its configuration again and waits until it
// runs with it.
func (c *collector) reload() {
	c.t.Helper()
	ready := c.log.Count(readyLine)
	require.NoError(c.t, c.Signal(syscall.SIGHUP))
	c.waitLog(ready+1, readyLine)
}

// TestReloadOfAGateway loses the state, which the next pushes rebuild.
func TestReloadOfAGateway(t *testing.T) {
	t.Parallel()
	ports := newGatewayPorts(t)
	g := &target{gatewayPorts: ports, collector: start(t, options{configs: []string{"configs/gateway.yaml", ports.overlay(t)}})}
	for range 2 {
		g.client = grpcClient(t, ports.grpc)
		g.requireFleet("lab")
		g.reload()
	}
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

// TestReloadOfWhatDoesNotRun: whatever is wrong with a new configuration, the
// process lives on with the one before, says why, and takes the next.
func TestReloadOfWhatDoesNotRun(t *testing.T) {
	t.Parallel()
	ports := newGatewayPorts(t)
	file := filepath.Join(t.TempDir(), "overlay.yaml")
	good := ports.overlay(t)
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write(good)
	g := &target{gatewayPorts: ports, collector: start(t, options{configs: []string{"configs/gateway.yaml", file}})}
	g.client = grpcClient(t, ports.grpc)
	g.requireFleet("lab")

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	other := ports
	other.prom = taken.Addr().String()
	const refused = "the new configuration does not run"
	for i, tc := range []struct {
		name, config, says string
	}{
		{"not YAML", "receivers: [", "yaml"},
		{"an unknown key", straggler(good, "quorun: 4"), "quorun"},
		{"a wrong value", straggler(good, "gateway: {max_nodes: 0}"), "`gateway::max_nodes` is 0"},
		{"no such secret", straggler(good, `push_interval: "${file:/nonexistent}"`), "/nonexistent"},
		{"what only the start finds", other.overlay(t), "address already in use"},
		{"no such file", "", "no such file"},
	} {
		if tc.config == "" {
			require.NoError(t, os.Remove(file))
		} else {
			write(tc.config)
		}
		g.reload()
		assert.NotEmpty(t, g.log.Lines(refused, tc.says), "%s: the log says why", tc.name)
		assert.Equal(t, i+1, g.log.Count(refused), tc.name)
		g.requireFleet("lab")
	}

	// A good one is taken again, even when it is asked for on the way back.
	write("receivers: [")
	ready := g.log.Count(readyLine)
	require.NoError(t, g.Signal(syscall.SIGHUP))
	g.waitLog(7, refused)
	write(straggler(good, "push_interval: 210ms, gateway: {quorum: 7}"))
	require.NoError(t, g.Signal(syscall.SIGHUP))
	g.waitLog(ready+2, readyLine)
	assert.Equal(t, 7, g.log.Count(refused))
	md := pmetric.NewMetrics()
	healthyFleet(md, "lab")
	require.NoError(t, g.push(t.Context(), md))
	eventually(t, "the new quorum", func() bool {
		return scrape(t, g.prom).is(0, "gpu_straggler_quorum_met", labels{"k8s_cluster_name": "lab", "gpu_peer_group": ""})
	})
}
