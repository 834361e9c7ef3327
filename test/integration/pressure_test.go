// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
)

// TestAHistoryThatCannotKeepUp: a gateway whose history has room for less than comes says so
// in its API, its health check and once in its log. It keeps the episodes, and stays live.
func TestAHistoryThatCannotKeepUp(t *testing.T) {
	t.Parallel()
	gp := newGatewayPorts(t)
	gateway := start(t, options{configs: []string{"configs/gateway.yaml", gp.overlay(t), patient, `
extensions:
  fleet_view: {history: {sqlite: {queue_size: 20, batch_size: 20}}}
`}, env: []string{"STATE_DIRECTORY=" + t.TempDir()}})
	ap := startAgent(t, gp, "pressed")
	f := &fleet{cluster: "pressed", hot: -1}
	f.run(t, ap.grpc)
	awaitWarm(t, gp, "pressed")
	f.set(-1, map[int]float64{5: 0.2})
	var health fleetapi.Health
	eventually(t, "the API says so", func() bool {
		getJSON(t, "http://"+gp.fleet+"/api/v1/health", &health)
		return health.Status == "degraded"
	})
	assert.Contains(t, health.History.Error, "samples come faster than they are written")
	assert.Positive(t, health.History.Dropped)
	eventually(t, "the health check says so", func() bool {
		check := get(t, "http://"+gp.health+"/status?verbose")
		require.Equal(t, http.StatusOK, check.status, "no reason to restart it")
		return strings.Contains(string(check.body), "history: samples come faster than they are written")
	})
	var page fleetapi.EpisodePage
	view := "http://" + gp.fleet + "/api/v1/episodes?cluster=pressed"
	eventually(t, "the straggler is found", func() bool {
		getJSON(t, view, &page)
		return len(page.Episodes) == 1
	})
	told := time.Now()
	eventually(t, "the history has it", func() bool { return time.Since(told) > 3*time.Second })
	getJSON(t, "http://"+gp.fleet+"/api/v1/health", &health)
	assert.Zero(t, health.History.Episodes)
	assert.Equal(t, 1, gateway.log.Count("The history cannot keep up"), "once")
	before := page.Episodes[0].ID
	gateway.kill()
	gateway.restart()
	firstAnswer(t, view, &page)
	require.Len(t, page.Episodes, 1)
	assert.Equal(t, before, page.Episodes[0].ID)
}
