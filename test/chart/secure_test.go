// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// TestTiersTrustEachOther runs agent, shard and gateway with the chart's
// configurations for TLS and tokens: a node's reports arrive, strangers are
// refused, and certificates and tokens that the kubelet replaces are used
// without a restart and without a report lost.
func TestTiersTrustEachOther(t *testing.T) {
	s := newSecrets(t)
	s.write(t, "one")
	fleet := tiers(t, s, "auth.type=bearer,auth.bearer.secret=token,agent.otlp.enabled=false")
	seen := func(token string) (time.Time, int) { return s.lastSeen(t, fleet.view, token) }

	eventually(t, "the node's report arrives", func() bool { at, _ := seen("one"); return !at.IsZero() })
	_, status := seen("two")
	assert.Equal(t, http.StatusUnauthorized, status)
	assert.Equal(t, int64(1), s.serial(t, fleet.gateway))

	// A client without a certificate is refused before it can show a token.
	conn, err := tls.Dial("tcp", fleet.gateway, &tls.Config{RootCAs: s.roots, ServerName: "localhost", NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12})
	if err == nil { // the refusal comes with the first answer
		defer func() { _ = conn.Close() }()
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(deadline)))
		_, err = conn.Read(make([]byte, 1))
	}
	require.ErrorContains(t, err, "certificate required")

	s.write(t, "one\ntwo")
	eventually(t, "the new token is taken beside the old one", func() bool { _, status := seen("two"); return status == http.StatusOK })
	s.write(t, "two\none")
	s.write(t, "two")
	eventually(t, "the old token is refused", func() bool { _, status := seen("one"); return status == http.StatusUnauthorized })
	since := time.Now()
	eventually(t, "reports go on", func() bool { at, _ := seen("two"); return at.After(since) })
	eventually(t, "the new certificate is shown", func() bool { return s.serial(t, fleet.gateway) == 4 })
}

// deadline is for a machine that does much else.
const deadline = 3 * time.Minute

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, deadline, 200*time.Millisecond, what)
}

type addresses struct{ gateway, shard, view, job string }

// tiers starts agent, shard and gateway as the chart configures them, with the
// secrets' directory in place of the pods' mounts and free ports on loopback.
func tiers(t *testing.T, s *secrets, values string) addresses {
	t.Helper()
	text, err := template(t, "--set", "tls.enabled=true,tls.certManager.enabled=true,tls.certManager.issuerRef.name=ca,tls.reloadInterval=1s,pushInterval=1s",
		"--set", "shard.enabled=true,agent.podResources.enabled=false,agent.state.enabled=false", "--set", values,
		"--set", "agent.config.receivers.nvml.deadline=1s,gateway.fleetView.history.storage=none,agent.libraryPath="+fakenvml.Library(t))
	require.NoError(t, err, text)
	at := addresses{gateway: loopback.FreeAddr(t), shard: loopback.FreeAddr(t), view: loopback.FreeAddr(t), job: loopback.FreeAddr(t)}
	state := filepath.Join(s.dir, "state")
	require.NoError(t, fakenvml.NewH100(1).Write(state))
	for _, m := range manifests(t, text) {
		if m.Kind != "ConfigMap" {
			continue
		}
		tier := m.Metadata.Labels["app.kubernetes.io/component"]
		const listen = "${env:GPU_COLLECTOR_LISTEN:-0.0.0.0}"
		grpc, http := loopback.FreeAddr(t), loopback.FreeAddr(t)
		switch tier {
		case "gateway":
			grpc = at.gateway
		case "shard":
			grpc = at.shard
		case "agent":
			http = at.job
		}
		config := strings.NewReplacer(
			listen+":4317", grpc, listen+":8086", at.view, listen+":4318", http, listen+":9464", loopback.FreeAddr(t), listen+":13133", loopback.FreeAddr(t),
			"127.0.0.1:4317", loopback.FreeAddr(t), "127.0.0.1:4318", loopback.FreeAddr(t), "127.0.0.1:8085", loopback.FreeAddr(t), "127.0.0.1:9464", loopback.FreeAddr(t),
			"${env:GPU_COLLECTOR_API_LISTEN:-127.0.0.1}:8085", loopback.FreeAddr(t),
			"port: 8888", "port: "+port(t, loopback.FreeAddr(t)), "/var/run/gpu-collector", s.dir,
		).Replace(m.Data["config.yaml"])
		next := map[string]string{"agent": at.shard, "shard": at.gateway}[tier]
		if next != "" {
			next = "dns:///localhost:" + port(t, next)
		}
		start(t, tier, config, "K8S_NODE_NAME=node-1", "GPU_COLLECTOR_INSECURE=false", "GPU_COLLECTOR_CONSISTENT_HASH=node",
			"GPU_COLLECTOR_GATEWAY="+next, fakenvml.StateEnv+"="+state)
	}
	return at
}

func port(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	return port
}

// start runs a tier's binary until the test ends, and shows its log if that failed.
func start(t *testing.T, tier, config string, env ...string) {
	t.Helper()
	binary := map[string]string{"agent": "gpu-collector-agent"}[tier]
	if binary == "" {
		binary = "gpu-collector"
	}
	path, err := filepath.Abs(root + "/bin/" + binary)
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(config), 0o600))
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), path, "--config", filepath.Join(dir, "config.yaml"))
	cmd.Env = append([]string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}, env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { // after the context of the test has ended
		_ = cmd.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s:\n%s", tier, text)
		}
	})
}

// secrets are what the chart mounts into the pods of all tiers.
type secrets struct {
	dir    string
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
	roots  *x509.CertPool
	writes int64
}

func newSecrets(t *testing.T) *secrets {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	s := &secrets{dir: t.TempDir(), key: key, roots: x509.NewCertPool(), ca: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	der, err := x509.CreateCertificate(rand.Reader, s.ca, s.ca, &key.PublicKey, key)
	require.NoError(t, err)
	s.ca, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	s.roots.AddCert(s.ca)
	return s
}

// write gives out a new certificate, whose serial number is that of the write,
// and the tokens, one a line.
func (s *secrets) write(t *testing.T, tokens string) {
	t.Helper()
	s.writes++
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(s.writes), Subject: pkix.Name{CommonName: "tier"}, DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, s.ca, &key.PublicKey, s.key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	s.replace(t, "tls", map[string]string{
		"tls.crt": block("CERTIFICATE", der), "tls.key": block("PRIVATE KEY", private), "ca.crt": block("CERTIFICATE", s.ca.Raw),
	})
	s.replace(t, "auth", map[string]string{"token": tokens + "\n"})
}

// replace writes a secret as the kubelet does: files are links into ..data,
// which is a link that changes.
func (s *secrets) replace(t *testing.T, name string, files map[string]string) {
	t.Helper()
	dir := filepath.Join(s.dir, name)
	version := fmt.Sprintf("..%d", s.writes)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, version), 0o700))
	for file, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, version, file), []byte(text), 0o600))
	}
	require.NoError(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
	require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	for file := range files {
		if s.writes == 1 {
			require.NoError(t, os.Symlink("..data/"+file, filepath.Join(dir, file)))
		}
	}
	if s.writes > 1 {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", s.writes-1))))
	}
}

// lastSeen is when the fleet view heard of the node, with the answer's status.
func (s *secrets) lastSeen(t *testing.T, view, token string) (time.Time, int) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: s.roots, ServerName: "localhost", MinVersion: tls.VersionTLS12}}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+view+"/api/v1/nodes/node-1", http.NoBody)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := client.Do(request)
	if err != nil {
		return time.Time{}, 0 // it does not listen yet
	}
	defer func() { _ = answer.Body.Close() }()
	var node struct {
		LastSeen time.Time `json:"last_seen"`
	}
	if answer.StatusCode != http.StatusOK || json.NewDecoder(answer.Body).Decode(&node) != nil {
		return time.Time{}, answer.StatusCode
	}
	return node.LastSeen, answer.StatusCode
}

// serial is that of the certificate which a server shows.
func (s *secrets) serial(t *testing.T, address string) int64 {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: s.roots, ServerName: "localhost", NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12})
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}
