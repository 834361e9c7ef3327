// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
)

// The content types of OTLP/HTTP.
const (
	Protobuf = "application/x-protobuf"
	JSON     = "application/json"
)

// client keeps no connection, so that no test holds up the shutdown of its collector.
var client = &http.Client{Timeout: Patience, Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}

// Response of an HTTP request, read to its end.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Send makes one HTTP request, by a client of its own if by is nil. Headers come in pairs
// of name and value.
func Send(ctx context.Context, by *http.Client, method, url string, body []byte, headers ...string) (Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return Response{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	if by == nil {
		by = client
	}
	resp, err := by.Do(req)
	if err != nil {
		return Response{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return Response{resp.StatusCode, resp.Header, text}, err
}

// Post sends a body.
func Post(t testing.TB, url, contentType string, body []byte, headers ...string) Response {
	t.Helper()
	resp, err := Send(t.Context(), nil, http.MethodPost, url, body, append(headers, "Content-Type", contentType)...)
	require.NoError(t, err)
	return resp
}

// Fetch gets a page.
func Fetch(t testing.TB, url string) Response {
	t.Helper()
	resp, err := Send(t.Context(), nil, http.MethodGet, url, nil)
	require.NoError(t, err)
	return resp
}

// FetchJSON gets a page of JSON.
func FetchJSON(t testing.TB, url string, into any) {
	t.Helper()
	resp := Fetch(t, url)
	require.Equal(t, http.StatusOK, resp.Status, "%s", resp.Body)
	require.NoError(t, json.Unmarshal(resp.Body, into), "%s", resp.Body)
}

// Dial returns a connection to an OTLP/gRPC receiver, in the clear by default.
func Dial(t testing.TB, addr string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	options = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, options...)
	conn, err := grpc.NewClient("passthrough:///"+addr, options...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Export pushes metrics and returns the headers of the answer.
func Export(ctx context.Context, conn *grpc.ClientConn, md pmetric.Metrics) (header metadata.MD, err error) {
	_, err = pmetricotlp.NewGRPCClient(conn).Export(ctx, pmetricotlp.NewExportRequestFromMetrics(md), grpc.Header(&header))
	return header, err
}

// MetricsMethod is OTLP's call with metrics.
const MetricsMethod = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"

// ExportRaw sends bytes as the message of a call.
func ExportRaw(ctx context.Context, conn *grpc.ClientConn, method string, body []byte, options ...grpc.CallOption) error {
	return conn.Invoke(ctx, method, &body, nil, append(options, grpc.ForceCodecV2(Raw{}))...)
}

// Raw is a codec of messages that are encoded, *[]byte. It drops what comes: senders and
// next hops may share the machine with a process that is measured.
type Raw struct{}

// Name is that of the codec whose bytes they are.
func (Raw) Name() string { return "proto" }

// Marshal hands the bytes on.
func (Raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

// Unmarshal drops the bytes.
func (Raw) Unmarshal(mem.BufferSlice, any) error { return nil }

// Listen runs a gRPC server at an address until the test ends.
func Listen(t testing.TB, addr string, register func(*grpc.Server)) *grpc.Server {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
	require.NoError(t, err)
	server, done := grpc.NewServer(), make(chan struct{})
	register(server)
	go func() { defer close(done); _ = server.Serve(listener) }() // until it is stopped
	t.Cleanup(func() { server.Stop(); <-done })
	return server
}

// NextHop is an OTLP server whose answer the test decides.
type NextHop struct {
	pmetricotlp.UnimplementedGRPCServer
	Take func(context.Context, pmetric.Metrics) error
}

// Export implements pmetricotlp.GRPCServer.
func (n *NextHop) Export(ctx context.Context, req pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	return pmetricotlp.NewExportResponse(), n.Take(ctx, req.Metrics())
}

// Listen runs the server until the test ends.
func (n *NextHop) Listen(t testing.TB, addr string) *grpc.Server {
	t.Helper()
	return Listen(t, addr, func(s *grpc.Server) { pmetricotlp.RegisterGRPCServer(s, n) })
}

// Marshal writes a push in protobuf.
func Marshal(t testing.TB, md pmetric.Metrics) []byte {
	t.Helper()
	body, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	require.NoError(t, err)
	return body
}

// Gzip compresses a body.
func Gzip(t testing.TB, body []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(body)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

// Node adds a resource for a node and returns its metrics. Attributes come in pairs.
func Node(md pmetric.Metrics, name string, attrs ...string) pmetric.MetricSlice {
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("host.name", name)
	for i := 0; i < len(attrs); i += 2 {
		rm.Resource().Attributes().PutStr(attrs[i], attrs[i+1])
	}
	return rm.ScopeMetrics().AppendEmpty().Metrics()
}

// Gauge adds a gauge with one point of the present and returns the point. Attributes come
// in pairs.
func Gauge(metrics pmetric.MetricSlice, name, unit string, value float64, attrs ...string) pmetric.NumberDataPoint {
	m := metrics.AppendEmpty()
	m.SetName(name)
	m.SetUnit(unit)
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetTimestamp(pcommon.NewTimestampFromTime(time.Now()))
	p.SetDoubleValue(value)
	for i := 0; i < len(attrs); i += 2 {
		p.Attributes().PutStr(attrs[i], attrs[i+1])
	}
	return p
}

// Score adds a node that reports its health score.
func Score(md pmetric.Metrics, name string, value float64, attrs ...string) {
	Gauge(Node(md, name, attrs...), "gpu.node.health_score", "1", value, "gpu.node.state", "active")
}
