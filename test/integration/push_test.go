// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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

// TestEachPortSpeaksHTTP as RFC 9110 says it: methods and codings.
func TestEachPortSpeaksHTTP(t *testing.T) {
	t.Parallel()
	ports := newGatewayPorts(t)
	start(t, options{configs: []string{"configs/gateway.yaml", ports.overlay(t)}})
	// A header has its lines between bars.
	ask := func(method, url string, body []byte, headers ...string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+url, bytes.NewReader(body))
		require.NoError(t, err)
		for i := 0; i < len(headers); i += 2 {
			req.Header[headers[i]] = strings.Split(headers[i+1], "|")
		}
		resp, err := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close()) // that of the stream has no end
		return resp
	}
	scrape, push := ports.prom+"/metrics", ports.http+"/v1/metrics"
	for url, allowed := range map[string]string{
		scrape: "GET, HEAD", ports.api + "/api/v1/thresholds": "GET, HEAD", ports.http + "/api/v1/threshold?cluster=a": "GET, HEAD",
		ports.fleet + "/": "GET, HEAD", ports.fleet + "/api/v1/nodes": "GET, HEAD", ports.fleet + "/api/v1/observe": "GET, HEAD", push: "POST",
	} {
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE"} {
			resp := ask(method, url, nil)
			refused := resp.StatusCode == http.StatusMethodNotAllowed && resp.Header.Get("Allow") == allowed
			assert.NotEqual(t, strings.Contains(allowed, method), refused, "%s %s: %d", method, url, resp.StatusCode)
		}
		assert.Equal(t, http.StatusNotImplemented, ask("FOO", url, nil).StatusCode, url)
		get, head := ask("GET", url, nil), ask("HEAD", url, nil)
		assert.Equal(t, get.StatusCode, head.StatusCode, url)
		for _, name := range []string{"Content-Type", "Vary", "Cache-Control", "Etag", "Allow"} {
			assert.Equal(t, get.Header[name], head.Header[name], "%s of %s", name, url)
		}
		if !strings.HasPrefix(url, ports.http) {
			assert.Equal(t, http.StatusOK, ask("GET", url, nil, "Content-Encoding", "br").StatusCode, "%s: nothing is encoded", url)
		}
	}
	for _, addr := range []string{ports.prom, ports.api, ports.http, ports.fleet} {
		assert.Equal(t, http.StatusNotFound, ask("GET", addr+"/api/v1/nothing", nil).StatusCode, addr)
	}

	plain := []byte("{}")
	once := gzipped(t, plain)
	for _, c := range []struct {
		body    []byte
		code    int
		codings []string
	}{
		{plain, http.StatusOK, []string{"", "Identity"}},
		{once, http.StatusOK, []string{"gzip", "GZIP", "X-GZip", "identity, gzip", "gzip|identity"}},
		{plain, http.StatusBadRequest, []string{"gzip"}},
		{plain, http.StatusUnsupportedMediaType, []string{"br"}},
		{gzipped(t, once), http.StatusUnsupportedMediaType, []string{"gzip, gzip", "gzip|gzip"}},
	} {
		for _, coding := range c.codings {
			resp := ask("POST", push, c.body, "Content-Type", "application/json", "Content-Encoding", coding)
			assert.Equal(t, c.code, resp.StatusCode, "%q", coding)
			assert.Equal(t, c.code == http.StatusUnsupportedMediaType, resp.Header.Get("Accept-Encoding") == "gzip, zlib, deflate", "%q", coding)
		}
	}
	resp := ask("POST", push, plain, "Content-Type", "text/html")
	assert.Equal(t, http.StatusUnsupportedMediaType, resp.StatusCode)
	assert.Equal(t, "application/json, application/x-protobuf", resp.Header.Get("Accept"))

	for _, url := range []string{scrape, ports.fleet + "/"} {
		for accepted, zipped := range map[string]bool{
			"": false, "gzip": true, "GZip": true, "x-gzip;q=0.5": true, "br|gzip": true, "gzip;q=0": false, "identity": false, "*;q=0": false, "br": false,
		} {
			resp := ask("GET", url, nil, "Accept-Encoding", accepted)
			assert.Equal(t, zipped, resp.Header.Get("Content-Encoding") == "gzip", "%s: %q", url, accepted)
			assert.Contains(t, resp.Header.Values("Vary"), "Accept-Encoding")
		}
	}
}
