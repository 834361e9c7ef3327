// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
	"github.com/gpu-collector/gpu-collector/test/fakesys"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// TestFabric: what the fabric receiver of configs/all-in-one.yaml reads of a node's ports
// and host goes through the agent's pipeline and the gateway's to the endpoint of
// Prometheus, beside the node's GPUs, and follows the node.
func TestFabric(t *testing.T) {
	tree := fakesys.New(t)
	ports := tree.Rail(2)
	prom, own, fleet := loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t)
	start(t, options{
		binary: collectorBinary,
		configs: []string{"configs/all-in-one.yaml", fmt.Sprintf(`
receivers:
  fabric: {collection_interval: 200ms, deadline: 200ms, initial_delay: 0s, sys_path: %q, proc_path: %q}
  otlp/app: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}
  otlp/gateway: {protocols: {grpc: {endpoint: %q}}}
exporters:
  otlp_grpc: {endpoint: %q}
extensions:
  exposition: {http: {endpoint: %q}}
  straggler_threshold/gateway: {api: {endpoint: %q}}
  fleet_view: {http: {endpoint: %q}}
service:
  telemetry: {metrics: %s}
`, tree.Sys, tree.Proc, loopback.FreeAddr(t), loopback.FreeAddr(t), own, own, prom, loopback.FreeAddr(t), fleet, telemetryReader(t, loopback.FreeAddr(t)))},
		env: []string{"GPU_COLLECTOR_CLUSTER=lab"},
	})
	port := func(i int, more labels) labels {
		l := labels{"hw_id": fmt.Sprintf("mlx5_%d/1", i), "k8s_cluster_name": "lab"}
		maps.Copy(l, more)
		return l
	}
	eventually(t, "both links are up", func() bool {
		s := scrape(t, prom)
		return s.is(1, "hw_network_up", port(0, nil)) && s.is(1, "hw_network_up", port(1, nil))
	})
	s := scrape(t, prom)
	assert.True(t, s.is(50e9, "hw_network_bandwidth_limit_bytes_per_second", port(0, nil)))
	assert.True(t, s.is(1, "gpu_network_near_ratio", port(1, labels{"gpu_pci_bus_id": "00000000:13:00.0", "gpu_network_distance": "switch"})))
	assert.True(t, s.is(0.4, "system_memory_utilization_ratio", labels{"system_memory_state": "used"}))

	// The node beside its GPUs, in the API.
	var nodes fleetapi.NodePage
	eventually(t, "the view shows the host", func() bool {
		getJSON(t, "http://"+fleet+"/api/v1/nodes", &nodes)
		return len(nodes.Nodes) == 1 && nodes.Nodes[0].MemoryUsage != nil
	})
	host := nodes.Nodes[0]
	for what, v := range map[string]struct {
		got  *float64
		want float64
	}{
		"memory usage": {host.MemoryUsage, 0.4}, "load": {host.LoadAverage, 12.5},
		"memory pressure": {host.MemoryPressure, 0.025}, "I/O pressure": {host.IOPressure, 0.05},
	} {
		if assert.NotNil(t, v.got, what) {
			assert.InDelta(t, v.want, *v.got, 1e-9, what)
		}
	}

	tree.Write(ports[0]+"/state", "1: DOWN\n")
	tree.Write(ports[0]+"/counters/link_downed", "1\n")
	tree.Remove("infiniband", "mlx5_1")
	eventually(t, "one link is down, and the other port is gone", func() bool {
		s := scrape(t, prom)
		_, there := s.value("hw_network_up", port(1, nil))
		return s.is(0, "hw_network_up", port(0, nil)) && s.is(1, "hw_errors_total", port(0, labels{"error_type": "link_downed"})) && !there
	})
}
