// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
)

// episodes are the episode records of cluster one, in the order they came.
func (s *logStore) episodes() []plog.LogRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []plog.LogRecord
	for i, lr := range s.records {
		if lr.EventName() == "gpu.straggler.episode" && s.resources[i]["k8s.cluster.name"] == "one" {
			found = append(found, lr)
		}
	}
	return found
}

// hosts are the nodes that a cluster's episodes are about.
func (s *logStore) hosts(cluster string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []string
	for i, lr := range s.records {
		if lr.EventName() == "gpu.straggler.episode" && s.resources[i]["k8s.cluster.name"] == cluster {
			found = append(found, fmt.Sprint(s.resources[i]["host.name"]))
		}
	}
	return found
}

func attribute(lr plog.LogRecord, key string) any {
	v, ok := lr.Attributes().Get(key)
	if !ok {
		return nil
	}
	return v.AsRaw()
}

// phases is what the episodes of cluster one were, such as "node onset".
func (s *logStore) phases() []string {
	all := []string{}
	for _, lr := range s.episodes() {
		all = append(all, fmt.Sprint(attribute(lr, "gpu.straggler.subject"), " ", attribute(lr, "gpu.straggler.phase")))
	}
	return all
}

// fleet is a synchronous job on eight nodes of eight GPUs each.
type fleet struct {
	cluster string
	mu      sync.Mutex
	loss    map[int]float64
	hot     int
	moved   int // the node that went to another job, 0 for none
	round   int
}

// move takes a node to another job, where it is as fast as any. That ends an episode at
// once: a recovery takes five minutes.
func (f *fleet) move(node int) {
	f.set(-1, nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.moved = node
}

func (f *fleet) set(hot int, loss map[int]float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hot, f.loss = hot, loss
}

// push is the next report of all nodes: step times with one percent of noise,
// and what the nodes' nvml receivers say. The first GPU of the hot node is
// slowed by heat.
func (f *fleet) push() pmetric.Metrics {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.round++
	md := pmetric.NewMetrics()
	for n := range 8 {
		name := fmt.Sprintf("n%d", n)
		job := map[string]string{"k8s.cluster.name": f.cluster, "gpu.job.id": "job", "gpu.job.role": "worker"}
		if n > 0 && n == f.moved {
			job["gpu.job.id"] = "other"
		}
		seconds := (1 + 0.01*float64((f.round+n)%3)) / (1 - f.loss[n])
		gauge(node(md, name, job), "gpu.app.step.duration", "s", seconds)
		metrics := node(md, name, map[string]string{"k8s.cluster.name": f.cluster})
		gauge(metrics, "hw.gpu.devices", "{gpu}", 8).Attributes().PutStr("state", "expected")
		for g := range 8 {
			id := fmt.Sprintf("GPU-%d-%d", n, g)
			throttled, temperature := 0.0, 60.0
			if n == f.hot && g == 0 {
				throttled, temperature = 1, 92
			}
			p := gauge(metrics, "hw.gpu.throttle.active", "", throttled)
			p.Attributes().PutStr("hw.id", id)
			p.Attributes().PutStr("reason", "hw_thermal")
			p = gauge(metrics, "hw.temperature", "Cel", temperature)
			p.Attributes().PutStr("hw.id", id)
			p.Attributes().PutStr("hw.sensor_location", "gpu")
		}
	}
	return md
}

// run pushes to an address every 100 ms until the test ends, whether or not
// anybody is there.
func (f *fleet) run(t *testing.T, addr string) {
	t.Helper()
	client := grpcClient(t, addr)
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			_, _ = client.Export(ctx, pmetricotlp.NewExportRequestFromMetrics(f.push())) // a gateway may be away
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
}

// goesOn waits until the fleet has pushed so many times more.
func (f *fleet) goesOn(t *testing.T, pushes int) {
	t.Helper()
	rounds := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.round
	}
	before := rounds()
	eventually(t, "the fleet goes on", func() bool { return rounds() >= before+pushes })
}

func startEpisodes(t *testing.T) (*logStore, *collector, gatewayPorts) {
	t.Helper()
	store, gp := startLogStore(t), newGatewayPorts(t)
	gateway := start(t, options{configs: []string{"configs/gateway.yaml", gp.overlay(t), fmt.Sprintf(`
exporters:
  otlp_grpc/events: {endpoint: %q, compression: none, tls: {insecure: true}}
service: {pipelines: {logs: {exporters: [otlp_grpc/events]}}}
`, store.addr)}})
	return store, gateway, gp
}

// startAgent is an agent that speaks for all nodes of a fleet.
func startAgent(t *testing.T, gp gatewayPorts, cluster string, more ...string) agentPorts {
	t.Helper()
	ap := newAgentPorts(t)
	start(t, options{
		configs: append([]string{"configs/agent.yaml", ap.overlay(t)}, more...),
		env:     []string{"GPU_COLLECTOR_GATEWAY=" + gp.grpc, "GPU_COLLECTOR_INSECURE=true", "GPU_COLLECTOR_CLUSTER=" + cluster},
	})
	return ap
}

// awaitWarm waits until the nodes of a cluster are compared by their throughput.
func awaitWarm(t *testing.T, gp gatewayPorts, cluster string) {
	t.Helper()
	eventually(t, cluster+" is compared", func() bool {
		_, ok := scrape(t, gp.prom).value("gpu_straggler_signal_median_ratio", labels{"k8s_cluster_name": cluster, "gpu_signal": "throughput"})
		return ok
	})
}

// TestAnEpisodeIsToldFromItsBeginningToItsEnd has a node of eight slow down
// because of heat, slow down further, and recover; between them the gateway
// tells, and the agent judges, the same.
func TestAnEpisodeIsToldFromItsBeginningToItsEnd(t *testing.T) {
	t.Parallel()
	store, gateway, gp := startEpisodes(t)
	ap := startAgent(t, gp, "one")
	f := &fleet{cluster: "one", hot: -1}
	f.run(t, ap.grpc)
	awaitWarm(t, gp, "one")
	// Longer than it takes to accuse anybody.
	f.goesOn(t, 300)
	require.Empty(t, store.phases(), "nobody is slow")

	began := time.Now()
	f.set(5, map[int]float64{5: 0.2})
	eventually(t, "the onset", func() bool { return len(store.phases()) > 0 })
	t.Logf("told after %s", time.Since(began).Round(time.Millisecond))
	onset := store.episodes()[0]
	assert.Equal(t, plog.SeverityNumberWarn, onset.SeverityNumber())
	for key, want := range map[string]any{
		"gpu.straggler.phase": "onset", "gpu.straggler.subject": "node", "gpu.straggler.severity": "major",
		"gpu.signal": "throughput", "gpu.peer_group": "job/worker", "gpu.straggler.rank": int64(1), "gpu.straggler.peers.active": int64(8),
		"gpu.straggler.reason": "hw_thermal", "gpu.straggler.observation": false, "gpu.straggler.action": "check_cooling", "hw.id": "GPU-5-0",
	} {
		assert.Equal(t, want, attribute(onset, key), key)
	}
	since, err := time.Parse(time.RFC3339, fmt.Sprint(attribute(onset, "gpu.straggler.since")))
	require.NoError(t, err)
	// It is told in whole seconds.
	assert.WithinRange(t, since, began.Add(-time.Second).Truncate(time.Second), onset.Timestamp().AsTime())
	assert.InDelta(t, 0.2, attribute(onset, "gpu.straggler.gap"), 0.05)
	assert.InDelta(t, 0.2*64, attribute(onset, "gpu.straggler.gpu_hours_lost_per_hour"), 0.05*64)
	assert.Greater(t, attribute(onset, "gpu.straggler.confidence"), 0.6)
	evidence, _ := attribute(onset, "gpu.straggler.evidence").([]any)
	require.NotEmpty(t, evidence)
	assert.Regexp(t, `^fact=hw_thermal value=1 peers=0 unit=1 gpu=GPU-5-0$`, evidence[0])
	assert.Contains(t, onset.Body().Str(), "Straggler n5")
	assert.Contains(t, onset.Body().Str(), " behind its peers in throughput")
	gateway.waitLog(1, "Straggler n5", `"gpu": "GPU-5-0"`, `"reason": "hw_thermal"`, `"episode": "`+fmt.Sprint(attribute(onset, "gpu.straggler.episode.id"))+`"`)

	eventually(t, "the agent takes n5 for a straggler too", func() bool {
		return scrape(t, ap.prom).is(1, "gpu_agent_straggler", labels{"host_name": "n5"})
	})
	eventually(t, "the metrics say what the record says", func() bool {
		g := scrape(t, gp.prom)
		suspicion, _ := g.value("gpu_node_suspicion_ratio", labels{"host_name": "n5"})
		return suspicion > 1 && g.is(0, "gpu_straggler_incident", labels{"gpu_peer_group": "job/worker", "k8s_cluster_name": "one"}) &&
			g.is(1, "gpu_straggler_rank", labels{"host_name": "n5", "gpu_peer_group": "job/worker", "k8s_cluster_name": "one"})
	})
	if testing.Short() {
		return // the mean of a loss takes a while to follow: make proof waits for it
	}

	f.set(5, map[int]float64{5: 0.6})
	eventually(t, "the change of severity", func() bool { return len(store.phases()) > 1 })
	worse := store.episodes()[1]
	assert.Equal(t, plog.SeverityNumberError, worse.SeverityNumber())
	assert.Equal(t, "critical", attribute(worse, "gpu.straggler.severity"))

	f.move(5)
	eventually(t, "the end", func() bool { return len(store.phases()) > 2 })
	end := store.episodes()[2]
	assert.Equal(t, plog.SeverityNumberInfo, end.SeverityNumber())
	assert.Equal(t, "moved", attribute(end, "gpu.straggler.cause"))
	assert.InDelta(t, end.Timestamp().AsTime().Sub(since).Seconds(), attribute(end, "gpu.straggler.duration"), 1)
	eventually(t, "the agent agrees", func() bool {
		// The series of the job before are there until `metric_expiration`.
		return scrape(t, ap.prom).is(0, "gpu_agent_straggler", labels{"host_name": "n5", "gpu_job_id": "other"})
	})

	assert.Equal(t, []string{"node onset", "node severity", "node end"}, store.phases())
	for _, lr := range store.episodes() {
		assert.Equal(t, attribute(onset, "gpu.straggler.episode.id"), attribute(lr, "gpu.straggler.episode.id"))
	}
	for _, host := range store.hosts("one") {
		assert.Equal(t, "n5", host)
	}
}
