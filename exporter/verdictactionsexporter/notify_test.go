// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// alerts is an Alertmanager: of one alert it knows what came last.
type alerts struct {
	mu   sync.Mutex
	last map[string]alertState // by alertname and node
}

type alertState struct {
	state, rule string
	ends        time.Time
}

func (a *alerts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var posted []struct {
		Labels, Annotations map[string]string
		EndsAt              time.Time
	}
	if err := json.NewDecoder(r.Body).Decode(&posted); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range posted {
		a.last[p.Labels["alertname"]+" "+p.Labels["node"]] = alertState{p.Annotations["state"], p.Annotations["rule"], p.EndsAt}
	}
}

func (a *alerts) of(name string) alertState {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last[name]
}

// slow is an onset that confirms nothing, or its end.
func slow(node, phase string) plog.Logs {
	ld := hot("prod", node)
	of := ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Attributes()
	of.PutStr(gpusemconv.AttrEpisodePhase, phase)
	of.PutStr(gpusemconv.AttrEpisodeSeverity, "minor")
	return ld
}

// TestAnAlertmanagerIsKeptUpToDate: of each node and of the breaker, by what it has heard
// last, over restarts.
func TestAnAlertmanagerIsKeptUpToDate(t *testing.T) {
	manager := &alerts{last: map[string]alertState{}}
	server := httptest.NewServer(manager)
	t.Cleanup(server.Close)
	w := newWorld(t, func(c *Config) {
		hc := confighttp.NewDefaultClientConfig()
		hc.Endpoint = server.URL
		c.Webhook = configoptional.Some(WebhookConfig{HTTP: hc, Rungs: WebhookRungs{Notify: true}})
		c.Kubernetes.Get().Rungs = KubernetesRungs{Taint: true}
		c.Breaker.MaxPerHour = 1
	})
	shows := func(name, state, rule string, fires bool) {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			is := manager.of(name)
			assert.Equal(c, state, is.state)
			assert.Equal(c, rule, is.rule)
			if fires { // for about a day from now
				assert.True(c, is.ends.After(w.now().Add(20*time.Hour)), "ends at %s", is.ends)
			} else {
				assert.False(c, is.ends.After(w.now()), "ends at %s", is.ends)
			}
		}, 20*time.Second, 20*time.Millisecond)
	}
	// repeats waits until so many of an alert are known to have arrived.
	repeats := func(of string, n int) {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			seen := 0
			for _, lr := range w.audited() {
				if id := text(lr, gpusemconv.AttrActionID); strings.Contains(id, of) && strings.Contains(id, "/repeat/") {
					seen++
				}
			}
			assert.Equal(c, n, seen)
		}, 20*time.Second, 20*time.Millisecond)
	}
	for _, node := range []string{"a", "b", "c"} {
		w.api.Node(t, node)
	}
	w.push(slow("a", "onset"))
	shows("GpuNodeRepair a", "suspect", "onset", true)
	w.push(slow("a", "end"))
	shows("GpuNodeRepair a", "healthy", "ended", false)

	w.api.Pod(t, "b", "job", true, nil) // that goes on
	w.push(hot("prod", "b"))
	shows("GpuNodeRepair b", "kept_off", "marked", true)
	w.push(hot("prod", "c"))
	shows("GpuNodeRepair c", "confirmed", "hardware_reason", true)
	shows("GpuActionsBreakerOpen ", "", "max_per_hour", true)
	for i := range 3 {
		w.later(13 * time.Hour)
		w.stop()
		w.start()
		shows("GpuNodeRepair b", "kept_off", "repeated", true)
		shows("GpuActionsBreakerOpen ", "", "repeated", true)
		repeats("/kept_off/", i+1)
		repeats("breaker/", i+1)
	}
	w.stop()
	w.cfg.Breaker.Reset = "monday"
	w.start()
	shows("GpuActionsBreakerOpen ", "healthy", "reset", false)
}
