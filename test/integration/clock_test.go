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
)

// TestAWrongClockIsNoSilence: view, group and heartbeat go by the time of receipt, while
// the nodes report and when they have stopped.
func TestAWrongClockIsNoSilence(t *testing.T) {
	long(t)
	t.Parallel()
	clocks := map[string]time.Duration{
		"right": 0, "behind-150s": -150 * time.Second, "behind-1h": -time.Hour, "ahead-5m": 5 * time.Minute, "ahead-10y": 87_600 * time.Hour,
	}
	ports := newGatewayPorts(t)
	c := start(t, options{configs: []string{"configs/gateway.yaml", ports.overlay(t), `
processors: {straggler: {push_interval: 1s, ttl_multiplier: 10}}
extensions: {fleet_view: {missing_after: 10s}}
`}})
	push := func() {
		md := pmetric.NewMetrics()
		for name, off := range clocks {
			score(md, name, map[string]string{"gpu.job.id": "J"}, 0.9)
			rm := md.ResourceMetrics().At(md.ResourceMetrics().Len() - 1)
			rm.ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0).SetTimestamp(pcommon.NewTimestampFromTime(time.Now().Add(off)))
		}
		require.Equal(t, http.StatusOK, post(t, "http://"+ports.http+"/v1/metrics", "application/x-protobuf", marshal(t, md)).status)
	}
	all := func(state string) bool {
		var nodes fleetapi.NodePage
		getJSON(t, "http://"+ports.fleet+"/api/v1/nodes", &nodes)
		for i := range nodes.Nodes {
			if (nodes.Nodes[i].State == "missing") != (state == "missing") { // a score says no state of the node
				return false
			}
		}
		return len(nodes.Nodes) == len(clocks) &&
			scrape(t, ports.prom).is(float64(len(clocks)), "gpu_straggler_nodes", labels{"gpu_peer_group": "J", "gpu_node_state": state})
	}
	eventually(t, "each wrong clock is told", func() bool {
		push()
		time.Sleep(time.Second) // the pace of the nodes
		return c.log.Count("the clock of a node is off") == len(clocks)-1
	})
	for _, said := range []string{"2m30s behind", "1h0m0s behind", "5m0s ahead", "87600h0m0s ahead"} {
		assert.Equal(t, 1, c.log.Count("the clock of a node is off", said), said)
	}
	eventually(t, "all nodes are active", func() bool { push(); return all("active") })
	beats := scrape(t, ports.prom)
	for name := range clocks {
		beat, ok := beats.value("gpu_node_heartbeat_seconds", labels{"host_name": name})
		require.True(t, ok, name)
		assert.InDelta(t, time.Now().Unix(), beat, 30, name)
	}
	eventually(t, "all are missing once they are silent", func() bool { return all("missing") })
}
