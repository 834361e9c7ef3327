// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// TestBackend has the gateway export to a backend that answers late, or never.
// Beside it nobody notices: Prometheus reads the nodes' state, and the agents get
// their thresholds. The backend has the state once it answers again.
func TestBackend(t *testing.T) {
	t.Parallel()
	backend := newSink(t)
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
`, backend.addr)}})
	for _, tc := range []struct {
		name  string
		delay time.Duration
	}{
		{"answers late", 400 * time.Millisecond}, // within the timeout
		{"never answers", -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.suffer(func() {
				backend.setDelay(tc.delay)
				time.Sleep(pick(5*interval, 20*interval))
				w.awaitPushed(t, "the agents are judged by the fleet meanwhile", w.judged)
			})
			w.heal(t) // while the backend is as it is
			backend.setDelay(0)
			w.recovered(t)
			w.awaitPushed(t, "the backend has the nodes' state", func(context.Context) string { return w.compare(backend.state()) })
		})
	}
}
