// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/pdatatest/pmetrictest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/processor"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/platform/wire"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// fakeExtension is the threshold extension of a gateway and of an agent.
type fakeExtension struct {
	component.StartFunc
	component.ShutdownFunc
	inbox     threshold.Inbox
	reachable bool

	mu   sync.Mutex
	snap *threshold.Snapshot
}

func (e *fakeExtension) Publish(s *threshold.Snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.snap = s
}

func (e *fakeExtension) SetClaim(wire.Claim) {}
func (e *fakeExtension) Reachable() bool     { return e.reachable }
func (e *fakeExtension) Received(cluster, group string) (threshold.Received, bool) {
	return e.inbox.Get(cluster, group)
}

// answer is what the push of a node gets.
func (e *fakeExtension) answer(cluster, node, group string) func(string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	headers := map[string][]string{}
	if e.snap != nil {
		for _, h := range e.snap.Clusters[cluster].Respond(nil, node, []string{group}) {
			headers[h.Name] = []string{h.Value}
		}
	}
	return func(name string) []string { return headers[name] }
}

var extensionID = component.MustNewID("straggler_threshold")

type fakeHost struct{ ext component.Component }

func (h fakeHost) GetExtensions() map[component.ID]component.Component {
	return map[component.ID]component.Component{extensionID: h.ext}
}

func runProcessor(t *testing.T, mode string, ext component.Component, sink *consumertest.MetricsSink) processor.Metrics {
	t.Helper()
	factory := stragglerprocessor.NewFactory()
	cfg := factory.CreateDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(map[string]any{"mode": mode, "threshold_extension": extensionID.String()}).Unmarshal(cfg))
	p, err := factory.CreateMetrics(t.Context(), processor.Settings{
		ID: component.NewIDWithName(factory.Type(), mode), TelemetrySettings: componenttest.NewNopTelemetrySettings(),
	}, cfg, sink)
	require.NoError(t, err)
	require.NoError(t, p.Start(t.Context(), fakeHost{ext}))
	t.Cleanup(func() { require.NoError(t, p.Shutdown(context.WithoutCancel(t.Context()))) })
	return p
}

// The fleet says of its nodes what the straggler processor of an agent says that
// gets the same readings and the same answers of the same gateway: before the
// gateway knows anything, while it does, after it fell silent; of healthy nodes
// and of those with faults.
func TestTheFleetSaysWhatAgentsSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 12
		cfg := Config{Nodes: nodes, GPUs: 4, Load: fleetsim.Training, Seed: 3, Faults: []Fault{
			{Target: fleetsim.Target{Node: 2}, Fault: fleetsim.Fault{Kind: fleetsim.SlowNode, GPU: fleetsim.AllGPUs, From: 3 * time.Minute, Severity: 0.4}},
			{Target: fleetsim.Target{Node: 4}, Fault: fleetsim.Fault{Kind: fleetsim.LostGPU, GPU: 1, From: 4 * time.Minute, Until: 6 * time.Minute}},
			{Target: fleetsim.Target{Node: 6}, Fault: fleetsim.Fault{Kind: fleetsim.XidError, GPU: 0, From: 4 * time.Minute}},
			{Target: fleetsim.Target{Node: 8}, Fault: fleetsim.Fault{Kind: fleetsim.ThermalThrottle, GPU: 3, From: 4 * time.Minute, Severity: 0.7}},
			{Target: fleetsim.Target{Node: 9}, Fault: fleetsim.Fault{Kind: fleetsim.NVLinkErrors, GPU: 2, From: 4 * time.Minute}},
		}}
		fleet := newFleet(t, cfg)
		cfg.Raw = true
		raw := newFleet(t, cfg)

		ext := &fakeExtension{}
		var fromAgent, fromGateway consumertest.MetricsSink
		agent := runProcessor(t, "agent", ext, &fromAgent)
		gateway := runProcessor(t, "gateway", ext, &fromGateway)
		seen := map[string]bool{}
		for tick := range 120 {
			// The gateway is away for a while, long enough for nodes to fall back to
			// their own past.
			away := tick >= 60 && tick < 105
			now := time.Now()
			for i := range nodes {
				b, err := fleet.Next(i, 1, now, nil)
				require.NoError(t, err)
				got := decode(t, b)

				reading, err := raw.Next(i, 1, now, nil)
				require.NoError(t, err)
				fromAgent.Reset()
				require.NoError(t, agent.ConsumeMetrics(t.Context(), decode(t, reading)))
				if want := fromAgent.AllMetrics()[0]; !bytes.Equal(b, encoded(t, want)) {
					// Which says where.
					require.NoError(t, pmetrictest.CompareMetrics(want, got), "node %d in tick %d", i, tick)
				}
				note(seen, got)
				if !away {
					require.NoError(t, gateway.ConsumeMetrics(t.Context(), got))
				}
			}
			synctest.Wait()
			group := &fleet.groups[0]
			ext.reachable = !away
			if !away { // the agent speaks for all nodes
				headers := ext.answer(group.cluster, "", group.name)
				values, err := threshold.ParseAnswer(headers(gpusemconv.HeaderParams), headers(gpusemconv.HeaderVerdict), "")
				require.NoError(t, err)
				for _, v := range values {
					ext.inbox.Put(group.cluster, v, now)
				}
			}
			for i := range nodes {
				h := fleet.Hear(i, Answer{Accepted: !away, Answered: !away, Headers: ext.answer(group.cluster, NodeName(i), group.name)}, now)
				require.NoError(t, h.Err)
			}
			time.Sleep(10 * time.Second)
		}
		for _, name := range []string{
			"gpu.agent.detection_mode fleet", "gpu.agent.detection_mode cached", "gpu.agent.detection_mode local", "gpu.agent.detection_mode none",
			"gpu.agent.straggler", "gpu.node.state active", "gpu.node.state calibrating",
		} {
			assert.True(t, seen[name], "the run shows no node with %s", name)
		}
	})
}

func encoded(t *testing.T, md pmetric.Metrics) []byte {
	t.Helper()
	b, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	require.NoError(t, err)
	return b
}

// note notes which of the agent's series were not 0.
func note(seen map[string]bool, md pmetric.Metrics) {
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			if sm.Scope().Name() != scope {
				continue
			}
			for _, m := range sm.Metrics().All() {
				for _, p := range m.Gauge().DataPoints().All() {
					name := []string{m.Name()}
					for _, attr := range []string{gpusemconv.AttrDetectionMode, gpusemconv.AttrNodeState} {
						if v, ok := p.Attributes().Get(attr); ok {
							name = append(name, v.Str())
						}
					}
					key := strings.Join(name, " ")
					seen[key] = seen[key] || p.IntValue() != 0 || p.DoubleValue() != 0
				}
			}
		}
	}
}
