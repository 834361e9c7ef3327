// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// ring is some servers behind one name, and a client that hashes.
type ring struct {
	t     *testing.T
	node  *thresholdExtension
	name  *manual.Resolver
	cc    *grpc.ClientConn
	addrs []string
}

func newRing(t *testing.T, by string, servers int) *ring {
	r := &ring{t: t, name: manual.NewBuilderWithScheme("test")}
	for range servers {
		e, _ := newTestExtension(t, nil)
		r.addrs = append(r.addrs, serveGRPC(t, e, &gateway{}))
	}
	r.node, _ = newTestExtension(t, func(c *Config) { c.ConsistentHash = by })
	opts, err := r.node.GetGRPCClientOptions(t.Context())
	require.NoError(t, err)
	// As configgrpc does: its own balancer first, the middlewares after it.
	opts = append([]grpc.DialOption{
		grpc.WithDefaultServiceConfig(`{"loadBalancingPolicy":"round_robin"}`),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithResolvers(r.name),
	}, opts...)
	r.name.InitialState(state(r.addrs))
	r.cc, err = grpc.NewClient("test:///servers", opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.cc.Close() })
	return r
}

func state(addrs []string) resolver.State {
	var s resolver.State
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: a}}})
	}
	return s
}

// push returns the server that got the push of a claim.
func (r *ring) push(c wire.Claim) string {
	r.node.SetClaim(c)
	p := &peer.Peer{}
	_, err := pmetricotlp.NewGRPCClient(r.cc).Export(context.WithoutCancel(r.t.Context()), pmetricotlp.NewExportRequest(), grpc.Peer(p), grpc.WaitForReady(true))
	require.NoError(r.t, err)
	return p.Addr.String()
}

// servers returns the server of each node.
func (r *ring) servers() map[string]string {
	got := make(map[string]string, nodes)
	for i := range nodes {
		name := fmt.Sprintf("node-%03d", i)
		got[name] = r.push(wire.Claim{Cluster: "prod", Node: name})
	}
	return got
}

const nodes = 300

func TestEachNodeHasItsServer(t *testing.T) {
	for _, servers := range []int{1, 2, 3, 7} {
		t.Run(strconv.Itoa(servers), func(t *testing.T) {
			r := newRing(t, hashNode, servers)
			before := r.servers()
			assert.Equal(t, before, r.servers(), "each node is with one server")
			share := map[string]int{}
			for _, addr := range before {
				share[addr]++
			}
			require.Len(t, share, servers)
			for addr, n := range share {
				// The ports are by chance, and so are the shares.
				assert.InDelta(t, nodes/servers, n, 0.75*nodes/float64(servers), addr)
			}
			if servers == 1 {
				return
			}

			// One leaves the name: its nodes move, and about as many of the others.
			gone, moved := r.addrs[0], 0
			r.name.UpdateState(state(r.addrs[1:]))
			after := r.servers()
			for name, addr := range before {
				assert.NotEqual(t, gone, after[name])
				if addr != gone && addr != after[name] {
					moved++
				}
			}
			assert.Less(t, moved, 2*nodes/servers)
			// It comes back, and so do they.
			r.name.UpdateState(state(r.addrs))
			assert.True(t, maps.Equal(before, r.servers()))
		})
	}
}

func TestEachClusterHasItsGateway(t *testing.T) {
	r := newRing(t, hashCluster, 3)
	seen := map[string]bool{}
	for c := range 30 {
		cluster := fmt.Sprint("cluster-", c)
		want := r.push(wire.Claim{Cluster: cluster, Node: "n0"})
		seen[want] = true
		for n := range 5 {
			require.Equal(t, want, r.push(wire.Claim{Cluster: cluster, Node: fmt.Sprint("n", n)}))
		}
	}
	assert.Len(t, seen, 3)
}

func TestWithoutConsistentHashTheExportersBalancerHolds(t *testing.T) {
	r := newRing(t, hashNone, 3)
	seen := map[string]bool{}
	for range 3000 {
		seen[r.push(wire.Claim{Cluster: "prod", Node: "n0"})] = true
		if len(seen) == 3 {
			return
		}
	}
	assert.Fail(t, "one node's pushes did not go round", "%v", seen)
}

func TestARingOfManyServers(t *testing.T) {
	// Beyond gRPC's bound of a ring the policy still works.
	r := newRing(t, hashNode, 1)
	addrs := []string{r.addrs[0]}
	for i := range 40 {
		addrs = append(addrs, net.JoinHostPort(fmt.Sprintf("127.0.1.%d", i+1), "1"))
	}
	r.name.UpdateState(state(addrs))
	assert.Equal(t, r.addrs[0], r.push(wire.Claim{Node: "n0"}), "the others are not there")
	r.name.UpdateState(resolver.State{})
	r.name.UpdateState(state(r.addrs))
	assert.Equal(t, r.addrs[0], r.push(wire.Claim{Node: "n0"}), "a name without addresses for a while")
}
