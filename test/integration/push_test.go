// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	protobufType = "application/x-protobuf"
	jsonType     = "application/json"
)

// grpcClient returns a client of an OTLP/gRPC receiver.
func grpcClient(t *testing.T, addr string) pmetricotlp.GRPCClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return pmetricotlp.NewGRPCClient(conn)
}

// response of an HTTP request, read to its end.
type response struct {
	status int
	header http.Header
	body   []byte
}

// send makes one HTTP request; headers come in pairs of name and value.
func send(ctx context.Context, method, url string, body []byte, headers ...string) (response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return response{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return response{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return response{resp.StatusCode, resp.Header, text}, err
}

// post sends a body to an HTTP endpoint.
func post(t *testing.T, url, contentType string, body []byte, headers ...string) response {
	t.Helper()
	resp, err := send(t.Context(), http.MethodPost, url, body, append(headers, "Content-Type", contentType)...)
	require.NoError(t, err)
	return resp
}

func get(t *testing.T, url string) response {
	t.Helper()
	resp, err := send(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	return resp
}

func getJSON(t *testing.T, url string, into any) {
	t.Helper()
	resp := get(t, url)
	require.Equal(t, http.StatusOK, resp.status, "%s", resp.body)
	require.NoError(t, json.Unmarshal(resp.body, into), "%s", resp.body)
}

func marshal(t *testing.T, md pmetric.Metrics) []byte {
	t.Helper()
	body, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	require.NoError(t, err)
	return body
}

func gzipped(t *testing.T, body []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(body)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

// node adds a resource for a node and returns its metrics.
func node(md pmetric.Metrics, name string, attrs map[string]string) pmetric.MetricSlice {
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("host.name", name)
	for k, v := range attrs {
		rm.Resource().Attributes().PutStr(k, v)
	}
	return rm.ScopeMetrics().AppendEmpty().Metrics()
}

// gauge adds a gauge with one point of the present and returns the point.
func gauge(metrics pmetric.MetricSlice, name, unit string, value float64) pmetric.NumberDataPoint {
	m := metrics.AppendEmpty()
	m.SetName(name)
	m.SetUnit(unit)
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetTimestamp(pcommon.NewTimestampFromTime(time.Now()))
	p.SetDoubleValue(value)
	return p
}

// score adds a node that says its health score.
func score(md pmetric.Metrics, name string, attrs map[string]string, value float64) {
	gauge(node(md, name, attrs), "gpu.node.health_score", "1", value).Attributes().PutStr("gpu.node.state", "active")
}
