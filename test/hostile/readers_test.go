// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestForeignNames asks each port that has data by a name that is not the gateway's, as
// a page of the web does whose name leads here.
func TestForeignNames(t *testing.T) {
	g := gateway(t, options{})
	b := beside(t, alone(g), "names")
	ask := func(method, url, name string, headers ...string) int {
		req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
		require.NoError(t, err)
		req.Host = name
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := httpClient.Do(req)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		if resp.StatusCode != http.StatusOK {
			assert.NotContains(t, string(body), bystander)
		}
		return resp.StatusCode
	}
	for _, url := range []string{
		g.prom + "/metrics", g.api + "/api/v1/thresholds", g.http + "/api/v1/thresholds", g.api + "/api/v1/threshold?cluster_id=" + bystander,
		g.http + "/api/v1/threshold?cluster_id=" + bystander, g.fleet + "/", g.fleet + "/api/v1/nodes", g.fleet + "/api/v1/stats/summary",
	} {
		for name, want := range map[string]int{
			"": http.StatusOK, "10.0.0.7": http.StatusOK, "gateway-0": http.StatusOK, "gateway.gpu.svc": http.StatusOK, "gateway.gpu.svc.cluster.local:1": http.StatusOK,
			"evil.example.com": http.StatusMisdirectedRequest, "127.0.0.1.evil.example.com:80": http.StatusMisdirectedRequest, "localhost.evil.example.com.": http.StatusMisdirectedRequest,
		} {
			assert.Equal(t, want, ask(http.MethodGet, "http://"+url, name), "%s as %q", url, name)
		}
	}
	push := "http://" + g.http + "/v1/metrics"
	assert.Equal(t, http.StatusMisdirectedRequest, ask(http.MethodPost, push, "evil.example.com", "Content-Type", jsonType, "Origin", "http://evil.example.com"))
	assert.Equal(t, http.StatusOK, ask(http.MethodPost, push, "gateway.example.com", "Content-Type", protobufType), "an agent's, by whatever name")
	b.endCalm(8*mib, 4096)
}
