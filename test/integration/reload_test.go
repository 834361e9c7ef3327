// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// reload makes the collector read its configuration again and waits until it
// runs with it.
func (c *collector) reload() {
	c.t.Helper()
	ready := c.log.count(readyLine)
	require.NoError(c.t, c.cmd.Process.Signal(syscall.SIGHUP))
	c.waitLog(ready+1, startDeadline, readyLine)
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
