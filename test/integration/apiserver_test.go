// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// apiServer is a real API server of Kubernetes over a real etcd.
type apiServer struct{ url, ca, token string }

// startAPIServer runs hyperkube of $CHART_TOOLS, or of the path.
func startAPIServer(t *testing.T) apiServer {
	t.Helper()
	hyperkube, err := exec.LookPath("hyperkube")
	if dir := os.Getenv("CHART_TOOLS"); dir != "" {
		hyperkube, err = exec.LookPath(filepath.Join(dir, "hyperkube"))
		require.NoError(t, err, "CHART_TOOLS must be a directory with hyperkube")
	}
	if err != nil {
		t.Skip("no hyperkube in $CHART_TOOLS or on the path: CI has it")
	}
	dir := t.TempDir()
	etcd, peer, addr := loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t)
	run := func(args ...string) {
		cmd := exec.Command(hyperkube, args...) //nolint:noctx // ends with the test
		log, err := os.Create(filepath.Join(dir, args[0]+".log"))
		require.NoError(t, err)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			_ = log.Close()
		})
	}
	// The key signs the tokens of service accounts; nobody asks for one.
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	private := filepath.Join(dir, "sa.key")
	require.NoError(t, os.WriteFile(private, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600))
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sa.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600))
	s := apiServer{url: "https://" + addr, ca: filepath.Join(dir, "apiserver.crt"), token: filepath.Join(dir, "token")}
	require.NoError(t, os.WriteFile(s.token, []byte("secret-of-the-gateways\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokens.csv"), []byte("secret-of-the-gateways,gateway,1,system:masters\n"), 0o600))
	run("etcd", "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", "http://"+etcd, "--advertise-client-urls", "http://"+etcd,
		"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer, "--initial-cluster", "default=http://"+peer, "--unsafe-no-fsync")
	run("kube-apiserver", "--etcd-servers=http://"+etcd, "--bind-address=127.0.0.1", "--secure-port="+portOf(t, addr), "--cert-dir="+dir, // where it writes a certificate of its own
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+filepath.Join(dir, "sa.pub"), "--service-account-signing-key-file="+private,
		"--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC", "--token-auth-file="+filepath.Join(dir, "tokens.csv"))
	eventually(t, "the API server is ready", func() bool {
		roots := x509.NewCertPool()
		if text, err := os.ReadFile(s.ca); err != nil || !roots.AppendCertsFromPEM(text) {
			return false
		}
		client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/api/v1/namespaces/default", http.NoBody)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer secret-of-the-gateways")
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return s
}
