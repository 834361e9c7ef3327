// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/process"
)

// TestEachPortServesHTTP checks methods and codings by RFC 9110.
func TestEachPortServesHTTP(t *testing.T) {
	t.Parallel()
	ports := startGateway(t)
	ask := func(method, url string, body []byte, headers ...string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+url, bytes.NewReader(body))
		require.NoError(t, err)
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close()) // that of the stream has no end
		return resp
	}
	scrape, push := ports.Prom+"/metrics", ports.HTTP+"/v1/metrics"
	for url, allowed := range map[string]string{
		scrape: "GET, HEAD", ports.API + "/api/v1/thresholds": "GET, HEAD", ports.HTTP + "/api/v1/threshold?cluster=a": "GET, HEAD",
		ports.Fleet + "/": "GET, HEAD", ports.Fleet + "/api/v1/nodes": "GET, HEAD", ports.Fleet + "/api/v1/observe": "GET, HEAD", push: "POST",
	} {
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE"} {
			resp := ask(method, url, nil)
			refused := resp.StatusCode == http.StatusMethodNotAllowed && resp.Header.Get("Allow") == allowed
			assert.NotEqual(t, strings.Contains(allowed, method), refused, "%s %s: %d", method, url, resp.StatusCode)
		}
		get, head := ask("GET", url, nil), ask("HEAD", url, nil)
		assert.Equal(t, get.StatusCode, head.StatusCode, url)
		for _, name := range []string{"Content-Type", "Vary", "Cache-Control", "Etag", "Allow"} {
			assert.Equal(t, get.Header[name], head.Header[name], "%s of %s", name, url)
		}
		if !strings.HasPrefix(url, ports.HTTP) {
			assert.Equal(t, http.StatusOK, ask("GET", url, nil, "Content-Encoding", "br").StatusCode, "%s: nothing is encoded", url)
		}
	}
	for _, addr := range []string{ports.Prom, ports.API, ports.HTTP, ports.Fleet} {
		assert.Equal(t, http.StatusNotFound, ask("GET", addr+"/api/v1/nothing", nil).StatusCode, addr)
	}

	plain := []byte("{}")
	once := process.Gzip(t, plain)
	for _, c := range []struct {
		body    []byte
		code    int
		codings []string
	}{
		{plain, http.StatusOK, []string{""}},
		{once, http.StatusOK, []string{"gzip"}},
		{plain, http.StatusBadRequest, []string{"gzip"}},
		{plain, http.StatusUnsupportedMediaType, []string{"br"}},
		{process.Gzip(t, once), http.StatusUnsupportedMediaType, []string{"gzip, gzip"}},
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

	for _, url := range []string{scrape, ports.Fleet + "/"} {
		for accepted, zipped := range map[string]bool{
			"": false, "gzip": true, "GZip": true, "br, gzip;q=0.5": true, "gzip;q=0": false, "identity": false, "*;q=0": false, "br": false,
		} {
			resp := ask("GET", url, nil, "Accept-Encoding", accepted)
			assert.Equal(t, zipped, resp.Header.Get("Content-Encoding") == "gzip", "%s: %q", url, accepted)
			assert.Contains(t, resp.Header.Values("Vary"), "Accept-Encoding")
		}
	}
}
