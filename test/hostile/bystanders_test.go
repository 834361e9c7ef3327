// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
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
	"github.com/gpu-collector/gpu-collector/test/process"
)

// The limits of figures: what an attack should cost others. A slow machine misses them.
const (
	pushBound   = time.Second
	scrapeBound = 10 * time.Second // Prometheus gives up after it
)

// bystanders are an honest tenant and the readers of a gateway, beside an attack.
type bystanders struct {
	t      *testing.T
	front  front
	figure string // the first part of the names of its figures
	tenant *tenant
	before map[*target]usage
	began  time.Time

	done   chan struct{}
	all    sync.WaitGroup
	pushed pushes
	reads  reads
}

// beside starts bystanders, once the tenant is known and served.
func beside(t *testing.T, f front, name string) *bystanders {
	t.Helper()
	b := &bystanders{
		t: t, front: f, figure: "hostile_" + name, tenant: newTenant(t, f.door, bystander),
		before: map[*target]usage{}, began: time.Now(), done: make(chan struct{}), reads: reads{slowest: map[string]time.Duration{}},
	}
	process.Eventually(t, "the honest tenant has its threshold, and all of its series", func() bool {
		s := &pushes{}
		b.tenant.push(s)
		return s.err == nil && s.withoutThreshold == 0 && f.view.scrape() == nil
	})
	for _, p := range f.targets() {
		b.before[p] = p.usage()
		p.forgetPeak()
	}
	b.all.Go(func() { b.tenant.run(&b.pushed, b.done) })
	b.all.Go(func() { f.view.read(&b.reads, b.done) })
	t.Cleanup(b.stop)
	return b
}

func (b *bystanders) stop() {
	select {
	case <-b.done:
	default:
		close(b.done)
	}
	b.all.Wait()
}

// end stops the bystanders and checks their pushes and reads.
func (b *bystanders) end() {
	t := b.t
	t.Helper()
	b.stop()
	require.Positive(t, b.pushed.count)
	require.NoError(t, b.pushed.err, "%d of %d honest pushes were refused", b.pushed.refused, b.pushed.count)
	assert.Zero(t, b.pushed.withoutThreshold, "of %d honest pushes", b.pushed.count)
	require.NoError(t, b.reads.err, "%d of %d reads", b.reads.failed, b.reads.count)
	figure.Print(b.figure+"_push_max", b.pushed.quantile(1), "ms", ms(pushBound), true)
	figure.Print(b.figure+"_scrape_max", b.reads.slowest["scrape"].Seconds(), "s", scrapeBound.Seconds(), true)
	for name, p := range b.front.targets() {
		require.False(t, p.Ended(), "it lives")
		figure.Print(b.figure+name+"_peak_rss", float64(p.peak())/mib, "MiB", memoryLimit/mib, true)
	}
	require.NoError(t, b.front.view.scrape(), "after the attack")
	require.NoError(t, b.front.view.honest(), "after the attack")
}

// endCalm is end after an attack that leaves nothing behind: no goroutines, no more than so
// many bytes in the heap, nor in the log for each minute that it took.
func (b *bystanders) endCalm(heap int64, logged int) {
	b.t.Helper()
	b.end()
	logged *= 1 + int(time.Since(b.began)/time.Minute)
	for _, p := range b.front.targets() {
		before, after := b.before[p], usage{}
		if !process.Within(process.Patience, func() bool {
			after = p.usage()
			return after.goroutines <= before.goroutines+20 && after.fds <= before.fds+10 && after.heap <= before.heap+heap
		}) {
			require.Fail(b.t, "the process keeps what the attack took", "before %+v, after %+v", before, after)
		}
		assert.LessOrEqual(b.t, after.logged-before.logged, logged, "bytes in the log")
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// tenant is honest and pushes its nodes over and over, by gRPC and HTTP in turns.
type tenant struct {
	t       *testing.T
	g       *target
	cluster string
	conn    *grpc.ClientConn
	http    *http.Client
	slow    atomic.Bool // one of its nodes is
	grown   atomic.Bool // it has another node
}

const (
	bystander   = "bystander" // its cluster
	honestNodes = 10
	gpusOfNode  = 8
)

// newTenant has connections of its own, that others do not hold up.
func newTenant(t *testing.T, g *target, cluster string) *tenant {
	t.Helper()
	return &tenant{t: t, g: g, cluster: cluster, conn: process.Dial(t, g.GRPC), http: keepAlive(t)}
}

// pushes are the results of a tenant's.
type pushes struct {
	count, refused, withoutThreshold int
	err                              error // the last refusal
	took                             []time.Duration
}

func (s *pushes) quantile(q float64) float64 { return ms(figure.Quantile(s.took, q)) }

// report is that of a tenant's nodes; a slow one has a low score.
func (h *tenant) report() pmetric.Metrics {
	md := pmetric.NewMetrics()
	for i := range honestNodes + 1 {
		name, value := nodeName(i), 0.97
		if i == honestNodes {
			if name = "new"; !h.grown.Load() {
				break
			}
		}
		if h.slow.Load() && name == "node3" {
			value = 0.6
		}
		metrics := process.Node(md, name, "k8s.cluster.name", h.cluster)
		process.Gauge(metrics, "gpu.node.health_score", "1", value, "gpu.node.state", "active")
		for gpu := range gpusOfNode {
			process.Gauge(metrics, "hw.gpu.memory.utilization", "1", 0.5, "hw.id", fmt.Sprint("GPU-", gpu))
		}
	}
	return md
}

func nodeName(i int) string { return fmt.Sprint("node", i) }

// push pushes once.
func (h *tenant) push(s *pushes) {
	md, start := h.report(), time.Now()
	var threshold bool
	var err error
	if s.count++; s.count%2 == 0 {
		threshold, err = h.overHTTP(md)
	} else {
		var header metadata.MD
		header, err = process.Export(h.g.as(h.t.Context(), h.cluster, "gpu-cluster", h.cluster), h.conn, md)
		threshold = len(header.Get("gpu-straggler-threshold")) == 1
	}
	s.took = append(s.took, time.Since(start))
	if err != nil {
		s.refused++
		s.err = err
	} else if !threshold {
		s.withoutThreshold++
	}
}

func (h *tenant) overHTTP(md pmetric.Metrics) (threshold bool, err error) {
	headers := append(h.g.credentials(h.cluster), "Content-Type", process.Protobuf, "gpu-cluster", h.cluster)
	resp, err := process.Send(h.t.Context(), h.http, http.MethodPost, h.g.Push(), process.Marshal(h.t, md), headers...)
	if err == nil && resp.Status != http.StatusOK {
		err = fmt.Errorf("status %d: %.200q", resp.Status, resp.Body)
	}
	return resp.Header.Get("gpu-straggler-threshold") != "", err
}

// run pushes every 50 ms until done is closed.
func (h *tenant) run(s *pushes, done <-chan struct{}) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		h.push(s)
		select {
		case <-done:
			return
		case <-ticker.C:
		}
	}
}

// The series of an honest tenant in /metrics, and how many there are of each. Ranks are
// of the ten worst: a scrape may meet two of eleven nodes that swap theirs.
var honestSeries = map[string]int{
	"hw_gpu_memory_utilization_ratio": honestNodes * gpusOfNode, "gpu_node_health_score_ratio": honestNodes, "gpu_node_heartbeat_seconds": honestNodes,
	"gpu_node_straggler": honestNodes, "gpu_straggler_threshold_ratio": 2, "gpu_straggler_rank": honestNodes - 1,
}

// scrape reads all of /metrics, as Prometheus does, and fails where one of the bystander's
// series is missing.
func (g *target) scrape() error {
	text, err := get("http://" + g.Prom + "/metrics")
	if err != nil {
		return err
	}
	label, has := []byte(`k8s_cluster_name="`+bystander+`"`), map[string]int{}
	for line := range bytes.Lines(text) {
		if bytes.Contains(line, label) {
			name, _, _ := bytes.Cut(line, []byte("{"))
			has[string(name)]++
		}
	}
	for name, n := range honestSeries {
		if has[name] < n {
			return fmt.Errorf("the scrape has %d of %d series of %s", has[name], n, name)
		}
	}
	return nil
}

// nodesOf returns a cluster's nodes in the fleet view, and whether each is a straggler.
func (g *target) nodesOf(cluster string) (map[string]bool, error) {
	text, err := get(g.URL("/api/v1/nodes?cluster=" + cluster))
	if err != nil {
		return nil, err
	}
	var page struct {
		Nodes []struct {
			Node      string
			Straggler bool
		}
	}
	err = json.Unmarshal(text, &page)
	out := map[string]bool{}
	for _, n := range page.Nodes {
		out[n.Node] = n.Straggler
	}
	return out, err
}

func (g *target) nodes(cluster string) map[string]bool {
	g.t.Helper()
	nodes, err := g.nodesOf(cluster)
	require.NoError(g.t, err)
	return nodes
}

// honest fails where one of the bystanders' nodes is missing in the API.
func (g *target) honest() error {
	nodes, err := g.nodesOf(bystander)
	for i := range honestNodes {
		if _, ok := nodes[nodeName(i)]; !ok && err == nil {
			err = fmt.Errorf("%s is missing in the API: %v", nodeName(i), nodes)
		}
	}
	return err
}

// reads are the results of a gateway's.
type reads struct {
	count, failed int
	err           error // the last failure
	slowest       map[string]time.Duration
}

// read scrapes and asks for page and API in turns, until done is closed.
func (g *target) read(r *reads, done <-chan struct{}) {
	for {
		for what, ask := range map[string]func() error{
			"scrape": g.scrape,
			"page":   func() error { _, err := get(g.URL("/")); return err },
			"api":    g.honest,
		} {
			start := time.Now()
			err := ask()
			r.slowest[what] = max(r.slowest[what], time.Since(start))
			if r.count++; err != nil {
				r.failed++
				r.err = err
			}
		}
		select {
		case <-done:
			return
		case <-time.After(time.Second):
		}
	}
}
