// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// authority signs certificates, as a cluster's own or cert-manager does.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// pair is a certificate with its key.
type pair struct{ cert, key []byte }

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{}
	template := certificate(name)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	a.cert, a.key, a.pem = sign(t, template, nil)
	return a
}

// issue makes a certificate for a client or a server.
func (a *authority) issue(t *testing.T, name string, names ...string) pair {
	t.Helper()
	template := certificate(name)
	template.DNSNames = names
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	_, key, cert := sign(t, template, a)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return pair{cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})}
}

func certificate(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		// Clocks of nodes differ.
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

func sign(t *testing.T, template *x509.Certificate, by *authority) (*x509.Certificate, *ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// secret writes a secret as cert-manager does: tls.crt, tls.key and ca.crt,
// which may hold several authorities.
func secret(t *testing.T, name string, p pair, trusted ...*authority) {
	t.Helper()
	text := base64.StdEncoding.EncodeToString
	apply(t, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
		"metadata": {"name": %q, "namespace": %q},
		"data": {"tls.crt": %q, "tls.key": %q, "ca.crt": %q}}`,
		name, namespace, text(p.cert), text(p.key), text(bundle(trusted))))
}

func bundle(trusted []*authority) []byte {
	var all [][]byte
	for _, a := range trusted {
		all = append(all, a.pem)
	}
	return bytes.Join(all, nil)
}

// clientTLS is the configuration of a client with the certificate.
func clientTLS(t *testing.T, p pair, server string, trusted ...*authority) *tls.Config {
	t.Helper()
	cert, err := tls.X509KeyPair(p.cert, p.key)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(bundle(trusted)))
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: server, RootCAs: roots, NextProtos: []string{"h2"},
		// Not Certificates: crypto/tls sends none of them when the server does not
		// name their authority.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil },
	}
}
