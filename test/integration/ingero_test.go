// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/process"
)

const (
	ingeroThreshold = "X-Ingero-Threshold"
	ingeroQuorumMet = "X-Ingero-Quorum-Met"
)

// The shapes of OTLP/JSON as Ingero's agent v0.17 writes it: integers are
// numbers, times are strings, and no point has a start time.
type (
	object = map[string]any
	list   = []any
)

func stringAttr(key, value string) object {
	return object{"key": key, "value": object{"stringValue": value}}
}

// ingeroGauge is a gauge with one point. An int is sent as an integer.
func ingeroGauge(name string, value any, attrs ...any) object {
	point := object{"timeUnixNano": strconv.FormatInt(time.Now().UnixNano(), 10), "attributes": append(list{}, attrs...)}
	if v, ok := value.(int); ok {
		point["asInt"] = v
	} else {
		point["asDouble"] = value
	}
	return object{"name": name, "unit": "1", "gauge": object{"dataPoints": list{point}}}
}

func ingeroBody(t *testing.T, name string, metrics ...any) []byte {
	t.Helper()
	body, err := json.Marshal(object{"resourceMetrics": list{object{
		"resource": object{"attributes": list{
			stringAttr("ingero.node.id", name), stringAttr("ingero.cluster.id", "c"),
			object{"key": "ingero.world_size", "value": object{"intValue": 16}},
			object{"key": "ingero.node.rank", "value": object{"intValue": 3}},
		}},
		"scopeMetrics": list{object{
			"scope":   object{"name": "ingero.Health", "version": "0.10.0"},
			"metrics": metrics,
		}},
	}}})
	require.NoError(t, err)
	return body
}

// ingeroNode is a node as its agent reports it.
type ingeroNode struct {
	name  string
	score float64
}

// report is the periodic push of a node.
func (n ingeroNode) report(t *testing.T) []byte {
	t.Helper()
	state, workload := stringAttr("ingero.node.state", "active"), stringAttr("ingero.workload_type", "training")
	counter := object{"name": "ingero.node.cuda_kernel_launch_total", "unit": "1", "sum": object{
		"aggregationTemporality": 2, "isMonotonic": true, "dataPoints": list{object{
			"timeUnixNano": strconv.FormatInt(time.Now().UnixNano(), 10), "asInt": 123456,
			"attributes": list{stringAttr("ingero.cgroup_path_hash", "8a5edab282632443")},
		}},
	}}
	return ingeroBody(t, n.name,
		ingeroGauge("ingero.node.health_score", n.score, state, workload, stringAttr("ingero.cgroup_path_hash", "8a5edab282632443")),
		ingeroGauge("ingero.node.throughput_ratio", 1.0, state, workload),
		ingeroGauge("ingero.node.compute_efficiency", 0.9, state, workload),
		ingeroGauge("ingero.node.degradation_warning", 0, state, workload),
		ingeroGauge("ingero.agent.detection_mode", 1, stringAttr("ingero.detection_mode", "none")),
		ingeroGauge("ingero.node.world_size", 16),
		counter,
	)
}

// event is the push in which a node reports that it is a straggler.
func (n ingeroNode) event(t *testing.T) []byte {
	t.Helper()
	return ingeroBody(t, n.name, ingeroGauge("ingero.node.straggler_event", 1,
		stringAttr("ingero.detection_mode", "fleet"),
		object{"key": "threshold", "value": object{"doubleValue": 0.87}},
		object{"key": "score", "value": object{"doubleValue": 0.5}},
		stringAttr("dominant_signal", "throughput"),
		stringAttr("ingero.event.id", "0b7e9d2a-6c0f-4d58-9d0c-3f1a2b4c5d6e"),
	))
}

// ingeroGateway is a running configs/ingero-compat.yaml.
type ingeroGateway struct {
	*process.Collector
	t *testing.T
}

func startIngero(t *testing.T) *ingeroGateway {
	t.Helper()
	a := process.NewAddrs(t)
	return &ingeroGateway{process.Run(t, process.Options{Addrs: a, Config: []string{"configs/ingero-compat.yaml", pace, fmt.Sprintf(`
receivers: {fleet_otlp: {protocols: {http: {endpoint: %q}}}}
exporters: {prometheus: {endpoint: %q}}
extensions:
  straggler_threshold: {api: {endpoint: %q}}
  healthcheckv2: {http: {endpoint: %q}}
service: {telemetry: {metrics: {level: none}}}
`, a.HTTP, a.Prom, a.API, a.Health)}}), t}
}

func (g *ingeroGateway) push(body []byte) process.Response {
	g.t.Helper()
	return process.Post(g.t, g.Push()+"?cluster_id=c", process.JSON, body)
}

// fleet pushes a report of n1 to n5 with these scores, and requires that they are taken.
func (g *ingeroGateway) fleet(scores ...float64) {
	g.t.Helper()
	for n, score := range scores {
		resp := g.push(ingeroNode{fmt.Sprintf("n%d", n+1), score}.report(g.t))
		require.Equal(g.t, http.StatusOK, resp.Status, "%s", resp.Body)
	}
}

// awaitNodes waits for a tick that has seen the nodes.
func (g *ingeroGateway) awaitNodes(want map[string]float64) process.Scraped {
	g.t.Helper()
	var s process.Scraped
	process.Eventually(g.t, fmt.Sprintf("nodes are %v", want), func() bool {
		s = process.Scrape(g.t, g.Prom)
		got := s.By("gpu_straggler_nodes", "gpu_node_state", labels{"k8s_cluster_name": "c", "gpu_peer_group": ""})
		for state, n := range want {
			if v, ok := got[state]; !ok || v != n {
				return false
			}
		}
		return true
	})
	return s
}

// legal requires both headers with values that Ingero's agent takes, and
// returns them.
func legal(t *testing.T, resp process.Response) (threshold float64, quorum string) {
	t.Helper()
	threshold, err := strconv.ParseFloat(resp.Header.Get(ingeroThreshold), 64)
	require.NoError(t, err, "headers: %v", resp.Header)
	assert.GreaterOrEqual(t, threshold, 0.1)
	assert.LessOrEqual(t, threshold, 0.99)
	quorum = resp.Header.Get(ingeroQuorumMet)
	assert.Contains(t, []string{"true", "false"}, quorum)
	return threshold, quorum
}

// without requires that neither header is there: an illegal value would keep
// the agent from asking again.
func without(t *testing.T, resp process.Response) {
	t.Helper()
	assert.Empty(t, resp.Header.Values(ingeroThreshold))
	assert.Empty(t, resp.Header.Values(ingeroQuorumMet))
}

// TestIngeroAgents pushes and polls as unmodified agents of Ingero do. Which of their nodes
// count is for the tests of stragglerprocessor.
func TestIngeroAgents(t *testing.T) {
	t.Parallel()
	g := startIngero(t)
	event := ingeroNode{"n1", 0.27}.event(t)

	// Cold: an answer without a threshold for pollers, no headers for pushers.
	for _, addr := range []string{g.API, g.HTTP} {
		var cold object
		process.FetchJSON(t, "http://"+addr+"/api/v1/threshold?cluster_id=c", &cold)
		assert.InDelta(t, 0, cold["threshold"], 0)
		assert.Equal(t, false, cold["quorum_met"])
	}
	without(t, g.push(event))

	// The first score of each agent is about 0.27, whatever the node's health.
	g.fleet(0.27, 0.27, 0.27, 0.27, 0.27)
	s := g.awaitNodes(map[string]float64{"active": 0, "calibrating": 5})
	assert.Empty(t, s.With("gpu_straggler_threshold_ratio", labels{"k8s_cluster_name": "c"}))
	without(t, g.push(event))

	// A perfect fleet.
	g.fleet(1, 1, 1, 1, 1)
	g.awaitNodes(map[string]float64{"active": 5})
	resp := g.push(event)
	assert.Equal(t, http.StatusOK, resp.Status)
	threshold, quorum := legal(t, resp)
	assert.InDelta(t, 0.95, threshold, 1e-6)
	assert.Equal(t, "true", quorum)
	var warm object
	body := process.Fetch(t, "http://"+g.API+"/api/v1/threshold?cluster_id=c").Body
	assert.Less(t, len(body), 8<<10)
	require.NoError(t, json.Unmarshal(body, &warm))
	assert.InDelta(t, 0.95, warm["threshold"], 1e-6)
	assert.Equal(t, true, warm["quorum_met"])

	// By the documented header, and where no cluster is named.
	legal(t, process.Post(t, g.Push(), process.JSON, event, "ingero.cluster.id", "c"))
	without(t, process.Post(t, g.Push(), process.JSON, event))
	process.Eventually(t, "n1 is a straggler", func() bool {
		g.fleet(0.5, 1, 1, 1, 1)
		return process.Scrape(t, g.Prom).Is(1, "gpu_node_straggler", labels{"host_name": "n1", "k8s_cluster_name": "c"})
	})
}
