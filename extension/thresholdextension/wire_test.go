// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/extension/thresholdextension/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/wire"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

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

	url := serveHTTP(t, e, &gateway{})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/logs", http.NoBody)
	require.NoError(t, err)
	req.Header.Set("gpu-cluster", "prod")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	http.DefaultClient.CloseIdleConnections()
	assert.Empty(t, resp.Header.Get("gpu-straggler-threshold"))
	_, err = tel.GetMetric("otelcol_extension_straggler_threshold_requests")
	require.Error(t, err, "nothing is counted")
}

func TestAGatewayKeepsNoAsks(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	e.answer(t.Context(), "http", "anything", []string{`"g"`})
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
		e.answer(b.Context(), "grpc", "prod", groups)
	}
}
