// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
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

	done  chan struct{}
	all   sync.WaitGroup
	told  told
	reads reads
}

// beside starts bystanders, once the tenant is known and served.
func beside(t *testing.T, f front, name string) *bystanders {
	t.Helper()
	b := &bystanders{
		t: t, front: f, figure: "hostile_" + name, tenant: newTenant(t, f.door, bystander),
		before: map[*target]usage{}, began: time.Now(), done: make(chan struct{}), reads: reads{slowest: map[string]time.Duration{}},
	}
	var lacks error
	if !within(deadline, func() bool {
		s := &told{}
		b.tenant.push(s)
		if lacks = s.err; s.withoutThreshold > 0 {
			lacks = errors.New("no threshold")
		}
		if lacks == nil {
			lacks = f.view.scrape(bystander)
		}
		return lacks == nil
	}) {
		require.NoError(t, lacks, "the honest tenant has its threshold, and all of its series")
	}
	for _, p := range f.targets() {
		b.before[p] = p.usage()
		p.forgetPeak()
	}
	b.all.Go(func() { b.tenant.run(&b.told, b.done) })
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

// end stops the bystanders and asserts how they fared.
func (b *bystanders) end() {
	t := b.t
	t.Helper()
	b.stop()
	require.Positive(t, b.told.pushes)
	require.NoError(t, b.told.err, "%d of %d honest pushes were refused", b.told.refused, b.told.pushes)
	assert.Zero(t, b.told.withoutThreshold, "of %d honest pushes", b.told.pushes)
	require.NoError(t, b.reads.err, "%d of %d reads", b.reads.failed, b.reads.count)
	figure.Print(b.figure+"_push_max", ms(b.told.quantile(1)), "ms", ms(pushBound), true)
	figure.Print(b.figure+"_scrape_max", b.reads.slowest["scrape"].Seconds(), "s", scrapeBound.Seconds(), true)
	for _, p := range b.front.targets() {
		require.False(t, p.ended(), "it lives")
		name := b.figure
		if p != b.front.door {
			name += "_gateway"
		}
		figure.Print(name+"_peak_rss", float64(p.peak())/mib, "MiB", memoryLimit/mib, true)
	}
	require.NoError(t, b.front.view.scrape(bystander), "after the attack")
	require.NoError(t, b.front.view.honest(), "after the attack")
}

// endCalm is end after an attack that leaves nothing behind: a plateau of its own, and
// no more than some bytes in the log for each minute that it took.
func (b *bystanders) endCalm(heap int64, logged int) {
	b.t.Helper()
	b.end()
	logged *= 1 + int(time.Since(b.began)/time.Minute)
	for _, p := range b.front.targets() {
		p.requireCalm(b.before[p], heap, logged)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// tenant is honest and pushes its nodes over and over, by gRPC and HTTP in turns.
type tenant struct {
	g       *target
	ctx     context.Context
	cluster string
	client  pmetricotlp.GRPCClient
	http    *http.Client
	slow    atomic.Bool // one of its nodes is
	grown   atomic.Bool // it has another node
	slowNew atomic.Bool // which is slow, too
}

const (
	bystander   = "bystander" // its cluster
	honestNodes = 10
	gpusOfNode  = 8
)

// newTenant has connections of its own, that others do not hold up.
func newTenant(t *testing.T, g *target, cluster string) *tenant {
	t.Helper()
	return &tenant{g: g, ctx: g.as(t.Context(), cluster), cluster: cluster, client: pmetricotlp.NewGRPCClient(dial(t, g.grpc)), http: keepAlive(t)}
}

func dial(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// told is what became of a tenant's pushes.
type told struct {
	pushes, refused, withoutThreshold int
	err                               error // the last refusal
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
	if h.grown.Load() {
		value := 0.97
		if h.slowNew.Load() {
			value = 0.6
		}
		score(md, h.cluster, "new", time.Now(), value)
	}
	for _, rm := range md.ResourceMetrics().All() {
		for gpu := range gpusOfNode {
			gauge(rm.ScopeMetrics().At(0).Metrics(), "hw.gpu.memory.utilization", time.Now(), 0.5).Attributes().PutStr("hw.id", fmt.Sprint("GPU-", gpu))
		}
	}
	request, start := pmetricotlp.NewExportRequestFromMetrics(md), time.Now()
	send := h.overGRPC
	if s.pushes++; s.pushes%2 == 0 {
		send = h.overHTTP
	}
	threshold, err := send(request)
	s.took = append(s.took, time.Since(start))
	if err != nil {
		s.refused++
		s.err = err
	} else if !threshold {
		s.withoutThreshold++
	}
}

func (h *tenant) overGRPC(request pmetricotlp.ExportRequest) (threshold bool, err error) {
	var header metadata.MD
	_, err = h.client.Export(metadata.AppendToOutgoingContext(h.ctx, "gpu-cluster", h.cluster), request, grpc.Header(&header))
	return len(header.Get("gpu-straggler-threshold")) == 1, err
}

func (h *tenant) overHTTP(request pmetricotlp.ExportRequest) (threshold bool, err error) {
	body, err := request.MarshalProto()
	if err != nil {
		return false, err
	}
	req, err := http.NewRequestWithContext(h.ctx, http.MethodPost, "http://"+h.g.http+"/v1/metrics", bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	outgoing, _ := metadata.FromOutgoingContext(h.ctx)
	for name, values := range outgoing {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	req.Header.Set("Content-Type", protobufType)
	req.Header.Set("gpu-cluster", h.cluster)
	resp, err := h.http.Do(req)
	if err != nil {
		return false, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return false, fmt.Errorf("%s: %.200q", resp.Status, text)
	}
	return resp.Header.Get("gpu-straggler-threshold") != "", nil
}

// run pushes every 50 ms until done is closed.
func (h *tenant) run(s *told, done <-chan struct{}) {
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
// of the ten worst; a scrape may meet two of eleven nodes that change places.
var honestSeries = map[string]int{
	"hw_gpu_memory_utilization_ratio": honestNodes * gpusOfNode, "gpu_node_health_score_ratio": honestNodes, "gpu_node_heartbeat_seconds": honestNodes,
	"gpu_node_straggler": honestNodes, "gpu_straggler_threshold_ratio": 2, "gpu_straggler_rank": honestNodes - 1,
}

// scrape reads all of /metrics, as Prometheus does, and says which of the honest
// series it lacks.
func (g *target) scrape(cluster string) error {
	resp, err := httpClient.Get("http://" + g.prom + "/metrics")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("scrape: %s", resp.Status)
	}
	label, has := []byte(`k8s_cluster_name="`+cluster+`"`), map[string]int{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if bytes.Contains(lines.Bytes(), label) {
			name, _, _ := bytes.Cut(lines.Bytes(), []byte("{"))
			has[string(name)]++
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("scrape: %w", err)
	}
	for name, n := range honestSeries {
		if has[name] < n {
			return fmt.Errorf("the scrape has %d of %d series of %s", has[name], n, name)
		}
	}
	return nil
}

// nodesOf are the names of a cluster's nodes in the fleet view, and whether each is
// a straggler.
func (g *target) nodesOf(cluster string) (map[string]bool, error) {
	resp, err := httpClient.Get("http://" + g.fleet + "/api/v1/nodes?cluster=" + cluster)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var page struct {
		Nodes []struct {
			Node      string
			Straggler bool
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("nodes of %s: %s, %w", cluster, resp.Status, err)
	}
	out := map[string]bool{}
	for _, n := range page.Nodes {
		out[n.Node] = n.Straggler
	}
	return out, nil
}

func (g *target) nodes(cluster string) map[string]bool {
	g.t.Helper()
	nodes, err := g.nodesOf(cluster)
	require.NoError(g.t, err)
	return nodes
}

func (g *target) straggler(cluster, node string) bool {
	g.t.Helper()
	return g.nodes(cluster)[node]
}

// honest asks the API for the bystanders' nodes, and says which it lacks.
func (g *target) honest() error {
	nodes, err := g.nodesOf(bystander)
	for i := range honestNodes {
		if _, ok := nodes[nodeName(i)]; !ok && err == nil {
			err = fmt.Errorf("the API lacks %s: %v", nodeName(i), nodes)
		}
	}
	return err
}

// page reads the page of the fleet view.
func (g *target) page() error {
	resp, err := httpClient.Get("http://" + g.fleet + "/")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err = io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("page: %s, %w", resp.Status, err)
	}
	return nil
}

// reads are what became of those of a gateway.
type reads struct {
	count, failed int
	err           error // the last failure
	slowest       map[string]time.Duration
}

// read has the readers of the honest cluster come one after the other, until done is
// closed.
func (g *target) read(r *reads, done <-chan struct{}) {
	for {
		for what, ask := range map[string]func() error{
			"scrape": func() error { return g.scrape(bystander) },
			"page":   g.page,
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
