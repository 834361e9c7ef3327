// SPDX-License-Identifier: Apache-2.0

package expositionextension

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/confmap/xconfmap"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/extension/expositionextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/promparse"
)

// open has the extension make the table of a diff.
func open(t *testing.T, e *exposition) *otlp.Engine {
	t.Helper()
	engine, release, err := e.Open("diff", lastvalue.Settings{})
	require.NoError(t, err)
	t.Cleanup(release)
	return engine
}

// consume has the engine take a report, and the next hop what goes on.
func consume(t *testing.T, engine *otlp.Engine, md pmetric.Metrics) {
	t.Helper()
	_, err := engine.Consume(t.Context(), md, func(context.Context, otlp.Message) error { return nil })
	require.NoError(t, err)
}

func newTestExtension(t *testing.T) *exposition {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	cfg.HTTP.GetOrInsertDefault().NetAddr.Endpoint = loopback.FreeAddr(t)
	require.NoError(t, xconfmap.Validate(cfg))
	return extensionOf(t, cfg)
}

func extensionOf(t *testing.T, cfg *Config) *exposition {
	t.Helper()
	return newExtension(extensiontest.NewNopSettings(metadata.Type), cfg)
}

// push has a node report a value of each of its GPUs.
func push(t *testing.T, engine *otlp.Engine, cluster, host string, gpus int) {
	t.Helper()
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, cluster)
	rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, host)
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("hw.energy")
	m.SetDescription("Energy since the driver was loaded.")
	m.SetUnit("J")
	m.SetEmptySum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	m.Sum().SetIsMonotonic(true)
	for g := range gpus {
		dp := m.Sum().DataPoints().AppendEmpty()
		dp.SetDoubleValue(float64(g))
		dp.Attributes().PutStr("hw.id", fmt.Sprint("GPU-", g))
	}
	consume(t, engine, md)
}

func serve(t *testing.T, e *exposition) http.Handler {
	t.Helper()
	h, err := e.handler()
	require.NoError(t, err)
	return h
}

func scrape(h http.Handler, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1"+target, http.NoBody)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// get scrapes an extension that runs, by a name where it is not empty.
func get(t *testing.T, e *exposition, host string) (code int, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+e.cfg.HTTP.Get().NetAddr.Endpoint+"/metrics", http.NoBody)
	require.NoError(t, err)
	req.Host = host
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	http.DefaultClient.CloseIdleConnections()
	return resp.StatusCode, string(body)
}

// fleet are the series of the nodes' GPUs.
func fleet(t *testing.T, w *httptest.ResponseRecorder) map[string]float64 {
	t.Helper()
	require.Equal(t, http.StatusOK, w.Code)
	kind := promparse.Text
	if strings.Contains(w.Header().Get("Content-Type"), "openmetrics") {
		kind = promparse.OpenMetrics
	}
	got, err := promparse.Parse(w.Body.Bytes(), kind)
	require.NoError(t, err)
	for series := range got.Series {
		if !strings.Contains(series, "hw_id=") {
			delete(got.Series, series)
		}
	}
	return got.Series
}

func TestConfig(t *testing.T) {
	cm, err := confmaptest.LoadConf("testdata/config.yaml")
	require.NoError(t, err)
	load := func(name string) *Config {
		sub, err := cm.Sub(name)
		require.NoError(t, err)
		cfg := createDefaultConfig().(*Config)
		require.NoError(t, sub.Unmarshal(cfg))
		return cfg
	}
	plain := load("exposition")
	require.NoError(t, xconfmap.Validate(plain))
	assert.False(t, plain.HTTP.HasValue(), "serves nothing")
	assert.Equal(t, createDefaultConfig(), plain)
	all := load("exposition/all")
	require.NoError(t, xconfmap.Validate(all))
	assert.Equal(t, 20*time.Second, all.HTTP.Get().WriteTimeout)
	want := &Config{
		TTL: 5 * time.Minute, MaxNodes: 2000, MaxSeries: 1_000_000, MaxSeriesPerNode: 5000, MaxBytes: 100_000_000, ClusterShare: 0.8,
		HTTP: all.HTTP, AllowedHosts: []string{"gateway.example.com"}, MetricExpiration: time.Minute,
		ResourceAttributes: []string{"host.name"}, MaxScrapes: 4,
	}
	assert.Equal(t, want, all)
	served := load("exposition/served").HTTP.Get()
	assert.Equal(t, 30*time.Second, served.WriteTimeout)
	assert.Equal(t, "127.0.0.1:9464", served.NetAddr.Endpoint)
}

func TestValidate(t *testing.T) {
	for want, edit := range map[string]func(*Config){
		"`metric_expiration` is 0s: must be positive":                                func(c *Config) { c.MetricExpiration = 0 },
		"`max_scrapes` is 0: must be at least 1":                                     func(c *Config) { c.MaxScrapes = 0 },
		"`ttl` is 999ms: must be at least 1s":                                        func(c *Config) { c.TTL = 999 * time.Millisecond },
		"`max_nodes` is 0: must be at least 1":                                       func(c *Config) { c.MaxNodes = 0 },
		"`max_series` is 0: must be between 1 and":                                   func(c *Config) { c.MaxSeries = 0 },
		"`max_series` is 1000000001: must be":                                        func(c *Config) { c.MaxSeries = maxSeriesLimit + 1 },
		"`max_series_per_node` is 65535: must be between 1 and 65534":                func(c *Config) { c.MaxSeriesPerNode = 65535 },
		"`max_bytes` is 1000: must be at least 1048576, or 0 for 25 % of the memory": func(c *Config) { c.MaxBytes = 1000 },
		"`cluster_share` is NaN: must be in (0,1]":                                   func(c *Config) { c.ClusterShare = math.NaN() },
	} {
		cfg := createDefaultConfig().(*Config)
		edit(cfg)
		assert.ErrorContains(t, cfg.Validate(), want)
	}
}

// TestMemoryFollowsTheLimit of the process, where it has one.
func TestMemoryFollowsTheLimit(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	cfg := createDefaultConfig().(*Config)
	assert.Equal(t, int64(512<<20), cfg.MemoryBytes())
	debug.SetMemoryLimit(800 << 20)
	assert.Equal(t, int64(200<<20), cfg.MemoryBytes())
	cfg.MaxBytes = 5 << 20
	assert.Equal(t, int64(5<<20), cfg.MemoryBytes())
}

func TestServesTheTableOfOneDiff(t *testing.T) {
	e := newTestExtension(t)
	require.NoError(t, e.Start(t.Context(), componenttest.NewNopHost()))
	defer func() { require.NoError(t, e.Shutdown(t.Context())) }()
	engine, release, err := e.Open("diff", lastvalue.Settings{})
	require.NoError(t, err)
	push(t, engine, "a", "n1", 2)
	_, _, err = e.Open("diff/push", lastvalue.Settings{})
	require.EqualError(t, err, "`diff` has this table already: each diff needs one of its own, such as `exposition/NAME`, and is of one pipeline")
	_, _, err = e.Open("diff", lastvalue.Settings{VanishedAfter: e.cfg.TTL})
	require.EqualError(t, err, "`vanished_after` is 10m0s: must be below `ttl` (10m0s) of the table, or 0 for never")
	series := func() int {
		code, text := get(t, e, "")
		require.Equal(t, http.StatusOK, code)
		return strings.Count(text, "hw_energy_joules_total{")
	}
	assert.Equal(t, 2, series())
	release()
	assert.Zero(t, series())
	push(t, open(t, e), "b", "n2", 3)
	assert.Equal(t, 3, series())
}

func TestFormats(t *testing.T) {
	e := newTestExtension(t)
	engine := open(t, e)
	push(t, engine, "a", "n", 100)
	h := serve(t, e)
	const openMetrics, protobuf = "application/openmetrics-text; version=1.0.0", "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
	for accept, want := range map[string]string{
		"":                                "text/plain; version=0.0.4",
		"*/*":                             "text/plain; version=0.0.4",
		protobuf:                          "text/plain; version=0.0.4",
		openMetrics:                       openMetrics,
		protobuf + "," + openMetrics:      openMetrics,
		openMetrics + ";q=0.5,text/plain": "text/plain; version=0.0.4",
		openMetrics + "; q=0.000, */*":    "text/plain; version=0.0.4",
		strings.ToUpper(openMetrics):      openMetrics,
		"*/*;q=0":                         "text/plain; version=0.0.4",
		"garbage,;q":                      "text/plain; version=0.0.4",
	} {
		w := scrape(h, "/metrics", "Accept", accept)
		assert.True(t, strings.HasPrefix(w.Header().Get("Content-Type"), want), "%q: %v", accept, w.Header())
		assert.Equal(t, want == openMetrics, bytes.HasSuffix(w.Body.Bytes(), []byte("# EOF\n")))
		assert.Len(t, fleet(t, w), 100)
	}
	w := scrape(h, "/metrics", "Accept-Encoding", "gzip")
	require.Equal(t, "gzip", w.Header().Get("Content-Encoding"))
	assert.ElementsMatch(t, []string{"Accept", "Accept-Encoding"}, w.Header().Values("Vary"))
	plain, err := gzip.NewReader(w.Body)
	require.NoError(t, err)
	w.Body = new(bytes.Buffer)
	_, err = io.Copy(w.Body, plain)
	require.NoError(t, err)
	assert.Len(t, fleet(t, w), 100)
	assert.Empty(t, scrape(h, "/metrics", "Accept-Encoding", "gzip;q=0").Header().Get("Content-Encoding"))
	assert.Equal(t, http.StatusNotFound, scrape(h, "/other").Code)
}

func TestParts(t *testing.T) {
	e := newTestExtension(t)
	engine := open(t, e)
	for c := range 3 {
		for n := range 10 {
			push(t, engine, fmt.Sprint("c", c), fmt.Sprint("n", n), 2)
		}
	}
	h := serve(t, e)
	whole := fleet(t, scrape(h, "/metrics"))
	require.Len(t, whole, 60)
	for _, targets := range [][]string{
		{"/metrics?cluster=c0", "/metrics?cluster=c1", "/metrics?cluster=c2"},
		{"/metrics?shard=0&of=3", "/metrics?shard=1&of=3", "/metrics?shard=2&of=3"},
	} {
		sum := map[string]float64{}
		for _, target := range targets {
			w := scrape(h, target)
			assert.Equal(t, strings.HasSuffix(target, "shard=0&of=3"), strings.Contains(w.Body.String(), "requests_total{"))
			part := fleet(t, w)
			assert.Less(t, len(part), 40)
			for series, v := range part {
				assert.NotContains(t, sum, series, "in one part")
				sum[series] = v
			}
		}
		assert.Equal(t, whole, sum)
	}
	assert.Empty(t, fleet(t, scrape(h, "/metrics?cluster=none")))
	for _, query := range []string{"shard=0", "of=3", "shard=3&of=3", "shard=-1&of=3", "shard=0&of=0", "shard=0&of=5000", "shard=a&of=3"} {
		w := scrape(h, "/metrics?"+query)
		assert.Equal(t, http.StatusBadRequest, w.Code, query)
		assert.Contains(t, w.Body.String(), "`shard` is")
	}
}

// slow is a reader that takes nothing until it is released.
type slow struct {
	*httptest.ResponseRecorder
	began, read chan struct{}
}

func (s *slow) Write(p []byte) (int, error) {
	s.began <- struct{}{}
	<-s.read
	return s.ResponseRecorder.Write(p)
}

// Slow readers hold all slots, and pushes of the very nodes go on. A reader without a slot
// is refused, and counted.
func TestSlowReaders(t *testing.T) {
	e := newTestExtension(t)
	engine := open(t, e)
	push(t, engine, "a", "n", 2000)
	h := serve(t, e)
	s := &slow{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	from := func(address string) *http.Request {
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1/metrics", http.NoBody)
		r.RemoteAddr = address
		return r
	}
	for _, address := range []string{"192.0.2.1:1", "192.0.2.1:2", "192.0.2.2:1"} {
		go func() {
			own := *s
			own.ResponseRecorder = httptest.NewRecorder()
			h.ServeHTTP(&own, from(address))
			done <- struct{}{}
		}()
		<-s.began
	}
	cancel() // this one does not wait
	w := httptest.NewRecorder()
	h.ServeHTTP(w, from("192.0.2.3:1"))
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Equal(t, retryAfter, w.Header().Get("Retry-After"))
	assert.Contains(t, w.Body.String(), "`max_scrapes`")
	push(t, engine, "a", "n", 2100)
	close(s.read)
	for ended := 0; ended < e.cfg.MaxScrapes; {
		select {
		case <-s.began:
		case <-done:
			ended++
		}
	}
	w = scrape(h, "/metrics")
	assert.Len(t, fleet(t, w), 2100)
	assert.Contains(t, w.Body.String(), ownPrefix+`promhttp_metric_handler_requests_total{code="503"} 1`)
}

// gone is a reader that is not there any more.
type gone struct{ http.ResponseWriter }

func (gone) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestNobodyTakesAPartForTheWhole(t *testing.T) {
	e := newTestExtension(t)
	engine := open(t, e)
	push(t, engine, "a", "n", 1)
	h := serve(t, e)
	for range 2 * e.cfg.MaxScrapes { // and its slot is free again
		assert.PanicsWithValue(t, http.ErrAbortHandler, func() {
			h.ServeHTTP(gone{httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, "http://127.0.0.1/metrics", http.NoBody))
		})
	}
}

func TestOwnFigures(t *testing.T) {
	e := newTestExtension(t)
	engine := open(t, e)
	for c := range maxOwnClusters + 20 {
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, fmt.Sprintf("c%03d", c))
		for i := range 2 + c%2 { // every second cluster has more to hide
			m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
			m.SetName(fmt.Sprint("gpu.exposition.mine.", i))
			m.SetEmptyGauge().DataPoints().AppendEmpty().SetIntValue(1)
		}
		consume(t, engine, md)
	}
	push(t, engine, "a", "n", 3)
	w := scrape(serve(t, e), "/metrics")
	text := w.Body.String()
	assert.Len(t, fleet(t, w), 3)
	assert.Contains(t, text, "\ngpu_exposition_series 4\n")
	assert.Contains(t, text, "\ngpu_exposition_nodes 121\n")
	assert.Contains(t, text, "\ngpu_exposition_type_conflicts 0\n")
	assert.Contains(t, text, `gpu_exposition_hidden{k8s_cluster_name="c119",reason="reserved_name"} 3`)
	assert.Contains(t, text, `gpu_exposition_hidden{k8s_cluster_name="_other",reason="reserved_name"} 40`)
	assert.Equal(t, maxOwnClusters+1, strings.Count(text, "gpu_exposition_hidden{"))
	assert.NotContains(t, text, "gpu_exposition_mine")
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	require.NoError(t, err)
	assert.Empty(t, problems)
}

// A page of the web whose name leads here learns nothing.
func TestForeignNamesAreRefused(t *testing.T) {
	e := newTestExtension(t)
	e.cfg.AllowedHosts = []string{"gateway.example.com"}
	require.NoError(t, e.Start(t.Context(), componenttest.NewNopHost()))
	defer func() { require.NoError(t, e.Shutdown(t.Context())) }()
	for name, want := range map[string]int{"gateway.example.com:9464": http.StatusOK, "evil.example.com:9464": http.StatusMisdirectedRequest} {
		code, _ := get(t, e, name)
		assert.Equal(t, want, code, name)
	}
}
