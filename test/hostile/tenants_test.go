// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// tenant is honest and pushes its ten nodes over and over.
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

func (s *told) quantile(q float64) time.Duration { return figure.Quantile(s.took, q) }

// push is one of a tenant's.
func (h *tenant) push(s *told) {
	slow := ""
	if h.slow.Load() {
		slow = "node3"
	}
	md := fleet(h.cluster, slow)
	for _, rm := range md.ResourceMetrics().All() {
		for gpu := range gpusOfNode {
			gauge(rm.ScopeMetrics().At(0).Metrics(), "hw.gpu.memory.utilization", time.Now(), 0.5).Attributes().PutStr("hw.id", fmt.Sprint("GPU-", gpu))
		}
	}
	start := time.Now()
	header, err := h.g.push(h.ctx, h.cluster, md)
	s.pushes++
	s.took = append(s.took, time.Since(start))
	if err != nil {
		s.refused++
	} else if len(header.Get("gpu-straggler-threshold")) != 1 {
		s.withoutThreshold++
	}
}

// run pushes every 50 ms until done is closed.
func (h *tenant) run(done <-chan struct{}) *told {
	s := &told{}
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		h.push(s)
		select {
		case <-done:
			return s
		case <-ticker.C:
		}
	}
}

const gpusOfNode = 8

// The series of an honest tenant in /metrics, and how many there are of each.
var honestSeries = map[string]int{
	"hw_gpu_memory_utilization_ratio": 10 * gpusOfNode, "gpu_node_health_score_ratio": 10, "gpu_node_heartbeat_seconds": 10,
	"gpu_node_straggler": 10, "gpu_straggler_threshold_ratio": 2, "gpu_straggler_rank": 10,
}

// scrape reads all of /metrics, as Prometheus does. It returns the time that took, and
// which of the honest series it lacks.
func (g *target) scrape(cluster string) (took time.Duration, lacks []string) {
	g.t.Helper()
	start := time.Now()
	resp, err := httpClient.Get("http://" + g.prom + "/metrics")
	require.NoError(g.t, err)
	defer func() { _ = resp.Body.Close() }()
	require.Equal(g.t, http.StatusOK, resp.StatusCode)
	label, has := []byte(`k8s_cluster_name="`+cluster+`"`), map[string]int{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if bytes.Contains(lines.Bytes(), label) {
			name, _, _ := bytes.Cut(lines.Bytes(), []byte("{"))
			has[string(name)]++
		}
	}
	require.NoError(g.t, lines.Err())
	for name, n := range honestSeries {
		if has[name] != n {
			lacks = append(lacks, fmt.Sprintf("%s: %d of %d", name, has[name], n))
		}
	}
	return time.Since(start), lacks
}

// readers are what became of those of a gateway.
type readers struct {
	scrapes, lacking int
	slowest          map[string]time.Duration
	lacks            []string
}

// read has the readers come one after the other, until done is closed.
func (g *target) read(r *readers, cluster string, done <-chan struct{}) {
	g.t.Helper()
	for {
		took, lacks := g.scrape(cluster)
		r.scrapes++
		r.slowest["scrape"] = max(r.slowest["scrape"], took)
		if len(lacks) > 0 {
			r.lacking++
			r.lacks = lacks
		}
		for what, url := range map[string]string{
			"page": "http://" + g.fleet + "/",
			"api":  "http://" + g.fleet + "/api/v1/nodes?cluster=" + cluster,
		} {
			start := time.Now()
			code, body := g.get(url)
			assert.Equal(g.t, http.StatusOK, code, "%s: %.200s", what, body)
			r.slowest[what] = max(r.slowest[what], time.Since(start))
		}
		select {
		case <-done:
			return
		case <-time.After(time.Second):
		}
	}
}

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
			// A busy machine is no silence: what is 50 s at the pace that ships is 20 s here.
			o.overlay = "\nprocessors: {straggler: {ttl_multiplier: 100}}\n"
			f := fronts[tt.front](t, o)
			h := &tenant{g: f.door, ctx: as(t.Context(), "honest"), cluster: "honest"}
			eventually(t, "the honest tenant has its threshold, and all of its series", func() bool {
				s := &told{}
				h.push(s)
				_, lacks := f.view.scrape("honest")
				return s.withoutThreshold == 0 && len(lacks) == 0
			})
			alone := &told{}
			for range 200 {
				h.push(alone)
			}
			for _, p := range []*target{f.door, f.view} {
				p.forgetPeak()
			}

			// In two halves: what is full after the first does not grow in the second.
			a := newAttack(t, f.door, as(t.Context(), "greedy"), tt.auth)
			h.slow.Store(true)
			heap, read := map[*target][]int64{}, &readers{slowest: map[string]time.Duration{}}
			attacked := during(h, func() {
				for half := range 2 {
					done := make(chan struct{})
					go func() {
						defer close(done)
						a.run(half*attackNodes/nodesOfPush/2, (half+1)*attackNodes/nodesOfPush/2)
					}()
					f.view.read(read, "honest", done)
					for _, p := range []*target{f.door, f.view} {
						heap[p] = append(heap[p], p.usage().heap)
					}
				}
				eventually(t, "the honest tenant's slow node is found", func() bool { return f.view.straggler("honest", "node3") })
			})

			assert.Zero(t, attacked.refused, "of %d", attacked.pushes)
			assert.Zero(t, attacked.withoutThreshold)
			assert.Empty(t, read.lacks, "in %d of %d scrapes", read.lacking, read.scrapes)
			assert.False(t, f.view.straggler("honest", "node4"))
			assert.Len(t, f.view.nodes("honest"), 10)
			_, lacks := f.view.scrape("honest")
			assert.Empty(t, lacks, "after the attack")

			only := func(name string, value float64, unit string) {
				figure.FprintOnly(os.Stdout, tt.figure+name, value, unit)
			}
			limit := func(name string, value float64, unit string, limit float64) {
				figure.Fprint(os.Stdout, tt.figure+name, value, unit, limit, true)
			}
			only("_attack_pushes", float64(a.pushes.Load()), "pushes")
			only("_attack_refused", float64(a.refused.Load()), "pushes")
			only("_pushes", float64(attacked.pushes), "pushes")
			only("_scrapes", float64(read.scrapes), "scrapes")
			only("_alone_p99", ms(alone.quantile(0.99)), "ms")
			only("_attacked_p99", ms(attacked.quantile(0.99)), "ms")
			limit("_attacked_max", ms(attacked.quantile(1)), "ms", 1000)
			limit("_refused", float64(attacked.refused), "pushes", 0)
			limit("_without_threshold", float64(attacked.withoutThreshold), "pushes", 0)
			limit("_lacking_scrapes", float64(read.lacking), "scrapes", 0)
			for what, took := range read.slowest {
				limit("_"+what+"_max", took.Seconds(), "s", 10)
			}
			for name, p := range map[string]*target{"": f.door, "_gateway": f.view} {
				if name != "" && f.view == f.door {
					continue
				}
				require.False(t, p.ended())
				limit(name+"_peak_rss", float64(p.memory("VmHWM"))/mib, "MiB", memoryLimit/mib)
				only(name+"_heap", float64(heap[p][0])/mib, "MiB")
				// A twentieth of the limit: what is in flight, and what waits to be collected.
				limit(name+"_heap_growth", float64(heap[p][1]-heap[p][0])/mib, "MiB", memoryLimit/20/mib)
			}

			// One that comes now finds room within seconds, and not after the retention.
			start := time.Now()
			late := as(t.Context(), "late")
			eventually(t, "a new tenant has its threshold", func() bool {
				header, err := h.g.push(late, "late", fleet("late", ""))
				require.NoError(t, err)
				return len(header.Get("gpu-straggler-threshold")) == 1
			})
			limit("_newcomer", time.Since(start).Seconds(), "s", 30)
			eventually(t, "it is in the view", func() bool {
				_, err := h.g.push(late, "late", fleet("late", ""))
				require.NoError(t, err)
				return len(f.view.nodes("late")) == 10
			})
		})
	}
}

// TestStrangers opens 1,500 calls that are nothing but headers, under clusters that
// are made up: those who are known lose no push by it.
func TestStrangers(t *testing.T) {
	t.Parallel()
	passwords := filepath.Join(t.TempDir(), "htpasswd")
	require.NoError(t, os.WriteFile(passwords, []byte("honest/*:x\n"), 0o600))
	g := gateway(t, options{configs: []string{"configs/overlays/tenants.yaml"}, extensions: ", basicauth/agents", env: []string{"GPU_COLLECTOR_HTPASSWD=" + passwords}})
	h := &tenant{g: g, cluster: "honest", ctx: metadata.AppendToOutgoingContext(t.Context(), "authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("honest/*:x")))}
	_, err := g.push(h.ctx, "honest", fleet("honest", ""))
	require.NoError(t, err)
	var refused atomic.Int64
	attacked := during(h, func() {
		var all sync.WaitGroup
		for c := range 30 {
			conn, err := grpc.NewClient("passthrough:///"+g.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			all.Go(func() {
				for i := range 50 {
					ctx := metadata.AppendToOutgoingContext(t.Context(), "gpu-cluster", fmt.Sprintf("made up %d-%d", c, i))
					s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, metricsMethod)
					if err == nil {
						var m any
						err = s.RecvMsg(&m)
					}
					if assert.Equal(t, codes.Unauthenticated, status.Code(err), "%v", err) {
						refused.Add(1)
					}
				}
			})
		}
		all.Wait()
	})
	assert.EqualValues(t, 1500, refused.Load())
	assert.Positive(t, attacked.pushes)
	assert.Zero(t, attacked.refused, "of %d", attacked.pushes)
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

// attack is one of a fixed size, over four connections. Its pushes differ in the digits
// of all names, so that to make one up costs next to nothing beside the gateway.
type attack struct {
	ctx             context.Context
	auth            bool
	conns           [4]*grpc.ClientConn
	push            []byte
	digits          []int // where they are in push
	pushes, refused atomic.Int64
}

// someDigits are those of a push, and in no other text.
const someDigits = "@@@@@@@@"

func newAttack(t *testing.T, g *target, ctx context.Context, auth bool) *attack {
	t.Helper()
	a := &attack{ctx: ctx, auth: auth}
	for i := range a.conns {
		conn, err := grpc.NewClient("passthrough:///"+g.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		a.conns[i] = conn
	}
	a.push = marshal(t, madeUp(auth))
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
				a.pushes.Add(1)
				if exportRaw(ctx, conn, metricsMethod, push) != nil {
					a.refused.Add(1)
				}
			}
		})
	}
	all.Wait()
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
