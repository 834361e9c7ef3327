// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/test/process"
)

func attribute(lr plog.LogRecord, key string) any {
	v, ok := lr.Attributes().Get(key)
	if !ok {
		return nil
	}
	return v.AsRaw()
}

// fleet is a synchronous job on eight nodes of eight GPUs each.
type fleet struct {
	cluster string
	mu      sync.Mutex
	loss    map[int]float64
	hot     int
	moved   int // the node that went to another job, 0 for none
	round   int
	errs    []error // of pushes
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

// push returns the next report of all nodes: step times with one percent of noise, and
// readings of the nodes' nvml receivers. The first GPU of the hot node is slowed by heat.
func (f *fleet) push() pmetric.Metrics {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.round++
	md := pmetric.NewMetrics()
	for n := range 8 {
		name, job := fmt.Sprintf("n%d", n), "job"
		if n > 0 && n == f.moved {
			job = "other"
		}
		seconds := (1 + 0.01*float64((f.round+n)%3)) / (1 - f.loss[n])
		process.Gauge(process.Node(md, name, "k8s.cluster.name", f.cluster, "gpu.job.id", job, "gpu.job.role", "worker"), "gpu.app.step.duration", "s", seconds)
		metrics := process.Node(md, name, "k8s.cluster.name", f.cluster)
		process.Gauge(metrics, "hw.gpu.devices", "{gpu}", 8, "state", "expected")
		for g := range 8 {
			id, throttled, temperature := fmt.Sprintf("GPU-%d-%d", n, g), 0.0, 60.0
			if n == f.hot && g == 0 {
				throttled, temperature = 1, 92
			}
			process.Gauge(metrics, "hw.gpu.throttle.active", "", throttled, "hw.id", id, "reason", "hw_thermal")
			process.Gauge(metrics, "hw.temperature", "Cel", temperature, "hw.id", id, "hw.sensor_location", "gpu")
		}
	}
	return md
}

// run pushes to an address every 100 ms until the test ends, whether or not a server
// listens.
func (f *fleet) run(t *testing.T, addr string) {
	t.Helper()
	conn := process.Dial(t, addr)
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			if _, err := process.Export(ctx, conn, f.push()); err != nil && ctx.Err() == nil {
				f.mu.Lock()
				f.errs = append(f.errs, err)
				f.mu.Unlock()
			}
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
}

// failed are the errors of pushes.
func (f *fleet) failed() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.errs)
}

// rounds is how many pushes there were.
func (f *fleet) rounds() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.round
}

// TestAnEpisodeIsReportedAlike has a node of eight slowed by heat, behind the gateway's diff.
// Record, log, metrics, agent and view agree on it, and the view also after a restart.
func TestAnEpisodeIsReportedAlike(t *testing.T) {
	t.Parallel()
	dir, store := t.TempDir(), startLogStore(t)
	gateway := process.Run(t, process.Options{Config: []string{"configs/gateway.yaml", pace, store.overlay()}, Env: []string{"STATE_DIRECTORY=" + dir}})
	agent := startAgent(t, gateway.GRPC, "view")
	f := &fleet{cluster: "view", hot: 5}
	f.run(t, agent.GRPC)
	url := gateway.URL("/api/v1")
	var ranking fleetapi.StragglerList
	process.Eventually(t, "all nodes are compared by their throughput", func() bool {
		process.FetchJSON(t, url+"/stragglers", &ranking)
		_, ok := process.Scrape(t, gateway.Prom).Value("gpu_straggler_signal_median_ratio", labels{"gpu_signal": "throughput"})
		return ok && len(ranking.Stragglers) == 8
	})
	before := f.rounds()
	process.Eventually(t, "the fleet goes on for longer than it takes to accuse a node", func() bool { return f.rounds() >= before+300 })
	records := func() []plog.LogRecord { return store.named("gpu.straggler.episode", "") }
	require.Empty(t, records(), "no node is slow")
	process.FetchJSON(t, url+"/stragglers", &ranking)
	for _, s := range ranking.Stragglers {
		assert.False(t, s.Straggler, s.Node.Node)
		assert.Nil(t, s.Episode, s.Node.Node)
	}

	began := time.Now()
	f.set(5, map[int]float64{5: 0.2})
	var episodes fleetapi.EpisodePage
	found := func() bool {
		process.FetchJSON(t, url+"/episodes?open=true", &episodes)
		process.FetchJSON(t, url+"/stragglers?limit=3", &ranking)
		return len(episodes.Episodes) > 0 && len(ranking.Stragglers) == 3 && ranking.Stragglers[0].Straggler && ranking.Stragglers[0].Rank != nil
	}
	process.Eventually(t, "the episode, the verdict and the rank", found)
	t.Logf("reported after %s", time.Since(began).Round(time.Millisecond))
	ep := episodes.Episodes[0]
	assert.Equal(t,
		[]string{"node", "view", "job/worker", "n5", "throughput", "major", "hw_thermal", "check_cooling", "GPU-5-0"},
		[]string{string(ep.Subject), ep.Cluster, ep.Group, ep.Node, ep.Signal, ep.Severity.String(), ep.Reason, ep.Action, ep.GPU})
	// It is the last tick, of a second each, at which nothing was lost yet, in whole seconds.
	assert.WithinRange(t, ep.Since, began.Truncate(time.Second).Add(-time.Second), time.Now())
	assert.Greater(t, *ep.Confidence, 0.6)
	assert.InDelta(t, 0.2, *ep.Gap, 0.05)
	assert.InDelta(t, 0.2*64, *ep.Cost, 0.05*64)
	assert.Equal(t, []int64{1, 8}, []int64{*ep.Rank, *ep.Active})
	assert.Regexp(t, "Straggler n5.* behind its peers in throughput", ep.Text)
	assert.False(t, ep.Observation)
	require.NotEmpty(t, ep.Evidence)
	assert.Equal(t, []string{"hw_thermal", "GPU-5-0", "1"}, []string{ep.Evidence[0].Fact, ep.Evidence[0].GPU, ep.Evidence[0].Unit})
	assert.Equal(t, []float64{1, 0}, []float64{*ep.Evidence[0].Value, *ep.Evidence[0].Peers})
	first := ranking.Stragglers[0]
	assert.Equal(t, "n5", first.Node.Node)
	assert.InDelta(t, 1, float64(*first.Rank), 0)
	require.NotNil(t, first.Episode)
	assert.Equal(t, ep.ID, first.Episode.ID)

	process.Eventually(t, "the record", func() bool { return len(records()) > 0 })
	onset := records()[0]
	assert.Equal(t, plog.SeverityNumberWarn, onset.SeverityNumber())
	assert.Equal(t, ep.Text, onset.Body().Str())
	for key, want := range map[string]any{
		"gpu.straggler.phase": "onset", "gpu.straggler.episode.id": ep.ID, "gpu.straggler.gap": *ep.Gap, "gpu.straggler.since": ep.Since.Format("2006-01-02T15:04:05.000Z"),
		"gpu.straggler.reason": ep.Reason, "hw.id": ep.GPU,
		"gpu.straggler.evidence": []any{"fact=hw_thermal value=1 peers=0 unit=1 gpu=GPU-5-0", "fact=temperature value=92 peers=60 unit=Cel gpu=GPU-5-0"},
	} {
		assert.Equal(t, want, attribute(onset, key), key)
	}
	gateway.WaitLog(1, "Straggler n5", `"gpu": "GPU-5-0"`, `"reason": "hw_thermal"`, `"episode": "`+ep.ID+`"`)
	process.Eventually(t, "the agent takes n5 for a straggler too", func() bool {
		return process.Scrape(t, agent.Prom).Is(1, "gpu_agent_straggler", labels{"host_name": "n5"})
	})
	process.Eventually(t, "the metrics agree with the record", func() bool {
		g, group := process.Scrape(t, gateway.Prom), labels{"gpu_peer_group": "job/worker", "k8s_cluster_name": "view"}
		suspicion, _ := g.Value("gpu_node_suspicion_ratio", labels{"host_name": "n5"})
		return suspicion > 1 && g.Is(0, "gpu_straggler_incident", group) && g.Is(1, "gpu_straggler_rank", group.And(labels{"host_name": "n5"}))
	})

	// diff forwards no unchanged value, so the view must have kept these.
	var node fleetapi.Node
	process.FetchJSON(t, url+"/nodes/n5", &node)
	assertSlowNode(t, &node)
	require.NotNil(t, node.Episode)
	assert.Equal(t, ep.ID, node.Episode.ID)
	assert.Equal(t, []string{"hw_thermal"}, node.GPUs[0].Throttles)
	assert.InDelta(t, 92, *node.GPUs[0].Temperature, 0)

	process.Eventually(t, "the engine's state of after the onset", func() bool {
		kept, err := os.Stat(filepath.Join(dir, "straggler.state"))
		return err == nil && kept.ModTime().After(began)
	})
	gateway.Kill()
	gateway.Start()
	back := time.Now()
	// One push and one comparison later.
	var nodes fleetapi.NodePage
	process.Eventually(t, "all nodes are back, GPUs and signals too", func() bool {
		process.FetchJSON(t, url+"/nodes?gpus=true", &nodes)
		whole := 0
		for _, n := range nodes.Nodes {
			if len(n.GPUs) == 8 && len(n.Signals) > 0 && n.Score != nil && n.Group == "job/worker" {
				whole++
			}
		}
		return whole == 8
	})
	t.Logf("whole %s after the restart", time.Since(back).Round(time.Millisecond))
	process.Eventually(t, "the straggler is still known", found)
	require.Len(t, episodes.Episodes, 1, "one node, one open episode")
	again := episodes.Episodes[0]
	assert.Equal(t, ep.ID, again.ID, "it is no other episode")
	assert.Equal(t, []string{"n5", "hw_thermal"}, []string{again.Node, again.Reason})
	process.FetchJSON(t, url+"/nodes/n5", &node)
	assertSlowNode(t, &node)

	f.move(5)
	process.Eventually(t, "its end", func() bool {
		process.FetchJSON(t, url+"/episodes", &episodes)
		return len(episodes.Episodes) > 0 && !episodes.Episodes[0].Open
	})
	over := episodes.Episodes[0]
	assert.Equal(t, []string{again.ID, "moved", "hw_thermal"}, []string{over.ID, over.Cause, over.Reason})
	assert.NotEmpty(t, over.Evidence)
	for _, former := range episodes.Episodes[1:] {
		assert.Equal(t, []string{ep.ID, "restart", "n5"}, []string{former.ID, former.Cause, former.Node})
	}
	node = fleetapi.Node{}
	process.FetchJSON(t, url+"/nodes/n5", &node)
	assert.Nil(t, node.Episode)
}

// assertSlowNode expects what a page draws of a node that is a fifth slower
// than its peers.
func assertSlowNode(t *testing.T, n *fleetapi.Node) {
	t.Helper()
	assert.True(t, n.Straggler)
	require.NotNil(t, n.Suspicion)
	assert.Greater(t, *n.Suspicion, 1.0)
	require.Len(t, n.GPUs, 8)
	for what, v := range map[string]*float64{"score": n.Score, "threshold": n.AgentThreshold, "median": n.GroupMedian} {
		require.NotNil(t, v, what)
	}
	assert.Less(t, *n.Score, *n.AgentThreshold)
	assert.Greater(t, *n.GroupMedian, *n.AgentThreshold)
	for _, s := range n.Signals {
		if s.Signal != "throughput" {
			continue
		}
		assert.InDelta(t, 0.8, s.Value, 0.05)
		require.NotNil(t, s.Median)
		assert.InDelta(t, 1, *s.Median, 0.05)
		require.NotNil(t, s.Scale)
		assert.InDelta(t, 0.01, *s.Scale, 0.02)
		return
	}
	require.Fail(t, "no throughput", "%+v", n.Signals)
}
