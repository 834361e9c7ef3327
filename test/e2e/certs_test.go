// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/authority"
)

type pair struct{ cert, key []byte }

func issue(t *testing.T, a *authority.Authority, names ...string) pair {
	t.Helper()
	cert, key := a.Pair(t, 24*time.Hour, names...)
	return pair{cert, key}
}

// secret writes a secret as cert-manager does: tls.crt, tls.key and ca.crt,
// which may hold several authorities.
func secret(t *testing.T, name string, p pair, trusted ...*authority.Authority) {
	t.Helper()
	var bundle []byte
	for _, a := range trusted {
		bundle = append(bundle, a.PEM...)
	}
	text := base64.StdEncoding.EncodeToString
	apply(t, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
		"metadata": {"name": %q, "namespace": %q},
		"data": {"tls.crt": %q, "tls.key": %q, "ca.crt": %q}}`,
		name, namespace, text(p.cert), text(p.key), text(bundle)))
}

// clientTLS is the configuration of a client with the certificate.
func clientTLS(t *testing.T, p pair, server string, trusted *authority.Authority) *tls.Config {
	t.Helper()
	cert, err := tls.X509KeyPair(p.cert, p.key)
	require.NoError(t, err)
	config := trusted.Client()
	config.ServerName, config.NextProtos = server, []string{"h2"}
	// Not Certificates: crypto/tls sends none of them when the server does not
	// name their authority.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	return config
}
