// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	promlabels "github.com/prometheus/prometheus/model/labels"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/grpc"

	"github.com/gpu-collector/gpu-collector/test/metricstore"
	"github.com/gpu-collector/gpu-collector/test/process"
	"github.com/gpu-collector/gpu-collector/test/promparse"
)

const (
	pushedNodes = 6
	pushedGPUs  = 3
	pushedSlow  = "n5"
	// Of the gateway in this test, in place of 3 minutes. Servers look back for five.
	pushedVanished = 2 * time.Second
)

// TestPushOverlays runs the shipped gateway with each overlay that pushes, against the
// real servers.
func TestPushOverlays(t *testing.T) {
	long(t)
	t.Parallel()
	for name, tt := range map[string]struct {
		overlay, path string
		server        func(*testing.T) *metricstore.Server
	}{
		"remote write to Prometheus": {"remote-write.yaml", "/api/v1/write", func(t *testing.T) *metricstore.Server {
			return metricstore.Prometheus(t, "global: {scrape_interval: 1m}\n")
		}},
		"remote write to VictoriaMetrics": {"remote-write.yaml", "/api/v1/write", func(t *testing.T) *metricstore.Server {
			return metricstore.VictoriaMetrics(t, "-search.latencyOffset=0s")
		}},
		"OTLP to Prometheus": {"otlp-push.yaml", "/api/v1/otlp", func(t *testing.T) *metricstore.Server {
			return metricstore.PrometheusOTLP(t, "global: {scrape_interval: 1m}\n")
		}},
		"OTLP to VictoriaMetrics": {"otlp-push.yaml", "/opentelemetry", func(t *testing.T) *metricstore.Server {
			return metricstore.VictoriaMetricsOTLP(t, "-search.latencyOffset=0s")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPushed(t, tt.server(t), tt.overlay, tt.path)
			p.allIsThere()
			p.lostGPU()
			p.restart()
		})
	}
}

// TestPushOverlaysNameTenantAndToken: the requests have the headers by which Mimir
// knows tenants and clients.
func TestPushOverlaysNameTenantAndToken(t *testing.T) {
	t.Parallel()
	for overlay, tt := range map[string]struct{ url, path string }{
		"remote-write.yaml": {"/api/v1/push", "/api/v1/push"},
		"otlp-push.yaml":    {"/otlp", "/otlp/v1/metrics"},
	} {
		t.Run(overlay, func(t *testing.T) {
			t.Parallel()
			requests := make(chan *http.Request, 1)
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				select {
				case requests <- r:
				default:
				}
			}))
			t.Cleanup(server.Close)
			g := process.Run(t, process.Options{
				Config: []string{"configs/gateway.yaml", "configs/overlays/" + overlay, pace},
				Env: []string{
					"GPU_COLLECTOR_PUSH_URL=" + server.URL + tt.url, "GPU_COLLECTOR_PUSH_TENANT=gpus", "GPU_COLLECTOR_PUSH_AUTHORIZATION=Bearer secret",
				},
			})
			md := pmetric.NewMetrics()
			process.Score(md, "n0", 0.97, "k8s.cluster.name", "lab")
			require.Equal(t, http.StatusOK, process.Post(t, g.Push(), process.Protobuf, process.Marshal(t, md)).Status)
			select {
			case r := <-requests:
				assert.Equal(t, tt.path, r.URL.Path)
				assert.Equal(t, "gpus", r.Header.Get("X-Scope-OrgID"))
				assert.Equal(t, "Bearer secret", r.Header.Get("Authorization"))
			case <-time.After(process.StartDeadline):
				require.Fail(t, "nothing was pushed")
			}
		})
	}
}

// pushed is a fleet whose gateway pushes to a server.
type pushed struct {
	t       *testing.T
	server  *metricstore.Server
	gateway *process.Collector
	conn    *grpc.ClientConn
	power   float64         // of all GPUs
	lost    map[string]bool // "node/GPU"
}

func newPushed(t *testing.T, server *metricstore.Server, overlay, path string) *pushed {
	t.Helper()
	p := &pushed{t: t, server: server, power: 100, lost: map[string]bool{}}
	p.gateway = process.Run(t, process.Options{
		Config: []string{"configs/gateway.yaml", "configs/overlays/" + overlay, pace, fmt.Sprintf(`
processors:
  diff: {vanished_after: %s}
  diff/push: {flush_interval: 100ms}
extensions: {exposition: {ttl: 20s}}
`, pushedVanished)},
		Env: []string{"GPU_COLLECTOR_PUSH_URL=" + server.URL(path), "GPU_COLLECTOR_PUSH_TENANT=anonymous"},
	})
	p.conn = process.Dial(t, p.gateway.GRPC)
	return p
}

// report has each node push once.
func (p *pushed) report() {
	p.t.Helper()
	md := pmetric.NewMetrics()
	for n := range pushedNodes {
		name, value := fmt.Sprint("n", n), 0.97
		if name == pushedSlow {
			value = 0.2
		}
		process.Score(md, name, value, "k8s.cluster.name", "lab")
		metrics := process.Node(md, name, "k8s.cluster.name", "lab", "service.name", "agent")
		for g := range pushedGPUs {
			gpu := fmt.Sprint("GPU-", g)
			if p.lost[name+"/"+gpu] {
				continue
			}
			process.Gauge(metrics, "hw.power", "W", p.power, "hw.id", gpu, "hw.type", "gpu")
			process.Gauge(metrics, "hw.temperature", "Cel", 55, "hw.id", gpu, "hw.type", "gpu")
		}
		process.Gauge(metrics, "test.claim", "", 1, "k8s.cluster.name", "prod", "k8s_cluster_name", "prod")
	}
	stray := process.Node(md, "stray", "k8s_cluster_name", "prod", "k8s-cluster.name", "prod")
	process.Gauge(stray, "test.claim", "", 1, "k8s/cluster_name", "prod")
	_, err := process.Export(p.t.Context(), p.conn, md)
	require.NoError(p.t, err, "no push waits for the server, nor fails because of it")
}

// while has the nodes report until the condition holds.
func (p *pushed) while(what string, condition func() bool) {
	p.t.Helper()
	process.Eventually(p.t, what, func() bool {
		p.report()
		return condition()
	})
}

// ask answers a query of the present, by the series' labels.
func (p *pushed) ask(query string) map[string]float64 {
	p.t.Helper()
	return p.askOf(time.Now(), query)
}

func (p *pushed) askOf(at time.Time, query string) map[string]float64 {
	p.t.Helper()
	var data struct {
		Result []struct {
			Metric labels
			Value  [2]any
		}
	}
	require.NoError(p.t, promGet(p.t, p.server.URL("/api/v1/query?"+url.Values{
		"query": {query}, "time": {strconv.FormatFloat(float64(at.UnixMilli())/1e3, 'f', 3, 64)}, "nocache": {"1"},
	}.Encode()), &data))
	out := map[string]float64{}
	for _, r := range data.Result {
		text, _ := r.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		require.NoError(p.t, err)
		out[promlabels.FromMap(r.Metric).String()] = value
	}
	return out
}

// exposed are the series that the gateway serves itself.
func (p *pushed) exposed() map[string]float64 {
	p.t.Helper()
	got, err := promparse.Parse(process.Fetch(p.t, "http://"+p.gateway.Prom+"/metrics").Body, promparse.Text)
	require.NoError(p.t, err)
	maps.DeleteFunc(got.Series, func(series string, _ float64) bool { return strings.Contains(series, `__name__="gpu_exposition_`) })
	return got.Series
}

// allIsThere: the server has what a scrape has, under the same names and labels, and the
// verdict.
func (p *pushed) allIsThere() {
	p.t.Helper()
	verdict := fmt.Sprintf(`gpu_node_straggler{k8s_cluster_name="lab",host_name=%q} == 1`, pushedSlow)
	p.while("the server has the verdict", func() bool { return len(p.ask(verdict)) == 1 })
	assert.Empty(p.t, p.ask(`gpu_node_straggler{host_name!="`+pushedSlow+`"} == 1`))
	p.same(true)
	assert.Len(p.t, p.ask(`hw_temperature_celsius{k8s_cluster_name="lab"} == 55`), pushedNodes*pushedGPUs)
	assert.Empty(p.t, p.ask(`{k8s_cluster_name="prod"}`), "no client reports for another cluster")
	assert.Len(p.t, p.ask(`test_claim{k8s_cluster_name="lab"}`), pushedNodes)
	assert.Len(p.t, p.ask(`test_claim{k8s_cluster_name="",host_name="stray"}`), 1)
}

// same holds the server's series to the gateway's. Those of the gateway's own ticks come
// between the two.
func (p *pushed) same(reporting bool) {
	p.t.Helper()
	names := func(series map[string]float64) []string { return slices.Sorted(maps.Keys(series)) }
	var here, there []string
	if !process.Within(process.Patience, func() bool {
		if reporting {
			p.report()
		}
		here, there = names(p.exposed()), names(p.ask(`{__name__=~".+"}`))
		return slices.Equal(here, there)
	}) {
		assert.Equal(p.t, here, there)
	}
}

// lostGPU: the series of a GPU that vanished end, long before the server stops looking
// back at them.
func (p *pushed) lostGPU() {
	p.t.Helper()
	p.lost["n1/GPU-2"] = true
	gone := `hw_temperature_celsius{host_name="n1",hw_id="GPU-2"}`
	// Without a marker it would take the five minutes that the server looks back.
	p.while("a marker ended the lost GPU's series", func() bool { return len(p.ask(gone)) == 0 })
	assert.Len(p.t, p.ask("hw_temperature_celsius"), pushedNodes*pushedGPUs-1)
}

// restart: while the server is away pushes go on. After its return it has the last values
// and ends, without another report of a node, and all that it had before.
func (p *pushed) restart() {
	p.t.Helper()
	before, power := time.Now(), p.ask("hw_power_watts")
	require.Len(p.t, power, pushedNodes*pushedGPUs-1)
	p.server.Stop()
	p.power = 200
	p.report()
	p.power = 300
	p.lost["n2/GPU-0"] = true
	p.while("the GPU's series have ended at the gateway", func() bool { return !ofLost(p.exposed()) })
	p.gateway.WaitLog(1, "last values wait until it takes them")
	p.server.Start()
	process.Eventually(p.t, "the server has the last values", func() bool {
		return len(p.ask("hw_power_watts == 300")) == pushedNodes*pushedGPUs-2 && !ofLost(p.ask("hw_power_watts"))
	})
	p.same(false)
	assert.Equal(p.t, power, p.askOf(before, "hw_power_watts"))
	p.gateway.WaitLog(1, "takes values again")
}

// ofLost reports whether one of the series is the second lost GPU's.
func ofLost(series map[string]float64) bool {
	for s := range series {
		if strings.Contains(s, `host_name="n2"`) && strings.Contains(s, `hw_id="GPU-0"`) {
			return true
		}
	}
	return false
}
