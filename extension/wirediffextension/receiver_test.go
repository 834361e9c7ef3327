// SPDX-License-Identifier: Apache-2.0

package wirediffextension

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configauth"
	"go.opentelemetry.io/collector/config/configmiddleware"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensionauth"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	"github.com/gpu-collector/gpu-collector/extension/wirediffextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/delta"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// hop is the pipeline behind the receiver: it keeps the last value of each
// series, heartbeats apart.
type hop struct {
	mu            sync.Mutex
	calls, points int
	beats         int
	resources     int
	other         int // logs and spans
	state         map[string]float64
	refuse        error
	missed        delta.Missed // see delta.Downstream
}

func (*hop) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (h *hop) ConsumeMetrics(_ context.Context, md pmetric.Metrics) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	if h.refuse != nil {
		return h.refuse
	}
	h.resources += md.ResourceMetrics().Len()
	for series, v := range flatten(md) {
		h.points++
		h.state[series] = v
	}
	h.beats += md.DataPointCount() - len(flatten(md))
	return nil
}

// Deliver and Outdated make the hop what a diff processor is.
func (h *hop) Deliver(ctx context.Context, md pmetric.Metrics, _ delta.Counts) (delta.Missed, error) {
	if md.ResourceMetrics().Len() == 0 {
		return nil, nil
	}
	return h.missed, h.ConsumeMetrics(ctx, md)
}

func (*hop) Outdated(context.Context, []statetable.NodeKey) {}

func (h *hop) ConsumeLogs(_ context.Context, ld plog.Logs) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.other += ld.LogRecordCount()
	return nil
}

func (h *hop) ConsumeTraces(_ context.Context, td ptrace.Traces) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.other += td.SpanCount()
	return nil
}

// took returns how many points and heartbeats came since the last call.
func (h *hop) took() (points, beats int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	points, beats = h.points, h.beats
	h.points, h.beats = 0, 0
	return points, beats
}

func (h *hop) answer(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = err
}

func flatten(md pmetric.Metrics) map[string]float64 {
	out := map[string]float64{}
	for _, rm := range md.ResourceMetrics().All() {
		node, _ := rm.Resource().Attributes().Get("host.name")
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if m.Name() == gpusemconv.MetricNodeHeartbeat || m.Type() != pmetric.MetricTypeGauge {
					continue
				}
				for _, dp := range m.Gauge().DataPoints().All() {
					gpu, _ := dp.Attributes().Get("hw.id")
					out[node.Str()+"/"+m.Name()+"/"+gpu.Str()] = dp.DoubleValue()
				}
			}
		}
	}
	return out
}

// report makes one node's report, metric m with a point per value.
func report(node string, at time.Duration, values ...float64) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("host.name", node)
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("m")
	points := m.SetEmptyGauge().DataPoints()
	for i, v := range values {
		dp := points.AppendEmpty()
		dp.SetTimestamp(pcommon.Timestamp(1_700_000_000*time.Second + at))
		dp.SetDoubleValue(v)
		dp.Attributes().PutStr("hw.id", fmt.Sprintf("GPU-%d", i))
	}
	return md
}

// doorman is an authenticator that lets nobody in while shut.
type doorman struct {
	component.StartFunc
	component.ShutdownFunc
	mu   sync.Mutex
	shut bool
}

var _ extensionauth.Server = (*doorman)(nil)

func (d *doorman) Authenticate(ctx context.Context, _ map[string][]string) (context.Context, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		return ctx, errors.New("not you")
	}
	return ctx, nil
}

func (d *doorman) lock(shut bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = shut
}

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// server is the Collector's own OTLP receiver with the extension as middleware, and
// behind it what a diff processor has: an engine.
type server struct {
	ext     *wireDiff
	engine  *delta.Engine
	next    *hop
	guard   func(context.Context, pmetric.Metrics) (context.Context, error) // of the pipeline, before the engine
	doorman *doorman
	conn    *grpc.ClientConn
	url     string
}

// testEngine is one as diff has by default.
func testEngine(to delta.Downstream, edit func(*statetable.Settings)) *delta.Engine {
	set := statetable.Settings{
		MaxNodes: 1000, MaxSeries: 100_000, TTL: 10 * time.Minute, VanishedAfter: 3 * time.Minute,
		ResyncInterval: 2 * time.Minute, OpaqueInterval: delta.OpaqueInterval, Rand: func(n int64) int64 { return n / 2 },
	}
	if edit != nil {
		edit(&set)
	}
	return delta.NewEngine(set, nil, to)
}

// newAttached returns an extension with an engine.
func newAttached(t testing.TB, set extension.Settings, engine *delta.Engine) *wireDiff {
	t.Helper()
	e, err := newExtension(set)
	require.NoError(t, err)
	require.NoError(t, e.Start(t.Context(), componenttest.NewNopHost()))
	t.Cleanup(func() { require.NoError(t, e.Shutdown(context.Background())) })
	detach, err := e.Attach("diff", engine)
	require.NoError(t, err)
	t.Cleanup(detach)
	return e
}

// startServer starts a receiver with the named extensions as its middlewares.
func startServer(t testing.TB, edit func(*statetable.Settings), middlewares ...string) *server {
	t.Helper()
	s := &server{next: &hop{state: map[string]float64{}}, doorman: &doorman{}}
	s.engine = testEngine(s.next, edit)
	extensions := host{component.MustNewID("doorman"): s.doorman}
	var ids []configmiddleware.Config
	for _, name := range middlewares {
		ext := newAttached(t, extensiontest.NewNopSettings(metadata.Type), s.engine)
		id := component.NewIDWithName(metadata.Type, name)
		extensions[id] = ext
		ids = append(ids, configmiddleware.Config{ID: id})
		s.ext = ext
	}

	factory := otlpreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	auth := configoptional.Some(configauth.Config{AuthenticatorID: component.MustNewID("doorman")})
	grpcCfg := cfg.Protocols.GRPC.GetOrInsertDefault()
	grpcCfg.NetAddr.Endpoint, grpcCfg.Middlewares, grpcCfg.Auth = loopback.FreeAddr(t), ids, auth
	httpCfg := cfg.Protocols.HTTP.GetOrInsertDefault()
	httpCfg.ServerConfig.NetAddr.Endpoint, httpCfg.ServerConfig.Middlewares = loopback.FreeAddr(t), ids
	httpCfg.ServerConfig.MaxRequestBodySize = 1 << 20
	httpCfg.ServerConfig.Auth.GetOrInsertDefault().Config = *auth.Get()

	set := receivertest.NewNopSettings(factory.Type())
	pipeline, err := consumer.NewMetrics(func(ctx context.Context, md pmetric.Metrics) (err error) {
		if s.guard != nil {
			if ctx, err = s.guard(ctx, md); err != nil {
				return err
			}
		}
		return s.engine.Consume(ctx, md)
	})
	require.NoError(t, err)
	metrics, err := factory.CreateMetrics(t.Context(), set, cfg, pipeline)
	require.NoError(t, err)
	logs, err := factory.CreateLogs(t.Context(), set, cfg, s.next)
	require.NoError(t, err)
	traces, err := factory.CreateTraces(t.Context(), set, cfg, s.next)
	require.NoError(t, err)
	for _, r := range []component.Component{metrics, logs, traces} { // one server behind the three
		require.NoError(t, r.Start(t.Context(), extensions))
		t.Cleanup(func() { require.NoError(t, r.Shutdown(context.Background())) })
	}
	s.url = "http://" + httpCfg.ServerConfig.NetAddr.Endpoint
	s.conn, err = grpc.NewClient(grpcCfg.NetAddr.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.conn.Close())
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

func encode(t testing.TB, md pmetric.Metrics) []byte {
	t.Helper()
	msg, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	require.NoError(t, err)
	return msg
}

// pusher sends a message's bytes and returns the receiver's refusal.
type pusher func(t testing.TB, msg []byte) error

func (s *server) pushers() map[string]pusher {
	return map[string]pusher{"grpc": s.grpc, "http": s.http}
}

func (s *server) grpc(t testing.TB, msg []byte) error {
	t.Helper()
	return s.conn.Invoke(t.Context(), "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
		msg, &[]byte{}, grpc.ForceCodecV2(rawCodec{}))
}

func (s *server) http(t testing.TB, msg []byte) error {
	t.Helper()
	status, body := s.post(t, "/v1/metrics", contentProtobuf, msg)
	if status != http.StatusOK {
		return fmt.Errorf("%d: %s", status, body)
	}
	return nil
}

func (s *server) post(t testing.TB, path, content string, msg []byte) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+path, bytes.NewReader(msg))
	require.NoError(t, err)
	req.Header.Set("Content-Type", content)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
