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

	"github.com/gpu-collector/gpu-collector/test/loopback"
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

func ingeroBody(t *testing.T, cluster, name string, metrics ...any) []byte {
	t.Helper()
	body, err := json.Marshal(object{"resourceMetrics": list{object{
		"resource": object{"attributes": list{
			stringAttr("ingero.node.id", name), stringAttr("ingero.cluster.id", cluster),
			object{"key": "ingero.world_size", "value": object{"intValue": 16}},
			object{"key": "ingero.node.rank", "value": object{"intValue": 3}},
		}},
		"scopeMetrics": list{object{
			"scope":   object{"name": "ingero.health", "version": "0.10.0"},
			"metrics": metrics,
		}},
	}}})
	require.NoError(t, err)
	return body
}

// ingeroNode is a node as its agent reports it.
type ingeroNode struct {
	name, state       string
	score, throughput float64
}

// report is the periodic push of a node.
func (n ingeroNode) report(t *testing.T, cluster string) []byte {
	t.Helper()
	state, workload := stringAttr("ingero.node.state", n.state), stringAttr("ingero.workload_type", "training")
	counter := object{"name": "ingero.node.cuda_kernel_launch_total", "unit": "1", "sum": object{
		"aggregationTemporality": 2, "isMonotonic": true, "dataPoints": list{object{
			"timeUnixNano": strconv.FormatInt(time.Now().UnixNano(), 10), "asInt": 123456,
			"attributes": list{stringAttr("ingero.cgroup_path_hash", "8a5edab282632443")},
		}},
	}}
	return ingeroBody(t, cluster, n.name,
		ingeroGauge("ingero.node.health_score", n.score, state, workload, stringAttr("ingero.cgroup_path_hash", "8a5edab282632443")),
		ingeroGauge("ingero.node.throughput_ratio", n.throughput, state, workload),
		ingeroGauge("ingero.node.compute_efficiency", 0.9, state, workload),
		ingeroGauge("ingero.node.degradation_warning", 0, state, workload),
		ingeroGauge("ingero.agent.detection_mode", 1, stringAttr("ingero.detection_mode", "none")),
		ingeroGauge("ingero.node.world_size", 16),
		counter,
	)
}

// event is the push of its own in which a node says that it is a straggler.
func (n ingeroNode) event(t *testing.T, cluster string) []byte {
	t.Helper()
	return ingeroBody(t, cluster, n.name, ingeroGauge("ingero.node.straggler_event", 1,
		stringAttr("ingero.detection_mode", "fleet"),
		object{"key": "threshold", "value": object{"doubleValue": 0.87}},
		object{"key": "score", "value": object{"doubleValue": 0.5}},
		stringAttr("dominant_signal", "throughput"),
		stringAttr("ingero.event.id", "0b7e9d2a-6c0f-4d58-9d0c-3f1a2b4c5d6e"),
	))
}

// ingeroGateway is a running configs/ingero-compat.yaml.
type ingeroGateway struct {
	t               *testing.T
	otlp, prom, api string
}

func startIngero(t *testing.T, more ...string) *ingeroGateway {
	t.Helper()
	g := &ingeroGateway{t, loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t)}
	start(t, options{configs: append([]string{"configs/ingero-compat.yaml", fmt.Sprintf(`
receivers:
  fleet_otlp: {protocols: {http: {endpoint: %q}}}
processors:
  # A fast tick, and nodes that are not forgotten during the test.
  straggler: {push_interval: 100ms, ttl_multiplier: 600}
exporters:
  prometheus: {endpoint: %q}
extensions:
  straggler_threshold: {api: {endpoint: %q}}
  healthcheckv2: {http: {endpoint: %q}}
service:
  telemetry: {metrics: {level: none}}
`, g.otlp, g.prom, g.api, loopback.FreeAddr(t))}, more...)})
	return g
}

func (g *ingeroGateway) push(cluster string, body []byte) response {
	g.t.Helper()
	return post(g.t, "http://"+g.otlp+"/v1/metrics?cluster_id="+cluster, jsonType, body)
}

// fleet pushes a report of n1 to n5 with a score and state, and requires that
// they are taken.
func (g *ingeroGateway) fleet(cluster, state string, score float64) {
	g.t.Helper()
	for n := range 5 {
		g.node(cluster, ingeroNode{fmt.Sprintf("n%d", n+1), state, score, 1})
	}
}

func (g *ingeroGateway) node(cluster string, n ingeroNode) {
	g.t.Helper()
	resp := g.push(cluster, n.report(g.t, cluster))
	require.Equal(g.t, http.StatusOK, resp.status, "%s", resp.body)
}

// awaitNodes waits for a tick that has seen the nodes.
func (g *ingeroGateway) awaitNodes(cluster string, want map[string]float64) scraped {
	g.t.Helper()
	var s scraped
	eventually(g.t, fmt.Sprintf("nodes of %s are %v", cluster, want), func() bool {
		s = scrape(g.t, g.prom)
		got := s.by("gpu_straggler_nodes", "gpu_node_state", labels{"k8s_cluster_name": cluster, "gpu_peer_group": ""})
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
func legal(t *testing.T, resp response) (threshold float64, quorum string) {
	t.Helper()
	threshold, err := strconv.ParseFloat(resp.header.Get(ingeroThreshold), 64)
	require.NoError(t, err, "headers: %v", resp.header)
	assert.GreaterOrEqual(t, threshold, 0.1)
	assert.LessOrEqual(t, threshold, 0.99)
	quorum = resp.header.Get(ingeroQuorumMet)
	assert.Contains(t, []string{"true", "false"}, quorum)
	return threshold, quorum
}

// silent requires that neither header is there: an illegal value would keep
// the agent from asking again.
func silent(t *testing.T, resp response) {
	t.Helper()
	assert.Empty(t, resp.header.Values(ingeroThreshold))
	assert.Empty(t, resp.header.Values(ingeroQuorumMet))
}

// TestIngeroAgents speaks as unmodified agents of Ingero do.
func TestIngeroAgents(t *testing.T) {
	t.Parallel()
	g := startIngero(t)
	n1 := ingeroNode{"n1", "active", 0.27, 0}

	// Cold: an answer without a threshold for pollers, silence for pushers.
	for _, addr := range []string{g.api, g.otlp} {
		var cold object
		getJSON(t, "http://"+addr+"/api/v1/threshold?cluster_id=c", &cold)
		assert.InDelta(t, 0, cold["threshold"], 0)
		assert.Equal(t, false, cold["quorum_met"])
	}
	silent(t, g.push("c", n1.event(t, "c")))

	// The first score of each agent is about 0.27, whatever the node's health.
	g.fleet("c", "active", 0.27)
	s := g.awaitNodes("c", map[string]float64{"active": 0, "calibrating": 5})
	assert.Empty(t, s.with("gpu_straggler_threshold_ratio", labels{"k8s_cluster_name": "c"}))
	silent(t, g.push("c", n1.event(t, "c")))

	// A perfect fleet.
	g.fleet("c", "active", 1)
	g.awaitNodes("c", map[string]float64{"active": 5})
	resp := g.push("c", n1.event(t, "c"))
	assert.Equal(t, http.StatusOK, resp.status)
	threshold, quorum := legal(t, resp)
	assert.InDelta(t, 0.95, threshold, 1e-6)
	assert.Equal(t, "true", quorum)
	var warm object
	body := get(t, "http://"+g.api+"/api/v1/threshold?cluster_id=c").body
	assert.Less(t, len(body), 8<<10)
	require.NoError(t, json.Unmarshal(body, &warm))
	assert.InDelta(t, 0.95, warm["threshold"], 1e-6)
	assert.Equal(t, true, warm["quorum_met"])

	// Nodes that do no steady work lower neither median nor threshold: idle
	// and calibrating ones, one just started, and one without a launch yet.
	for i := range 3 {
		g.node("c", ingeroNode{fmt.Sprintf("idle%d", i), "idle", 0.2, 0})
		g.node("c", ingeroNode{fmt.Sprintf("calibrating%d", i), "calibrating", 0.3, 0.2})
	}
	for range 2 {
		g.node("c", ingeroNode{"stuck", "active", 0.27, 0})
	}
	g.node("c", ingeroNode{"fresh", "active", 0.27, 0.1})
	// Known nodes count as idle and calibrating from their second score on.
	for i := range 3 {
		g.node("c", ingeroNode{fmt.Sprintf("idle%d", i), "idle", 0.2, 0})
	}
	s = g.awaitNodes("c", map[string]float64{"active": 5, "idle": 3, "calibrating": 5})
	assert.True(t, s.is(1, "gpu_straggler_median_ratio", labels{"k8s_cluster_name": "c", "gpu_peer_group": ""}))
	resp = g.push("c", ingeroNode{"n1", "active", 1, 1}.report(t, "c"))
	threshold, _ = legal(t, resp)
	assert.InDelta(t, 0.95, threshold, 1e-6)

	t.Run("refused body", func(t *testing.T) {
		resp := g.push("c", []byte(`{"resourceMetrics": [{"resource": `))
		assert.Equal(t, http.StatusBadRequest, resp.status)
	})
	t.Run("unknown cluster", func(t *testing.T) {
		resp := g.push("elsewhere", ingeroNode{"x", "active", 1, 1}.report(t, "elsewhere"))
		assert.Equal(t, http.StatusOK, resp.status)
		silent(t, resp)
	})
	t.Run("cluster in the documented header", func(t *testing.T) {
		legal(t, post(t, "http://"+g.otlp+"/v1/metrics", jsonType, n1.event(t, "c"), "ingero.cluster.id", "c"))
	})
	t.Run("no cluster", func(t *testing.T) {
		resp := post(t, "http://"+g.otlp+"/v1/metrics", jsonType, n1.event(t, "c"))
		assert.Equal(t, http.StatusOK, resp.status)
		silent(t, resp)
	})
	t.Run("straggler", func(t *testing.T) {
		eventually(t, "n1 is a straggler", func() bool {
			for n := range 5 {
				g.node("c", ingeroNode{fmt.Sprintf("n%d", n+1), "active", []float64{0.5, 1, 1, 1, 1}[n], 1})
			}
			return scrape(t, g.prom).is(1, "gpu_node_straggler", labels{"host_name": "n1", "k8s_cluster_name": "c"})
		})
		assert.True(t, scrape(t, g.prom).is(1, "gpu_straggler_stragglers", labels{"k8s_cluster_name": "c", "gpu_peer_group": ""}))
	})
	t.Run("quorum lost", func(t *testing.T) {
		g.fleet("c", "idle", 1)
		g.awaitNodes("c", map[string]float64{"active": 0})
		threshold, quorum := legal(t, g.push("c", n1.event(t, "c")))
		assert.Equal(t, "false", quorum)
		assert.InDelta(t, 0.95, threshold, 0.02, "the last threshold with a quorum")
	})
}

// TestIngeroThresholdIsClamped covers fleets whose threshold by the plain
// formula lies outside of what Ingero's agent takes.
func TestIngeroThresholdIsClamped(t *testing.T) {
	t.Parallel()
	g := startIngero(t, "processors: {straggler: {gateway: {min_gap: 0}}}\n")
	for cluster, c := range map[string]struct{ score, want float64 }{"perfect": {1, 0.99}, "sick": {0.05, 0.1}} {
		g.fleet(cluster, "active", 0.27)
		g.fleet(cluster, "active", c.score)
		g.awaitNodes(cluster, map[string]float64{"active": 5})
		resp := g.push(cluster, ingeroNode{"n1", "active", c.score, 1}.event(t, cluster))
		assert.Equal(t, strconv.FormatFloat(c.want, 'g', -1, 64), resp.header.Get(ingeroThreshold))
		assert.Equal(t, "true", resp.header.Get(ingeroQuorumMet))
		var body struct{ Threshold float64 }
		getJSON(t, "http://"+g.api+"/api/v1/threshold?cluster_id="+cluster, &body)
		assert.InDelta(t, c.want, body.Threshold, 0)
	}
}
