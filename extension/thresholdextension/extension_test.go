// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gpu-collector/gpu-collector/extension/thresholdextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/extension/thresholdextension/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/wire"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

func newTestExtension(t *testing.T, change func(*Config)) (*thresholdExtension, *componenttest.Telemetry) {
	tel := componenttest.NewTelemetry()
	t.Cleanup(func() { require.NoError(t, tel.Shutdown(context.WithoutCancel(t.Context()))) })
	cfg := createDefaultConfig().(*Config)
	if change != nil {
		change(cfg)
	}
	require.NoError(t, cfg.Validate())
	set := extension.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: tel.NewTelemetrySettings()}
	e, err := newExtension(set, cfg)
	require.NoError(t, err)
	require.NoError(t, e.Start(t.Context(), componenttest.NewNopHost()))
	require.NoError(t, e.Ready())
	t.Cleanup(func() { require.NoError(t, e.Shutdown(context.WithoutCancel(t.Context()))) })
	return e, tel
}

var version atomic.Int64

func publish(t *testing.T, e *thresholdExtension, cluster string, wide float64, groups ...threshold.Value) {
	c := &threshold.Cluster{Groups: map[string]*threshold.Entry{}}
	base := threshold.Value{Version: version.Add(1), QuorumMet: true, Median: 1, K: 2, Nodes: 8, TTL: 50 * time.Second}
	if wide >= 0 {
		base.Threshold = wide
		w, err := threshold.NewEntry(base)
		require.NoError(t, err)
		c.Wide = w
	}
	for _, g := range groups {
		v := base
		v.Group, v.Threshold, v.Ref = g.Group, g.Threshold, g.Ref
		entry, err := threshold.NewEntry(v)
		require.NoError(t, err)
		c.Groups[g.Group] = entry
	}
	e.Publish(&threshold.Snapshot{At: time.Now(), TTL: 50 * time.Second, Clusters: map[string]*threshold.Cluster{cluster: c}})
}

// gateway is an OTLP server behind the extension's server side.
type gateway struct {
	pmetricotlp.UnimplementedGRPCServer
	err    error
	caller wire.Caller
}

func (g *gateway) Export(ctx context.Context, _ pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	g.caller = wire.CallerFromContext(ctx)
	return pmetricotlp.NewExportResponse(), g.err
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.caller = wire.CallerFromContext(r.Context())
	if g.err != nil {
		http.Error(w, g.err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func serveHTTP(t *testing.T, e *thresholdExtension, g http.Handler, before ...func(http.Handler) http.Handler) string {
	wrap, err := e.GetHTTPHandler(t.Context())
	require.NoError(t, err)
	h, err := wrap(t.Context(), g)
	require.NoError(t, err)
	for _, around := range before {
		h = around(h)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

func serveGRPC(t *testing.T, e *thresholdExtension, g pmetricotlp.GRPCServer) string {
	opts, err := e.GetGRPCServerOptions(t.Context())
	require.NoError(t, err)
	srv := grpc.NewServer(opts...)
	pmetricotlp.RegisterGRPCServer(srv, g)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	return ln.Addr().String()
}

// pusher returns a push through the extension's client side.
func pusher(t *testing.T, e *thresholdExtension, transport, addr string) func() error {
	if transport == "grpc" {
		opts, err := e.GetGRPCClientOptions(t.Context())
		require.NoError(t, err)
		cc, err := grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		require.NoError(t, err)
		t.Cleanup(func() { _ = cc.Close() })
		return func() error {
			_, err := pmetricotlp.NewGRPCClient(cc).Export(t.Context(), pmetricotlp.NewExportRequest())
			return err
		}
	}
	wrap, err := e.GetHTTPRoundTripper(t.Context())
	require.NoError(t, err)
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	rt, err := wrap(t.Context(), base)
	require.NoError(t, err)
	c := &http.Client{Transport: rt}
	return func() error {
		resp, err := c.Post(addr+"/v1/metrics", "application/x-protobuf", nil)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.Body.Close()
	}
}

func serve(t *testing.T, e *thresholdExtension, g *gateway, transport string) string {
	if transport == "grpc" {
		return serveGRPC(t, e, g)
	}
	return serveHTTP(t, e, g)
}

func TestIngeroCompatibility(t *testing.T) {
	for name, tc := range map[string]struct {
		wide      float64
		cluster   string
		want      string
		wantQuery string
	}{
		"plain":                 {0.870348, "prod", "0.870348", "?cluster_id=prod"},
		"perfect fleet":         {1, "prod", "0.99", "?cluster_id=prod"},
		"hopeless fleet":        {0.01, "prod", "0.1", "?cluster_id=prod"},
		"no threshold":          {-1, "prod", "", "?cluster_id=prod"},
		"unknown cluster":       {0.8, "prod", "", "?cluster_id=elsewhere"},
		"query wins over claim": {0.8, "prod", "0.8", "?cluster_id=prod"},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newTestExtension(t, func(c *Config) { c.Compatibility = []string{"ingero"} })
			publish(t, e, tc.cluster, tc.wide)
			url := serveHTTP(t, e, &gateway{})
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/metrics"+tc.wantQuery, strings.NewReader("{}"))
			require.NoError(t, err)
			req.Header.Set("gpu-cluster", "claimed")
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, tc.want, resp.Header.Get("X-Ingero-Threshold"))
			quorum := ""
			if tc.want != "" {
				quorum = "true"
			}
			assert.Equal(t, quorum, resp.Header.Get("X-Ingero-Quorum-Met"))
		})
	}
	http.DefaultClient.CloseIdleConnections()
}

func get(t *testing.T, url string) (int, string, string) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	http.DefaultClient.CloseIdleConnections()
	return resp.StatusCode, resp.Header.Get("Content-Type"), string(body)
}

func TestAPI(t *testing.T) {
	api := confighttp.NewDefaultServerConfig()
	api.NetAddr.Endpoint = "127.0.0.1:0"
	e, _ := newTestExtension(t, func(c *Config) {
		c.API = configoptional.Some(api)
	})
	url := serveHTTP(t, e, &gateway{})

	code, _, body := get(t, url+"/api/v1/threshold?cluster_id=prod")
	assert.Equal(t, http.StatusServiceUnavailable, code, "no poller replaces its threshold by 0")
	assert.Contains(t, body, "has no threshold yet")
	publish(t, e, "prod", 0, threshold.Value{Group: "a"})
	code, _, _ = get(t, url+"/api/v1/threshold?cluster_id=prod")
	assert.Equal(t, http.StatusServiceUnavailable, code, "it warms up")

	publish(t, e, "prod", 0.870348, threshold.Value{Group: "b", Threshold: 0.5}, threshold.Value{Group: "a", Threshold: 0.25, Ref: 2})
	code, ct, body := get(t, url+"/api/v1/threshold?cluster_id=prod")
	assert.Equal(t, http.StatusOK, code)
	assert.Equal(t, "application/json", ct)
	assert.JSONEq(t, `{"threshold":0.870348,"quorum_met":true,"cluster_id":"prod"}`, body)

	code, ct, body = get(t, url+"/api/v1/threshold")
	assert.Equal(t, http.StatusBadRequest, code)
	assert.Equal(t, "application/problem+json", ct)
	assert.Contains(t, body, "cluster_id")
	code, _, _ = get(t, url+"/api/v1/threshold?cluster_id="+strings.Repeat("x", 254))
	assert.Equal(t, http.StatusBadRequest, code)

	_, _, body = get(t, url+"/api/v1/thresholds")
	var all []thresholdBody
	require.NoError(t, json.Unmarshal([]byte(body), &all))
	require.Len(t, all, 1)
	require.Len(t, all[0].Groups, 2)
	assert.Equal(t, "a", all[0].Groups[0].Group)
	assert.InDelta(t, 2, all[0].Groups[0].Ref, 0)

	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/api/v1/threshold?cluster_id=prod", http.NoBody)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
	http.DefaultClient.CloseIdleConnections()
}

func TestAPIPortInUseIsAnErrorThatNamesIt(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	cfg := createDefaultConfig().(*Config)
	api := confighttp.NewDefaultServerConfig()
	api.NetAddr.Endpoint = ln.Addr().String()
	cfg.API = configoptional.Some(api)
	e, err := newExtension(extension.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: componenttest.NewNopTelemetrySettings()}, cfg)
	require.NoError(t, err)
	err = e.Start(t.Context(), componenttest.NewNopHost())
	require.ErrorContains(t, err, "`api::endpoint` "+ln.Addr().String())
	require.NoError(t, e.Shutdown(t.Context()))
}

// TestNobodyIsAnsweredBeforeThePipelines: a poller that comes as the process starts waits,
// and hears of the thresholds that the processor begins with.
func TestNobodyIsAnsweredBeforeThePipelines(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	api := confighttp.NewDefaultServerConfig()
	api.NetAddr.Endpoint = "127.0.0.1:0"
	cfg.API = configoptional.Some(api)
	e, err := newExtension(extension.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: componenttest.NewNopTelemetrySettings()}, cfg)
	require.NoError(t, err)
	require.NoError(t, e.Start(t.Context(), componenttest.NewNopHost()))
	url := "http://" + e.listener.Addr().String() + "/api/v1/threshold?cluster_id=prod"
	answered := make(chan error, 1)
	go func() {
		resp, err := http.Get(url) //nolint:noctx // the test ends it
		if err == nil {
			err = resp.Body.Close()
		}
		answered <- err
	}()
	select {
	case err := <-answered:
		require.Fail(t, "answered", "%v", err)
	case <-time.After(100 * time.Millisecond):
	}
	require.NoError(t, e.Ready())
	require.NoError(t, <-answered)
	require.NoError(t, e.NotReady())
	require.NoError(t, e.Shutdown(t.Context()))
}

// TestForeignNamesAreRefused on the API's own port and on the receiver's, where nobody
// is asked who they are.
func TestForeignNamesAreRefused(t *testing.T) {
	addr := loopback.FreeAddr(t)
	e, tel := newTestExtension(t, func(c *Config) {
		require.NoError(t, confmap.NewFromStringMap(map[string]any{"api": map[string]any{"endpoint": addr}, "allowed_hosts": []any{"gateway.example.com"}}).Unmarshal(c))
	})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	ask := func(method, url, name string, headers ...string) int {
		req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
		require.NoError(t, err)
		req.Host = name
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	const evil = "evil.example.com"
	receiver := serveHTTP(t, e, &gateway{})
	for _, api := range []string{"http://" + addr + thresholdsPath, receiver + thresholdsPath} {
		assert.Equal(t, http.StatusOK, ask(http.MethodGet, api, ""), api)
		assert.Equal(t, http.StatusOK, ask(http.MethodGet, api, "gateway.example.com:8085"), api)
		assert.Equal(t, http.StatusMisdirectedRequest, ask(http.MethodGet, api, evil), api)
	}
	// An agent pushes by whatever name leads here. A page's push says where it is from.
	assert.Equal(t, http.StatusOK, ask(http.MethodPost, receiver+metricsPath, evil))
	assert.Equal(t, http.StatusMisdirectedRequest, ask(http.MethodPost, receiver+metricsPath, evil, "Origin", "http://"+evil))
	assert.Equal(t, http.StatusOK, ask(http.MethodPost, receiver+metricsPath, "", "Origin", "http://10.0.0.7"))

	// A client with a password, or a certificate for the name, is no page.
	authenticated := serveHTTP(t, e, &gateway{}, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r.WithContext(client.NewContext(r.Context(), client.Info{Auth: authData{}})))
		})
	})
	assert.Equal(t, http.StatusOK, ask(http.MethodGet, authenticated+thresholdsPath, evil))
	overTLS := serveHTTP(t, e, &gateway{}, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.TLS = &tls.ConnectionState{}
			h.ServeHTTP(w, r)
		})
	})
	assert.Equal(t, http.StatusOK, ask(http.MethodGet, overTLS+thresholdsPath, evil))

	// A handler that panics is counted, and the connection goes on.
	e.now = func() time.Time { panic("what time is it?") }
	assert.Equal(t, http.StatusInternalServerError, ask(http.MethodGet, "http://"+addr+thresholdsPath, ""))
	metadatatest.AssertEqualExtensionStragglerThresholdPanics(t, tel, []metricdata.DataPoint[int64]{{Value: 1}}, metricdatatest.IgnoreTimestamp())
}
