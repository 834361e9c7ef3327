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
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// The size of an attack: ten times the nodes that a cluster may have where all limits
// are as they ship, each with made-up names, and as many series for each.
const (
	shareOfNodes = 100_000 // half of max_nodes
	attackNodes  = 10 * shareOfNodes
	nodesOfPush  = 1000
)

// TestGreedyTenant has one tenant make up nodes, groups, series and thresholds, ten
// times its share of them, and clusters where nobody checks. It measures how an honest
// tenant and the gateway's readers fare, at a gateway and at a shard before a gateway.
func TestGreedyTenant(t *testing.T) {
	for _, tt := range []struct {
		name, front, figure string
		users               []string
	}{
		{"anybody", "gateway", "tenant", nil},
		{"with identities", "gateway", "tenant_auth", []string{bystander, "late", "greedy"}},
		{"anybody at a shard", "shard", "tenant_shard", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := fronts[tt.front](t, options{users: tt.users})
			calm, h := &told{}, newTenant(t, f.door, bystander)
			for range 200 {
				h.push(calm)
			}
			b := beside(t, f, tt.figure)
			b.tenant.slow.Store(true)
			b.tenant.grown.Store(true)

			// In two halves: the figures tell what the second adds.
			a := newAttack(t, f.door)
			heap := map[*target][]int64{}
			for half := range 2 {
				a.run(half*attackNodes/nodesOfPush/2, (half+1)*attackNodes/nodesOfPush/2)
				for _, p := range f.targets() {
					heap[p] = append(heap[p], p.kept())
				}
			}
			eventually(t, "the honest tenant's slow node is found", func() bool { return f.view.straggler(bystander, "node3") })
			eventually(t, "so is its new one", func() bool { _, ok := f.view.nodes(bystander)["new"]; return ok })
			b.end()
			assert.False(t, f.view.straggler(bystander, "node4"))

			only := func(name string, value float64, unit string) {
				figure.FprintOnly(os.Stdout, b.figure+name, value, unit)
			}
			only("_attack_refused", float64(a.refused.Load()), "pushes")
			only("_alone_p99", ms(calm.quantile(0.99)), "ms")
			only("_attacked_p99", ms(b.told.quantile(0.99)), "ms")
			for _, p := range f.targets() {
				name := b.figure
				if p != f.door {
					name += "_gateway"
				}
				// What is kept is within the budgets, however long an attack lasts. Together
				// they have half of GOMEMLIMIT; the other half is for pushes in flight.
				figure.Print(name+"_heap", float64(heap[p][1])/mib, "MiB", goMemoryLimit/2/mib, true)
				figure.FprintOnly(os.Stdout, name+"_heap_growth", float64(heap[p][1]-heap[p][0])/mib, "MiB")
			}

			// One that comes now finds room within seconds, and not after the retention.
			start, late := time.Now(), newTenant(t, f.door, "late")
			eventually(t, "a new tenant has its threshold", func() bool {
				s := &told{}
				late.push(s)
				require.NoError(t, s.err)
				return s.withoutThreshold == 0
			})
			figure.Print(b.figure+"_newcomer", time.Since(start).Seconds(), "s", 30, true)
			eventually(t, "it is in the view", func() bool {
				late.push(&told{})
				return len(f.view.nodes("late")) == honestNodes
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
		a.conns[i] = dial(t, g.grpc)
	}
	a.push = marshal(t, madeUp(a.auth))
	for at := 0; ; at += len(someDigits) {
		next := bytes.Index(a.push[at:], []byte(someDigits))
		if next < 0 {
			break
		}
		at += next
		a.digits = append(a.digits, at)
	}
	require.Greater(t, len(a.digits), 5*nodesOfPush)
	return a
}

// madeUp is a push of what is made up, and of what no client may say.
func madeUp(auth bool) pmetric.Metrics {
	md := pmetric.NewMetrics()
	for i := range nodesOfPush {
		name := fmt.Sprintf("n%s-%d", someDigits, i)
		cluster := "greedy"
		switch {
		case auth:
		case i%2 == 1:
			cluster = "made up " + name
		default:
			cluster = "made up " + someDigits
		}
		metrics := node(md, cluster, name)
		attrs := md.ResourceMetrics().At(i).Resource().Attributes()
		attrs.PutStr("gpu.job.id", name)
		attrs.PutStr("made.up."+name, strings.Repeat("x", 100))
		gauge(metrics, "gpu.node.health_score", time.Now(), 0.1).Attributes().PutStr("gpu.node.state", "active")
		gauge(metrics, "hw.made.up."+name, time.Now(), 1).Attributes().PutStr("made.up."+name, name)
		gauge(metrics, "gpu.straggler.threshold", time.Now(), 0.01)
	}
	return md
}

// run sends the pushes from..to. Whether one is taken is the gateway's business.
func (a *attack) run(from, to int) {
	var next atomic.Int64
	next.Store(int64(from))
	var all sync.WaitGroup
	for _, conn := range a.conns {
		all.Go(func() {
			for n := next.Add(1) - 1; n < int64(to); n = next.Add(1) - 1 {
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
				if exportRaw(ctx, conn, metricsMethod, push) != nil {
					a.refused.Add(1)
				}
			}
		})
	}
	all.Wait()
}
