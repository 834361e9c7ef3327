// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// rootOverlay has a gateway keep the latest state of each node only, and tell
// Prometheus of stragglers alone.
const rootOverlay = "configs/overlays/root.yaml"

// ofGPU and ofNode are where the fleet view shows what a node says, by its metric.
var (
	ofGPU = map[string]func(*fleetapi.GPU) *float64{
		"hw.temperature":               func(g *fleetapi.GPU) *float64 { return g.Temperature },
		"hw.power":                     func(g *fleetapi.GPU) *float64 { return g.Power },
		"hw.gpu.power.limit":           func(g *fleetapi.GPU) *float64 { return g.PowerLimit },
		"hw.gpu.utilization":           func(g *fleetapi.GPU) *float64 { return g.Utilization },
		"hw.gpu.clock.frequency":       func(g *fleetapi.GPU) *float64 { return g.SMClock },
		"hw.gpu.clock.frequency.limit": func(g *fleetapi.GPU) *float64 { return g.SMClockLimit },
		"hw.gpu.memory.usage":          func(g *fleetapi.GPU) *float64 { return g.MemoryUsed },
		"hw.gpu.memory.limit":          func(g *fleetapi.GPU) *float64 { return g.MemoryLimit },
		"hw.gpu.health.score":          func(g *fleetapi.GPU) *float64 { return g.HealthScore },
	}
	ofNode = map[string]func(*fleetapi.Node) *float64{
		"hw.gpu.devices":                 func(n *fleetapi.Node) *float64 { return n.GPUCount.Expected },
		gpusemconv.MetricNodeHealthScore: func(n *fleetapi.Node) *float64 { return n.Score },
		gpusemconv.MetricAgentThreshold:  func(n *fleetapi.Node) *float64 { return n.Threshold },
	}
)

// viewDifferences tells how what a root's fleet view shows is not what the agents
// say, "" if it is.
func (w *world) viewDifferences(ctx context.Context) string {
	nodes, err := view(ctx, w.gateway.fleetAPI)
	if err != nil {
		return err.Error()
	}
	var found []string
	compared := map[string]int{}
	for _, heard := range w.heard {
		for key, want := range heard.current() {
			metric := heard.otlpName(want.metric)
			n := nodes[want.labels["host_name"]]
			var got *float64
			switch gpu, node := ofGPU[metric], ofNode[metric]; {
			case gpu == nil && node == nil:
				continue
			case n == nil:
			case node != nil:
				got = node(n)
			default:
				if i := slices.IndexFunc(n.GPUs, func(g fleetapi.GPU) bool { return g.UUID == want.labels["hw_id"] }); i >= 0 {
					got = gpu(&n.GPUs[i])
				}
			}
			compared[metric]++
			switch {
			case got == nil:
				found = append(found, "missing: "+key)
			case !holds(heard.band(w.bands, want.metric), *got, want.v):
				found = append(found, fmt.Sprintf("%s is %v, not %v", key, *got, want.v))
			}
		}
	}
	for metric := range ofGPU { // or nothing was compared
		if compared[metric] < numNodes*gpusPerNode {
			found = append(found, fmt.Sprintf("the agents say %s of %d GPUs", metric, compared[metric]))
		}
	}
	for name, n := range nodes {
		if !slices.ContainsFunc(w.heard, func(s *sink) bool { return s.hasNode(name) }) || len(n.GPUs) != gpusPerNode {
			found = append(found, fmt.Sprintf("nobody said: %s with %d GPUs", name, len(n.GPUs)))
		}
	}
	if len(found) == 0 {
		return ""
	}
	slices.Sort(found)
	return fmt.Sprintf("%d differences:\n%s", len(found), strings.Join(found[:min(8, len(found))], "\n"))
}

// view returns the nodes that a fleet view shows, with their GPUs.
func view(ctx context.Context, addr string) (map[string]*fleetapi.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/api/v1/nodes?gpus=true", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var page fleetapi.NodePage
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
		return nil, fmt.Errorf("%s: %w", resp.Status, err)
	}
	nodes := map[string]*fleetapi.Node{}
	for i := range page.Nodes {
		nodes[page.Nodes[i].Node] = &page.Nodes[i]
	}
	return nodes, nil
}
