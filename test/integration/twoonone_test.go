// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// Two collectors run on one machine as they are shipped: variables alone move the gateway,
// and doctor finds each of them.
func TestTwoCollectorsOnOneMachine(t *testing.T) {
	t.Parallel()
	// All of 127.0.0.0/8 is this machine; the shipped ports are free on an address of our own.
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	gatewayOwn, agentOwn := portOf(t, loopback.FreeAddr(t)), portOf(t, loopback.FreeAddr(t))
	start(t, options{
		configs: []string{"configs/gateway.yaml"},
		env:     []string{"GPU_COLLECTOR_LISTEN=" + host, "GPU_COLLECTOR_API_LISTEN=" + host, "GPU_COLLECTOR_TELEMETRY_PORT=" + gatewayOwn},
	})
	// The agent's own ports are those of whatever else runs here.
	start(t, options{
		configs: []string{"configs/agent.yaml", fmt.Sprintf(`
receivers:
  nvml: {collection_interval: 1s, deadline: 1s}
  fabric: {collection_interval: 1s}
  otlp: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}
extensions: {healthcheckv2: {http: {endpoint: %q}}}
`, loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t))},
		env: []string{"GPU_COLLECTOR_GATEWAY=" + net.JoinHostPort(host, "4317"), "GPU_COLLECTOR_INSECURE=true", "GPU_COLLECTOR_TELEMETRY_PORT=" + agentOwn},
	})
	doctor := func(port string) string {
		cmd := exec.CommandContext(t.Context(), collectorBinary, "doctor", "--endpoint", net.JoinHostPort(host, "8086"))
		cmd.Env = append(cmd.Environ(), "GPU_COLLECTOR_TELEMETRY_PORT="+port)
		out, _ := cmd.CombinedOutput() // a machine without GPUs fails
		return string(out)
	}
	taken := regexp.MustCompile(`ok +pushes +the gateway 127\.[0-9.]+:4317 takes the pushes`)
	var told string
	if !inTime(func() bool {
		told = doctor(agentOwn)
		return taken.MatchString(told)
	}) {
		require.Fail(t, "the agent pushes", told)
	}
	assert.Contains(t, told, agentOwn+" (the collector's own metrics)")
	told = doctor(gatewayOwn)
	assert.Regexp(t, `ok +collector +\S+ \S+ runs`, told)
	assert.NotContains(t, told, "pushes", "it is the gateway's own")
}
