// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/authority"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// TestTiersTrustEachOther runs agent, shard and gateway with the chart's
// configurations for TLS and tokens: a node's reports arrive, strangers are
// refused, and certificates and tokens that the kubelet replaces are used
// without a restart and without a report lost.
func TestTiersTrustEachOther(t *testing.T) {
	s := newSecrets(t)
	s.write(t, "one")
	fleet := tiers(t, s, "auth.type=bearer,auth.bearer.secret=token,agent.otlp.enabled=false")
	status := func(token string) int { return fleet.nodes(t, token).Status }
	reported := func(token string, after time.Time) bool {
		var page struct {
			Nodes []struct {
				Node     string
				LastSeen time.Time `json:"last_seen"`
			}
		}
		return json.Unmarshal(fleet.nodes(t, token).Body, &page) == nil && len(page.Nodes) == 1 &&
			page.Nodes[0].Node == "node-1" && page.Nodes[0].LastSeen.After(after)
	}
	process.Eventually(t, "the node's report arrives", func() bool { return reported("one", time.Time{}) })
	assert.Equal(t, http.StatusUnauthorized, status("two"))
	first := s.certificate
	assert.Equal(t, first, s.served(t, fleet.gateway))

	// A client without a certificate is refused before it can show a token.
	conn := s.dial(t, fleet.gateway)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(process.Patience)))
	_, err := conn.Read(make([]byte, 1)) // the refusal comes with the first answer
	require.ErrorContains(t, err, "certificate required")

	s.write(t, "one\ntwo")
	process.Eventually(t, "the new token is taken beside the old one", func() bool { return status("two") == http.StatusOK })
	s.write(t, "two\none")
	s.write(t, "two")
	process.Eventually(t, "the old token is refused", func() bool { return status("one") == http.StatusUnauthorized })
	since := time.Now()
	process.Eventually(t, "reports go on", func() bool { return reported("two", since) })
	process.Eventually(t, "the new certificate is served", func() bool { return bytes.Equal(s.served(t, fleet.gateway), s.certificate) })
	assert.NotEqual(t, first, s.certificate)
}

// TestAnAgentLendsItsNameToNobody: with names and passwords in all tiers, a pod's metrics
// that name another cluster's node are those of the agent's own node.
func TestAnAgentLendsItsNameToNobody(t *testing.T) {
	s := newSecrets(t)
	s.write(t, "unused")
	s.replace(t, "passwords", map[string][]byte{"htpasswd": []byte("default/*:secret-1\n")})
	s.replace(t, "credentials", map[string][]byte{"username": []byte("default/*\n"), "password": []byte("secret-1\n")})
	fleet := tiers(t, s, "auth.type=basic,auth.basic.passwordsSecret=p,auth.basic.credentialsSecret=c")

	const push = `{"resourceMetrics": [{"resource": {"attributes": [
		{"key": "k8s.cluster.name", "value": {"stringValue": "victims"}}, {"key": "k8s.node.name", "value": {"stringValue": "victim"}},
		{"key": "host.name", "value": {"stringValue": "victim"}}, {"key": "gpu.job.id", "value": {"stringValue": "llm"}}]},
		"scopeMetrics": [{"metrics": [{"name": "gpu.app.step.duration", "unit": "s", "gauge": {"dataPoints": [{"asDouble": 0.5}]}}]}]}]}`
	var nodes string
	process.Eventually(t, "the job is on the agent's node", func() bool {
		process.Post(t, "http://"+fleet.job+"/v1/metrics", process.JSON, []byte(push))
		nodes = string(fleet.nodes(t, "").Body)
		return strings.Contains(nodes, `"node-1"`) && strings.Contains(nodes, "llm")
	})
	assert.NotContains(t, nodes, "victim")
}

// chartFleet is an agent, a shard and a gateway that run. Its addresses are those that
// the tests use.
type chartFleet struct {
	gateway, shard, view, job string
	client                    *http.Client // of the view
}

// nodes asks the view for the nodes.
func (f *chartFleet) nodes(t *testing.T, token string) process.Response {
	t.Helper()
	resp, err := process.Send(t.Context(), f.client, http.MethodGet, "https://"+f.view+"/api/v1/nodes", nil, "Authorization", "Bearer "+token)
	require.NoError(t, err)
	return resp
}

// tiers starts agent, shard and gateway as the chart configures them, with the
// secrets' directory for the pods' mounts and free ports on loopback.
func tiers(t *testing.T, s *secrets, values string) *chartFleet {
	t.Helper()
	text, err := template(t, "--set", "tls.enabled=true,tls.certManager.enabled=true,tls.certManager.issuerRef.name=ca,tls.reloadInterval=1s,pushInterval=1s",
		"--set", "shard.enabled=true,agent.podResources.enabled=false,agent.state.enabled=false", "--set", values,
		"--set", "agent.config.receivers.nvml.deadline=1s,gateway.fleetView.history.storage=none,agent.libraryPath="+fakenvml.Library(t))
	require.NoError(t, err, text)
	configs := map[string]string{}
	for _, m := range manifests(t, text) {
		if m.Kind == "ConfigMap" {
			configs[m.Metadata.Labels["app.kubernetes.io/component"]] = m.Data["config.yaml"]
		}
	}
	f := &chartFleet{
		gateway: loopback.FreeAddr(t), shard: loopback.FreeAddr(t), view: loopback.FreeAddr(t), job: loopback.FreeAddr(t),
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: s.ca.Client()}},
	}
	state := filepath.Join(s.dir, "state")
	require.NoError(t, fakenvml.NewH100(1).Write(state))
	free := func() string { return loopback.FreeAddr(t) }
	for _, tier := range []struct{ name, binary, grpc, http, next string }{
		{"gateway", "gpu-collector", f.gateway, free(), ""},
		{"shard", "gpu-collector", f.shard, free(), "dns:///localhost:" + process.Port(f.gateway)},
		{"agent", "gpu-collector-agent", free(), f.job, "dns:///localhost:" + process.Port(f.shard)},
	} {
		const listen = "${env:GPU_COLLECTOR_LISTEN:-0.0.0.0}"
		config := strings.NewReplacer(
			listen+":4317", tier.grpc, listen+":8086", f.view, listen+":4318", tier.http, listen+":9464", free(), listen+":13133", free(),
			"127.0.0.1:4317", free(), "127.0.0.1:4318", free(), "127.0.0.1:8085", free(), "127.0.0.1:9464", free(),
			"${env:GPU_COLLECTOR_API_LISTEN:-127.0.0.1}:8085", free(), "port: 8888", "port: "+process.Port(free()), "/var/run/gpu-collector", s.dir,
		).Replace(configs[tier.name])
		process.Run(t, process.Options{Binary: process.Binary(t, tier.binary), Config: []string{config}, Env: []string{
			"K8S_NODE_NAME=node-1", "GPU_COLLECTOR_INSECURE=false", "GPU_COLLECTOR_CONSISTENT_HASH=node",
			"GPU_COLLECTOR_GATEWAY=" + tier.next, fakenvml.StateEnv + "=" + state,
		}})
	}
	return f
}

// secrets are what the chart mounts into the pods of all tiers.
type secrets struct {
	dir         string
	ca          *authority.Authority
	certificate []byte // the last one, in DER
	writes      int
}

func newSecrets(t *testing.T) *secrets {
	t.Helper()
	return &secrets{dir: t.TempDir(), ca: authority.New(t, "ca")}
}

// write gives out a new certificate, and the tokens, one a line.
func (s *secrets) write(t *testing.T, tokens string) {
	t.Helper()
	s.writes++
	cert, key := s.ca.Pair(t, time.Hour, "localhost")
	block, _ := pem.Decode(cert)
	s.certificate = block.Bytes
	s.replace(t, "tls", map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": s.ca.PEM})
	s.replace(t, "auth", map[string][]byte{"token": []byte(tokens + "\n")})
}

// replace writes a secret as the kubelet does: files are links into ..data,
// which is a link that changes.
func (s *secrets) replace(t *testing.T, name string, files map[string][]byte) {
	t.Helper()
	dir := filepath.Join(s.dir, name)
	version := fmt.Sprintf("..%d", s.writes)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, version), 0o700))
	for file, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, version, file), text, 0o600))
		if s.writes == 1 {
			require.NoError(t, os.Symlink("..data/"+file, filepath.Join(dir, file)))
		}
	}
	require.NoError(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
	require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", s.writes-1))))
}

// dial connects to a server of gRPC, without a certificate.
func (s *secrets) dial(t *testing.T, address string) *tls.Conn {
	t.Helper()
	config := s.ca.Client()
	config.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", address, config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// served is the certificate of a server.
func (s *secrets) served(t *testing.T, address string) []byte {
	t.Helper()
	return s.dial(t, address).ConnectionState().PeerCertificates[0].Raw
}
