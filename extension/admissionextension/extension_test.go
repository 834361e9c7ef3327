// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"context"
	"errors"
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
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/gpu-collector/gpu-collector/extension/admissionextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/extension/admissionextension/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/internal/admission"
)

const (
	metricsMethod = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
	waitFor       = time.Minute // a bound for a very slow machine
	tick          = 2 * time.Millisecond
)

func newTestExtension(t testing.TB, change func(*Config)) (*admissionExtension, *componenttest.Telemetry) {
	t.Helper()
	tel := componenttest.NewTelemetry()
	t.Cleanup(func() { require.NoError(t, tel.Shutdown(context.WithoutCancel(t.Context()))) })
	cfg := createDefaultConfig().(*Config)
	if change != nil {
		change(cfg)
	}
	require.NoError(t, cfg.Validate())
	e, err := newExtension(extension.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: tel.NewTelemetrySettings()}, cfg)
	require.NoError(t, err)
	require.NoError(t, e.Start(t.Context(), componenttest.NewNopHost()))
	t.Cleanup(func() {
		// A client has its answer before the server has ended the call.
		assert.Eventually(t, func() bool { return e.limiter.Usage().InUse == 0 }, waitFor, tick, "a permit leaked")
		require.NoError(t, e.Shutdown(context.WithoutCancel(t.Context())))
	})
	return e, tel
}

func onePermit(c *Config) { c.MaxConcurrent, c.ClusterShare = 1, 1 }

// take holds a permit until the test ends or the returned function is called.
func take(t *testing.T, e *admissionExtension, cluster string) func() {
	t.Helper()
	p, err := e.limiter.Acquire(cluster)
	require.NoError(t, err)
	t.Cleanup(p.Release)
	return p.Release
}

func inUse(t *testing.T, e *admissionExtension, want int) {
	t.Helper()
	require.Eventually(t, func() bool { return e.limiter.Usage().InUse == want }, waitFor, tick, "permits in use are not %d", want)
}

// sink is an OTLP server whose answer the test decides.
type sink struct {
	pmetricotlp.UnimplementedGRPCServer
	export func(context.Context) error
}

func (s *sink) Export(ctx context.Context, _ pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	return pmetricotlp.NewExportResponse(), s.export(ctx)
}

// serveGRPC serves a sink behind the extension, with metrics and health only.
func serveGRPC(t *testing.T, e *admissionExtension, export func(context.Context) error, outer ...grpc.UnaryServerInterceptor) *grpc.ClientConn {
	t.Helper()
	opts, err := e.GetGRPCServerOptions(t.Context())
	require.NoError(t, err)
	srv := grpc.NewServer(append([]grpc.ServerOption{grpc.ChainUnaryInterceptor(outer...)}, opts...)...)
	pmetricotlp.RegisterGRPCServer(srv, &sink{export: export})
	healthpb.RegisterHealthServer(srv, health.NewServer())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	cc, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

func push(ctx context.Context, cc *grpc.ClientConn) error {
	_, err := pmetricotlp.NewGRPCClient(cc).Export(ctx, pmetricotlp.NewExportRequest())
	return err
}

func accept(context.Context) error { return nil }

func TestGRPCRefusal(t *testing.T) {
	e, _ := newTestExtension(t, onePermit)
	cc := serveGRPC(t, e, accept)
	require.NoError(t, push(t.Context(), cc))
	inUse(t, e, 0)
	release := take(t, e, "")
	err := push(t.Context(), cc)
	s := status.Convert(err)
	assert.Equal(t, codes.ResourceExhausted, s.Code())
	require.Len(t, s.Details(), 1)
	retry, ok := s.Details()[0].(*errdetails.RetryInfo)
	require.True(t, ok)
	delay := retry.GetRetryDelay().AsDuration()
	assert.GreaterOrEqual(t, delay, time.Second)
	assert.Zero(t, delay%time.Second)
	release()
	require.NoError(t, push(t.Context(), cc))
	inUse(t, e, 0)
}

// TestGRPCPermitsCountFromTheHeaders sends headers without a message: that is
// enough to hold a permit, and enough to be refused.
func TestGRPCPermitsCountFromTheHeaders(t *testing.T) {
	e, _ := newTestExtension(t, onePermit)
	cc := serveGRPC(t, e, accept)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	headersOnly := func(ctx context.Context) grpc.ClientStream {
		s, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, metricsMethod)
		require.NoError(t, err)
		return s
	}
	headersOnly(ctx)
	inUse(t, e, 1)

	var m any
	err := headersOnly(t.Context()).RecvMsg(&m)
	assert.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)

	cancel()
	inUse(t, e, 0)
}

func TestGRPCReleases(t *testing.T) {
	recovered := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		defer func() {
			if r := recover(); r != nil {
				err = status.Error(codes.Internal, "recovered")
			}
		}()
		return handler(ctx, req)
	}
	for _, tt := range []struct {
		name   string
		export func(context.Context) error
		want   codes.Code
	}{
		{"success", accept, codes.OK},
		{"error", func(context.Context) error { return status.Error(codes.Unavailable, "") }, codes.Unavailable},
		{"panic", func(context.Context) error { panic("handler") }, codes.Internal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, _ := newTestExtension(t, onePermit)
			cc := serveGRPC(t, e, tt.export, recovered)
			for range 3 {
				assert.Equal(t, tt.want, status.Code(push(t.Context(), cc)))
				inUse(t, e, 0)
			}
		})
	}
}

// TestGRPCCancelledPushHoldsItsPermit as long as the pipeline works on it: its
// memory is in use until then.
func TestGRPCCancelledPushHoldsItsPermit(t *testing.T) {
	e, _ := newTestExtension(t, onePermit)
	inside, leave := make(chan struct{}), make(chan struct{})
	cc := serveGRPC(t, e, func(ctx context.Context) error {
		close(inside)
		<-ctx.Done()
		<-leave
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- push(ctx, cc) }()
	<-inside
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-done))
	assert.Equal(t, codes.ResourceExhausted, status.Code(push(t.Context(), cc)))
	close(leave)
	inUse(t, e, 0)
}

// TestGRPCUnservedSignal: a receiver without a logs pipeline has no handler
// that could end the call.
func TestGRPCUnservedSignal(t *testing.T) {
	e, _ := newTestExtension(t, onePermit)
	cc := serveGRPC(t, e, accept)
	for range 3 {
		_, err := plogotlp.NewGRPCClient(cc).Export(t.Context(), plogotlp.NewExportRequest())
		assert.Equal(t, codes.Unimplemented, status.Code(err))
		inUse(t, e, 0)
	}
}

// TestGRPCCallThatEndsBeforeItsHandler walks the order of events that a client
// causes that cancels at once.
func TestGRPCCallThatEndsBeforeItsHandler(t *testing.T) {
	e, _ := newTestExtension(t, onePermit)
	ctx, cancel := context.WithCancel(t.Context())
	ctx, err := e.tap(ctx, &tap.Info{FullMethodName: metricsMethod})
	require.NoError(t, err)
	cancel()
	inUse(t, e, 0)
	other := take(t, e, "")

	statsHandler{}.HandleRPC(ctx, &stats.Begin{})
	_, err = e.intercept(ctx, nil, &grpc.UnaryServerInfo{FullMethod: metricsMethod}, func(context.Context, any) (any, error) {
		t.Error("a push without a permit reached the pipeline")
		return nil, nil
	}, nil)
	assert.Equal(t, codes.Canceled, status.Code(err))
	statsHandler{}.HandleRPC(ctx, &stats.End{})
	inUse(t, e, 1) // the other's
	other()

	// It ends between its message and the pipeline.
	ctx, cancel = context.WithCancel(t.Context())
	ctx, err = e.tap(ctx, &tap.Info{FullMethodName: metricsMethod})
	require.NoError(t, err)
	statsHandler{}.HandleRPC(ctx, &stats.Begin{})
	cancel()
	_, err = e.intercept(ctx, nil, &grpc.UnaryServerInfo{FullMethod: metricsMethod}, func(context.Context, any) (any, error) {
		t.Error("a push that nobody waits for reached the pipeline")
		return nil, nil
	}, nil)
	assert.Equal(t, codes.Canceled, status.Code(err))
	inUse(t, e, 1)
	statsHandler{}.HandleRPC(ctx, &stats.End{})
	inUse(t, e, 0)
}

func TestGRPCOtherMethodsPass(t *testing.T) {
	e, _ := newTestExtension(t, onePermit)
	cc := serveGRPC(t, e, accept)
	take(t, e, "")
	_, err := healthpb.NewHealthClient(cc).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
}

func clusterContext(ctx context.Context, cluster string) context.Context {
	return grpcmetadata.AppendToOutgoingContext(ctx, "gpu-cluster", cluster)
}

func TestGRPCSharePerCluster(t *testing.T) {
	e, _ := newTestExtension(t, func(c *Config) { c.MaxConcurrent, c.ClusterShare = 4, 0.5 })
	cc := serveGRPC(t, e, accept)
	take(t, e, "noisy")
	take(t, e, "noisy")
	err := push(clusterContext(t.Context(), "noisy"), cc)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.ErrorContains(t, err, "share")
	require.NoError(t, push(clusterContext(t.Context(), "quiet"), cc))
	require.NoError(t, push(t.Context(), cc))
	// A text that cannot be a name counts as none.
	require.NoError(t, push(clusterContext(t.Context(), strings.Repeat("x", 300)), cc))
	for _, c := range e.limiter.Usage().Clusters {
		assert.Less(t, len(c.Cluster), 254)
	}
	inUse(t, e, 2)
}

type authData map[string]any

func (a authData) GetAttribute(name string) any { return a[name] }
func (authData) GetAttributeNames() []string    { return nil }

// TestAuthenticatedClusterCounts: a claim decides before the authentication,
// the identity after it.
func TestAuthenticatedClusterCounts(t *testing.T) {
	e, _ := newTestExtension(t, func(c *Config) {
		c.MaxConcurrent, c.ClusterShare, c.ClusterAuthAttribute = 4, 0.5, "tenant"
	})
	auth := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(client.NewContext(ctx, client.Info{Auth: authData{"tenant": "true-name"}}), req)
	}
	var during admission.Usage
	cc := serveGRPC(t, e, func(context.Context) error { during = e.limiter.Usage(); return nil }, auth)
	ctx := clusterContext(t.Context(), "victim")
	require.NoError(t, push(ctx, cc))
	inUse(t, e, 0)
	held := map[string]int{}
	for _, c := range during.Clusters {
		held[c.Cluster] = c.InUse
	}
	assert.Equal(t, map[string]int{"victim": 0, "true-name": 1}, held)

	take(t, e, "true-name")
	take(t, e, "true-name")
	err := push(ctx, cc)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.NotEmpty(t, status.Convert(err).Details())
	inUse(t, e, 2)

	// Over HTTP the authentication comes first.
	h := handler(t, e, func(http.ResponseWriter, *http.Request) {})
	r := httptest.NewRequest(http.MethodPost, "/v1/metrics?cluster_id=victim", nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r.WithContext(client.NewContext(r.Context(), client.Info{Auth: authData{"tenant": "true-name"}})))
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	w = httptest.NewRecorder()
	h.ServeHTTP(w, r) // nobody
	assert.Equal(t, http.StatusOK, w.Code)
}

// TestTiersClaimsCount: whoever speaks for all clusters is counted for the one
// it names, a node for its own.
func TestTiersClaimsCount(t *testing.T) {
	e, _ := newTestExtension(t, func(c *Config) { c.ClusterAuthAttribute, c.NodeAuthAttribute = "username", "username" })
	for user, want := range map[string]string{"*/*": "claimed", "lab/n7": "lab", "lab": ""} {
		r := httptest.NewRequest(http.MethodPost, "/v1/metrics?cluster_id=claimed", http.NoBody)
		r = r.WithContext(client.NewContext(r.Context(), client.Info{Auth: authData{"username": user}}))
		assert.Equal(t, want, e.httpCluster(r), user)
	}
}

func handler(t *testing.T, e *admissionExtension, next http.HandlerFunc) http.Handler {
	t.Helper()
	wrap, err := e.GetHTTPHandler(t.Context())
	require.NoError(t, err)
	h, err := wrap(t.Context(), next)
	require.NoError(t, err)
	return h
}

// untouchable is a body that nobody may read.
type untouchable struct{ reads atomic.Int32 }

func (u *untouchable) Read([]byte) (int, error) {
	u.reads.Add(1)
	return 0, errors.New("the body was read")
}

func TestHTTPRefusal(t *testing.T) {
	e, _ := newTestExtension(t, onePermit)
	h := handler(t, e, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	release := take(t, e, "")
	for _, tt := range []struct {
		contentType, answer string
		unmarshal           func([]byte, proto.Message) error
	}{
		{"application/x-protobuf", "application/x-protobuf", proto.Unmarshal},
		{"application/json; charset=utf-8", "application/json", protojson.Unmarshal},
		{"", "application/x-protobuf", proto.Unmarshal},
	} {
		for _, path := range []string{"/v1/metrics", "/v1/logs", "/v1/traces", "/v1development/profiles", "/prefix/v1/metrics"} {
			body := &untouchable{}
			r := httptest.NewRequest(http.MethodPost, path, body)
			r.Header.Set("Content-Type", tt.contentType)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			assert.Equal(t, http.StatusTooManyRequests, w.Code)
			assert.Regexp(t, "^[1-5]$", w.Header().Get("Retry-After"))
			assert.Equal(t, tt.answer, w.Header().Get("Content-Type"))
			assert.Zero(t, body.reads.Load())
			var s spb.Status
			require.NoError(t, tt.unmarshal(w.Body.Bytes(), &s))
			assert.Equal(t, int32(codes.ResourceExhausted), s.GetCode())
			assert.Contains(t, s.GetMessage(), "all permits are taken")
		}
	}
	// Other requests than pushes pass.
	for _, r := range []*http.Request{
		httptest.NewRequest(http.MethodGet, "/v1/metrics", nil),
		httptest.NewRequest(http.MethodPost, "/health", nil),
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		assert.Equal(t, http.StatusOK, w.Code)
	}
	release()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/metrics", nil))
	assert.Equal(t, http.StatusOK, w.Code)
}

func TestHTTPReleases(t *testing.T) {
	e, _ := newTestExtension(t, onePermit)
	h := handler(t, e, func(_ http.ResponseWriter, r *http.Request) {
		assert.Equal(t, 1, e.limiter.Usage().InUse)
		if r.URL.RawQuery == "panic" {
			panic(http.ErrAbortHandler)
		}
	})
	for range 3 {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/metrics", nil))
		assert.Panics(t, func() {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/metrics?panic", nil))
		})
		assert.Zero(t, e.limiter.Usage().InUse)
	}
}

func TestHTTPCluster(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	request := func(url, header string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, url, nil)
		r.Header.Set("Gpu-Cluster", header)
		return r
	}
	assert.Equal(t, "a", e.httpCluster(request("/v1/metrics?cluster_id=a", "b")))
	assert.Equal(t, "b", e.httpCluster(request("/v1/metrics?x=1", "b")))
	assert.Empty(t, e.httpCluster(request("/v1/metrics", "\x01")))
}

func TestTelemetry(t *testing.T) {
	e, tel := newTestExtension(t, func(c *Config) { c.MaxConcurrent, c.ClusterShare = 4, 0.5 })
	take(t, e, "a")
	take(t, e, "a")
	for range 3 {
		_, err := e.limiter.Acquire("a")
		require.Error(t, err)
	}
	take(t, e, "b")
	take(t, e, "")
	_, err := e.limiter.Acquire("b")
	require.Error(t, err)
	opt := metricdatatest.IgnoreTimestamp()
	cluster := func(name string) attribute.Set { return attribute.NewSet(attribute.String("cluster", name)) }
	metadatatest.AssertEqualExtensionAdmissionPermitsInUse(t, tel, []metricdata.DataPoint[int64]{{Value: 4}}, opt)
	metadatatest.AssertEqualExtensionAdmissionPermitsLimit(t, tel, []metricdata.DataPoint[int64]{{Value: 4}}, opt)
	metadatatest.AssertEqualExtensionAdmissionClusterPermitsInUse(t, tel, []metricdata.DataPoint[int64]{
		{Value: 2, Attributes: cluster("a")}, {Value: 1, Attributes: cluster("b")}, {Value: 1, Attributes: cluster("")},
	}, opt)
	metadatatest.AssertEqualExtensionAdmissionRefusals(t, tel, []metricdata.DataPoint[int64]{
		{Value: 3, Attributes: attribute.NewSet(attribute.String("cluster", "a"), attribute.String("reason", "cluster_share"))},
		{Value: 1, Attributes: attribute.NewSet(attribute.String("cluster", "b"), attribute.String("reason", "permits"))},
	}, opt)
}

func BenchmarkTapRefuses(b *testing.B) {
	cfg := createDefaultConfig().(*Config)
	cfg.MaxConcurrent = 1
	e, err := newExtension(extension.Settings{TelemetrySettings: componenttest.NewNopTelemetrySettings()}, cfg)
	require.NoError(b, err)
	_, err = e.limiter.Acquire("")
	require.NoError(b, err)
	info := &tap.Info{FullMethodName: metricsMethod, Header: grpcmetadata.Pairs("gpu-cluster", "prod")}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		_, _ = e.tap(ctx, info)
	}
}

func BenchmarkTapAdmits(b *testing.B) {
	e, err := newExtension(extension.Settings{TelemetrySettings: componenttest.NewNopTelemetrySettings()}, createDefaultConfig().(*Config))
	require.NoError(b, err)
	info := &tap.Info{FullMethodName: metricsMethod, Header: grpcmetadata.Pairs("gpu-cluster", "prod")}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		ctx, _ := e.tap(ctx, info)
		statsHandler{}.HandleRPC(ctx, &stats.Begin{})
		statsHandler{}.HandleRPC(ctx, &stats.End{})
	}
}
