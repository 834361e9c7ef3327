// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpu-collector/gpu-collector/internal/wire"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/nameserver"
)

const (
	treeNodes   = 24
	treeMetrics = 6
	treeGroup   = "job/worker"
	// treeTimeout is how long a node waits for its shard.
	treeTimeout = 5 * time.Second
)

// tree is nodes -> two shards -> root, and the truth about the nodes.
type tree struct {
	t          *testing.T
	rootPorts  gatewayPorts
	root       *collector
	shards     []*collector
	shardPorts []shardPorts
	nodes      []*sender
	rnd        *rand.Rand

	values [treeNodes][treeMetrics]float64
}

type shardPorts struct{ grpc, http, health, telemetry string }

// overlay moves configs/shard.yaml to the addresses, at a pace at which a
// root that hangs is given up within the nodes' patience. No periodic resync:
// what heals here, heals by epochs.
func (p shardPorts) overlay(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf(`
receivers:
  otlp:
    protocols:
      grpc: {endpoint: %q}
      http: {endpoint: %q}
processors:
  diff: {resync_interval: 0s}
exporters:
  otlp_grpc: {timeout: 2s}
extensions:
  healthcheckv2: {http: {endpoint: %q}}
service:
  telemetry:
    metrics: %s
`, p.grpc, p.http, p.health, telemetryReader(t, p.telemetry))
}

func newTree(t *testing.T) *tree {
	t.Helper()
	tr := &tree{t: t, rootPorts: newGatewayPorts(t), rnd: rand.New(rand.NewPCG(1, 2))}
	tr.root = start(t, options{configs: []string{"configs/gateway.yaml", tr.rootPorts.overlay(t), `
processors:
  # A threshold has to live longer than the second that a shard may need.
  straggler: {push_interval: 1s, ttl_multiplier: 5, gateway: {quorum: 3}}
  diff: {resync_interval: 0s}
`}})
	hosts := []string{"127.0.0.1", "127.0.0.2"}
	port := portOf(t, loopback.FreeAddr(t))
	for _, h := range hosts {
		p := shardPorts{net.JoinHostPort(h, port), loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t)}
		tr.shardPorts = append(tr.shardPorts, p)
		tr.shards = append(tr.shards, start(t, options{
			configs: []string{"configs/shard.yaml", p.overlay(t)},
			env:     []string{"GPU_COLLECTOR_GATEWAY=" + tr.rootPorts.grpc, "GPU_COLLECTOR_INSECURE=true"},
		}))
	}
	names := nameserver.Start(t, hosts...)
	for i := range treeNodes {
		o := senderOptions{
			extension: "consistent_hash: node",
			exporter:  fmt.Sprintf("endpoint: dns://%s/shards.test:%s\ntimeout: %s", names.Addr, port, treeTimeout),
		}
		if differs(i) {
			o.diff = "threshold_extension: straggler_threshold\nresync_interval: 0s"
		}
		n := newSender(t, o)
		n.SetClaim(wire.Claim{Cluster: "lab", Node: treeNode(i), Groups: []string{treeGroup}})
		tr.nodes = append(tr.nodes, n)
	}
	return tr
}

// differs reports whether a node forwards differences itself, so that epochs
// have to come down to it; the others push full state.
func differs(i int) bool { return i%2 == 1 }

func treeNode(i int) string { return fmt.Sprintf("node-%02d", i) }

// push changes some values of every node and pushes all nodes at once. It
// returns how many pushes failed.
func (tr *tree) push() int {
	tr.t.Helper()
	var mu sync.Mutex
	failed := 0
	var all sync.WaitGroup
	for i, n := range tr.nodes {
		md := pmetric.NewMetrics()
		metrics := node(md, treeNode(i), map[string]string{"k8s.cluster.name": "lab", "gpu.job.id": "job", "gpu.job.role": "worker"})
		gauge(metrics, "gpu.node.health_score", "1", 0.9).Attributes().PutStr("gpu.node.state", "active")
		for m := range treeMetrics {
			// The first metric never changes after the start: only full state
			// brings it back.
			if tr.values[i][m] == 0 || m > 0 && tr.rnd.IntN(4) == 0 {
				tr.values[i][m] = 1 + float64(tr.rnd.IntN(1000))
			}
			gauge(metrics, fmt.Sprintf("test.m%d", m), "", tr.values[i][m])
		}
		all.Go(func() {
			if err := n.ConsumeMetrics(context.WithoutCancel(tr.t.Context()), md); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed++
			}
		})
	}
	all.Wait()
	return failed
}

// wrong returns how many values at the root are not the nodes': of those with
// full state, and of those that forward differences.
func (tr *tree) wrong() (full, differences int) {
	tr.t.Helper()
	seen := scrape(tr.t, tr.rootPorts.prom)
	for m := range treeMetrics {
		at := seen.by(fmt.Sprintf("test_m%d", m), "host_name", labels{"k8s_cluster_name": "lab"})
		for i := range tr.nodes {
			if v, ok := at[treeNode(i)]; ok && v == tr.values[i][m] {
				continue
			}
			if differs(i) {
				differences++
			} else {
				full++
			}
		}
	}
	return full, differences
}

// heal pushes until the root has the nodes' exact state. It takes at most
// one push of each node, since all were answered, be it full state or
// differences that are forwarded.
func (tr *tree) heal() {
	tr.t.Helper()
	pushes, wholeFull := 0, 0
	eventually(tr.t, "the root has the exact state of all nodes", func() bool {
		if failed := tr.push(); failed > 0 && pushes == 0 {
			return false // the way to the root is not open yet for all
		}
		pushes++
		// A tier that conflates forwards by its own beat, and a shard may be 5 s late
		// to find that the root is back.
		return inTime(func() bool {
			f, d := tr.wrong()
			if f == 0 && wholeFull == 0 {
				wholeFull = pushes
			}
			return f+d == 0
		})
	})
	tr.t.Logf("whole after %d pushes of each node with full state, %d of the others", wholeFull, pushes)
	assert.LessOrEqual(tr.t, wholeFull, 1, "pushes of nodes with full state")
	assert.LessOrEqual(tr.t, pushes, 1, "pushes of nodes that forward differences")
}

func (tr *tree) requireThreshold(i int) {
	tr.t.Helper()
	eventually(tr.t, "the root's threshold reaches the nodes", func() bool {
		tr.push()
		r, ok := tr.nodes[i].Received("lab", treeGroup)
		return ok && r.QuorumMet && r.Threshold > 0 && r.Fresh(time.Now())
	})
}

// memory returns the resident set of a process in MiB.
func (c *collector) memory() int {
	c.t.Helper()
	mib, err := c.Memory()
	require.NoError(c.t, err)
	return mib
}

// refusal is an OTLP server that is overloaded.
type refusal struct {
	pmetricotlp.UnimplementedGRPCServer
	refused int
	mu      sync.Mutex
}

func (r *refusal) Export(context.Context, pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused++
	st, err := status.New(codes.ResourceExhausted, "overloaded").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
	if err != nil {
		return pmetricotlp.NewExportResponse(), err
	}
	return pmetricotlp.NewExportResponse(), st.Err()
}

// TestTree has every tier of nodes -> two shards -> root fail in turn. After
// each failure the root's state is exactly the nodes' again; nothing piles up
// meanwhile.
func TestTree(t *testing.T) {
	long(t)
	t.Parallel()
	tr := newTree(t)
	tr.heal()
	for range 3 {
		require.Zero(t, tr.push())
	}
	tr.heal()
	for i := range tr.nodes {
		tr.requireThreshold(i)
	}
	for i := range tr.shards {
		nodes, ok := scrape(t, tr.shardPorts[i].telemetry).value("otelcol_processor_diff_nodes", nil)
		require.True(t, ok)
		require.Positive(t, nodes, "shard %d has nodes", i)
	}

	t.Run("the root dies and comes back empty", func(t *testing.T) {
		tr.t = t
		tr.root.kill()
		for range 3 {
			tr.push()
		}
		tr.root.restart()
		// The answer that tells a shard has it send what it holds.
		tr.heal()
		tr.requireThreshold(0)
	})

	t.Run("a shard dies and comes back empty", func(t *testing.T) {
		tr.t = t
		tr.shards[1].kill()
		tr.heal() // by the other shard
		tr.shards[1].restart()
		for range 3 {
			tr.push()
		}
		tr.heal()
	})

	t.Run("the root hangs", func(t *testing.T) {
		tr.t = t
		before := tr.shards[0].memory()
		require.NoError(t, tr.root.Signal(syscall.SIGSTOP))
		for range 6 {
			tr.push()
		}
		grown := tr.shards[0].memory() - before
		require.NoError(t, tr.root.Signal(syscall.SIGCONT))
		tr.heal()
		t.Logf("the shard grew by %d MiB", grown)
		assert.Less(t, grown, 64, "backlog at the shard")
	})

	t.Run("the root refuses, then a new one is there", func(t *testing.T) {
		tr.t = t
		tr.root.stop()
		ln, err := net.Listen("tcp", tr.rootPorts.grpc)
		require.NoError(t, err)
		overloaded := &refusal{}
		srv := grpc.NewServer()
		pmetricotlp.RegisterGRPCServer(srv, overloaded)
		var done sync.WaitGroup
		done.Go(func() { _ = srv.Serve(ln) })
		eventually(t, "the shards are refused", func() bool {
			tr.push()
			overloaded.mu.Lock()
			defer overloaded.mu.Unlock()
			return overloaded.refused >= 4
		})
		srv.Stop()
		done.Wait()
		tr.root.restart()
		tr.heal()
	})
}
