// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAnAgentLendsItsNameToNobody: with names and passwords in all tiers, what
// a pod says of another cluster's node to an agent is of the agent's own node.
func TestAnAgentLendsItsNameToNobody(t *testing.T) {
	s := newSecrets(t)
	s.write(t, "unused")
	s.replace(t, "passwords", map[string]string{"htpasswd": "default/*:secret-1\n"})
	s.replace(t, "credentials", map[string]string{"username": "default/*\n", "password": "secret-1\n"})
	fleet := tiers(t, s, "auth.type=basic,auth.basic.passwordsSecret=p,auth.basic.credentialsSecret=c")

	const push = `{"resourceMetrics": [{"resource": {"attributes": [
		{"key": "k8s.cluster.name", "value": {"stringValue": "victims"}}, {"key": "k8s.node.name", "value": {"stringValue": "victim"}},
		{"key": "host.name", "value": {"stringValue": "victim"}}, {"key": "gpu.job.id", "value": {"stringValue": "llm"}}]},
		"scopeMetrics": [{"metrics": [{"name": "gpu.app.step.duration", "unit": "s", "gauge": {"dataPoints": [{"asDouble": 0.5}]}}]}]}]}`
	var nodes string
	eventually(t, "the job is on the agent's node", func() bool {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+fleet.job+"/v1/metrics", strings.NewReader(push))
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return false // it does not listen yet
		}
		require.NoError(t, answer.Body.Close())
		nodes = s.get(t, "https://"+fleet.view+"/api/v1/nodes")
		return strings.Contains(nodes, `"node-1"`) && strings.Contains(nodes, "llm")
	})
	assert.NotContains(t, nodes, "victim")
}

// get returns what a server of the tiers answers, or nothing.
func (s *secrets) get(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: s.roots, ServerName: "localhost", MinVersion: tls.VersionTLS12}}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	answer, err := client.Do(request)
	if err != nil {
		return ""
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return string(text)
}
