// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/metricstore"
)

// startPrometheus runs the real server, which takes remote writes.
func startPrometheus(t *testing.T, lookback time.Duration) (addr string) {
	t.Helper()
	return metricstore.Prometheus(t, "global: {scrape_interval: 1m}\n", "--query.lookback-delta="+lookback.String()).Addr
}

// promSeries is a series of a range query.
type promSeries struct {
	Metric labels   `json:"metric"`
	Values [][2]any `json:"values"`
}

// times returns the query's steps at which the series has a value.
func (s *promSeries) times(t *testing.T) map[int64]float64 {
	t.Helper()
	at := map[int64]float64{}
	for _, v := range s.Values {
		seconds, ok := v[0].(float64)
		require.True(t, ok)
		text, _ := v[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		require.NoError(t, err)
		at[int64(seconds)] = value
	}
	return at
}

func promQuery(t *testing.T, addr, query string, from, to time.Time) []promSeries {
	t.Helper()
	var answer struct {
		Status string `json:"status"`
		Data   struct {
			Result []promSeries `json:"result"`
		} `json:"data"`
	}
	values := url.Values{
		"query": {query}, "step": {"1"},
		"start": {strconv.FormatInt(from.Unix(), 10)}, "end": {strconv.FormatInt(to.Unix(), 10)},
	}
	resp := get(t, "http://"+addr+"/api/v1/query_range?"+values.Encode())
	require.Equal(t, http.StatusOK, resp.status, "%s", resp.body)
	require.NoError(t, json.Unmarshal(resp.body, &answer))
	require.Equal(t, "success", answer.Status)
	return answer.Data.Result
}

// A thirtieth of the real pace: the shard's resync 1 h, the gateway's 2 m,
// lookback 5 m, a series vanished after 90 s, and eleven minutes in all.
const (
	promShard    = 2 * time.Minute
	promGateway  = 4 * time.Second
	promLookback = 10 * time.Second
	promVanished = 3 * time.Second
	promReport   = 250 * time.Millisecond
	promRun      = 22 * time.Second
	promNodes    = 4
	promGPUs     = 8
)

// TestPrometheusBehindAShard writes the output of a gateway behind a shard to the real
// server. No series has a gap, though the shard sends most values once. The series of
// a lost GPU end before the lookback does, and those of a dead node with it.
func TestPrometheusBehindAShard(t *testing.T) {
	long(t)
	t.Parallel()
	prom := startPrometheus(t, promLookback)
	gateway, otlp := newGatewayPorts(t), loopback.FreeAddr(t)
	start(t, options{configs: []string{"configs/gateway.yaml", gateway.overlay(t), fmt.Sprintf(`
processors:
  diff: {resync_interval: %s, vanished_after: %s, ttl: 20s}
exporters:
  prometheus_remote_write:
    endpoint: http://%s/api/v1/write
    timeout: 5s
    resource_to_telemetry_conversion: {enabled: true}
    retry_on_failure: {enabled: false}
    # Straight through: diff takes for known only what has been written.
    remote_write_queue: {enabled: false}
service:
  pipelines:
    metrics:
      exporters: [prometheus_remote_write]
`, promGateway, promVanished, prom)}})
	start(t, options{
		configs: []string{"configs/shard.yaml", fmt.Sprintf(`
receivers:
  otlp:
    protocols:
      grpc: {endpoint: %q}
      http: {endpoint: %q}
processors:
  diff: {flush_interval: 50ms, resync_interval: %s, vanished_after: %s, ttl: 20s}
extensions:
  healthcheckv2: {http: {endpoint: %q}}
service:
  telemetry: {metrics: {level: none}}
`, otlp, loopback.FreeAddr(t), promShard, promVanished, loopback.FreeAddr(t))},
		env: []string{"GPU_COLLECTOR_GATEWAY=" + gateway.grpc, "GPU_COLLECTOR_INSECURE=true"},
	})
	client := grpcClient(t, otlp)

	const goneNode, goneGPU, deadNode = "node-1", "GPU-3", "node-2"
	began := time.Now()
	gone := began.Add(promRun - promLookback)
	var vanished, died time.Time
	ticker := time.NewTicker(promReport)
	defer ticker.Stop()
	for i := 0; time.Since(began) < promRun; i++ {
		lost := time.Now().After(gone)
		if lost && vanished.IsZero() {
			vanished = time.Now()
		}
		for n := range promNodes {
			md := pmetric.NewMetrics()
			name := fmt.Sprint("node-", n)
			if name == deadNode {
				if time.Since(began) > promRun-2*promLookback+promGateway {
					continue
				}
				died = time.Now()
			}
			metrics := node(md, name, map[string]string{"k8s.cluster.name": "lab"})
			for _, m := range []struct {
				name  string
				value float64
			}{{"test.constant", 1}, {"test.changing", float64(i)}} {
				m2 := metrics.AppendEmpty()
				m2.SetName(m.name)
				points := m2.SetEmptyGauge().DataPoints()
				for g := range promGPUs {
					gpu := fmt.Sprint("GPU-", g)
					if lost && name == goneNode && gpu == goneGPU {
						continue
					}
					p := points.AppendEmpty()
					p.SetTimestamp(pcommon.NewTimestampFromTime(time.Now()))
					p.SetDoubleValue(m.value)
					p.Attributes().PutStr("hw.id", gpu)
				}
			}
			_, err := client.Export(t.Context(), pmetricotlp.NewExportRequestFromMetrics(md))
			require.NoError(t, err)
		}
		<-ticker.C
	}
	ended := time.Now()

	// What a busy machine makes later is a figure here: when the last value of each was.
	var lastOfGone, lastOfDead int64
	for _, metric := range []string{"test_constant", "test_changing"} {
		series := promQuery(t, prom, metric, began, ended)
		require.Len(t, series, promNodes*promGPUs, metric)
		for _, s := range series {
			at := s.times(t)
			isGone := s.Metric["host_name"] == goneNode && s.Metric["hw_id"] == goneGPU
			for second := began.Unix() + 1; second < ended.Unix(); second++ {
				_, there := at[second]
				switch {
				case s.Metric["host_name"] == deadNode && second > died.Unix():
					if there {
						lastOfDead = max(lastOfDead, second)
					}
				case !isGone || second < vanished.Unix():
					require.True(t, there, "%s %v has a gap %d s after the start", metric, s.Metric, second-began.Unix())
				case there:
					lastOfGone = max(lastOfGone, second)
				}
			}
		}
	}
	require.Less(t, lastOfDead, ended.Unix()-1, "the dead node's series end")
	// Without a marker they would be looked back at until the end of the run.
	require.Less(t, lastOfGone, ended.Unix()-1, "the vanished GPU's series end")
	t.Logf("%d series without a gap over %s; the vanished GPU's ended after %d s, the dead node's after %d s",
		2*promNodes*promGPUs, promRun, lastOfGone-vanished.Unix(), lastOfDead-died.Unix())
}
