// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
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
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpu-collector/gpu-collector/extension/thresholdextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/extension/thresholdextension/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
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
		v.Group, v.Threshold, v.Ref, v.All = g.Group, g.Threshold, g.Ref, g.All
		v.Verdicts = threshold.NewVerdicts(g.Group, v.Version, g.Verdicts.List())
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

// TestNoPushBeforeThePipelinesAreReady: whoever pushes to its own process dials when it listens.
func TestNoPushBeforeThePipelinesAreReady(t *testing.T) {
	e, err := newExtension(extension.Settings{TelemetrySettings: componenttest.NewNopTelemetrySettings()}, createDefaultConfig().(*Config))
	require.NoError(t, err)
	opts, err := e.GetGRPCClientOptions(t.Context())
	require.NoError(t, err)
	cc, err := grpc.NewClient("127.0.0.1:1", append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	push := func(ctx context.Context) codes.Code {
		_, err := pmetricotlp.NewGRPCClient(cc).Export(ctx, pmetricotlp.NewExportRequest())
		return status.Code(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	assert.Equal(t, codes.DeadlineExceeded, push(soon))
	assert.Equal(t, connectivity.Idle, cc.GetState(), "nobody has dialled")
	require.NoError(t, e.Ready())
	assert.Equal(t, codes.Unavailable, push(t.Context()), "nobody listens there")
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

func TestThresholdCrossesTheWire(t *testing.T) {
	for _, transport := range []string{"grpc", "http"} {
		t.Run(transport, func(t *testing.T) {
			server, tel := newTestExtension(t, nil)
			node, nodeTel := newTestExtension(t, nil)
			g := &gateway{}
			push := pusher(t, node, transport, serve(t, server, g, transport))
			assert.False(t, node.Reachable())

			node.SetClaim(wire.Claim{Cluster: "prod", Node: "n1", Groups: []string{"AR/stage-0", "unknown"}})
			require.NoError(t, push())
			_, ok := node.Received("prod", "AR/stage-0")
			assert.False(t, ok, "nothing is said before something is known")
			assert.True(t, node.Reachable())
			assert.Equal(t, wire.Caller{Cluster: "prod"}, g.caller)

			publish(t, server, "prod", 0.9,
				threshold.Value{Group: "AR/stage-0", Threshold: 0.8, Ref: 0.0520833333},
				threshold.Value{Group: "AR/stage-1", Threshold: 0.7})
			require.NoError(t, push())
			r, ok := node.Received("prod", "AR/stage-0")
			require.True(t, ok)
			assert.InDelta(t, 0.8, r.Threshold, 0)
			assert.InDelta(t, 0.0520833333, r.Ref, 0)
			assert.True(t, r.QuorumMet)
			assert.Equal(t, 50*time.Second, r.TTL)
			r, ok = node.Received("prod", "")
			require.True(t, ok)
			assert.InDelta(t, 0.9, r.Threshold, 0)
			_, ok = node.Received("prod", "AR/stage-1")
			assert.False(t, ok, "only the groups asked for")
			_, ok = node.Received("prod", "unknown")
			assert.False(t, ok)

			g.err = status.Error(codes.Unavailable, "overloaded")
			publish(t, server, "prod", 0.9, threshold.Value{Group: "AR/stage-0", Threshold: 0.6})
			_ = push()
			r, _ = node.Received("prod", "AR/stage-0")
			assert.InDelta(t, 0.6, r.Threshold, 0, "refusals carry the headers too")

			metadatatest.AssertEqualExtensionStragglerThresholdRequests(t, tel, []metricdata.DataPoint[int64]{
				{Attributes: outcomeSet(transport, outcomeServed), Value: 2},
				{Attributes: outcomeSet(transport, outcomeNoThreshold), Value: 1},
			}, metricdatatest.IgnoreTimestamp())
			got, err := nodeTel.GetMetric("otelcol_extension_straggler_threshold_responses")
			require.NoError(t, err)
			assert.NotEmpty(t, got.Data)
		})
	}
}

// TestMiddleTier pushes node -> shard -> gateway: the shard asks above for what
// was asked of it and hands the answer down. It is of no cluster for it.
func TestMiddleTier(t *testing.T) {
	for _, transport := range []string{"grpc", "http"} {
		t.Run(transport, func(t *testing.T) {
			top, _ := newTestExtension(t, nil)
			shard, _ := newTestExtension(t, nil)
			node, _ := newTestExtension(t, nil)
			publish(t, top, "prod", 0.9, threshold.Value{Group: "g", Threshold: 0.8})
			above, below := &gateway{}, &gateway{}
			up := pusher(t, shard, transport, serve(t, top, above, transport))
			push := pusher(t, node, transport, serve(t, shard, below, transport))
			node.SetClaim(wire.Claim{Cluster: "prod", Node: "n", Groups: []string{"g"}})

			require.NoError(t, push())
			_, ok := node.Received("prod", "g")
			assert.False(t, ok)
			require.NoError(t, up())
			require.NoError(t, push())
			r, ok := node.Received("prod", "g")
			require.True(t, ok)
			assert.InDelta(t, 0.8, r.Threshold, 0)
			r, ok = node.Received("prod", "")
			require.True(t, ok)
			assert.InDelta(t, 0.9, r.Threshold, 0)
			assert.Equal(t, wire.Caller{Cluster: "prod"}, below.caller)
			assert.Empty(t, above.caller, "nodes without a cluster are not of the one asked for")
		})
	}
}

// TestTheVerdictReachesItsNode from the gateway, or through a tier in between, while its
// tick is the newest and lives.
func TestTheVerdictReachesItsNode(t *testing.T) {
	said := threshold.Verdict{Node: "n", Since: time.Unix(1789999990, 0).UTC(), Loss: 0.12, Signal: nodesignal.Throughput}
	group := func(stragglers ...threshold.Verdict) threshold.Value {
		return threshold.Value{Group: "g", Threshold: 0.8, All: true, Verdicts: threshold.NewVerdicts("g", 1, stragglers)}
	}
	for _, transport := range []string{"grpc", "http"} {
		for _, tiers := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s over %d tiers", transport, tiers), func(t *testing.T) {
				top, _ := newTestExtension(t, nil)
				above := serve(t, top, &gateway{}, transport)
				up := func() error { return nil }
				if tiers == 1 {
					shard, _ := newTestExtension(t, nil)
					up = pusher(t, shard, transport, above)
					above = serve(t, shard, &gateway{}, transport)
				}
				node, _ := newTestExtension(t, nil)
				push := pusher(t, node, transport, above)
				ask := func(name string) (verdict threshold.Verdict, straggler, told bool) {
					node.SetClaim(wire.Claim{Cluster: "prod", Node: name, Groups: []string{"g"}})
					for range 2 {
						require.NoError(t, push())
						require.NoError(t, up())
					}
					require.NoError(t, push())
					r, ok := node.Received("prod", "g")
					require.True(t, ok)
					assert.True(t, r.Fresh(time.Now()) && !r.Fresh(time.Now().Add(time.Minute)))
					return r.Of(name)
				}
				publish(t, top, "prod", 0.9, group(threshold.Verdict{Node: "worse", Loss: 0.5}, said))
				verdict, straggler, _ := ask("n")
				assert.True(t, straggler)
				assert.Equal(t, said, verdict)
				_, straggler, told := ask("m")
				assert.True(t, !straggler && told, "in good standing")

				publish(t, top, "prod", 0.9, group())
				_, straggler, told = ask("n")
				assert.True(t, !straggler && told, "the newer tick lists it no more")
				publish(t, top, "prod", 0.9, threshold.Value{Group: "g", Threshold: 0.8})
				_, straggler, told = ask("n")
				assert.False(t, straggler || told, "this gateway gives no verdicts")
			})
		}
	}
}

// TestAWaitIsAnAnswer: who asks a sender to come back is there, also without headers.
func TestAWaitIsAnAnswer(t *testing.T) {
	wait, err := status.New(codes.Unavailable, "late").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
	require.NoError(t, err)
	for _, answer := range []*status.Status{wait, status.New(codes.Unavailable, "a proxy")} {
		srv := grpc.NewServer()
		pmetricotlp.RegisterGRPCServer(srv, &gateway{err: answer.Err()})
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		done := make(chan struct{})
		go func() { defer close(done); _ = srv.Serve(ln) }()
		node, _ := newTestExtension(t, nil)
		require.Error(t, pusher(t, node, "grpc", ln.Addr().String())())
		assert.Equal(t, answer == wait, node.Reachable(), answer.Message())
		srv.Stop()
		<-done
	}
}

func TestGatewayAway(t *testing.T) {
	for _, transport := range []string{"grpc", "http"} {
		t.Run(transport, func(t *testing.T) {
			addr := loopback.FreeAddr(t)
			if transport == "http" {
				addr = "http://" + addr
			}
			node, tel := newTestExtension(t, func(c *Config) { c.Cluster = "prod" })
			node.reachable.Store(true)
			require.Error(t, pusher(t, node, transport, addr)())
			assert.False(t, node.Reachable())
			metadatatest.AssertEqualExtensionStragglerThresholdResponses(t, tel, []metricdata.DataPoint[int64]{
				{Attributes: outcomeSet(transport, outcomeUnanswered), Value: 1},
			}, metricdatatest.IgnoreTimestamp())
		})
	}
}

func TestProxyThatSpeaksForAnAbsentGateway(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	for code, want := range map[int]bool{200: true, 400: true, 429: true, 500: false, 502: false, 503: false, 504: false} {
		resp := &http.Response{StatusCode: code, Header: http.Header{}}
		assert.Equal(t, want, e.answered(resp), code)
		resp.Header.Set("Retry-After", "3")
		assert.True(t, e.answered(resp), code)
	}
}

func TestHostileAnswers(t *testing.T) {
	e, tel := newTestExtension(t, func(c *Config) { c.Cluster = "prod" })
	answer := http.Header{}
	for _, bad := range []string{"NaN", "7", "-1", strings.Repeat("9", 9000)} {
		answer.Set("gpu-straggler-threshold", bad)
		answer.Set("gpu-straggler-quorum-met", "true")
		e.hear(t.Context(), "http", &wire.Claim{Cluster: "prod"}, answer.Values, true)
	}
	answer.Set("gpu-straggler-threshold", "0.5")
	answer.Set("gpu-straggler-quorum-met", "yes")
	answer.Set("gpu-straggler-params", `"ok";v=1;q;t="0.5";m="1";s="0";k="2";n=5;ttl=50, "bad";v=1`)
	e.hear(t.Context(), "http", &wire.Claim{Cluster: "prod"}, answer.Values, true)
	_, ok := e.Received("prod", "")
	assert.False(t, ok)
	_, ok = e.Received("prod", "ok")
	assert.True(t, ok, "the valid member still counts")
	metadatatest.AssertEqualExtensionStragglerThresholdResponses(t, tel, []metricdata.DataPoint[int64]{
		{Attributes: outcomeSet("http", outcomeInvalid), Value: 5},
	}, metricdatatest.IgnoreTimestamp())
}

func TestHostileRequests(t *testing.T) {
	e, tel := newTestExtension(t, nil)
	publish(t, e, "prod", 0.9)
	url := serveHTTP(t, e, &gateway{})
	for name, change := range map[string]func(*http.Request){
		"long cluster":   func(r *http.Request) { r.Header.Set("gpu-cluster", strings.Repeat("c", 300)) },
		"no ASCII":       func(r *http.Request) { r.Header.Set("gpu-cluster", "clüster") },
		"broken groups":  func(r *http.Request) { r.Header.Set("gpu-cluster", "prod"); r.Header.Set("gpu-group", "\"open") },
		"hundred groups": func(r *http.Request) { r.Header.Set("gpu-group", strings.Repeat(`"g",`, 100)+`"g"`) },
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/metrics", http.NoBody)
			require.NoError(t, err)
			change(req)
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, http.StatusOK, resp.StatusCode, "the data is not refused for a bad claim")
			assert.Empty(t, resp.Header.Get("gpu-straggler-params"))
		})
	}
	metadatatest.AssertEqualExtensionStragglerThresholdRequests(t, tel, []metricdata.DataPoint[int64]{
		{Attributes: outcomeSet("http", outcomeInvalid), Value: 4},
	}, metricdatatest.IgnoreTimestamp())
	http.DefaultClient.CloseIdleConnections()
}

type logsServer struct {
	plogotlp.UnimplementedGRPCServer
}

func (*logsServer) Export(context.Context, plogotlp.ExportRequest) (plogotlp.ExportResponse, error) {
	return plogotlp.NewExportResponse(), nil
}

func TestOnlyMetricsPushesAreAnswered(t *testing.T) {
	e, tel := newTestExtension(t, nil)
	publish(t, e, "prod", 0.9)
	opts, err := e.GetGRPCServerOptions(t.Context())
	require.NoError(t, err)
	srv := grpc.NewServer(opts...)
	plogotlp.RegisterGRPCServer(srv, &logsServer{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	cc, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	var md grpcmetadata.MD
	ctx := grpcmetadata.AppendToOutgoingContext(t.Context(), "gpu-cluster", "prod")
	_, err = plogotlp.NewGRPCClient(cc).Export(ctx, plogotlp.NewExportRequest(), grpc.Header(&md))
	require.NoError(t, err)
	assert.Empty(t, md.Get("gpu-straggler-threshold"))

	_, err = tel.GetMetric("otelcol_extension_straggler_threshold_requests")
	require.Error(t, err, "nothing is counted")
}

// TestAnyPathIsAnswered: a receiver's `metrics_url_path` may be any.
func TestAnyPathIsAnswered(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	publish(t, e, "prod", 0.9)
	url := serveHTTP(t, e, &gateway{})
	for method, want := range map[string]string{http.MethodPost: "0.9", http.MethodGet: ""} {
		req, err := http.NewRequestWithContext(t.Context(), method, url+"/push", http.NoBody)
		require.NoError(t, err)
		req.Header.Set("gpu-cluster", "prod")
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, want, resp.Header.Get("gpu-straggler-threshold"), method)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestAGatewayKeepsNoAsks(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	answerTo(t.Context(), e, "anything", `"g"`)
	assert.Equal(t, wire.Claim{}, e.asks.Next(time.Now()), "only a middle tier asks on")
}

func TestManyGroupsAreAskedForInTurn(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	groups := make([]string, 40)
	for i := range groups {
		groups[i] = "g" + string(rune('A'+i))
	}
	e.SetClaim(wire.Claim{Cluster: "prod", Groups: groups})
	asked := map[string]bool{}
	for range 3 {
		some := e.ask()
		assert.LessOrEqual(t, len(some.Groups), wire.MaxGroups)
		for _, g := range some.Groups {
			asked[g] = true
		}
	}
	assert.Len(t, asked, len(groups))
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

	code, _, body := get(t, url+"/api/v1/threshold?cluster=prod")
	assert.Equal(t, http.StatusOK, code, "a cluster without a threshold is no error")
	assert.JSONEq(t, `{"threshold":0,"quorum_met":false,"cluster":"prod"}`, body)

	publish(t, e, "prod", 0.870348, threshold.Value{Group: "b", Threshold: 0.5, Verdicts: threshold.NewVerdicts("b", 1, []threshold.Verdict{
		{Node: "n", Loss: 0.1, Signal: nodesignal.CPU, Since: time.Unix(1789999990, 0).UTC()}, {Node: "m", Loss: 0.2, Signal: nodesignal.Count},
	})}, threshold.Value{Group: "a", Threshold: 0.25, Ref: 2})
	code, ct, body := get(t, url+"/api/v1/threshold?cluster=prod")
	assert.Equal(t, http.StatusOK, code)
	assert.Equal(t, "application/json", ct)
	assert.JSONEq(t, `{"threshold":0.870348,"quorum_met":true,"cluster":"prod"}`, body)

	code, ct, body = get(t, url+"/api/v1/threshold")
	assert.Equal(t, http.StatusBadRequest, code)
	assert.Equal(t, "application/problem+json", ct)
	assert.Contains(t, body, "`cluster` is missing")
	code, _, _ = get(t, url+"/api/v1/threshold?cluster="+strings.Repeat("x", 254))
	assert.Equal(t, http.StatusBadRequest, code)
	_, _, body = get(t, url+"/api/v1/threshold?cluster_id=prod")
	assert.Contains(t, body, `"threshold":0.870348`, "as Ingero's pollers ask")
	code, _, body = get(t, url+"/api/v1/threshold?cluster_id=prod&cluster=other")
	assert.Equal(t, http.StatusBadRequest, code)
	assert.Contains(t, body, "name two clusters")

	_, _, body = get(t, url+"/api/v1/thresholds?cluster=other")
	assert.JSONEq(t, "[]", body)
	_, _, body = get(t, url+"/api/v1/thresholds")
	var all []thresholdBody
	require.NoError(t, json.Unmarshal([]byte(body), &all))
	require.Len(t, all, 1)
	require.Len(t, all[0].Groups, 2)
	assert.Equal(t, "a", all[0].Groups[0].Group)
	assert.InDelta(t, 2, all[0].Groups[0].Ref, 0)
	assert.Contains(t, body, `"stragglers":[{"node":"m","loss":0.2},{"node":"n","since":"2026-09-21T14:13:10Z","loss":0.1,"signal":"cpu"}]`)

	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/api/v1/threshold?cluster_id=prod", http.NoBody)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
	http.DefaultClient.CloseIdleConnections()
}

type authData map[string]string

func (a authData) GetAttribute(name string) any { return a[name] }

func (a authData) GetAttributeNames() []string { return nil }

// answerTo is what a push that claims a cluster, and asks for groups, is answered.
func answerTo(ctx context.Context, e *thresholdExtension, cluster string, groups ...string) (wire.Caller, []wire.Header) {
	header := http.Header{"Gpu-Cluster": {cluster}, "Gpu-Group": groups}
	p := threshold.Push{Transport: threshold.HTTP, Header: header.Values}
	e.identify(ctx, &p, cluster, "")
	return p.Caller, e.answer(ctx, &p)
}

func TestClusterIsBoundToTheCredentials(t *testing.T) {
	e, _ := newTestExtension(t, func(c *Config) { c.ClusterAuthAttribute = "tenant" })
	publish(t, e, "victim", 0.9)

	ctx := client.NewContext(t.Context(), client.Info{Auth: authData{"tenant": "mine"}})
	caller, headers := answerTo(ctx, e, "victim")
	assert.Equal(t, wire.Caller{Cluster: "mine", Authenticated: true}, caller)
	assert.Empty(t, headers)

	caller, headers = answerTo(t.Context(), e, "victim")
	assert.Equal(t, wire.Caller{}, caller, "without credentials there is no cluster")
	assert.Empty(t, headers)

	rec := httptest.NewRecorder()
	e.apiHandler(http.NotFoundHandler()).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/api/v1/thresholds", http.NoBody).WithContext(ctx))
	assert.JSONEq(t, `[]`, rec.Body.String(), "other tenants' clusters are not listed")
}

// TestNodeIsBoundToTheCredentials: an impostor that only claims a node's name is not told
// how that node stands.
func TestNodeIsBoundToTheCredentials(t *testing.T) {
	e, _ := newTestExtension(t, func(c *Config) { c.ClusterAuthAttribute, c.NodeAuthAttribute = "username", "username" })
	publish(t, e, "mine", 0.9)
	as := func(user string) context.Context {
		return client.NewContext(t.Context(), client.Info{Auth: authData{"username": user}})
	}
	nodeOf := func(ctx context.Context, claimed string) string {
		var p threshold.Push
		e.identify(ctx, &p, "mine", claimed)
		return p.Node
	}
	assert.Equal(t, "n7", nodeOf(as("mine/n7"), "victim"))
	assert.Equal(t, "claimed", nodeOf(as("mine/*"), "claimed"), "a tier speaks for its nodes")
	assert.Empty(t, nodeOf(as("mine"), "victim"))
	assert.Empty(t, nodeOf(t.Context(), "victim"))

	e.Publish(&threshold.Snapshot{At: time.Now(), TTL: time.Minute, Standing: func(cluster, node string) threshold.Standing {
		return threshold.Standing{Node: node, Group: cluster}
	}})
	answer := httptest.NewRecorder()
	asks := httptest.NewRequest(http.MethodPost, "/v1/metrics", http.NoBody).WithContext(as("mine/n7"))
	asks.Header = http.Header{"Gpu-Cluster": {"other"}, "Gpu-Node": {"victim"}, "Gpu-Standing": {"?1"}}
	handlerOf(t, e, http.NotFoundHandler()).ServeHTTP(answer, asks)
	assert.Contains(t, answer.Header().Get("Gpu-Standing"), `"n7";g="mine"`, "it asks for itself alone")
	publish(t, e, "mine", 0.9)

	// A tier of all clusters asks for the one it names, and sees all of them.
	caller, headers := answerTo(as("*/*"), e, "mine")
	assert.Equal(t, wire.Caller{Cluster: "mine"}, caller)
	assert.NotEmpty(t, headers)
	for user, want := range map[string]int{"*/*": 1, "mine/n7": 1, "other/n7": 0, "nobody": 0} {
		rec := httptest.NewRecorder()
		e.apiHandler(http.NotFoundHandler()).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/api/v1/thresholds", http.NoBody).WithContext(as(user)))
		assert.Equal(t, want, strings.Count(rec.Body.String(), `"cluster"`), user)
	}
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

func BenchmarkAnswer(b *testing.B) {
	e, err := newExtension(extension.Settings{TelemetrySettings: componenttest.NewNopTelemetrySettings()}, createDefaultConfig().(*Config))
	require.NoError(b, err)
	entry, err := threshold.NewEntry(threshold.Value{Group: "AR/stage-0", Threshold: 0.9, Median: 1, TTL: time.Hour})
	require.NoError(b, err)
	e.Publish(&threshold.Snapshot{At: time.Now(), TTL: time.Hour, Clusters: map[string]*threshold.Cluster{
		"prod": {Wide: entry, Groups: map[string]*threshold.Entry{"AR/stage-0": entry}},
	}})
	groups := []string{`"AR/stage-0"`}
	b.ReportAllocs()
	for b.Loop() {
		answerTo(b.Context(), e, "prod", groups...)
	}
}

// TestForeignNamesAreRefused on the API's own port and on the receiver's, where nobody
// is asked who they are.
func TestForeignNamesAreRefused(t *testing.T) {
	addr := loopback.FreeAddr(t)
	e, _ := newTestExtension(t, func(c *Config) {
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
	assert.Equal(t, http.StatusOK, ask(http.MethodPost, receiver+"/v1/metrics", evil))
	assert.Equal(t, http.StatusMisdirectedRequest, ask(http.MethodPost, receiver+"/v1/metrics", evil, "Origin", "http://"+evil))
	assert.Equal(t, http.StatusOK, ask(http.MethodPost, receiver+"/v1/metrics", "", "Origin", "http://10.0.0.7"))

	// Who has a password, or a certificate for the name, is no page.
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
}

// TestTheSameThresholdIsUnchanged: the plain header has no version.
func TestTheSameThresholdIsUnchanged(t *testing.T) {
	for name, groups := range map[string][]threshold.Value{"plain": nil, "a group": {{Group: "g", Threshold: 0.8}}} {
		t.Run(name, func(t *testing.T) {
			server, _ := newTestExtension(t, nil)
			node, tel := newTestExtension(t, nil)
			push := pusher(t, node, "grpc", serve(t, server, &gateway{}, "grpc"))
			node.SetClaim(wire.Claim{Cluster: "prod", Node: "n1", Groups: []string{"g"}})
			now := time.Now()
			node.now = func() time.Time { now = now.Add(5 * time.Millisecond); return now }
			publish(t, server, "prod", 0.9, groups...)
			for range 5 {
				require.NoError(t, push())
			}
			got, err := tel.GetMetric("otelcol_extension_straggler_threshold_responses")
			require.NoError(t, err)
			said := map[string]int64{}
			for _, dp := range got.Data.(metricdata.Sum[int64]).DataPoints {
				outcome, _ := dp.Attributes.Value("outcome")
				said[outcome.AsString()] = dp.Value
			}
			assert.Equal(t, map[string]int64{"new": 1, "unchanged": 4}, said, "one computation, five answers")
		})
	}
}

// TestAGatewayThatDoesNotAnswer is told once, and again after it had answered.
func TestAGatewayThatDoesNotAnswer(t *testing.T) {
	e, tel := newTestExtension(t, nil)
	core, logs := observer.New(zap.WarnLevel)
	e.set = tel.NewTelemetrySettings()
	e.set.Logger = zap.New(core)
	for i, answered := range []bool{false, false, true, true, false, false} {
		e.reached("dns:///gateway:4317", answered)
		assert.Equal(t, answered, e.Reachable())
		assert.Equal(t, []int{1, 1, 1, 1, 2, 2}[i], logs.FilterMessageSnippet("run the command `check`").Len())
	}
}
