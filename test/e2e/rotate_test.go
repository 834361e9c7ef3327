// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/authority"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// certificates of the release: the server authority signs what shards and
// gateway serve by, the client authority what agents push by.
type certificates struct {
	servers *authority.Authority
	clients *authority.Authority
	client  pair // of an agent, and of the test
}

// reloadInterval is tls.reloadInterval of testdata/values.yaml.
const reloadInterval = 5 * time.Second

var tiers = map[string]string{"gateway": gatewayName, "shard": shardName}

func newCertificates(t *testing.T) *certificates {
	t.Helper()
	c := &certificates{servers: authority.New(t, "servers"), clients: authority.New(t, "clients 1")}
	c.client = issue(t, c.clients)
	c.serve(t, c.clients)
	c.push(t)
	return c
}

// serve gives each server a new certificate, and the clients' authorities to trust.
func (c *certificates) serve(t *testing.T, trusted ...*authority.Authority) (serials map[string]*big.Int) {
	t.Helper()
	serials = map[string]*big.Int{}
	for tier, name := range tiers {
		p := issue(t, c.servers, name, name+"."+namespace+".svc")
		serials[tier] = leaf(t, p.cert)
		secret(t, "e2e-"+tier+"-tls", p, append([]*authority.Authority{c.servers}, trusted...)...)
	}
	return serials
}

// push gives the agents the client's certificate.
func (c *certificates) push(t *testing.T) {
	t.Helper()
	secret(t, "e2e-agent-tls", c.client, c.servers)
}

// rotateSecrets replaces every certificate and the clients' authority, in the
// order in which one does: the servers trust both, the agents change, the
// servers trust the new one alone.
func (d *deployment) rotateSecrets(t *testing.T) {
	before := d.everyPod(t)
	w := d.view.watch(t, d.names)
	former := d.certs.client
	formerClients := d.certs.clients

	d.certs.clients = authority.New(t, "clients 2")
	d.certs.client = issue(t, d.certs.clients)
	serials := d.certs.serve(t, formerClients, d.certs.clients)
	for tier, name := range tiers {
		took := process.Eventually(t, tier+" serves its new certificate and takes those of both authorities", func() bool {
			serial, err := d.handshake(t, name, former)
			if err != nil || serial.Cmp(serials[tier]) != 0 {
				return false
			}
			_, err = d.handshake(t, name, d.certs.client)
			return err == nil
		})
		progress("%s serves its new certificate after %.1fs", tier, took.Seconds())
	}

	d.certs.push(t)
	want := leaf(t, d.certs.client.cert)
	agents := get(t, "pods", "-n", namespace, "-l", "app.kubernetes.io/component=agent") // of all releases
	require.Len(t, agents, len(d.names))
	took := process.Eventually(t, "the agents have their new certificates", func() bool {
		return !slices.ContainsFunc(agents, func(pod object) bool { return leaf(t, []byte(mounted(t, pod))).Cmp(want) != 0 })
	})
	d.view.pushed(t, reloadInterval, d.names) // and have read them
	progress("the agents have their new certificates after %.1fs", took.Seconds())

	d.certs.serve(t, d.certs.clients)
	for tier, name := range tiers {
		took := process.Eventually(t, tier+" refuses the former authority's", func() bool {
			_, err := d.handshake(t, name, former)
			if err == nil || !strings.Contains(err.Error(), "remote error: tls") {
				return false
			}
			_, err = d.handshake(t, name, d.certs.client)
			return err == nil
		})
		progress("%s refuses the former certificates after %.1fs", tier, took.Seconds())
	}
	// Every connection of before has ended by then: max_connection_age and its grace.
	d.view.pushed(t, 20*time.Second, d.names)
	w.end(t, "rotation")

	after := d.everyPod(t)
	assert.Equal(t, uids(before), uids(after), "the pods are those of before")
	noRestarts(t, after)
}

// mounted reads the certificate that the pod has, as the kubelet wrote it.
func mounted(t *testing.T, pod object) string {
	t.Helper()
	return onNode(t, pod.Spec.NodeName, "", `cat "$1"`, path.Join("/host/var/lib/kubelet/pods", pod.Metadata.UID, "volumes/kubernetes.io~secret/tls/tls.crt"))
}

// handshake connects with a client's certificate and returns the serial number
// of the server's. In TLS 1.3 a client learns with its first read that it was
// refused; a server of HTTP/2 sends first.
func (d *deployment) handshake(t *testing.T, name string, client pair) (*big.Int, error) {
	t.Helper()
	// One for each: kubectl gives a forward up when a server ends its connection.
	addr, stop := forward(t, name)
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	dialer := tls.Dialer{Config: clientTLS(t, client, name, d.certs.servers)}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	require.NoError(t, conn.SetDeadline(deadline))
	if _, err = conn.Read(make([]byte, 1)); err != nil {
		return nil, err
	}
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber, nil
}

// leaf is the serial number of a certificate in PEM.
func leaf(t *testing.T, text []byte) *big.Int {
	t.Helper()
	block, _ := pem.Decode(text)
	require.NotNil(t, block)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return cert.SerialNumber
}
