// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// tenant is an honest one that pushes its ten nodes over and over.
type tenant struct {
	g       *target
	ctx     context.Context
	cluster string
	slow    atomic.Bool // one of its nodes is
}

// told is what became of its pushes.
type told struct {
	pushes, refused, withoutThreshold int
	took                              []time.Duration
}

func (s *told) p99() time.Duration {
	slices.Sort(s.took)
	return s.took[len(s.took)*99/100]
}

// run pushes every 50 ms until done is closed.
func (h *tenant) run(done <-chan struct{}) *told {
	s := &told{}
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		slow := ""
		if h.slow.Load() {
			slow = "node3"
		}
		start := time.Now()
		header, err := h.g.push(h.ctx, h.cluster, fleet(h.cluster, slow))
		s.pushes++
		s.took = append(s.took, time.Since(start))
		if err != nil {
			s.refused++
		} else if len(header.Get("gpu-straggler-threshold")) != 1 {
			s.withoutThreshold++
		}
		select {
		case <-done:
			return s
		case <-ticker.C:
		}
	}
}

// TestGreedyTenant has one tenant make up nodes, groups, series and thresholds,
// and clusters where nobody checks, as fast as it can, and measures what an honest
// one notices of it, at a gateway and at a shard before one.
func TestGreedyTenant(t *testing.T) {
	for _, tt := range []struct {
		name, front, figure string
		auth                bool
	}{
		{"anybody", "gateway", "hostile_tenant", false},
		{"with identities", "gateway", "hostile_tenant_auth", true},
		{"anybody at a shard", "shard", "hostile_tenant_shard", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, as := options{}, func(ctx context.Context, _ string) context.Context { return ctx }
			if tt.auth {
				passwords := filepath.Join(t.TempDir(), "htpasswd")
				require.NoError(t, os.WriteFile(passwords, []byte("honest/*:x\nlate/*:x\ngreedy/*:x\n"), 0o600))
				o = options{configs: []string{"configs/overlays/tenants.yaml"}, extensions: ", basicauth/agents", env: []string{"GPU_COLLECTOR_HTPASSWD=" + passwords}}
				as = func(ctx context.Context, cluster string) context.Context {
					return metadata.AppendToOutgoingContext(ctx, "authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(cluster+"/*:x")))
				}
			}
			// A busy machine is no silence: what is 50 s at the pace that ships is 12 s here.
			o.overlay = "\nprocessors: {straggler: {ttl_multiplier: 60}}\n"
			f := fronts[tt.front](t, o)
			g := f.door
			h := &tenant{g: g, ctx: as(t.Context(), "honest"), cluster: "honest"}
			eventually(t, "the honest tenant has its threshold", func() bool {
				header, err := g.push(h.ctx, "honest", fleet("honest", ""))
				require.NoError(t, err)
				return len(header.Get("gpu-straggler-threshold")) == 1
			})

			// Two hundred pushes, or the 99th percentile would be the slowest of all.
			alone := during(h, func() { <-time.After(10 * time.Second) })
			before := map[*target]int64{}
			for _, p := range []*target{f.door, f.view} {
				before[p] = p.usage().rss
				p.forgetPeak()
			}
			var attacks, refused atomic.Int64
			attacked := during(h, func() {
				h.slow.Store(true)
				ctx, cancel := context.WithCancel(as(t.Context(), "greedy"))
				var all sync.WaitGroup
				defer all.Wait()
				defer cancel() // before it waits
				for i := range 4 {
					all.Go(func() { greedy(ctx, t, g, i, tt.auth, &attacks, &refused) })
				}
				start := time.Now()
				eventually(t, "the honest tenant's slow node is found", func() bool {
					return f.view.straggler("honest", "node3") && time.Since(start) > 10*time.Second
				})
				cancel()
			})
			grown := func(p *target) float64 { return float64(p.memory("VmHWM")-before[p]) / mib }
			peak := grown(g)

			require.Greater(t, attacks.Load(), int64(5))
			assert.Zero(t, attacked.refused, "of %d", attacked.pushes)
			assert.Zero(t, attacked.withoutThreshold)
			assert.False(t, f.view.straggler("honest", "node4"))
			assert.Len(t, f.view.nodes("honest"), 10)
			figure.FprintOnly(os.Stdout, tt.figure+"_attack_pushes", float64(attacks.Load()), "pushes")
			figure.FprintOnly(os.Stdout, tt.figure+"_attack_refused", float64(refused.Load()), "pushes")
			figure.FprintOnly(os.Stdout, tt.figure+"_pushes", float64(attacked.pushes), "pushes")
			figure.FprintOnly(os.Stdout, tt.figure+"_alone_p99", ms(alone.p99()), "ms")
			figure.Fprint(os.Stdout, tt.figure+"_attacked_p99", ms(attacked.p99()), "ms", 1000, true)
			figure.FprintOnly(os.Stdout, tt.figure+"_attacked_p99_ratio", ms(attacked.p99())/ms(alone.p99()), "x")
			figure.Fprint(os.Stdout, tt.figure+"_refused", float64(attacked.refused), "pushes", 0, true)
			figure.Fprint(os.Stdout, tt.figure+"_without_threshold", float64(attacked.withoutThreshold), "pushes", 0, true)
			figure.Fprint(os.Stdout, tt.figure+"_peak_rss_growth", peak, "MiB", 1500, true)
			if f.view != f.door {
				figure.Fprint(os.Stdout, tt.figure+"_gateway_peak_rss_growth", grown(f.view), "MiB", 1500, true)
			}

			// One that comes now finds room within seconds, and not after the retention.
			start := time.Now()
			late := as(t.Context(), "late")
			eventually(t, "a new tenant has its threshold", func() bool {
				header, err := g.push(late, "late", fleet("late", ""))
				require.NoError(t, err)
				return len(header.Get("gpu-straggler-threshold")) == 1
			})
			figure.Fprint(os.Stdout, tt.figure+"_newcomer", time.Since(start).Seconds(), "s", 30, true)
			eventually(t, "it is in the view", func() bool {
				_, err := g.push(late, "late", fleet("late", ""))
				require.NoError(t, err)
				return len(f.view.nodes("late")) == 10
			})
		})
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// during has the tenant push while f runs.
func during(h *tenant, f func()) *told {
	done, result := make(chan struct{}), make(chan *told)
	go func() { result <- h.run(done) }()
	defer func() {
		if h.g.t.Failed() {
			close(done)
			<-result
		}
	}()
	f()
	close(done)
	return <-result
}

// greedy pushes what it made up, until the context ends.
func greedy(ctx context.Context, t *testing.T, g *target, worker int, auth bool, pushes, refused *atomic.Int64) {
	conn, err := grpc.NewClient("passthrough:///"+g.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	client := pmetricotlp.NewGRPCClient(conn)
	for n := 0; ctx.Err() == nil; n++ {
		cluster := "greedy"
		if !auth {
			cluster = fmt.Sprintf("made up %d-%d", worker, n)
		}
		md := pmetric.NewMetrics()
		for i := range 200 {
			name := fmt.Sprintf("n%d-%d-%d", worker, n, i)
			if !auth && i%2 == 1 {
				cluster = "made up " + name
			}
			metrics := node(md, cluster, name)
			attrs := md.ResourceMetrics().At(i).Resource().Attributes()
			attrs.PutStr("gpu.job.id", name)
			attrs.PutStr("made.up."+name, strings.Repeat("x", 100))
			gauge(metrics, "gpu.node.health_score", time.Now(), 0.1).Attributes().PutStr("gpu.node.state", "active")
			gauge(metrics, "hw.made.up."+name, time.Now(), float64(n)).Attributes().PutStr("made.up."+name, name)
			gauge(metrics, "gpu.straggler.threshold", time.Now(), 0.01)
		}
		var groups []string
		for i := range 16 {
			groups = append(groups, fmt.Sprintf(`"g%d-%d-%d"`, worker, n, i))
		}
		_, err := client.Export(metadata.AppendToOutgoingContext(ctx, "gpu-cluster", cluster, "gpu-node", strconv.Itoa(n), "gpu-group", strings.Join(groups, ", ")),
			pmetricotlp.NewExportRequestFromMetrics(md))
		pushes.Add(1)
		if err != nil {
			refused.Add(1)
		}
	}
}

// nodes are the names of a cluster's nodes in the fleet view, and whether each
// is a straggler.
func (g *target) nodes(cluster string) map[string]bool {
	g.t.Helper()
	status, body := g.get("http://" + g.fleet + "/api/v1/nodes?cluster=" + cluster)
	require.Equal(g.t, http.StatusOK, status, "%s", body)
	var page struct {
		Nodes []struct {
			Node      string
			Straggler bool
		}
	}
	require.NoError(g.t, json.Unmarshal(body, &page))
	out := map[string]bool{}
	for _, n := range page.Nodes {
		out[n.Node] = n.Straggler
	}
	return out
}

func (g *target) straggler(cluster, node string) bool {
	g.t.Helper()
	return g.nodes(cluster)[node]
}
