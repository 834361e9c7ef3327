// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/platform/wire"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/nameserver"
)

const hashedNodes = 300

// gatewaySet is some gateways behind one name.
type gatewaySet struct {
	t        *testing.T
	hosts    []string
	ports    []gatewayPorts
	gateways []*collector
	names    *nameserver.Server
	sender   *sender
	round    int
}

// newGatewaySet runs gateways on one port of several loopback addresses, and a
// sender that finds them by name.
func newGatewaySet(t *testing.T, diff string) *gatewaySet {
	t.Helper()
	s := &gatewaySet{t: t, hosts: []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}}
	port := portOf(t, loopback.FreeAddr(t))
	for _, host := range s.hosts {
		p := newGatewayPorts(t)
		p.grpc = net.JoinHostPort(host, port)
		s.ports = append(s.ports, p)
		// The age as shipped would be ten minutes.
		s.gateways = append(s.gateways, start(t, options{configs: []string{"configs/gateway.yaml", p.overlay(t), `
receivers:
  fleet_otlp: {protocols: {grpc: {keepalive: {server_parameters: {max_connection_age: 1s, max_connection_age_grace: 2m}}}}}
`}}))
	}
	s.names = nameserver.Start(t, s.hosts...)
	s.sender = newSender(t, senderOptions{
		extension: "consistent_hash: node",
		exporter:  fmt.Sprintf("endpoint: dns://%s/gateways.test:%s\ntimeout: 2m", s.names.Addr, port),
		diff:      diff,
	})
	return s
}

func hashedNode(i int) string { return fmt.Sprintf("node-%03d", i) }

// push pushes one report of each node, with the number of the round and a
// value that never changes.
func (s *gatewaySet) push() {
	s.t.Helper()
	s.round++
	lost := 0
	for i := range hashedNodes {
		name := hashedNode(i)
		md := pmetric.NewMetrics()
		metrics := node(md, name, map[string]string{"k8s.cluster.name": "lab"})
		gauge(metrics, "test.round", "", float64(s.round))
		gauge(metrics, "test.constant", "", float64(i))
		s.sender.SetClaim(wire.Claim{Cluster: "lab", Node: name})
		again := pmetric.NewMetrics()
		md.CopyTo(again)
		if err := s.sender.ConsumeMetrics(s.t.Context(), md); err != nil {
			// This push was under way when its gateway died.
			lost++
			require.NoError(s.t, s.sender.ConsumeMetrics(s.t.Context(), again), "round %d of %s", s.round, name)
		}
	}
	if lost > 0 {
		s.t.Logf("pushes that failed in round %d: %d", s.round, lost)
	}
}

// owners returns which gateway got each node's last report, and how many nodes
// it has only in part.
func (s *gatewaySet) owners() (owner map[string]int, partial int) {
	s.t.Helper()
	owner = map[string]int{}
	for g := range s.gateways {
		if s.gateways[g].Ended() {
			continue
		}
		seen := scrape(s.t, s.ports[g].prom)
		constant := seen.by("test_constant", "host_name", nil)
		for name, round := range seen.by("test_round", "host_name", nil) {
			if int(round) != s.round {
				continue
			}
			require.NotContains(s.t, owner, name, "two gateways have it")
			owner[name] = g
			if _, ok := constant[name]; !ok {
				partial++
			}
		}
	}
	require.Len(s.t, owner, hashedNodes, "a node's report is nowhere")
	return owner, partial
}

// TestEachNodeStaysWithItsGateway runs three gateways behind one name, takes
// one away, first from under its name and then from the name as well, and
// brings it back.
func TestEachNodeStaysWithItsGateway(t *testing.T) {
	long(t)
	t.Parallel()
	for name, tt := range map[string]struct {
		diff string
		// told is how many pushes bring a new gateway a node's whole state. The answer tells
		// a sender of differences, which sends the rest.
		told int
	}{
		"full state":  {told: 1},
		"differences": {diff: "threshold_extension: straggler_threshold\nresync_interval: 0s", told: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newGatewaySet(t, tt.diff)
			s.push()
			before, partial := s.owners()
			require.Zero(t, partial)
			share := make([]int, len(s.gateways))
			for _, g := range before {
				share[g]++
			}
			t.Logf("nodes by gateway: %v", share)
			for g, n := range share {
				assert.InDelta(t, hashedNodes/len(share), n, hashedNodes/4, "gateway %d", g)
			}
			for range 3 {
				s.push()
				now, partial := s.owners()
				require.Equal(t, before, now, "nobody moves without a reason")
				require.Zero(t, partial)
			}

			const gone = 2
			s.gateways[gone].kill()
			for push := 1; ; push++ {
				s.push()
				now, partial := s.owners()
				requireMoved(t, before, now, gone)
				if partial == 0 {
					assert.LessOrEqual(t, push, tt.told, "pushes until the state is whole")
					break
				}
				require.Less(t, push, tt.told, "%d nodes are there in part", partial)
			}
			t.Logf("%d of %d nodes moved", share[gone], hashedNodes)

			s.names.Set(s.hosts[:gone]...)
			s.pushUntil("the name was asked for again", s.names.Heard)
			s.push()
			now, _ := s.owners()
			others := 0
			for name, g := range now {
				require.NotEqual(t, gone, g)
				if was := before[name]; was != gone && was != g {
					others++
				}
			}
			// A ring of constant size has more points of each that is left: decision 012.
			t.Logf("%d of the others moved", others)
			assert.Less(t, others, hashedNodes/4)

			s.gateways[gone].restart()
			s.names.Set(s.hosts...)
			s.pushUntil("all nodes are back", func() bool {
				now, partial := s.owners()
				back := 0
				for name, g := range now {
					if before[name] == g {
						back++
					}
				}
				return back == hashedNodes && partial == 0
			})
		})
	}
}

// pushUntil pushes until the condition holds.
func (s *gatewaySet) pushUntil(what string, condition func() bool) {
	s.t.Helper()
	eventually(s.t, what, func() bool {
		s.push()
		return condition()
	})
}

// requireMoved requires that the nodes of the gateway that is gone are
// elsewhere, and no others.
func requireMoved(t *testing.T, before, now map[string]int, gone int) {
	t.Helper()
	for name, g := range before {
		if g == gone {
			require.NotEqual(t, gone, now[name])
		} else {
			require.Equal(t, g, now[name], "%s has no reason to move", name)
		}
	}
}
