// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/pdatatest/pmetrictest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/processor/processortest"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// source is an agent's threshold extension, and the host that has it.
type source struct {
	component.StartFunc
	component.ShutdownFunc
	inbox     threshold.Inbox
	reachable bool
}

func (*source) SetClaim(pushheaders.Claim) {}
func (s *source) Reachable() bool          { return s.reachable }
func (s *source) Received(cluster, group string) (threshold.Received, bool) {
	return s.inbox.Get(cluster, group)
}

func (s *source) GetExtensions() map[component.ID]component.Component {
	return map[component.ID]component.Component{component.MustNewID("straggler_threshold"): s}
}

// A node's report is what the straggler processor makes of a raw one: before a gateway
// answers, while it does, and after it stopped.
func TestReportsAreAnAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Nodes: 2, GPUs: 2, Seed: 3, Ranks: true, Faults: []fleetsim.Fault{
			{Share: 1, Kind: fleetsim.SlowNode, GPU: fleetsim.AllGPUs, From: 3 * time.Minute, Severity: 0.4},
		}}
		fleet := newFleet(t, cfg)
		fleet.nodes[0].troubles = nil // as if its verdict were false
		cfg.Raw = true
		raw := newFleet(t, cfg)

		factory, ext, sink := stragglerprocessor.NewFactory(), &source{}, &consumertest.MetricsSink{}
		agentCfg := factory.CreateDefaultConfig()
		require.NoError(t, confmap.NewFromStringMap(map[string]any{"mode": "agent", "threshold_extension": "straggler_threshold"}).Unmarshal(agentCfg))
		agent, err := factory.CreateMetrics(t.Context(), processortest.NewNopSettings(factory.Type()), agentCfg, sink)
		require.NoError(t, err)
		require.NoError(t, agent.Start(t.Context(), ext))
		defer func() { require.NoError(t, agent.Shutdown(context.WithoutCancel(t.Context()))) }()

		answer := result{headers: metadata.Pairs(gpusemconv.HeaderParams, params(t)), answered: true}
		values, err := threshold.ParseAnswer(answer.headers.Get(gpusemconv.HeaderParams), nil, "")
		require.NoError(t, err)
		seen := map[string]bool{}
		for tick := range 90 {
			now := time.Now()
			if ext.reachable = tick >= 10 && tick < 40; ext.reachable {
				ext.inbox.Put("fleetsim", values[0], now)
			}
			for i := range cfg.Nodes {
				given := answer
				if !ext.reachable {
					given = result{}
				}
				require.NoError(t, fleet.receive(i, &given, now))
				got := fleet.metrics(i, 1, now)
				require.NoError(t, agent.ConsumeMetrics(t.Context(), raw.metrics(i, 1, now)))
				require.NoError(t, pmetrictest.CompareMetrics(sink.AllMetrics()[0], got), "node %d in tick %d", i, tick)
				sink.Reset()
				last := got.ResourceMetrics().At(got.ResourceMetrics().Len() - 1)
				for _, m := range last.ScopeMetrics().At(0).Metrics().All() {
					for _, p := range m.Gauge().DataPoints().All() {
						name := m.Name()
						if mode, ok := p.Attributes().Get(gpusemconv.AttrDetectionMode); ok {
							name += " " + mode.Str()
						}
						seen[name] = seen[name] || p.IntValue() == 1
					}
				}
			}
			time.Sleep(10 * time.Second)
		}
		r := newStats(0).report(fleet)
		assert.Equal(t, []any{1, []string{"node-000000"}}, []any{r.FalseVerdicts, r.FalseNodes})
		assert.Regexp(t, `^100 % of nodes: slow_node, from 180 s, was found by 1 of 1 nodes, the last after \d+ s \(fleet\)$`, r.Faults[0].text())
		for _, name := range []string{
			"gpu.agent.detection_mode fleet", "gpu.agent.detection_mode cached", "gpu.agent.detection_mode local", "gpu.agent.detection_mode none",
			"gpu.agent.straggler", "gpu.agent.gateway_reachable",
		} {
			assert.True(t, seen[name], "no node showed %s: %v", name, seen)
		}
	})
}
