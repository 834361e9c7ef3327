// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// The size of an attack: ten times the nodes that a cluster may have where all limits
// are as they ship, each with made-up names, and as many series for each.
const (
	shareOfNodes = 150_000 // of a lone cluster: three quarters of max_nodes
	attackNodes  = 10 * shareOfNodes
	nodesOfPush  = 1000
)

// TestGreedyTenant has one tenant make up nodes, groups, series and thresholds, ten
// times its share of them, and clusters where they are not checked. It measures the cost to
// an honest tenant and the gateway's readers, at a gateway and at a shard before a gateway.
func TestGreedyTenant(t *testing.T) {
	for name, start := range map[string]func(*testing.T) front{
		"":       func(t *testing.T) front { return alone(gateway(t)) },
		"_auth":  func(t *testing.T) front { return alone(guarded(t, bystander, "late", "greedy")) },
		"_shard": behindShard,
	} {
		t.Run("gateway"+name, func(t *testing.T) {
			f := start(t)
			calm, h := &pushes{}, newTenant(t, f.door, bystander)
			for range 200 {
				h.push(calm)
			}
			b := beside(t, f, "tenant"+name)
			b.tenant.slow.Store(true)
			b.tenant.grown.Store(true)

			// In two halves: the figures have what the second adds.
			a := newAttack(t, f.door)
			heap := map[*target][]int64{}
			for half := range 2 {
				a.run(half*attackNodes/nodesOfPush/2, (half+1)*attackNodes/nodesOfPush/2)
				for _, p := range f.targets() {
					heap[p] = append(heap[p], p.kept())
				}
			}
			process.Eventually(t, "the honest tenant's slow node is found", func() bool { return f.view.nodes(bystander)["node3"] })
			process.Eventually(t, "its new node is there", func() bool { _, ok := f.view.nodes(bystander)["new"]; return ok })
			b.end()
			assert.False(t, f.view.nodes(bystander)["node4"])

			figure.FprintOnly(os.Stdout, b.figure+"_attack_refused", float64(a.refused.Load()), "pushes")
			figure.FprintOnly(os.Stdout, b.figure+"_alone_p99", calm.quantile(0.99), "ms")
			figure.FprintOnly(os.Stdout, b.figure+"_attacked_p99", b.pushed.quantile(0.99), "ms")
			for part, p := range f.targets() {
				name := b.figure + part
				// What is kept is within the budgets, however long an attack lasts. Together
				// they have half of GOMEMLIMIT; the other half is for pushes in flight.
				figure.Print(name+"_heap", float64(heap[p][1])/mib, "MiB", goMemoryLimit/2/mib, true)
				figure.FprintOnly(os.Stdout, name+"_heap_growth", float64(heap[p][1]-heap[p][0])/mib, "MiB")
			}

			// A made-up node gives its slot back once it is missing for longer than it
			// lived, after the minute of ttl_multiplier, and not after the retention.
			late := newTenant(t, f.door, "late")
			took := process.Eventually(t, "a new tenant has its threshold", func() bool {
				s := &pushes{}
				late.push(s)
				require.NoError(t, s.err)
				return s.withoutThreshold == 0
			})
			figure.Print(b.figure+"_newcomer", took.Seconds(), "s", 90, true)
			process.Eventually(t, "the new tenant is in the view", func() bool {
				late.push(&pushes{})
				nodes, err := f.view.nodesOf("late") // 404 until the first is there
				return err == nil && len(nodes) == honestNodes
			})
		})
	}
}

// attack is one of a fixed size, over four connections. Its pushes differ in the digits
// of all names, so that to make one up costs next to nothing beside the gateway.
type attack struct {
	ctx     context.Context
	auth    bool
	conns   [4]*grpc.ClientConn
	push    []byte
	digits  []int // where they are in push
	refused atomic.Int64
}

// someDigits are those of a push, and in no other text.
const someDigits = "@@@@@@@@"

func newAttack(t *testing.T, g *target) *attack {
	t.Helper()
	a := &attack{ctx: g.as(t.Context(), "greedy"), auth: g.auth}
	for i := range a.conns {
		a.conns[i] = process.Dial(t, g.GRPC)
	}
	a.push = process.Marshal(t, madeUp(a.auth))
	for at := range a.push {
		if bytes.HasPrefix(a.push[at:], []byte(someDigits)) {
			a.digits = append(a.digits, at)
		}
	}
	require.Greater(t, len(a.digits), 5*nodesOfPush)
	return a
}

// madeUp is a push of names that are made up, and of metrics that no client may send.
func madeUp(auth bool) pmetric.Metrics {
	md := pmetric.NewMetrics()
	for i := range nodesOfPush {
		name := fmt.Sprintf("n%s-%d", someDigits, i)
		cluster := "greedy"
		if !auth {
			cluster = "made up " + []string{someDigits, name}[i%2]
		}
		metrics := process.Node(md, name, "k8s.cluster.name", cluster, "gpu.job.id", name, "made.up."+name, strings.Repeat("x", 100))
		process.Gauge(metrics, "gpu.node.health_score", "1", 0.1, "gpu.node.state", "active")
		process.Gauge(metrics, "hw.made.up."+name, "1", 1, "made.up."+name, name)
		process.Gauge(metrics, "gpu.straggler.threshold", "1", 0.01)
	}
	return md
}

// run sends the pushes from..to, and counts those that are refused.
func (a *attack) run(from, to int) {
	var all sync.WaitGroup
	for i, conn := range a.conns {
		all.Go(func() {
			for n := from + i; n < to; n += len(a.conns) {
				digits, push := fmt.Sprintf("%0*d", len(someDigits), n), bytes.Clone(a.push)
				for _, at := range a.digits {
					copy(push[at:], digits)
				}
				var groups []string
				for i := range 16 {
					groups = append(groups, fmt.Sprintf(`"g%d-%d"`, n, i))
				}
				cluster := "greedy"
				if !a.auth {
					cluster = "made up " + digits
				}
				ctx := metadata.AppendToOutgoingContext(a.ctx, "gpu-cluster", cluster, "gpu-node", digits, "gpu-group", strings.Join(groups, ", "))
				if process.ExportRaw(ctx, conn, process.MetricsMethod, push) != nil {
					a.refused.Add(1)
				}
			}
		})
	}
	all.Wait()
}
