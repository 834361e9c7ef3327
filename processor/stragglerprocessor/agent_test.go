// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.uber.org/zap"
	zapobserver "go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

type agentRig struct {
	t    *testing.T
	a    *agent
	sink *consumertest.MetricsSink
	ext  *fakeExtension
	tel  *componenttest.Telemetry
}

func newAgentRig(t *testing.T, change func(*Config)) *agentRig {
	r := &agentRig{t: t, sink: new(consumertest.MetricsSink), ext: &fakeExtension{received: map[string]threshold.Received{}}, tel: componenttest.NewTelemetry()}
	t.Cleanup(func() { require.NoError(t, r.tel.Shutdown(context.WithoutCancel(t.Context()))) })
	cfg := createDefaultConfig().(*Config)
	cfg.Mode = modeAgent
	cfg.ThresholdExtension = &extensionID
	cfg.Agent.NodeName = "me"
	if change != nil {
		change(cfg)
	}
	require.NoError(t, cfg.Validate())
	a, err := newAgent(processor.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: r.tel.NewTelemetrySettings()}, cfg, r.sink)
	require.NoError(t, err)
	require.NoError(t, a.Start(t.Context(), hostWith(r.ext)))
	t.Cleanup(func() { require.NoError(t, a.Shutdown(context.WithoutCancel(t.Context()))) })
	r.a = a
	return r
}

// push sends md, waits a push interval, and returns what was handed on.
func (r *agentRig) push(md pmetric.Metrics) map[string]float64 {
	r.sink.Reset()
	require.NoError(r.t, r.a.ConsumeMetrics(r.t.Context(), md))
	time.Sleep(10 * time.Second)
	return values(r.sink.AllMetrics()[0])
}

func step(node string, seconds float64) pmetric.Metrics {
	md := pmetric.NewMetrics()
	addStep(md, node, "stage-0", seconds)
	return md
}

func addStep(md pmetric.Metrics, node, role string, seconds float64) {
	attrs := map[string]any{"gpu.job.id": "J", "gpu.job.role": role, "k8s.cluster.name": "prod"}
	if node != "" {
		attrs["host.name"] = node
	}
	gauge(resource(md, attrs), "gpu.app.step.duration", seconds)
}

func (r *agentRig) receive(th, ref float64) {
	r.ext.reachable = true
	r.ext.received["prod J/stage-0"] = threshold.Received{
		At:    time.Now(),
		Value: threshold.Value{Threshold: th, Median: 1, Ref: ref, QuorumMet: true, TTL: 50 * time.Second},
	}
}

func TestAgentJudgesItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAgentRig(t, nil)
		got := r.push(step("n1", 45))
		assert.NotContains(t, got, "n1 gpu.node.health_score")
		assert.InDelta(t, 1.0/45, got["n1 gpu.node.signal throughput"], 1e-9)
		assert.InDelta(t, 1, got["n1 gpu.agent.detection_mode none"], 0)
		assert.Zero(t, got["n1 gpu.agent.gateway_reachable"])
		assert.Equal(t, pushheaders.Claim{Cluster: "prod", Node: "n1", Groups: []string{"J/stage-0"}}, r.ext.claim)

		for i := range 3 {
			r.receive(0.95, 1.0/19)
			got = r.push(step("n1", 45))
			assert.InDelta(t, 19.0/45, got["n1 gpu.node.health_score"], 1e-9)
			assert.InDelta(t, 1, got["n1 gpu.agent.detection_mode fleet"], 0)
			assert.Zero(t, got["n1 gpu.agent.detection_mode none"])
			assert.InDelta(t, 0.95, got["n1 gpu.agent.threshold"], 0)
			assert.InDelta(t, 1, got["n1 gpu.agent.gateway_reachable"], 0)
			assert.InDelta(t, map[bool]float64{true: 1}[i == 2], got["n1 gpu.agent.straggler"], 0)
		}
		assert.InDelta(t, 45, got["n1 gpu.app.step.duration"], 0, "what came goes on")
	})
}

func TestAgentWithManyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAgentRig(t, nil)
		md := pmetric.NewMetrics()
		addStep(md, "n1", "stage-0", 19)
		addStep(md, "n2", "stage-1", 20)
		addStep(md, "n3", "stage-1", 20)
		gauge(resource(md, map[string]any{"host.name": "n4", "k8s.cluster.name": "zoo", "gpu.job.id": "Z"}), "gpu.app.step.duration", 19)
		got := r.push(md)
		for _, n := range []string{"n1", "n2", "n3", "n4"} {
			assert.Contains(t, got, n+" gpu.node.signal throughput")
		}
		assert.Equal(t, pushheaders.Claim{Cluster: "prod", Groups: []string{"J/stage-0", "J/stage-1"}}, r.ext.claim, "it asks for the nodes of one cluster")

		time.Sleep(4 * time.Minute)
		r.push(step("n1", 19))
		assert.Len(t, r.a.nodes, 4, "the gateway's last threshold still counts")
		time.Sleep(10 * time.Minute)
		r.push(step("n1", 19))
		assert.Equal(t, "n1", r.ext.claim.Node, "nodes without reports are forgotten")
	})
}

// TestAgentNamesTheClusterOfANode: of a push that names none, whatever it reads of it.
func TestAgentNamesTheClusterOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAgentRig(t, func(c *Config) { c.DefaultCluster = "prod" })
		md := pmetric.NewMetrics()
		for _, attrs := range []map[string]any{
			{"host.name": "a"}, {"host.name": "a", "k8s.cluster.name": "lab"}, {"service.name": "no node"},
		} {
			require.NoError(t, md.ResourceMetrics().AppendEmpty().Resource().Attributes().FromRaw(attrs))
		}
		gauge(resource(md, map[string]any{"gpu.job.id": "J"}), "gpu.app.step.duration", 1) // of this node
		r.push(md)
		var got []string
		for _, rm := range r.sink.AllMetrics()[0].ResourceMetrics().All() {
			name := rm.Resource().Attributes().AsRaw()
			got = append(got, fmt.Sprint(name["host.name"], " in ", name["k8s.cluster.name"]))
		}
		assert.Equal(t, []string{"a in prod", "a in lab", "<nil> in <nil>", "me in prod"}, got[:4])
		assert.Equal(t, "me", r.ext.claim.Node)
	})
}

func TestAgentIgnoresNonsenseAndCountsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAgentRig(t, func(c *Config) { c.Agent.MaxNodes = 1 })
		md := step("n1", 19)
		gauge(md.ResourceMetrics().At(0), "gpu.app.step.duration", math.NaN())
		gauge(md.ResourceMetrics().At(0), "gpu.app.step.duration", -1)
		addStep(md, "n2", "stage-0", 19)
		resource(md, nil)
		gauge(resource(md, map[string]any{"host.name": "n3", "k8s.cluster.name": ""}), "gpu.app.step.duration", 19)
		for _, name := range []string{"host.name", "k8s.cluster.name", "gpu.job.id"} {
			attrs := map[string]any{"host.name": "n5", "k8s.cluster.name": "prod"}
			attrs[name] = strings.Repeat("x", 254)
			gauge(resource(md, attrs), "gpu.app.step.duration", 19)
		}
		gauge(md.ResourceMetrics().At(0), "hw.power", 500, "hw.id", "GPU-0", "hw.type", "gpu")
		gauge(md.ResourceMetrics().At(0), "hw.power", 500, "hw.id", strings.Repeat("x", 254), "hw.type", "gpu")
		gauge(md.ResourceMetrics().At(0), "hw.power", 70, "hw.id", "MIG-0", "hw.parent", "GPU-0", "hw.type", "gpu")
		gauge(md.ResourceMetrics().At(0), "hw.gpu.pcie.link.width", 8, "hw.id", "GPU-0", "kind", "current")
		gauge(md.ResourceMetrics().At(0), "hw.gpu.pcie.link.width", 16, "hw.id", "GPU-0", "kind", "max")
		gauge(md.ResourceMetrics().At(0), "hw.gpu.pcie.link.generation", 5, "hw.id", "GPU-0", "kind", "current")
		at := time.Now().UTC()
		time.Sleep(3 * time.Second)
		got := r.push(md)
		assert.InDelta(t, 1.0/19, got["n1 gpu.node.signal throughput"], 1e-9)
		assert.InDelta(t, 500, got["n1 gpu.node.signal power"], 0, "a slice is no GPU")
		assert.InDelta(t, 0.5, got["n1 gpu.node.signal interconnect"], 0, "each input has its own points of a metric")
		assert.NotContains(t, got, "n2 gpu.node.signal throughput")
		assert.Equal(t, map[string]int64{"not_finite": 1, "value_range": 1, "max_nodes": 1, "no_cluster": 1, "name_too_long": 3, "max_gpus": 1}, rejected(t, r.tel))
		assert.Equal(t, 7+1, r.sink.AllMetrics()[0].ResourceMetrics().Len(), "the data itself passes, and a score is added")
		for _, m := range r.sink.AllMetrics()[0].ResourceMetrics().At(7).ScopeMetrics().At(0).Metrics().All() {
			assert.Equal(t, at, m.Gauge().DataPoints().At(0).Timestamp().AsTime(), "one report has one time: %s", m.Name())
		}
	})
}

// TestAgentUsesItsGatewaysVerdict: the verdict is that of each of its nodes.
func TestAgentUsesItsGatewaysVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAgentRig(t, nil)
		core, logs := zapobserver.New(zap.InfoLevel)
		r.a.logger = zap.New(core)
		r.receive(0.95, 1.0/19)
		v := r.ext.received["prod J/stage-0"]
		v.All, v.Verdicts = true, threshold.NewVerdicts("J/stage-0", 1, []threshold.Verdict{{Node: "n2", Loss: 0.125, Signal: nodesignal.CPU}})
		r.ext.received["prod J/stage-0"] = v
		md := pmetric.NewMetrics()
		addStep(md, "n1", "stage-0", 45)
		addStep(md, "n2", "stage-0", 19)
		got := r.push(md)
		assert.Zero(t, got["n1 gpu.agent.straggler"])
		assert.InDelta(t, 1, got["n2 gpu.agent.straggler"], 0)
		require.Equal(t, 1, logs.Len())
		fields := logs.All()[0].ContextMap()
		assert.Equal(t, []any{"n2", 0.125, "cpu", nil}, []any{fields["node"], fields["loss"], fields["signal"], fields["since"]})
	})
}

// One that was slow from its first comparison on has no last good tick to name.
func TestTheVerdictIsLoggedWithItsBeginningWhereThatIsKnown(t *testing.T) {
	core, logs := zapobserver.New(zap.InfoLevel)
	a := &agent{logger: zap.New(core)}
	since := time.Unix(1_800_000_000, 0).UTC()
	for _, at := range []time.Time{{}, since} {
		a.logVerdict(&agentNode{}, &nodescore.Result{Straggler: true, Since: at})
	}
	a.logVerdict(&agentNode{}, &nodescore.Result{Since: since})
	require.Equal(t, 3, logs.Len())
	for i, want := range []any{nil, since, nil} {
		assert.Equal(t, want, logs.All()[i].ContextMap()["since"], "%d", i)
	}
}

func TestEvaluationsKeepTheirPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAgentRig(t, nil)
		scored := 0
		for range 100 {
			r.sink.Reset()
			require.NoError(t, r.a.ConsumeMetrics(t.Context(), step("n1", 19)))
			time.Sleep(time.Second)
			if _, ok := values(r.sink.AllMetrics()[0])["n1 gpu.agent.straggler"]; ok {
				scored++
			}
		}
		assert.Equal(t, 20, scored, "a job that reports each second is judged no more often than half an interval")
	})
}

func TestAnotherJobStartsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAgentRig(t, nil)
		for range 20 {
			r.push(step("n1", 10))
		}
		var got map[string]float64
		for range 20 {
			md := pmetric.NewMetrics()
			addStep(md, "n1", "stage-7", 40)
			got = r.push(md)
			assert.Zero(t, got["n1 gpu.agent.straggler"], "four times slower, but another job")
		}
		assert.InDelta(t, 1, got["n1 gpu.agent.detection_mode local"], 0)
		assert.Equal(t, []string{"J/stage-7"}, r.ext.claim.Groups)
	})
}

// TestTheSlowerRankIsItsNodes, whether points or resources name the ranks.
func TestTheSlowerRankIsItsNodes(t *testing.T) {
	for _, ofPoint := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			md := pmetric.NewMetrics()
			for i, seconds := range []float64{2, 1} {
				rm := resource(md, map[string]any{gpusemconv.AttrHostName: "n1"})
				attrs := rm.Resource().Attributes()
				if p := gauge(rm, gpusemconv.MetricAppStepDuration, seconds); ofPoint {
					attrs = p.Attributes()
				}
				attrs.PutInt(gpusemconv.AttrJobRank, int64(i))
			}
			assert.InDelta(t, 0.5, newAgentRig(t, nil).push(md)["n1 gpu.node.signal throughput"], 1e-9)
		})
	}
}

// TestTheLogAsksForNames: once, and only where a node has several ranks without one.
func TestTheLogAsksForNames(t *testing.T) {
	for instances, want := range map[int]int{1: 0, 2: 1} {
		synctest.Test(t, func(t *testing.T) {
			r := newAgentRig(t, nil)
			core, logs := zapobserver.New(zap.WarnLevel)
			r.a.logger = zap.New(core)
			for range 5 {
				md := pmetric.NewMetrics()
				for i := range instances {
					rm := resource(md, map[string]any{gpusemconv.AttrHostName: "n1", gpusemconv.AttrJobID: "J", gpusemconv.AttrProcessPID: i})
					gauge(rm, gpusemconv.MetricAppStepDuration, 1)
				}
				r.push(md)
			}
			assert.Equal(t, want, logs.FilterMessageSnippet("ranks of a job have no name").Len())
		})
	}
}

func TestRanksThatAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAgentRig(t, nil)
		md := pmetric.NewMetrics()
		rm := resource(md, map[string]any{gpusemconv.AttrHostName: "n1"})
		for i := range nodescore.MaxRanks + 7 {
			gauge(rm, gpusemconv.MetricAppStepRate, 1).Attributes().PutInt(gpusemconv.AttrJobRank, int64(i))
		}
		r.push(md)
		assert.Equal(t, int64(7), rejected(t, r.tel)["max_gpus"])
	})
}

// nvml is a report of a node's GPUs, with hw.gpu.info where there are products.
func nvml(products ...string) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := resource(md, map[string]any{"host.name": "n", "k8s.cluster.name": "prod"})
	for i, product := range products {
		gauge(rm, gpusemconv.MetricGPUInfo, 1, "hw.id", fmt.Sprint("GPU-", i), "hw.model", product)
		gauge(rm, gpusemconv.MetricGPUInfo, 1, "hw.id", fmt.Sprint("MIG-", i), "hw.parent", fmt.Sprint("GPU-", i), "hw.model", product+" MIG 1g.10gb")
	}
	gauge(rm, "hw.gpu.utilization", 1, "hw.id", "GPU-0", "hw.gpu.task", "general")
	return md
}

// TestTheModelIsOfTheGroup: out of the box, nodes with unlike GPUs are no peers. A node asks
// for the group that its gateway has it in.
func TestTheModelIsOfTheGroup(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		push   []pmetric.Metrics
		want   string
	}{
		"the GPUs' report, then the job's": {nil, []pmetric.Metrics{nvml("H100"), step("n", 1)}, "J/stage-0/H100"},
		"the job's, then the GPUs'":        {nil, []pmetric.Metrics{step("n", 1), nvml("H100")}, "J/stage-0/H100"},
		"no job":                           {nil, []pmetric.Metrics{nvml("NVIDIA H100 80GB HBM3")}, "//NVIDIA-H100-80GB-HBM3"},
		"two models":                       {nil, []pmetric.Metrics{nvml("L4", "A100", "L4")}, "//A100+L4"},
		"the model in a report of its own": {nil, []pmetric.Metrics{step("n", 1), func() pmetric.Metrics {
			md := nvml("H100")
			md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().RemoveIf(func(m pmetric.Metric) bool { return m.Name() != gpusemconv.MetricGPUInfo })
			return md
		}()}, "J/stage-0/H100"},
		"a label of the node overrules": {nil, []pmetric.Metrics{func() pmetric.Metrics {
			md := nvml("H100")
			md.ResourceMetrics().At(0).Resource().Attributes().PutStr("gpu.model", "fast")
			return md
		}(), step("n", 1), nvml("H100")}, "J/stage-0/fast"},
		"nothing known of what is asked for": {func(c *Config) { c.GroupBy = []string{"gpu.model"} }, []pmetric.Metrics{nvml(), step("n", 1)}, "default"},
		"not asked for":                      {func(c *Config) { c.GroupBy = []string{"gpu.job.id"} }, []pmetric.Metrics{nvml("H100"), step("n", 1)}, "J"},
	} {
		t.Run(name, func(t *testing.T) {
			r, gateway := newAgentRig(t, test.change), newGatewayRig(t, test.change, nil)
			now := time.Now()
			for range 2 {
				for _, md := range test.push {
					r.a.score(t.Context(), md, now)
					gateway.g.observe(t.Context(), md, now)
					now = now.Add(10 * time.Second)
				}
			}
			assert.Equal(t, pushheaders.Claim{Cluster: "prod", Node: "n", Groups: []string{test.want}}, r.ext.claim)
			rep := gateway.g.engine.Tick(now)
			require.Len(t, rep.Nodes, 1)
			assert.Equal(t, test.want, rep.Nodes[0].Group)
		})
	}
}
