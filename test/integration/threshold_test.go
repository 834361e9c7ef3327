// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/process"
)

// TestThresholdReachesTheAgent runs agent and gateway as two processes, takes the gateway
// away, and brings it back. Meanwhile the agent judges by the last threshold for a second,
// as it would for five minutes, and then by its own past.
func TestThresholdReachesTheAgent(t *testing.T) {
	t.Parallel()
	gateway := startGateway(t, "processors: {straggler: {ttl_multiplier: 20}}\n") // how long a threshold holds
	agent := startAgent(t, gateway.GRPC, "lab", `
processors: {straggler: {agent: {cached_ttl: 1s}}}
# No push of the job fails for a queue that a busy machine is slow to empty.
exporters: {otlp_grpc: {sending_queue: {queue_size: 1000}}}
`)
	f := &fleet{cluster: "lab", hot: 5, loss: map[int]float64{5: 0.5}}
	f.run(t, agent.GRPC)
	judged := func(mode string, reachable float64) {
		t.Helper()
		process.Eventually(t, "all nodes judge themselves by "+mode, func() bool {
			s := process.Scrape(t, agent.Prom)
			for n := range 8 {
				host := labels{"host_name": fmt.Sprint("n", n)}
				if !s.Is(1, "gpu_agent_detection_mode", host.And(labels{"gpu_detection_mode": mode})) || !s.Is(reachable, "gpu_agent_gateway_reachable", host) {
					return false
				}
			}
			return true
		})
	}
	found := func() {
		t.Helper()
		judged("fleet", 1)
		process.Eventually(t, "agent and gateway agree on n5", func() bool {
			for metric, addr := range map[string]string{"gpu_agent_straggler": agent.Prom, "gpu_node_straggler": gateway.Prom} {
				by := process.Scrape(t, addr).By(metric, "host_name", nil)
				for host, v := range by {
					require.True(t, v == 0 || host == "n5", "%s of %s", metric, host)
				}
				if len(by) < 8 || by["n5"] != 1 {
					return false
				}
			}
			return true
		})
	}
	found()
	gateway.Kill()
	judged("local", 0)
	gateway.Start()
	found()
	assert.Empty(t, f.failed(), "the job must not feel that the gateway was away")
}
