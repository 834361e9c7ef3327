// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// guarded is a gateway behind TLS that wants the Authorization.
func guarded(t *testing.T, authorization string, clientCA *x509.Certificate) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != authorization {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		body := map[string]string{
			"/api/v1/nodes":         `{"nodes":[{"cluster":"c","node":"n0","health":"healthy","last_seen":"2026-01-02T03:04:05Z"}],"total":1}`,
			"/api/v1/stats/summary": `{"nodes":1}`,
			"/api/v1/attention":     `{"items":[],"waiting":[]}`,
		}[r.URL.Path]
		_, _ = w.Write([]byte(body)) // the client is gone when this fails
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // refused on purpose
	if clientCA != nil {
		pool := x509.NewCertPool()
		pool.AddCert(clientCA)
		srv.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12}
	}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

func writePEM(t *testing.T, kind string, der []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.pem")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return file
}

// loadFrom asks as the command does with these flags.
func loadFrom(t *testing.T, s *settings) error {
	t.Helper()
	require.NoError(t, s.check())
	client, err := s.client()
	require.NoError(t, err)
	f, err := NewSource(client, nil).Load(t.Context(), nil)
	if err == nil {
		assert.Len(t, f.Nodes, 1)
	}
	return err
}

func TestAsksOverTLSWithACredential(t *testing.T) {
	srv := guarded(t, "Bearer s3cr3t", nil)
	ca := writePEM(t, "CERTIFICATE", srv.Certificate().Raw)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("old\n"), 0o600))
	s := settings{endpoint: srv.URL, interval: time.Second, tokenFile: token}

	require.ErrorContains(t, loadFrom(t, &s), "certificate", "the authority is not known")
	s.caFile = ca
	err := loadFrom(t, &s)
	require.Error(t, err)
	assert.Contains(t, why(err), "--token-file")
	require.NoError(t, os.WriteFile(token, []byte("s3cr3t\n"), 0o600))
	require.NoError(t, loadFrom(t, &s), "the token is read anew")
	t.Setenv("GPU_COLLECTOR_TOKEN", "s3cr3t")
	require.NoError(t, loadFrom(t, &settings{endpoint: srv.URL, interval: time.Second, caFile: ca}))
}

func TestBasicAuthIsOfTheURLAndNotShown(t *testing.T) {
	srv := guarded(t, "Basic YW5uYTpnZWhlaW0=", nil)
	s := settings{
		endpoint: strings.Replace(srv.URL, "https://", "https://anna:geheim@", 1), interval: time.Second,
		caFile: writePEM(t, "CERTIFICATE", srv.Certificate().Raw),
	}
	require.NoError(t, loadFrom(t, &s))
	assert.NotContains(t, s.shownEndpoint(), "geheim")
	assert.Contains(t, s.shownEndpoint(), "anna")
	s.endpoint = strings.Replace(s.endpoint, "https", "ftp", 1)
	require.Error(t, s.check())
	assert.NotContains(t, s.check().Error(), "geheim")
}

func TestShowsACertificate(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)

	srv := guarded(t, "", cert)
	s := settings{endpoint: srv.URL, interval: time.Second, caFile: writePEM(t, "CERTIFICATE", srv.Certificate().Raw)}
	require.ErrorContains(t, loadFrom(t, &s), "certificate required")
	s.certFile = writePEM(t, "CERTIFICATE", der)
	require.ErrorContains(t, s.check(), "`--cert-file` and `--key-file` must be given together")
	s.keyFile = writePEM(t, "PRIVATE KEY", keyDER)
	require.NoError(t, loadFrom(t, &s))
	s.keyFile = s.caFile
	_, err = s.client()
	require.ErrorContains(t, err, "`--cert-file` and `--key-file`")
}
