// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

const (
	kafkaTopic      = "gpu-metrics"
	kafkaPartitions = 4
	kafkaNodes      = 12
)

// broker runs an in-process Kafka. It keeps its port and its data when it starts again.
type broker struct {
	t       *testing.T
	port    int
	dir     string
	cluster *kfake.Cluster
}

func (b *broker) start() {
	b.t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(b.port), kfake.DataDir(b.dir), kfake.SeedTopics(kafkaPartitions, kafkaTopic))
	require.NoError(b.t, err)
	b.cluster = cluster
	b.t.Cleanup(cluster.Close)
}

// received is what came out at the far end, by node, in its order.
type received struct {
	mu     sync.Mutex
	values map[string][]float64
}

func (r *received) add(_ context.Context, md pmetric.Metrics) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rm := range md.ResourceMetrics().All() {
		name, ok := rm.Resource().Attributes().Get("host.name")
		if !ok {
			continue
		}
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if m.Name() == "hw.power" {
					r.values[name.Str()] = append(r.values[name.Str()], m.Gauge().DataPoints().At(0).DoubleValue())
				}
			}
		}
	}
	return nil
}

func (r *received) of(name string) []float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.values[name])
}

// TestKafkaBetweenShardAndRoot runs configs/kafka-shard.yaml and
// configs/kafka-root.yaml around a broker that goes away, and restarts both.
func TestKafkaBetweenShardAndRoot(t *testing.T) {
	long(t)
	t.Parallel()
	port, err := strconv.Atoi(process.Port(loopback.FreeAddr(t)))
	require.NoError(t, err)
	b := &broker{t: t, port: port, dir: t.TempDir()}
	env := []string{fmt.Sprintf("GPU_COLLECTOR_KAFKA=[127.0.0.1:%d]", b.port)}
	sink := &received{values: map[string][]float64{}}
	sp, rp, next := process.NewAddrs(t), process.NewAddrs(t), loopback.FreeAddr(t)
	(&process.NextHop{Take: sink.add}).Listen(t, next)

	// Before its broker: neither end needs it to start.
	shard := process.Run(t, process.Options{Env: env, Config: []string{"configs/kafka-shard.yaml", fmt.Sprintf(`
receivers:
  fleet_otlp:
    protocols:
      grpc: {endpoint: %q}
      http: {endpoint: %q}
processors:
  diff: {resync_interval: 3s}
exporters:
  kafka: {timeout: 5s}
extensions:
  straggler_threshold: {api: {endpoint: %q}}
  fleet_view: {http: {endpoint: %q}}
  healthcheckv2: {http: {endpoint: %q}}
service:
  telemetry: {metrics: {level: none}}
`, sp.GRPC, sp.HTTP, sp.API, sp.Fleet, sp.Health)}})
	root := process.Run(t, process.Options{Env: env, Config: []string{"configs/kafka-root.yaml", fmt.Sprintf(`
receivers:
  kafka: {initial_offset: earliest}
exporters:
  otlp_grpc: {endpoint: %q, tls: {insecure: true}, compression: none, sending_queue: {enabled: false}}
extensions:
  exposition: {http: {endpoint: %q}}
  fleet_view: {http: {endpoint: %q}}
  healthcheckv2: {http: {endpoint: %q}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {metrics: {exporters: [fleet_view, otlp_grpc]}}
`, next, rp.Prom, rp.Fleet, rp.Health)}})

	client := process.Dial(t, sp.GRPC)
	name := func(n int) string { return fmt.Sprintf("n%02d", n) }
	// push sends the reports of all nodes, as so many agents do, and returns
	// how many were refused.
	push := func(value float64) (refused int) {
		t.Helper()
		errs := make(chan error, kafkaNodes)
		for n := range kafkaNodes {
			go func() {
				md := pmetric.NewMetrics()
				process.Gauge(process.Node(md, name(n), "k8s.cluster.name", "prod"), "hw.power", "W", value)
				ctx, cancel := context.WithTimeout(t.Context(), process.Patience)
				defer cancel()
				_, err := process.Export(ctx, client, md)
				errs <- err
			}()
		}
		for range kafkaNodes {
			if err := <-errs; err != nil {
				// The shard gave up in time; the agent did not have to.
				require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
				refused++
			}
		}
		return refused
	}
	arrived := func(value float64) bool {
		s := process.Scrape(t, rp.Prom)
		for n := range kafkaNodes {
			if !s.Is(value, "hw_power_watts", labels{"host_name": name(n)}) {
				return false
			}
		}
		return true
	}

	assert.Equal(t, kafkaNodes, push(1), "no broker yet: nothing may count as forwarded")
	assert.False(t, shard.Ended())

	b.start()
	last := 1.0
	delivered := func(what string) {
		t.Helper()
		process.Eventually(t, what, func() bool { last++; return push(last) == 0 })
		process.Eventually(t, what+": every node's state is at the root", func() bool { return arrived(last) })
	}
	delivered("the broker came")
	for range 30 {
		last++
		require.Zero(t, push(last))
	}
	process.Eventually(t, "every node's state is at the root", func() bool { return arrived(last) })

	// A node's reports are in one partition and in order, the nodes are spread.
	used := 0
	for _, p := range b.cluster.PartitionInfos(kafkaTopic) {
		if p.HighWatermark > 0 {
			used++
		}
	}
	assert.Greater(t, used, 1, "partitions in use")
	for n := range kafkaNodes {
		values := sink.of(name(n))
		assert.GreaterOrEqual(t, len(values), 30)
		assert.IsNonDecreasing(t, values, name(n))
	}

	b.cluster.Close()
	last++
	assert.Equal(t, kafkaNodes, push(last), "no broker: nothing may count as forwarded")
	assert.False(t, shard.Ended())
	b.start()
	delivered("the broker is back")

	// The root forgets everything; nothing changes at the nodes any more.
	root.Kill()
	root.Start()
	process.Eventually(t, "the resync brings every node's state back", func() bool {
		require.Zero(t, push(last))
		return arrived(last)
	})
	var nodes fleetapi.NodePage
	process.FetchJSON(t, "http://"+rp.Fleet+"/api/v1/nodes", &nodes)
	assert.Equal(t, kafkaNodes, nodes.Total)

	shard.Kill()
	shard.Start()
	delivered("the shard is back")
}
