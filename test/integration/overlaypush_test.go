// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
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
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/test/metricstore"
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

// TestPushOverlaysNameTenantAndToken: the requests are those that Mimir tells tenants and
// clients by.
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
			ports := newGatewayPorts(t)
			start(t, options{
				configs: []string{"configs/gateway.yaml", "configs/overlays/" + overlay, ports.overlay(t)},
				env: []string{
					"GPU_COLLECTOR_PUSH_URL=" + server.URL + tt.url, "GPU_COLLECTOR_PUSH_TENANT=gpus", "GPU_COLLECTOR_PUSH_AUTHORIZATION=Bearer secret",
				},
			})
			md := pmetric.NewMetrics()
			score(md, "n0", map[string]string{"k8s.cluster.name": "lab"}, 0.97)
			require.Equal(t, http.StatusOK, post(t, "http://"+ports.http+"/v1/metrics", protobufType, marshal(t, md)).status)
			select {
			case r := <-requests:
				assert.Equal(t, tt.path, r.URL.Path)
				assert.Equal(t, "gpus", r.Header.Get("X-Scope-OrgID"))
				assert.Equal(t, "Bearer secret", r.Header.Get("Authorization"))
			case <-time.After(startDeadline):
				require.Fail(t, "nothing was pushed")
			}
		})
	}
}

// pushed is a fleet whose gateway pushes to a server.
type pushed struct {
	t       *testing.T
	ports   gatewayPorts
	server  *metricstore.Server
	gateway *collector
	export  func(pmetric.Metrics)
	power   float64         // what all GPUs say
	lost    map[string]bool // "node/GPU"
}

func newPushed(t *testing.T, server *metricstore.Server, overlay, path string) *pushed {
	t.Helper()
	p := &pushed{t: t, ports: newGatewayPorts(t), server: server, power: 100, lost: map[string]bool{}}
	p.gateway = start(t, options{
		configs: []string{"configs/gateway.yaml", "configs/overlays/" + overlay, p.ports.overlay(t), fmt.Sprintf(`
processors:
  diff: {vanished_after: %s}
  diff/push: {flush_interval: 100ms}
extensions: {exposition: {ttl: 20s}}
`, pushedVanished)},
		env: []string{"GPU_COLLECTOR_PUSH_URL=" + server.URL(path), "GPU_COLLECTOR_PUSH_TENANT=anonymous"},
	})
	client := grpcClient(t, p.ports.grpc)
	p.export = func(md pmetric.Metrics) {
		t.Helper()
		_, err := client.Export(t.Context(), pmetricotlp.NewExportRequestFromMetrics(md))
		require.NoError(t, err, "no push waits for the server, nor fails because of it")
	}
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
		cluster := map[string]string{"k8s.cluster.name": "lab"}
		score(md, name, cluster, value)
		metrics := node(md, name, maps.Clone(cluster))
		md.ResourceMetrics().At(md.ResourceMetrics().Len()-1).Resource().Attributes().PutStr("service.name", "agent")
		for g := range pushedGPUs {
			gpu := fmt.Sprint("GPU-", g)
			if p.lost[name+"/"+gpu] {
				continue
			}
			for _, point := range []pmetric.NumberDataPoint{
				gauge(metrics, "hw.power", "W", p.power), gauge(metrics, "hw.temperature", "Cel", 55),
			} {
				point.Attributes().PutStr("hw.id", gpu)
				point.Attributes().PutStr("hw.type", "gpu")
			}
		}
		claim := gauge(metrics, "test.claim", "", 1).Attributes()
		claim.PutStr("k8s.cluster.name", "prod")
		claim.PutStr("k8s_cluster_name", "prod")
	}
	stray := node(md, "stray", map[string]string{"k8s_cluster_name": "prod", "k8s-cluster.name": "prod"})
	gauge(stray, "test.claim", "", 1).Attributes().PutStr("k8s/cluster_name", "prod")
	p.export(md)
}

// while has the nodes report until the condition holds.
func (p *pushed) while(what string, condition func() bool) {
	p.t.Helper()
	eventually(p.t, what, func() bool {
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
	var answer struct {
		Data struct {
			Result []struct {
				Metric labels `json:"metric"`
				Value  [2]any `json:"value"`
			} `json:"result"`
		} `json:"data"`
	}
	resp := get(p.t, p.server.URL("/api/v1/query?"+url.Values{
		"query": {query}, "time": {strconv.FormatFloat(float64(at.UnixMilli())/1e3, 'f', 3, 64)}, "nocache": {"1"},
	}.Encode()))
	require.Equal(p.t, http.StatusOK, resp.status, "%s", resp.body)
	require.NoError(p.t, json.Unmarshal(resp.body, &answer))
	out := map[string]float64{}
	for _, r := range answer.Data.Result {
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
	got, err := promparse.Parse(get(p.t, "http://"+p.ports.prom+"/metrics").body, promparse.Text)
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
	assert.Empty(p.t, p.ask(`{k8s_cluster_name="prod"}`), "nobody speaks for another cluster")
	assert.Len(p.t, p.ask(`test_claim{k8s_cluster_name="lab"}`), pushedNodes)
	assert.Len(p.t, p.ask(`test_claim{k8s_cluster_name="",host_name="stray"}`), 1)
}

// same holds the server's series to the gateway's. Those of the gateway's own ticks come
// between the two.
func (p *pushed) same(reporting bool) {
	p.t.Helper()
	names := func(series map[string]float64) []string { return slices.Sorted(maps.Keys(series)) }
	var here, there []string
	if !inTime(func() bool {
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
	p.gateway.waitLog(1, "last values wait until it takes them")
	p.server.Start()
	eventually(p.t, "the server has the last values", func() bool {
		return len(p.ask("hw_power_watts == 300")) == pushedNodes*pushedGPUs-2 && !ofLost(p.ask("hw_power_watts"))
	})
	p.same(false)
	assert.Equal(p.t, power, p.askOf(before, "hw_power_watts"))
	p.gateway.waitLog(1, "takes values again")
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
