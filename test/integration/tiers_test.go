// SPDX-License-Identifier: Apache-2.0

// Package integration runs the real binaries: as processes, over real ports, with the
// configurations that are shipped.
package integration

import (
	"fmt"
	"testing"

	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/test/process"
)

type labels = process.Labels

// pace is faster than the shipped one. However busy the machine is, no node is missing:
// ttl_multiplier makes that two minutes.
const pace = "\nprocessors: {straggler: {push_interval: 200ms, ttl_multiplier: 600}}\n"

// long leaves a test to `make proof`: it takes more than ten seconds, or needs what is not
// part of the gate, such as a server of Prometheus.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long: make proof runs it")
	}
}

// startGateway runs configs/gateway.yaml.
func startGateway(t *testing.T, more ...string) *process.Collector {
	t.Helper()
	return process.Run(t, process.Options{Config: append([]string{"configs/gateway.yaml", pace}, more...)})
}

// startShard runs configs/shard.yaml.
func startShard(t *testing.T, next string, more ...string) *process.Collector {
	t.Helper()
	return process.Run(t, process.Options{
		Config: append([]string{"configs/shard.yaml"}, more...), Env: []string{"GPU_COLLECTOR_GATEWAY=" + next, "GPU_COLLECTOR_INSECURE=true"},
	})
}

// startAgent runs configs/agent.yaml without GPUs.
func startAgent(t *testing.T, next, cluster string, more ...string) *process.Collector {
	t.Helper()
	const calibrates = "processors: {straggler: {agent: {calibration_samples: 3}}}\n"
	return process.Run(t, process.Options{
		Config: append([]string{"configs/agent.yaml", pace, calibrates}, more...),
		Env:    []string{"GPU_COLLECTOR_GATEWAY=" + next, "GPU_COLLECTOR_INSECURE=true", "GPU_COLLECTOR_CLUSTER=" + cluster},
	})
}

// requireFleet pushes six healthy nodes of cluster lab and requires that their threshold
// comes back.
func requireFleet(t *testing.T, gateway *process.Collector) {
	t.Helper()
	conn := process.Dial(t, gateway.GRPC)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "gpu-cluster", "lab", "gpu-group", `"default"`)
	process.Eventually(t, "the threshold", func() bool {
		header, err := process.Export(ctx, conn, healthyFleet())
		return err == nil && len(header.Get("gpu-straggler-threshold")) == 1
	})
}

// healthyFleet is six nodes of cluster lab.
func healthyFleet() pmetric.Metrics {
	md := pmetric.NewMetrics()
	for n := range 6 {
		process.Score(md, fmt.Sprintf("good%d", n), 0.97, "k8s.cluster.name", "lab")
	}
	return md
}
