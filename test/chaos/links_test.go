// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"strings"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// link is a way between two tiers that can be made bad.
type link struct {
	*toxiproxy.Proxy
	name string
}

func newLink(t *testing.T, name, upstream string) *link {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	l := &link{toxiproxy.NewProxy(server, name, "127.0.0.1:0", upstream), name}
	require.NoError(t, l.Start())
	t.Cleanup(l.Stop)
	return l
}

// poison makes both directions bad in a way of toxiproxy's: latencies are in ms, data
// in bytes, rates in kB/s, and the slicer's delay in microseconds. "" is a cut.
func (l *link) poison(t *testing.T, kind, attributes string) {
	t.Helper()
	if kind == "" {
		l.Stop()
		return
	}
	for _, stream := range []string{"upstream", "downstream"} {
		_, err := l.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(`{"type": %q, "stream": %q, "attributes": {%s}}`, kind, stream, attributes)))
		require.NoError(t, err)
	}
}

func (l *link) cure(t *testing.T) {
	t.Helper()
	if l.Toxics.ResetToxics(t.Context()); !l.Enabled {
		require.NoError(t, l.Start())
	}
}

// TestLinks makes the ways between the tiers slow, narrow, lossy and half-open, and
// cuts them.
func TestLinks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	for _, tc := range []struct{ name, kind, attributes string }{
		{"slow", "latency", `"latency": 100, "jitter": 80`},
		{"narrow", "bandwidth", `"rate": 4`},
		{"in pieces", "slicer", `"average_size": 200, "size_variation": 100, "delay": 2000`},
		{"resets", "reset_peer", `"timeout": 500`},
		{"breaks off after some data", "limit_data", `"bytes": 10000`},
		{"half-open", "timeout", `"timeout": 0`}, // takes all, answers nothing
		{"cut", "", ""},
	} {
		for _, links := range w.sites() {
			name := []string{tc.name}
			for _, l := range links {
				name = append(name, l.name)
			}
			t.Run(strings.Join(name, ", "), func(t *testing.T) {
				w.suffer(func() {
					for _, l := range links {
						l.poison(t, tc.kind, tc.attributes)
					}
					time.Sleep(pick(3*interval, 8*interval))
					for _, l := range links {
						l.cure(t)
					}
				})
				w.recovered(t)
			})
		}
	}
	t.Run("a slow node is found", w.findsSlow)
}

// TestBackend has the gateway export to a backend that answers late, or never.
// The others do not notice: Prometheus reads the nodes' state, and the agents get
// their thresholds. The backend, another gateway, has the state once it answers again.
func TestBackend(t *testing.T) {
	t.Parallel()
	backend := newMember(t, "backend", nil, "configs/gateway.yaml")
	backend.Start()
	to := newLink(t, "gateway to backend", backend.GRPC)
	w := newWorld(t, setup{gateway: []string{fmt.Sprintf(`
exporters:
  otlp_grpc/backend:
    endpoint: %q
    tls: {insecure: true}
    timeout: 500ms
    retry_on_failure: {initial_interval: 500ms, max_interval: 3s}
service:
  pipelines:
    metrics: {exporters: [fleet_view, otlp_grpc/backend]}
`, to.Listen)}})
	for _, tc := range []struct{ name, kind, attributes string }{
		{"answers late", "latency", `"latency": 200`}, // each way, within the timeout
		{"never answers", "timeout", `"timeout": 0`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.suffer(func() {
				to.poison(t, tc.kind, tc.attributes)
				time.Sleep(pick(5*interval, 20*interval))
				w.awaitPushed(t, "the agents are judged by the fleet meanwhile", w.judged)
			})
			w.heal(t) // while the backend is as it is
			to.cure(t)
			w.recovered(t)
			w.await(t, "the backend has the nodes' state", func(t *testing.T) string { return w.differences(t, backend) })
		})
	}
}

// TestOutage cuts a link for longer than any state is kept: nodes are missing at the
// gateway, thresholds have expired at the agents, and series have vanished.
func TestOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	for _, l := range pick([]*link{w.up}, []*link{w.down, w.up}) {
		t.Run(l.name, func(t *testing.T) {
			w.suffer(func() {
				l.Stop()
				time.Sleep(pick(15*interval, vanishedAfter+20*time.Second))
				require.NoError(t, l.Start())
			})
			w.recovered(t)
		})
	}
	t.Run("a slow node is found", w.findsSlow)
}

// sites are the links that a fault strikes together: in the short form one of
// them for each fault, as it falls out.
func (w *world) sites() [][]*link {
	all := [][]*link{{w.down}, {w.up}, {w.down, w.up}}
	if testing.Short() {
		return all[w.rnd.IntN(3):][:1]
	}
	return all
}
