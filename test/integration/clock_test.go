// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// TestNoNodeIsMissingByItsClock: view, group and heartbeat go by the time of receipt, while
// the nodes report and when they have stopped.
func TestNoNodeIsMissingByItsClock(t *testing.T) {
	long(t)
	t.Parallel()
	clocks := map[string]time.Duration{
		"right": 0, "behind-150s": -150 * time.Second, "behind-1h": -time.Hour, "ahead-5m": 5 * time.Minute, "ahead-10y": 87_600 * time.Hour,
	}
	c := startGateway(t, `
processors: {straggler: {push_interval: 1s, ttl_multiplier: 10}}
extensions: {fleet_view: {missing_after: 10s}}
`)
	push := func() {
		md := pmetric.NewMetrics()
		for name, off := range clocks {
			process.Score(md, name, 0.9, "gpu.job.id", "J")
			rm := md.ResourceMetrics().At(md.ResourceMetrics().Len() - 1)
			rm.ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0).SetTimestamp(pcommon.NewTimestampFromTime(time.Now().Add(off)))
		}
		require.Equal(t, http.StatusOK, process.Post(t, c.Push(), process.Protobuf, process.Marshal(t, md)).Status)
	}
	all := func(state string) bool {
		var nodes fleetapi.NodePage
		process.FetchJSON(t, c.URL("/api/v1/nodes"), &nodes)
		for i := range nodes.Nodes {
			if (nodes.Nodes[i].State == "missing") != (state == "missing") { // a score has no state of the node
				return false
			}
		}
		return len(nodes.Nodes) == len(clocks) &&
			process.Scrape(t, c.Prom).Is(float64(len(clocks)), "gpu_straggler_nodes", labels{"gpu_peer_group": "J", "gpu_node_state": state})
	}
	process.Eventually(t, "each wrong clock is logged", func() bool {
		push()
		return c.Log.Count("the clock of a node is off") == len(clocks)-1
	})
	for _, offset := range []string{"2m30s behind", "1h0m0s behind", "5m0s ahead", "87600h0m0s ahead"} {
		assert.Equal(t, 1, c.Log.Count("the clock of a node is off", offset), offset)
	}
	process.Eventually(t, "all nodes are active", func() bool { push(); return all("active") })
	beats := process.Scrape(t, c.Prom)
	for name := range clocks {
		beat, ok := beats.Value("gpu_node_heartbeat_seconds", labels{"host_name": name})
		require.True(t, ok, name)
		assert.InDelta(t, time.Now().Unix(), beat, 30, name)
	}
	process.Eventually(t, "all are missing once they stop", func() bool { return all("missing") })
}
