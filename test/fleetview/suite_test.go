// SPDX-License-Identifier: Apache-2.0

// Package fleetview asks the fleet view's API about the past, on each storage: SQLite, a real
// Prometheus, a real VictoriaMetrics.
package fleetview

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/test/metricstore"
)

// maxSamples is more than there are.
const maxSamples = 10_000

// write is where both servers take remote writes.
const write = "/api/v1/write"

// server skips a test that needs one in the gate; make proof runs it.
func server(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a server of metrics: make proof runs it")
	}
}

// TestSQLite: rounds of what the views have, and the same questions.
func TestSQLite(t *testing.T) {
	t.Parallel()
	g := startGateway(t, map[string]any{"sqlite": map[string]any{"path": filepath.Join(t.TempDir(), "h.db"), "interval": "1s"}}, "")
	md, _ := dataset(time.Now().Add(-time.Hour))
	g.push(md)
	g.push(groups(time.Now()))
	const series = 2*5 + 1 // of a node: five of each GPU, and the score
	node := []string{"host", "node-b.example", "limit", "1000"}
	require.Eventually(t, func() bool { return get[fleetapi.SamplePage](g, "/telemetry", node...).Total >= 3*series }, deadline, 100*time.Millisecond)

	all := get[fleetapi.SamplePage](g, "/telemetry", node...)
	rounds := map[time.Time]int{}
	for i, s := range all.Samples {
		assert.Equal(t, []string{"east", "node-b.example"}, []string{s.Cluster, s.Host})
		assert.False(t, i > 0 && s.At.After(all.Samples[i-1].At), "the newest first")
		rounds[s.At]++
	}
	for at, n := range rounds {
		assert.Equal(t, series, n, at)
	}
	until := stamp(all.Samples[0].At)
	page := get[fleetapi.SamplePage](g, "/telemetry", "host", "node-b.example", "until", until, "limit", "7", "page", "2")
	assert.Equal(t, all.Samples[7:14], page.Samples)
	assert.Equal(t, []any{all.Total, true}, []any{page.Total, page.More})
	errors := get[fleetapi.SamplePage](g, "/telemetry", "cluster", "west", "gpu", "GPU-westnode-a-1", "metric", gpusemconv.MetricErrors)
	require.NotEmpty(t, errors.Samples)
	last := errors.Samples[0]
	last.At = time.Time{}
	attributes := map[string]string{gpusemconv.AttrErrorType: "corrected", gpusemconv.AttrECCCounter: "volatile", gpusemconv.AttrMemoryLocation: "all"}
	assert.Equal(t, fleetapi.Sample{Cluster: "west", Host: "node-a", GPU: "GPU-westnode-a-1", Metric: gpusemconv.MetricErrors, Attributes: attributes, Value: points - 1 + 2}, last)

	hosts := get[fleetapi.HostPage](g, "/telemetry/hosts", "limit", "3")
	assert.Equal(t, []any{len(nodes), "east/node-a"}, []any{hosts.Total, hosts.Hosts[0].Cluster + "/" + hosts.Hosts[0].Host})
	gpus := get[fleetapi.RecordedGPUPage](g, "/telemetry/hosts/node-a/gpus", "cluster", "west").GPUs
	require.Len(t, gpus, 2)
	assert.Zero(t, gpus[1].Samples%5)
	figures := get[fleetapi.AggregationList](g, "/telemetry/aggregations", "group_by", "gpu", "host", "node-a", "cluster", "west", "metric", gpusemconv.MetricErrors).Aggregations
	require.Len(t, figures, 2)
	assert.InDelta(t, points-1+2, figures[1].Mean, 0)

	require.Eventually(t, func() bool { // from a round on in which there is a point of the group
		past := get[fleetapi.Past](g, "/nodes/node-a/past", "cluster", "east", "since", "10m")
		if len(past.At) == 0 || len(past.Signals) != 2 {
			return false
		}
		score, throughput, end := past.Signals[0], past.Signals[1], len(past.At)-1
		assert.Equal(t, []string{"score", "throughput"}, []string{score.Signal, throughput.Signal})
		assert.NotNil(t, score.Value[end])
		assert.InDelta(t, 2, *throughput.Value[end], 0)
		assert.InDelta(t, 3, *throughput.Median[end], 0)
		return true
	}, deadline, 100*time.Millisecond)
	mistakes(t, g)
}

// groups are what a gateway says of the group of node-a in the cluster east, and of another.
func groups(at time.Time) pmetric.Metrics {
	md := pmetric.NewMetrics()
	add := func(name string, value float64, pairs ...string) {
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, "east")
		if strings.HasPrefix(name, "gpu.node") {
			rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, "node-a")
		}
		dp := newMetric(rm.ScopeMetrics().AppendEmpty(), name, "1", false).AppendEmpty()
		dp.SetTimestamp(pcommon.NewTimestampFromTime(at))
		dp.SetDoubleValue(value)
		for i := 0; i < len(pairs); i += 2 {
			dp.Attributes().PutStr(pairs[i], pairs[i+1])
		}
	}
	const group = "job,a/role"
	signal := []string{gpusemconv.AttrSignal, "throughput"}
	add(gpusemconv.MetricNodeSignal, 2, signal...)
	add(gpusemconv.MetricNodeSuspicion, 0.5, gpusemconv.AttrPeerGroup, group)
	add(gpusemconv.MetricStragglerSignalMedian, 3, append(signal, gpusemconv.AttrPeerGroup, group)...)
	add(gpusemconv.MetricStragglerSignalMedian, 9, append(signal, gpusemconv.AttrPeerGroup, "other")...)
	return md
}

func TestPrometheus(t *testing.T) {
	server(t)
	t.Parallel()
	store := metricstore.Prometheus(t, "global: {scrape_interval: 1m}\n")
	g := startGateway(t, prometheus(store), store.URL(write))
	suite(t, g)

	// The views are served without it, and the API names what is missing.
	store.Stop()
	body := g.ask("/telemetry", http.StatusServiceUnavailable)
	assert.Contains(t, string(body), store.URL(""))
	health := get[fleetapi.Health](g, "/health")
	assert.Equal(t, "degraded", health.Status)
	assert.Contains(t, health.History.Error, "`history::prometheus::http::endpoint` "+store.URL(""))
	assert.Len(t, get[fleetapi.NodePage](g, "/nodes").Nodes, len(nodes)+1)
}

func TestVictoriaMetrics(t *testing.T) {
	server(t)
	t.Parallel()
	// It hides new samples for so long, 30 s by default, unless a question asks for them.
	store := metricstore.VictoriaMetrics(t, "-search.latencyOffset=10m")
	suite(t, startGateway(t, prometheus(store), store.URL(write)))
}

func prometheus(s *metricstore.Server) map[string]any {
	return map[string]any{"storage": "prometheus", "prometheus": map[string]any{"http": map[string]any{"endpoint": s.URL("")}, "max_samples": maxSamples}}
}

func (g *gateway) ask(path string, status int) []byte {
	g.t.Helper()
	resp, err := http.Get(g.api + path)
	require.NoError(g.t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(g.t, err)
	require.NoError(g.t, resp.Body.Close())
	require.Equal(g.t, status, resp.StatusCode, "%s: %s", path, body)
	return body
}

func get[T any](g *gateway, path string, params ...string) (answer T) {
	g.t.Helper()
	values := url.Values{}
	for i := 0; i < len(params); i += 2 {
		values.Set(params[i], params[i+1])
	}
	if len(values) > 0 {
		path += "?" + values.Encode()
	}
	require.NoError(g.t, json.Unmarshal(g.ask(path, http.StatusOK), &answer))
	return answer
}

func stamp(t time.Time) string { return t.Format(time.RFC3339Nano) }

// suite pushes the dataset and asks a server's history everything that can be asked.
func suite(t *testing.T, g *gateway) {
	start := time.Now().UTC().Truncate(time.Second).Add(-30 * time.Minute)
	md, want := dataset(start)
	g.push(md)
	require.Eventually(t, func() bool {
		return get[fleetapi.SamplePage](g, "/telemetry", "limit", "1").Total == len(want)
	}, deadline, 100*time.Millisecond, "all samples can be asked for")

	t.Run("pages are the whole, the newest first", func(t *testing.T) {
		var got []fleetapi.Sample
		for page := 1; ; page++ {
			p := get[fleetapi.SamplePage](g, "/telemetry", "limit", "1000", "page", strconv.Itoa(page),
				"since", stamp(start), "until", stamp(start.Add(25*time.Minute)))
			assert.Equal(t, len(want), p.Total)
			got = append(got, p.Samples...)
			if !p.More {
				break
			}
		}
		require.Len(t, got, len(want))
		for i := range want {
			require.Equal(t, want[i], got[i], "sample %d", i)
		}
		beyond := get[fleetapi.SamplePage](g, "/telemetry", "limit", "1000", "page", "1000")
		assert.Empty(t, beyond.Samples)
		assert.False(t, beyond.More)
	})
	t.Run("filters", func(t *testing.T) {
		for _, tt := range []struct {
			params []string
			match  func(*fleetapi.Sample) bool
		}{
			{[]string{"host", "node-a"}, func(s *fleetapi.Sample) bool { return s.Host == "node-a" }},
			{[]string{"host", "node|c,node-b.example"}, func(s *fleetapi.Sample) bool { return s.Host == "node|c" || s.Host == "node-b.example" }},
			{[]string{"host", "node-b-example"}, func(*fleetapi.Sample) bool { return false }},
			{[]string{"cluster", "west"}, func(s *fleetapi.Sample) bool { return s.Cluster == "west" }},
			{[]string{"cluster", "default,west"}, func(s *fleetapi.Sample) bool { return s.Cluster != "east" }},
			{[]string{"gpu", "GPU-eastnode-a-1"}, func(s *fleetapi.Sample) bool { return s.GPU == "GPU-eastnode-a-1" }},
			{[]string{"metric", gpusemconv.MetricErrors}, func(s *fleetapi.Sample) bool { return s.Metric == gpusemconv.MetricErrors }},
			{[]string{"metric", "hw.power,gpu.node.health_score", "host", "node-a", "cluster", "east"}, func(s *fleetapi.Sample) bool {
				return s.Host == "node-a" && s.Cluster == "east" && (s.Metric == "hw.power" || s.Metric == "gpu.node.health_score")
			}},
			{[]string{"metric", "no.such"}, func(*fleetapi.Sample) bool { return false }},
			{[]string{"metric", `1{}",\`}, func(*fleetapi.Sample) bool { return false }},
			{[]string{"host", `"} or up{a="\`}, func(*fleetapi.Sample) bool { return false }},
			// Both ends are included.
			{[]string{"since", stamp(want[len(want)-40].At), "until", stamp(want[len(want)-60].At)}, func(s *fleetapi.Sample) bool {
				return !s.At.Before(want[len(want)-40].At) && !s.At.After(want[len(want)-60].At)
			}},
			{[]string{"since", stamp(want[60].At.Add(time.Millisecond)), "until", stamp(want[40].At)}, func(s *fleetapi.Sample) bool {
				return s.At.After(want[60].At) && !s.At.After(want[40].At)
			}},
			{[]string{"since", stamp(want[50].At), "until", stamp(want[50].At)}, func(s *fleetapi.Sample) bool { return s.At.Equal(want[50].At) }},
		} {
			var selected []fleetapi.Sample
			for i := range want {
				if tt.match(&want[i]) {
					selected = append(selected, want[i])
				}
			}
			p := get[fleetapi.SamplePage](g, "/telemetry", append(tt.params, "limit", "1000")...)
			assert.Equal(t, len(selected), p.Total, tt.params)
			selected = selected[:min(1000, len(selected))]
			require.Len(t, p.Samples, len(selected), tt.params)
			for i := range selected {
				require.Equal(t, selected[i], p.Samples[i], tt.params)
			}
		}
	})
	t.Run("hosts and GPUs", func(t *testing.T) {
		span := []string{"since", stamp(start), "until", stamp(start.Add(20 * time.Minute))}
		check := func(got fleethistory.Recorded, match func(*fleetapi.Sample) bool) {
			t.Helper()
			var first, last time.Time
			var n int64
			for i := range want {
				if match(&want[i]) {
					if n++; last.IsZero() {
						last = want[i].At
					}
					first = want[i].At
				}
			}
			assert.Equal(t, n, got.Samples)
			assert.Equal(t, []time.Time{first, last}, []time.Time{got.First, got.Last})
		}
		var names []string
		for page := 1; page <= 2; page++ {
			p := get[fleetapi.HostPage](g, "/telemetry/hosts", append([]string{"limit", "3", "page", strconv.Itoa(page)}, span...)...)
			assert.Equal(t, len(nodes), p.Total)
			for _, h := range p.Hosts {
				names = append(names, h.Cluster+"/"+h.Host)
				check(h, func(s *fleetapi.Sample) bool { return s.Cluster == h.Cluster && s.Host == h.Host })
			}
		}
		assert.Equal(t, []string{"east/node-a", "west/node-a", "east/node-b.example", "default/node|c"}, names)

		p := get[fleetapi.RecordedGPUPage](g, "/telemetry/hosts/node-a/gpus", span...)
		var gpus []string
		for _, gpu := range p.GPUs {
			gpus = append(gpus, gpu.GPU)
			check(gpu, func(s *fleetapi.Sample) bool { return s.GPU == gpu.GPU })
		}
		assert.Equal(t, []string{"GPU-eastnode-a-0", "GPU-eastnode-a-1", "GPU-westnode-a-0", "GPU-westnode-a-1"}, gpus)
		assert.Len(t, get[fleetapi.RecordedGPUPage](g, "/telemetry/hosts/node-a/gpus", append(span, "cluster", "west")...).GPUs, 2)
		assert.Empty(t, get[fleetapi.RecordedGPUPage](g, "/telemetry/hosts/nobody/gpus", span...).GPUs)
	})
	t.Run("aggregations", func(t *testing.T) {
		for groupBy, key := range map[string]func(*fleetapi.Sample) fleetapi.Aggregation{
			"cluster": func(s *fleetapi.Sample) (a fleetapi.Aggregation) { a.Cluster = s.Cluster; return a },
			"host":    func(s *fleetapi.Sample) (a fleetapi.Aggregation) { a.Cluster, a.Host = s.Cluster, s.Host; return a },
			"gpu": func(s *fleetapi.Sample) (a fleetapi.Aggregation) {
				a.Cluster, a.Host, a.GPU = s.Cluster, s.Host, s.GPU
				return a
			},
			"metric": func(*fleetapi.Sample) fleetapi.Aggregation { return fleetapi.Aggregation{} },
		} {
			rows := map[string]*fleetapi.Aggregation{}
			for i := range want {
				k := key(&want[i])
				if groupBy == "gpu" && k.GPU == "" {
					continue
				}
				k.Metric, k.Attributes = want[i].Metric, want[i].Attributes
				id := fmt.Sprint(k)
				a := rows[id]
				if a == nil {
					first := k
					first.Min, first.Max = want[i].Value, want[i].Value
					a = &first
					rows[id] = a
				}
				a.Count++
				a.Sum += want[i].Value
				a.Min, a.Max = min(a.Min, want[i].Value), max(a.Max, want[i].Value)
				a.Mean = a.Sum / float64(a.Count)
			}
			expected := slices.SortedFunc(maps.Values(rows), func(a, b *fleetapi.Aggregation) int {
				return cmp.Or(strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Host, b.Host), strings.Compare(a.GPU, b.GPU), strings.Compare(a.Metric, b.Metric),
					strings.Compare(fmt.Sprint(a.Attributes), fmt.Sprint(b.Attributes)))
			})
			got := get[fleetapi.AggregationList](g, "/telemetry/aggregations", "group_by", groupBy, "since", "1h").Aggregations
			require.Len(t, got, len(expected), groupBy)
			for i := range expected {
				assert.Equal(t, *expected[i], got[i], groupBy)
			}
		}
		one := get[fleetapi.AggregationList](g, "/telemetry/aggregations", "group_by", "metric", "since", "1h", "metric", "hw.power", "host", "node|c")
		require.Len(t, one.Aggregations, 1)
		assert.EqualValues(t, 2*points, one.Aggregations[0].Count)
		assert.Empty(t, get[fleetapi.AggregationList](g, "/telemetry/aggregations", "since", "1m").Aggregations)
	})
	t.Run("what was just pushed", func(t *testing.T) {
		now := time.Now().UTC().Truncate(time.Millisecond)
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, "node-new")
		scope := rm.ScopeMetrics().AppendEmpty()
		for _, name := range []string{gpusemconv.MetricGPUUp, gpusemconv.MetricGPUInfo} {
			dp := newMetric(scope, name, "1", false).AppendEmpty()
			dp.SetTimestamp(pcommon.NewTimestampFromTime(now))
			dp.SetIntValue(1)
			dp.Attributes().PutStr(gpusemconv.AttrHWID, "GPU-new")
		}
		g.push(md)
		ask := func(metric string) fleetapi.SamplePage {
			return get[fleetapi.SamplePage](g, "/telemetry", "host", "node-new", "metric", metric, "since", stamp(now.Add(-time.Second)), "until", stamp(now.Add(time.Second)))
		}
		require.Eventually(t, func() bool { return len(ask(gpusemconv.MetricGPUInfo).Samples) > 0 }, deadline, 100*time.Millisecond)
		p := ask(gpusemconv.MetricGPUUp)
		assert.Equal(t, fleetapi.Sample{At: now, Cluster: "default", Host: "node-new", GPU: "GPU-new", Metric: gpusemconv.MetricGPUUp, Value: 1}, p.Samples[0])
		assert.Equal(t, 1, p.Total)

		figures := get[fleetapi.AggregationList](g, "/telemetry/aggregations", "host", "node-new").Aggregations
		require.Len(t, figures, 1, "of what is always 1 there is none")
		assert.Equal(t, gpusemconv.MetricGPUUp, figures[0].Metric)
		figures = get[fleetapi.AggregationList](g, "/telemetry/aggregations", "host", "node-new", "metric", gpusemconv.MetricGPUInfo).Aggregations
		require.Len(t, figures, 1, "but where it is asked for")
		assert.EqualValues(t, 1, figures[0].Count)
	})
	t.Run("a node's past beside its peers'", func(t *testing.T) {
		g.push(groups(start.Add(2 * time.Minute)))
		var past fleetapi.Past
		require.Eventually(t, func() bool {
			past = get[fleetapi.Past](g, "/nodes/node-a/past", "cluster", "east", "since", stamp(start), "until", stamp(start.Add(10*time.Minute)), "points", "11")
			return len(past.Signals) == 2 && slices.ContainsFunc(past.Signals[1].Median, func(v *float64) bool { return v != nil })
		}, deadline, 100*time.Millisecond)
		score, throughput := past.Signals[0], past.Signals[1]
		require.Equal(t, []string{"score", "throughput"}, []string{score.Signal, throughput.Signal})
		require.GreaterOrEqual(t, len(past.At), 10)
		for i, at := range past.At {
			// want has the newest first.
			last := slices.IndexFunc(want, func(s fleetapi.Sample) bool {
				return s.Cluster == "east" && s.Host == "node-a" && s.Metric == gpusemconv.MetricNodeHealthScore && !s.At.After(at)
			})
			require.InDelta(t, want[last].Value, *score.Value[i], 0, "at %s", at)
			if v := throughput.Median[i]; v != nil {
				require.InDelta(t, 3, *v, 0)
				require.InDelta(t, 2, *throughput.Value[i], 0)
			}
		}
	})
	mistakes(t, g)
}

func mistakes(t *testing.T, g *gateway) {
	t.Run("mistakes", func(t *testing.T) {
		start := time.Now().UTC()
		for path, location := range map[string]string{
			"/telemetry?limit=1001": "query.limit",
			"/telemetry?page=0":     "query.page",
			fmt.Sprintf("/telemetry?since=%s&until=%s", start.Format("2006-01-02T15:04:05Z"), start.Add(-time.Second).Format("2006-01-02T15:04:05Z")): "query.since",
			"/telemetry?since=yesterday":               "query.since",
			"/telemetry/aggregations?group_by=rack":    "query.group_by",
			"/telemetry/aggregations?since=a+while":    "query.since",
			"/telemetry/hosts?hots=x":                  "query.hots",
			"/telemetry/hosts/node-a/gpus?limit=00000": "query.limit",
		} {
			var problem struct {
				Errors []struct{ Message, Location string }
			}
			require.NoError(t, json.Unmarshal(g.ask(path, http.StatusUnprocessableEntity), &problem))
			require.NotEmpty(t, problem.Errors, path)
			assert.Equal(t, location, problem.Errors[0].Location, path)
			assert.NotEmpty(t, problem.Errors[0].Message)
		}
	})
}
