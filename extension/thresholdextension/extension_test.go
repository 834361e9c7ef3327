// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
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
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
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
	next   func() error // pushes on before the answer, unless nil
	body   string       // over HTTP
	caller pushheaders.Caller
}

func (g *gateway) Export(ctx context.Context, _ pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	g.caller = pushheaders.CallerFromContext(ctx)
	if g.next != nil {
		g.err = g.next()
	}
	return pmetricotlp.NewExportResponse(), g.err
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := g.Export(r.Context(), pmetricotlp.NewExportRequest()); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if g.body != "" {
		_, _ = io.WriteString(w, g.body) // without a status of its own, or nothing at all
	}
}

func handlerOf(t *testing.T, e *thresholdExtension, g http.Handler) http.Handler {
	wrap, err := e.GetHTTPHandler(t.Context())
	require.NoError(t, err)
	h, err := wrap(t.Context(), g)
	require.NoError(t, err)
	return h
}

func serveHTTP(t *testing.T, e *thresholdExtension, g http.Handler) string {
	srv := httptest.NewServer(handlerOf(t, e, g))
	t.Cleanup(srv.Close)
	return srv.URL
}

func serveGRPC(t *testing.T, e *thresholdExtension, g pmetricotlp.GRPCServer) string {
	opts, err := e.GetGRPCServerOptions(t.Context())
	require.NoError(t, err)
	return listen(t, g, opts...)
}

// listen serves metrics, and logs for which it has nothing.
func listen(t *testing.T, g pmetricotlp.GRPCServer, opts ...grpc.ServerOption) string {
	srv := grpc.NewServer(opts...)
	pmetricotlp.RegisterGRPCServer(srv, g)
	plogotlp.RegisterGRPCServer(srv, &plogotlp.UnimplementedGRPCServer{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	return ln.Addr().String()
}

func dial(t *testing.T, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	cc, err := grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// do asks over HTTP, with the headers of the request in pairs.
func do(t *testing.T, method, url string, headers ...string) (*http.Response, string) {
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	req.Host = req.Header.Get("Host") // its own where it is empty
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	http.DefaultClient.CloseIdleConnections()
	return resp, string(body)
}

// TestNoPushBeforeThePipelinesAreReady: a push to the own process waits until that listens.
func TestNoPushBeforeThePipelinesAreReady(t *testing.T) {
	e, err := newExtension(extension.Settings{TelemetrySettings: componenttest.NewNopTelemetrySettings()}, createDefaultConfig().(*Config))
	require.NoError(t, err)
	opts, err := e.GetGRPCClientOptions(t.Context())
	require.NoError(t, err)
	cc := dial(t, "127.0.0.1:1", opts...)
	push := func(ctx context.Context) codes.Code {
		_, err := pmetricotlp.NewGRPCClient(cc).Export(ctx, pmetricotlp.NewExportRequest())
		return status.Code(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	assert.Equal(t, codes.DeadlineExceeded, push(soon))
	assert.Equal(t, connectivity.Idle, cc.GetState(), "no connection yet")
	require.NoError(t, e.Ready())
	assert.Equal(t, codes.Unavailable, push(t.Context()), "no server listens there")
}

// pusher returns a push through the extension's client side.
func pusher(t *testing.T, e *thresholdExtension, transport, addr string) func() error {
	if transport == "grpc" {
		opts, err := e.GetGRPCClientOptions(t.Context())
		require.NoError(t, err)
		cc := pmetricotlp.NewGRPCClient(dial(t, addr, opts...))
		return func() error {
			_, err := cc.Export(t.Context(), pmetricotlp.NewExportRequest())
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

// TestOnlyWhatIsAskedForIsAnswered, once it is known.
func TestOnlyWhatIsAskedForIsAnswered(t *testing.T) {
	for _, transport := range []string{"grpc", "http"} {
		t.Run(transport, func(t *testing.T) {
			server, tel := newTestExtension(t, nil)
			node, _ := newTestExtension(t, nil)
			push := pusher(t, node, transport, serve(t, server, &gateway{}, transport))
			node.SetClaim(pushheaders.Claim{Cluster: "prod", Node: "n1", Groups: []string{"a", "unknown"}})
			assert.False(t, node.Reachable())
			for _, known := range []bool{false, true} {
				require.NoError(t, push())
				assert.True(t, node.Reachable())
				_, received := node.Received("prod", "a")
				assert.Equal(t, known, received)
				publish(t, server, "prod", 0.9, threshold.Value{Group: "a", Threshold: 0.8}, threshold.Value{Group: "b", Threshold: 0.7})
			}
			_, received := node.Received("prod", "b")
			assert.False(t, received)
			metadatatest.AssertEqualExtensionStragglerThresholdRequests(t, tel, []metricdata.DataPoint[int64]{
				{Attributes: outcomeSet(threshold.Transport(transport), "served"), Value: 1},
				{Attributes: outcomeSet(threshold.Transport(transport), "no_threshold"), Value: 1},
			}, metricdatatest.IgnoreTimestamp())
		})
	}
}

// TestTheVerdictReachesItsNode from the gateway, or through a tier in between, while its
// tick is the newest and lives.
func TestTheVerdictReachesItsNode(t *testing.T) {
	sent := threshold.Verdict{Node: "n", Since: time.Unix(1789999990, 0).UTC(), Loss: 0.12, Signal: nodesignal.Throughput}
	group := func(stragglers ...threshold.Verdict) threshold.Value {
		return threshold.Value{Group: "g", Threshold: 0.8, All: true, Verdicts: threshold.NewVerdicts("g", 1, stragglers)}
	}
	for _, transport := range []string{"grpc", "http"} {
		for _, tiers := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s over %d tiers", transport, tiers), func(t *testing.T) {
				top, _ := newTestExtension(t, nil)
				last, between := &gateway{}, &gateway{}
				above := serve(t, top, last, transport)
				up := func() error { return nil }
				if tiers == 1 {
					shard, _ := newTestExtension(t, nil)
					up = pusher(t, shard, transport, above)
					above = serve(t, shard, between, transport)
				}
				node, _ := newTestExtension(t, nil)
				push := pusher(t, node, transport, above)
				ask := func(name string) (verdict threshold.Verdict, straggler, reported bool) {
					node.SetClaim(pushheaders.Claim{Cluster: "prod", Node: name, Groups: []string{"g"}})
					for range 2 {
						require.NoError(t, push())
						require.NoError(t, up())
					}
					require.NoError(t, push())
					wide, _ := node.Received("prod", "")
					assert.InDelta(t, 0.9, wide.Threshold, 0)
					r, ok := node.Received("prod", "g")
					require.True(t, ok)
					assert.InDelta(t, 0.8, r.Threshold, 0)
					assert.True(t, r.Fresh(time.Now()) && !r.Fresh(time.Now().Add(time.Minute)))
					return r.Of(name)
				}
				publish(t, top, "prod", 0.9, group(threshold.Verdict{Node: "worse", Loss: 0.5}, sent))
				verdict, straggler, _ := ask("n")
				assert.True(t, straggler)
				assert.Equal(t, sent, verdict)
				callers := [2]pushheaders.Caller{{}, {Cluster: "prod"}} // a tier in between is of no cluster
				assert.Equal(t, callers[tiers], between.caller)
				assert.Equal(t, callers[1-tiers], last.caller)
				_, straggler, reported := ask("m")
				assert.True(t, !straggler && reported, "in good standing")

				publish(t, top, "prod", 0.9, group())
				_, straggler, reported = ask("n")
				assert.True(t, !straggler && reported, "the newer tick lists it no more")
				publish(t, top, "prod", 0.9, threshold.Value{Group: "g", Threshold: 0.8})
				_, straggler, reported = ask("n")
				assert.False(t, straggler || reported, "this gateway gives no verdicts")
			})
		}
	}
}

// TestAWaitIsAnAnswer: a server that sends a retry time is there, also without headers.
func TestAWaitIsAnAnswer(t *testing.T) {
	wait, err := status.New(codes.Unavailable, "late").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
	require.NoError(t, err)
	for _, answer := range []*status.Status{wait, status.New(codes.Unavailable, "a proxy")} {
		node, _ := newTestExtension(t, nil)
		require.Error(t, pusher(t, node, "grpc", listen(t, &gateway{err: answer.Err()}))())
		assert.Equal(t, answer == wait, node.Reachable(), answer.Message())
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
				{Attributes: outcomeSet(threshold.Transport(transport), "unanswered"), Value: 1},
			}, metricdatatest.IgnoreTimestamp())
		})
	}
}

func TestProxyBeforeAnAbsentGateway(t *testing.T) {
	for code, want := range map[int]bool{200: true, 400: true, 429: true, 500: false, 502: false, 503: false, 504: false} {
		resp := &http.Response{StatusCode: code, Header: http.Header{}}
		assert.Equal(t, want, answered(resp), code)
		resp.Header.Set("Retry-After", "3")
		assert.True(t, answered(resp), code)
	}
}

func TestHostileAnswers(t *testing.T) {
	e, tel := newTestExtension(t, nil)
	var reported losses
	defer e.Subscribe(reported.add)()
	readResponse := func(pairs ...string) {
		answer := http.Header{}
		for pair := range slices.Chunk(pairs, 2) {
			answer.Set(pair[0], pair[1])
		}
		e.readResponse(t.Context(), threshold.HTTP, "gateway", &pushheaders.Claim{Cluster: "prod", Node: "n1"}, answer.Values, true)
	}
	for _, bad := range []string{"NaN", "7", "-1", strings.Repeat("9", 9000)} {
		readResponse("gpu-straggler-threshold", bad, "gpu-straggler-quorum-met", "true")
	}
	readResponse("gpu-straggler-threshold", "0.5", "gpu-straggler-quorum-met", "yes",
		"gpu-straggler-params", `"ok";v=1;q;t="0.5";m="1";s="0";k="2";n=5;ttl=50, "bad";v=1`)
	_, ok := e.Received("prod", "")
	assert.False(t, ok)
	_, ok = e.Received("prod", "ok")
	assert.True(t, ok, "the valid member still counts")
	readResponse("gpu-state-epoch", "A")
	readResponse("gpu-state-epoch", strings.Repeat("x", 65))
	readResponse("gpu-state-epoch", "")
	assert.Zero(t, reported.take())
	readResponse("gpu-state-epoch", "B")
	assert.Equal(t, 1, reported.take(), "a valid one still counts")
	metadatatest.AssertEqualExtensionStragglerThresholdResponses(t, tel, []metricdata.DataPoint[int64]{
		{Attributes: outcomeSet("http", "invalid"), Value: 7}, {Attributes: outcomeSet("http", "absent"), Value: 2},
	}, metricdatatest.IgnoreTimestamp())
}

func TestHostileRequests(t *testing.T) {
	e, tel := newTestExtension(t, nil)
	publish(t, e, "prod", 0.9)
	url := serveHTTP(t, e, &gateway{})
	for name, headers := range map[string][]string{
		"long cluster":   {"gpu-cluster", strings.Repeat("c", 300)},
		"no ASCII":       {"gpu-cluster", "clüster"},
		"broken groups":  {"gpu-cluster", "prod", "gpu-group", "\"open"},
		"hundred groups": {"gpu-group", strings.Repeat(`"g",`, 100) + `"g"`},
	} {
		resp, _ := do(t, http.MethodPost, url+"/v1/metrics", headers...)
		assert.Equal(t, http.StatusOK, resp.StatusCode, "%s: the data is not refused for a bad claim", name)
		assert.Empty(t, resp.Header.Get("gpu-straggler-params"), name)
	}
	metadatatest.AssertEqualExtensionStragglerThresholdRequests(t, tel, []metricdata.DataPoint[int64]{
		{Attributes: outcomeSet("http", "invalid"), Value: 4},
	}, metricdatatest.IgnoreTimestamp())
}

func TestOnlyMetricsPushesAreAnswered(t *testing.T) {
	e, tel := newTestExtension(t, nil)
	publish(t, e, "prod", 0.9)
	cc := dial(t, serveGRPC(t, e, &gateway{}))
	var md grpcmetadata.MD
	ctx := grpcmetadata.AppendToOutgoingContext(t.Context(), "gpu-cluster", "prod")
	_, err := plogotlp.NewGRPCClient(cc).Export(ctx, plogotlp.NewExportRequest(), grpc.Header(&md))
	assert.Equal(t, codes.Unimplemented, status.Code(err))
	assert.Empty(t, md.Get("gpu-straggler-threshold"))

	_, err = tel.GetMetric("otelcol_extension_straggler_threshold_requests")
	require.Error(t, err, "nothing is counted")
}

// TestAnyPathIsAnswered: a receiver's `metrics_url_path` may be any.
func TestAnyPathIsAnswered(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	publish(t, e, "prod", 0.9)
	for _, body := range []string{"", "x"} {
		url := serveHTTP(t, e, &gateway{body: body})
		for method, want := range map[string]string{http.MethodPost: "0.9", http.MethodGet: ""} {
			resp, _ := do(t, method, url+"/push", "gpu-cluster", "prod")
			assert.Equal(t, want, resp.Header.Get("gpu-straggler-threshold"), method)
		}
	}
}

func TestAGatewayKeepsNoAsks(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	answerTo(t.Context(), e, "anything", `"g"`)
	assert.Equal(t, pushheaders.Claim{}, e.asks.Next(time.Now()), "only a middle tier asks on")
}

func TestManyGroupsAreAskedForInTurn(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	groups := slices.Collect(strings.SplitSeq("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN", ""))
	e.SetClaim(pushheaders.Claim{Cluster: "prod", Groups: groups})
	var asked []string
	for range 3 {
		some := e.ask().Groups
		assert.LessOrEqual(t, len(some), pushheaders.MaxGroups)
		asked = append(asked, some...)
	}
	assert.ElementsMatch(t, groups, asked)
}

func TestIngeroCompatibility(t *testing.T) {
	for name, tc := range map[string]struct {
		wide        float64
		asked, want string
	}{
		"plain":                        {0.870348, "prod", "0.870348"}, // the query wins over the header
		"perfect fleet":                {1, "prod", "0.99"},
		"hopeless fleet":               {0.01, "prod", "0.1"},
		"no threshold":                 {-1, "prod", ""},
		"unknown cluster of the query": {0.8, "elsewhere", ""},
	} {
		e, _ := newTestExtension(t, func(c *Config) { c.Compatibility = []string{"ingero"} })
		publish(t, e, "prod", tc.wide)
		resp, _ := do(t, http.MethodPost, serveHTTP(t, e, &gateway{})+"/v1/metrics?cluster_id="+tc.asked, "gpu-cluster", "claimed")
		assert.Equal(t, tc.want, resp.Header.Get("X-Ingero-Threshold"), name)
		assert.Equal(t, map[bool]string{true: "true"}[tc.want != ""], resp.Header.Get("X-Ingero-Quorum-Met"), name)
	}
}

func TestAPI(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	url := serveHTTP(t, e, &gateway{})
	ask := func(method, path string, code int, typ, want string) {
		resp, body := do(t, method, url+path)
		assert.Equal(t, code, resp.StatusCode, path)
		assert.Equal(t, typ, resp.Header.Get("Content-Type"), path)
		assert.Contains(t, body, want, path)
	}
	ask("GET", "/api/v1/threshold?cluster=prod", 200, "application/json", `{"threshold":0,"quorum_met":false,"cluster":"prod"}`) // no error
	publish(t, e, "prod", 0.870348, threshold.Value{Group: "b", Threshold: 0.5, Verdicts: threshold.NewVerdicts("b", 1, []threshold.Verdict{
		{Node: "n", Loss: 0.1, Signal: nodesignal.CPU, Since: time.Unix(1789999990, 0).UTC()}, {Node: "m", Loss: 0.2, Signal: nodesignal.Count},
	})}, threshold.Value{Group: "a", Threshold: 0.25, Ref: 2})
	const json, problem, known = "application/json", "application/problem+json", `{"threshold":0.870348,"quorum_met":true,"cluster":"prod"}`
	ask("GET", "/api/v1/threshold?cluster=prod", 200, json, known)
	ask("GET", "/api/v1/threshold?cluster_id=prod", 200, json, known) // as Ingero's pollers ask
	ask("GET", "/api/v1/threshold", 400, problem, "`cluster` is missing")
	ask("GET", "/api/v1/threshold?cluster="+strings.Repeat("x", 254), 400, problem, "`cluster` is not 1 to 253")
	ask("POST", "/api/v1/threshold?cluster=prod", 405, problem, "only GET")
	ask("GET", "/api/v1/thresholds?cluster=other", 200, json, "[]")
	ask("GET", "/api/v1/thresholds", 200, json, `"groups":[{"group":"a","version":`)
	ask("GET", "/api/v1/thresholds", 200, json, `"threshold":0.25,"quorum_met":true,"median":1,"scale":0,"k":2,"nodes":8,"ref":2,"ttl_seconds":50},{"group":"b"`)
	ask("GET", "/api/v1/thresholds", 200, json,
		`"stragglers":[{"node":"m","loss":0.2},{"node":"n","since":"2026-09-21T14:13:10Z","loss":0.1,"signal":"cpu"}]`)
}

type authData map[string]string

func (a authData) GetAttribute(name string) any { return a[name] }

func (a authData) GetAttributeNames() []string { return nil }

// answerTo is what a push that claims a cluster, and asks for groups, is answered.
func answerTo(ctx context.Context, e *thresholdExtension, cluster string, groups ...string) (pushheaders.Caller, []pushheaders.Header) {
	header := http.Header{"Gpu-Cluster": {cluster}, "Gpu-Group": groups}
	below, answer := e.push(ctx, threshold.HTTP, header.Values, "")
	return pushheaders.CallerFromContext(below), answer()
}

// TestOnesOwnIsAnswered: an impostor that only claims a cluster's or a node's name does
// not get its standing.
func TestOnesOwnIsAnswered(t *testing.T) {
	e, _ := newTestExtension(t, func(c *Config) { c.ClusterAuthAttribute, c.NodeAuthAttribute = "username", "username" })
	publish(t, e, "victim", 0.9)
	as := func(user string) context.Context {
		return client.NewContext(t.Context(), client.Info{Auth: authData{"username": user}})
	}
	for user, want := range map[string]struct {
		caller   pushheaders.Caller
		reported bool
	}{
		"victim/n7": {pushheaders.Caller{Cluster: "victim", Authenticated: true}, true},
		"mine/n7":   {pushheaders.Caller{Cluster: "mine", Authenticated: true}, false},
		"*/*":       {pushheaders.Caller{Cluster: "victim"}, true}, // a tier of all clusters asks for the one it names
		"nobody":    {pushheaders.Caller{}, false},
		"":          {pushheaders.Caller{}, false},
	} {
		ctx := as(user)
		if user == "" {
			ctx = t.Context()
		}
		caller, headers := answerTo(ctx, e, "victim")
		assert.Equal(t, want.caller, caller, user)
		assert.Equal(t, want.reported, len(headers) > 1, "%s: more than the epoch", user)
		rec := httptest.NewRecorder()
		e.apiHandler(http.NotFoundHandler()).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/api/v1/thresholds", http.NoBody).WithContext(ctx))
		assert.Equal(t, want.reported, strings.Contains(rec.Body.String(), `"cluster"`), user)
	}

	e.Publish(&threshold.Snapshot{At: time.Now(), TTL: time.Minute, Standing: func(cluster, node string) threshold.Standing {
		return threshold.Standing{Node: node, Group: cluster}
	}})
	for user, want := range map[string]string{"mine/n7": `"n7";g="mine"`, "mine/*": `"victim";g="mine"`, "nobody": "^$"} { // a tier pushes for its nodes
		answer := httptest.NewRecorder()
		asks := httptest.NewRequest(http.MethodPost, "/v1/metrics", http.NoBody).WithContext(as(user))
		asks.Header = http.Header{"Gpu-Cluster": {"other"}, "Gpu-Node": {"victim"}, "Gpu-Standing": {"?1"}}
		handlerOf(t, e, http.NotFoundHandler()).ServeHTTP(answer, asks)
		assert.Regexp(t, want, answer.Header().Get("Gpu-Standing"), user)
	}
}

// TestForeignNamesAreRefused on the API without authentication, and of a page's push.
func TestForeignNamesAreRefused(t *testing.T) {
	addr := loopback.FreeAddr(t)
	e, _ := newTestExtension(t, func(c *Config) {
		require.NoError(t, confmap.NewFromStringMap(map[string]any{"api": map[string]any{"endpoint": addr}, "allowed_hosts": []any{"gateway.example.com"}}).Unmarshal(c))
	})
	own, _ := do(t, http.MethodGet, "http://"+addr+thresholdsPath, "Host", "gateway.example.com:8085")
	assert.Equal(t, http.StatusOK, own.StatusCode)
	const evil, metrics = "evil.example.com", "/v1/metrics"
	password := func(r *http.Request) *http.Request {
		return r.WithContext(client.NewContext(r.Context(), client.Info{Auth: authData{}}))
	}
	certificate := func(r *http.Request) *http.Request { r.TLS = &tls.ConnectionState{}; return r }
	for _, tt := range []struct {
		method, path, host, origin string
		as                         func(*http.Request) *http.Request // a client with either is no page
		want                       int
	}{
		{http.MethodGet, thresholdsPath, "127.0.0.1", "", nil, http.StatusOK},
		{http.MethodGet, thresholdsPath, "gateway.example.com:8085", "", nil, http.StatusOK},
		{http.MethodGet, thresholdsPath, evil, "", nil, http.StatusMisdirectedRequest},
		{http.MethodGet, thresholdsPath, evil, "", password, http.StatusOK},
		{http.MethodGet, thresholdsPath, evil, "", certificate, http.StatusOK},
		{http.MethodPost, metrics, evil, "", nil, http.StatusOK}, // an agent pushes by whatever name leads here
		{http.MethodPost, metrics, evil, "http://" + evil, nil, http.StatusMisdirectedRequest},
		{http.MethodPost, metrics, "127.0.0.1", "http://10.0.0.7", nil, http.StatusOK},
	} {
		r := httptest.NewRequest(tt.method, tt.path, http.NoBody)
		if r.Host = tt.host; tt.origin != "" {
			r.Header.Set("Origin", tt.origin)
		}
		if tt.as != nil {
			r = tt.as(r)
		}
		answer := httptest.NewRecorder()
		handlerOf(t, e, &gateway{}).ServeHTTP(answer, r)
		assert.Equal(t, tt.want, answer.Code, "%+v", tt)
	}
}

// TestTheSameThresholdIsUnchanged: the plain header has no version.
func TestTheSameThresholdIsUnchanged(t *testing.T) {
	for _, groups := range [][]threshold.Value{nil, {{Group: "g", Threshold: 0.8}}} {
		server, _ := newTestExtension(t, nil)
		node, tel := newTestExtension(t, nil)
		push := pusher(t, node, "grpc", serve(t, server, &gateway{}, "grpc"))
		node.SetClaim(pushheaders.Claim{Cluster: "prod", Node: "n1", Groups: []string{"g"}})
		now := time.Now()
		node.now = func() time.Time { now = now.Add(5 * time.Millisecond); return now }
		publish(t, server, "prod", 0.9, groups...)
		for range 5 {
			require.NoError(t, push())
		}
		metadatatest.AssertEqualExtensionStragglerThresholdResponses(t, tel, []metricdata.DataPoint[int64]{
			{Attributes: outcomeSet(threshold.GRPC, "new"), Value: 1},
			{Attributes: outcomeSet(threshold.GRPC, "unchanged"), Value: 4}, // one computation, five answers
		}, metricdatatest.IgnoreTimestamp(), metricdatatest.IgnoreExemplars())
	}
}

// TestAGatewayThatDoesNotAnswer is logged once, as is its return, and again after it.
func TestAGatewayThatDoesNotAnswer(t *testing.T) {
	e, tel := newTestExtension(t, nil)
	core, logs := observer.New(zap.InfoLevel)
	e.set = tel.NewTelemetrySettings()
	e.set.Logger = zap.New(core)
	for i, answered := range []bool{false, false, true, true, false, false} {
		e.readResponse(t.Context(), threshold.GRPC, "dns:///gateway:4317", &pushheaders.Claim{}, http.Header{}.Values, answered)
		assert.Equal(t, answered, e.Reachable())
		assert.Equal(t, []int{1, 1, 1, 1, 2, 2}[i], logs.FilterMessageSnippet("run the command `check`").Len())
		assert.Equal(t, []int{0, 0, 1, 1, 1, 1}[i], logs.FilterMessage("The gateway answers again.").Len())
	}
}
