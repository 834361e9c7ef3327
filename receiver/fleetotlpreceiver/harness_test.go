// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/test/loopback"
)

type settings = map[string]any

// host has the extensions of a test.
type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// pipeline is what follows a receiver: it answers with err, and keeps what came.
type pipeline struct {
	mu      sync.Mutex
	err     error
	metrics []pmetric.Metrics
	items   int
	handle  func(context.Context) error // in place of err, unless nil
}

func (*pipeline) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (p *pipeline) take(ctx context.Context, items int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.items += items
	if p.handle != nil {
		return p.handle(ctx)
	}
	return p.err
}

func (p *pipeline) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	p.mu.Lock()
	p.metrics = append(p.metrics, md)
	p.mu.Unlock()
	return p.take(ctx, md.DataPointCount())
}

func (p *pipeline) ConsumeLogs(ctx context.Context, ld plog.Logs) error {
	return p.take(ctx, ld.LogRecordCount())
}

func (p *pipeline) ConsumeTraces(ctx context.Context, td ptrace.Traces) error {
	return p.take(ctx, td.SpanCount())
}

// server is a receiver that runs, and a client of it.
type server struct {
	*fleetReceiver // nil of another type
	conn           *grpc.ClientConn
	http           string // host:port
	grpc           string
	next           *pipeline
	tel            *componenttest.Telemetry
}

// start starts a receiver of any type with these settings over its defaults, on ports of
// its own.
func start(t testing.TB, factory receiver.Factory, next *pipeline, extensions host, over settings) *server {
	t.Helper()
	s := &server{grpc: loopback.FreeAddr(t), http: loopback.FreeAddr(t), next: next, tel: componenttest.NewTelemetry()}
	conf := confmap.NewFromStringMap(settings{"protocols": settings{"grpc": settings{"endpoint": s.grpc}, "http": settings{"endpoint": s.http}}})
	require.NoError(t, conf.Merge(confmap.NewFromStringMap(over)))
	cfg := factory.CreateDefaultConfig()
	require.NoError(t, conf.Unmarshal(cfg))
	set := receivertest.NewNopSettings(factory.Type())
	set.TelemetrySettings = s.tel.NewTelemetrySettings()
	metrics, err := factory.CreateMetrics(t.Context(), set, cfg, next)
	require.NoError(t, err)
	logs, err := factory.CreateLogs(t.Context(), set, cfg, next)
	require.NoError(t, err)
	traces, err := factory.CreateTraces(t.Context(), set, cfg, next)
	require.NoError(t, err)
	if h, ok := metrics.(*handle); ok {
		s.fleetReceiver = h.Get()
	}
	for _, r := range []component.Component{metrics, logs, traces} { // one receiver behind the three
		require.NoError(t, r.Start(t.Context(), extensions))
	}
	s.conn, err = grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.conn.Close())
		http.DefaultClient.CloseIdleConnections()
		for _, r := range []component.Component{metrics, logs, traces} {
			require.NoError(t, r.Shutdown(context.WithoutCancel(t.Context())))
		}
		require.NoError(t, s.tel.Shutdown(context.WithoutCancel(t.Context())))
	})
	return s
}

// fleet starts the receiver.
func fleet(t testing.TB, over settings) *server {
	t.Helper()
	return start(t, NewFactory(), &pipeline{}, nil, over)
}

// path and method of each signal.
var signals = map[string]string{
	"/v1/metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
	"/v1/logs":    "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
	"/v1/traces":  "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
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

// call pushes bytes over gRPC. The headers are those of the request, then of the answer.
func (s *server) call(ctx context.Context, method string, msg []byte, headers ...string) (metadata.MD, error) {
	var answer metadata.MD
	err := s.conn.Invoke(metadata.AppendToOutgoingContext(ctx, headers...), method, msg, &[]byte{}, grpc.ForceCodecV2(rawCodec{}), grpc.Header(&answer))
	return answer, err
}

// post pushes bytes over HTTP.
func (s *server) post(t testing.TB, path string, msg []byte, headers map[string]string) (*http.Response, []byte) {
	t.Helper()
	return s.ask(t, http.MethodPost, path, msg, headers)
}

func (s *server) ask(t testing.TB, method, path string, msg []byte, headers map[string]string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.http+path, bytes.NewReader(msg))
	require.NoError(t, err)
	req.Header.Set("Content-Type", contentProtobuf)
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	req.Host = headers["Host"] // its own where it is empty
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp, body
}

// pairs are headers by their names.
func pairs(headers []string) map[string]string {
	with := map[string]string{}
	for pair := range slices.Chunk(headers, 2) {
		with[pair[0]] = pair[1]
	}
	return with
}

// push pushes bytes of metrics.
type push func(t testing.TB, msg []byte) error

func (s *server) pushers(headers ...string) map[string]push {
	return map[string]push{
		"grpc": func(t testing.TB, msg []byte) error {
			t.Helper()
			_, err := s.call(t.Context(), signals["/v1/metrics"], msg, headers...)
			return err
		},
		"http": func(t testing.TB, msg []byte) error {
			t.Helper()
			resp, body := s.post(t, "/v1/metrics", msg, pairs(headers))
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("%d: %s", resp.StatusCode, body)
			}
			return nil
		},
	}
}

// report is one node's report: metric m with a point per value.
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

func encode(t testing.TB, md pmetric.Metrics) []byte {
	t.Helper()
	msg, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	require.NoError(t, err)
	return msg
}

// message is a request of OTLP.
type message interface {
	MarshalProto() ([]byte, error)
	MarshalJSON() ([]byte, error)
}

// messages is one push of each signal, in protobuf and in JSON, by path.
func messages(t testing.TB) map[string]message {
	ld, td := plog.NewLogs(), ptrace.NewTraces()
	ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty().Body().SetStr("x")
	td.ResourceSpans().AppendEmpty().ScopeSpans().AppendEmpty().Spans().AppendEmpty().SetName("x")
	t.Helper()
	return map[string]message{
		"/v1/metrics": pmetricotlp.NewExportRequestFromMetrics(report("n", 0, 1)),
		"/v1/logs":    plogotlp.NewExportRequestFromLogs(ld),
		"/v1/traces":  ptraceotlp.NewExportRequestFromTraces(td),
	}
}

// doorman is an authenticator: it accepts any name, and waits for wait.
type doorman struct {
	component.StartFunc
	component.ShutdownFunc
	mu    sync.Mutex
	asked int
	wait  chan struct{}
}

var errStranger = errors.New("not you")

func (d *doorman) Authenticate(ctx context.Context, headers map[string][]string) (context.Context, error) {
	d.mu.Lock()
	d.asked++
	wait := d.wait
	d.mu.Unlock()
	name := strings.Join(append(headers["authorization"], headers["Authorization"]...), "") // of gRPC, or HTTP
	if name == "slow" && wait != nil {
		<-wait
	}
	if name == "" || name == "slow" {
		return ctx, errStranger
	}
	return withUser(ctx, name), nil
}

func eventually(t testing.TB, met func() bool, why string) {
	t.Helper()
	require.Eventually(t, met, 30*time.Second, time.Millisecond, why)
}
