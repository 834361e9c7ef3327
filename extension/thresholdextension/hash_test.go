// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
)

// ring is some servers behind one name, and a client that hashes.
type ring struct {
	t     *testing.T
	node  *thresholdExtension
	cc    *grpc.ClientConn
	addrs []string
}

func newRing(t *testing.T, by string, servers int) *ring {
	r, name := &ring{t: t}, manual.NewBuilderWithScheme("test")
	var all resolver.State
	for range servers {
		e, _ := newTestExtension(t, nil)
		r.addrs = append(r.addrs, serveGRPC(t, e, &gateway{}))
		all.Endpoints = append(all.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: r.addrs[len(r.addrs)-1]}}})
	}
	r.node, _ = newTestExtension(t, func(c *Config) { c.ConsistentHash = by })
	opts, err := r.node.GetGRPCClientOptions(t.Context())
	require.NoError(t, err)
	// As configgrpc does: its own balancer first, the middlewares after it.
	opts = append([]grpc.DialOption{grpc.WithDefaultServiceConfig(`{"loadBalancingPolicy":"round_robin"}`), grpc.WithResolvers(name)}, opts...)
	name.InitialState(all)
	r.cc = dial(t, "test:///servers", opts...)
	return r
}

// push returns the server that got the push of a claim.
func (r *ring) push(c pushheaders.Claim) string {
	r.node.SetClaim(c)
	p := &peer.Peer{}
	_, err := pmetricotlp.NewGRPCClient(r.cc).Export(context.WithoutCancel(r.t.Context()), pmetricotlp.NewExportRequest(), grpc.Peer(p), grpc.WaitForReady(true))
	require.NoError(r.t, err)
	return p.Addr.String()
}

// TestEachHasItsServer by the header that pushes are hashed by; the rest is gRPC's ring_hash.
func TestEachHasItsServer(t *testing.T) {
	for by, claim := range map[string]func(of, other string) pushheaders.Claim{
		"node":    func(of, other string) pushheaders.Claim { return pushheaders.Claim{Cluster: other, Node: of} },
		"cluster": func(of, other string) pushheaders.Claim { return pushheaders.Claim{Cluster: of, Node: other} },
	} {
		r := newRing(t, by, 3)
		servers := map[string]string{}
		for i := range 100 {
			name := fmt.Sprint("name-", i)
			servers[name] = r.push(claim(name, "x"))
			require.Equal(t, servers[name], r.push(claim(name, "y")), "%s of %s", by, name)
		}
		assert.Subset(t, slices.Collect(maps.Values(servers)), r.addrs)
	}
}

func TestWithoutConsistentHashTheExportersBalancerHolds(t *testing.T) {
	r := newRing(t, "none", 3)
	seen := map[string]bool{}
	for range 3000 {
		seen[r.push(pushheaders.Claim{Cluster: "prod", Node: "n0"})] = true
		if len(seen) == 3 {
			return
		}
	}
	assert.Fail(t, "one node's pushes did not go round", "%v", seen)
}
