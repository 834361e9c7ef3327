// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
)

const (
	workers    = 6
	slowWorker = "n5"
)

// step is what a training job on six nodes pushes, with n5 at half speed and
// one percent of noise.
func step(i int) pmetric.Metrics {
	md := pmetric.NewMetrics()
	for n := range workers {
		seconds := 1 + 0.01*float64((i+n)%3)
		name := fmt.Sprintf("n%d", n)
		if name == slowWorker {
			seconds *= 2
		}
		gauge(node(md, name, map[string]string{"gpu.job.id": "job", "gpu.job.role": "worker"}), "gpu.app.step.duration", "s", seconds)
	}
	return md
}

// TestThresholdReachesTheAgent runs agent and gateway as two processes, takes
// the gateway away, and brings it back. Meanwhile the agent judges by the last
// threshold for a second, as it would for five minutes, and then by its own past.
func TestThresholdReachesTheAgent(t *testing.T) {
	t.Parallel()
	gp, ap := newGatewayPorts(t), newAgentPorts(t)
	gateway := start(t, options{configs: []string{"configs/gateway.yaml", gp.overlay(t), "processors: {straggler: {ttl_multiplier: 20}}\n"}})
	agent := start(t, options{
		configs: []string{"configs/agent.yaml", ap.overlay(t), `
processors: {straggler: {agent: {cached_ttl: 1s}}}
# No push of the job fails for a queue that a busy machine is slow to empty.
exporters: {otlp_grpc: {sending_queue: {queue_size: 1000}}}
`},
		env: []string{"GPU_COLLECTOR_GATEWAY=" + gp.grpc, "GPU_COLLECTOR_INSECURE=true", "GPU_COLLECTOR_CLUSTER=lab"},
	})
	client := grpcClient(t, ap.grpc)
	job := runJob(t, func(ctx context.Context, md pmetric.Metrics) error {
		_, err := client.Export(ctx, pmetricotlp.NewExportRequestFromMetrics(md))
		return err
	})

	awaitVerdict(t, gp, ap)
	gateway.kill()
	eventually(t, "the agent does without the gateway", func() bool {
		s := scrape(t, ap.prom)
		assertOnlySlow(t, s, "gpu_agent_straggler")
		for n := range workers {
			name := fmt.Sprintf("n%d", n)
			if mode(s, name) != "local" || !s.is(0, "gpu_agent_gateway_reachable", labels{"host_name": name}) {
				return false
			}
		}
		return true
	})

	gateway.restart()
	back := time.Now()
	awaitVerdict(t, gp, ap)
	t.Logf("the fleet's verdict is back %s after the gateway", time.Since(back).Round(time.Millisecond))

	for _, c := range []*collector{gateway, agent} {
		for _, line := range append(c.log.Lines("Straggler ", "\twarn\t"), c.log.Lines("this node takes itself for a straggler")...) {
			assert.Contains(t, line, slowWorker)
		}
	}
	// The job must not feel that the gateway was away.
	assert.Empty(t, job.stop())
}

// awaitVerdict waits until every node judges itself by the fleet, and agent
// and gateway both take the slow worker, and no other, for the straggler.
func awaitVerdict(t *testing.T, gp gatewayPorts, ap agentPorts) {
	t.Helper()
	var s scraped
	eventually(t, "agent and gateway agree on "+slowWorker, func() bool {
		s = scrape(t, ap.prom)
		g := scrape(t, gp.prom)
		assertOnlySlow(t, s, "gpu_agent_straggler")
		assertOnlySlow(t, g, "gpu_node_straggler")
		for n := range workers {
			name := fmt.Sprintf("n%d", n)
			if mode(s, name) != "fleet" || !s.is(1, "gpu_agent_gateway_reachable", labels{"host_name": name}) {
				return false
			}
		}
		return s.is(1, "gpu_agent_straggler", labels{"host_name": slowWorker}) &&
			g.is(1, "gpu_node_straggler", labels{"host_name": slowWorker, "k8s_cluster_name": "lab", "gpu_peer_group": "job/worker"}) &&
			len(g["gpu_node_straggler"]) == workers
	})
	for n := range workers {
		host := labels{"host_name": fmt.Sprintf("n%d", n)}
		threshold, ok := s.value("gpu_agent_threshold_ratio", host)
		assert.True(t, ok, "%v has a threshold", host)
		assert.InDelta(t, 0.93, threshold, 0.05)
	}
}

func assertOnlySlow(t *testing.T, s scraped, metric string) {
	t.Helper()
	for host, v := range s.by(metric, "host_name", nil) {
		if host != slowWorker {
			require.Zero(t, v, "%s of %s", metric, host)
		}
	}
}

// mode returns a node's detection mode, "" when there is none yet.
func mode(s scraped, host string) string {
	for m, v := range s.by("gpu_agent_detection_mode", "gpu_detection_mode", labels{"host_name": host}) {
		if v == 1 {
			return m
		}
	}
	return ""
}

// job pushes steps until it is stopped.
type job struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	errs   []string
}

func runJob(t *testing.T, push func(context.Context, pmetric.Metrics) error) *job {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	j := &job{cancel: cancel}
	j.done.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for i := 0; ; i++ {
			if err := push(ctx, step(i)); err != nil && ctx.Err() == nil && !slices.Contains(j.errs, err.Error()) {
				j.errs = append(j.errs, err.Error())
			}
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
	t.Cleanup(func() { j.stop() })
	return j
}

// stop ends the job and returns the errors that it met.
func (j *job) stop() []string {
	j.cancel()
	j.done.Wait()
	return j.errs
}
