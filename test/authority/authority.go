// SPDX-License-Identifier: Apache-2.0

// Package authority is a certificate authority of a test's own.
package authority // import "github.com/gpu-collector/gpu-collector/test/authority"

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Authority issues certificates for servers and clients.
type Authority struct {
	// PEM is its own certificate.
	PEM  []byte
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New returns an authority that lives for a day.
func New(t testing.TB, name string) *Authority {
	t.Helper()
	template := valid(24 * time.Hour)
	template.Subject = pkix.Name{CommonName: name}
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &Authority{PEM: encode("CERTIFICATE", der), cert: cert, key: key}
}

func valid(life time.Duration) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		// Clocks of nodes differ.
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life),
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// Pair returns a certificate for names and for loopback, and its key, both in PEM.
func (a *Authority) Pair(t testing.TB, life time.Duration, names ...string) (cert, key []byte) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := valid(life)
	template.DNSNames, template.IPAddresses = names, []net.IP{net.IPv4(127, 0, 0, 1)}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	cert, err = x509.CreateCertificate(rand.Reader, template, a.cert, &own.PublicKey, a.key)
	require.NoError(t, err)
	key, err = x509.MarshalPKCS8PrivateKey(own)
	require.NoError(t, err)
	return encode("CERTIFICATE", cert), encode("PRIVATE KEY", key)
}

// Issue writes tls.crt, tls.key and ca.crt into a directory, as cert-manager's
// secrets have them, over those that are there. Each file is replaced at once,
// never seen half written.
func (a *Authority) Issue(t testing.TB, dir string, life time.Duration) {
	t.Helper()
	cert, key := a.Pair(t, life)
	for name, text := range map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": a.PEM} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file+".new", text, 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
}

// Client returns the settings of a client that trusts the authority.
func (a *Authority) Client() *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
}
