// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	zapobserver "go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold/rule"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

type gatewayRig struct {
	t    *testing.T
	g    *gatewayMetrics
	sink *consumertest.MetricsSink
	ext  *fakeExtension
	tel  *componenttest.Telemetry
	logs *zapobserver.ObservedLogs
}

func newGatewayRig(t *testing.T, change func(*Config), next consumer.Metrics) *gatewayRig {
	r := &gatewayRig{t: t, sink: new(consumertest.MetricsSink), ext: &fakeExtension{}, tel: componenttest.NewTelemetry()}
	t.Cleanup(func() { require.NoError(t, r.tel.Shutdown(context.WithoutCancel(t.Context()))) })
	cfg := createDefaultConfig().(*Config)
	cfg.Mode = modeGateway
	cfg.ThresholdExtension = &extensionID
	if change != nil {
		change(cfg)
	}
	require.NoError(t, cfg.Validate())
	if next == nil {
		next = r.sink
	}
	set := processor.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: r.tel.NewTelemetrySettings()}
	core, logs := zapobserver.New(zapcore.InfoLevel)
	set.Logger, r.logs = zap.New(core), logs
	p, err := NewFactory().CreateMetrics(t.Context(), set, cfg, next)
	require.NoError(t, err)
	r.g = p.(*gatewayMetrics)
	return r
}

func (r *gatewayRig) push(md pmetric.Metrics) {
	require.NoError(r.t, r.g.ConsumeMetrics(r.t.Context(), md))
}

// tick runs one comparison and returns what it handed on.
func (r *gatewayRig) tick() map[string]float64 {
	r.sink.Reset()
	r.g.hand(r.t.Context(), r.g.tick(r.t.Context(), time.Now()))
	if len(r.sink.AllMetrics()) == 0 {
		return nil
	}
	require.Len(r.t, r.sink.AllMetrics(), 1)
	return values(r.sink.AllMetrics()[0])
}

// next waits for the gateway's own comparison, and returns what it handed on.
func (r *gatewayRig) next() map[string]float64 {
	time.Sleep(r.g.cfg.PushInterval)
	synctest.Wait()
	all := r.sink.AllMetrics()
	return values(all[len(all)-1])
}

func fleet(scores ...float64) pmetric.Metrics {
	md := pmetric.NewMetrics()
	for i, s := range scores {
		rm := resource(md, map[string]any{"host.name": fmt.Sprintf("n%d", i), "k8s.cluster.name": "prod", "gpu.job.id": "J", "gpu.job.role": "stage-0"})
		gauge(rm, "gpu.node.health_score", s)
		gauge(rm, "gpu.node.signal", 10*s, "gpu.signal", "throughput")
	}
	return md
}

func TestGatewayFindsAndPublishes(t *testing.T) {
	synctest.Test(t, testGatewayFindsAndPublishes)
}

func testGatewayFindsAndPublishes(t *testing.T) {
	r := newGatewayRig(t, nil, nil)
	require.NoError(t, r.g.Start(t.Context(), hostWith(r.ext)))
	defer func() { require.NoError(t, r.g.Shutdown(t.Context())) }()

	md := fleet(1, 1, 0.4, 1, 1)
	var got map[string]float64
	ticks := 0
	for ; got["n2 gpu.node.straggler J/stage-0"] == 0 && ticks < 30; ticks++ {
		r.push(md)
		got = r.next()
	}
	assert.LessOrEqual(t, ticks, 20, "the first six are to warm up, and nothing is known of the group")
	assert.InDelta(t, 1.5, got["n2 gpu.node.suspicion J/stage-0"], 0.5)
	for range 3 {
		r.push(md)
		got = r.next()
	}
	assert.Contains(t, got, "n0 gpu.node.straggler J/stage-0")
	assert.Zero(t, got["n0 gpu.node.straggler J/stage-0"])
	for key, want := range map[string]float64{
		" gpu.straggler.threshold J/stage-0":                0.95,
		" gpu.straggler.median J/stage-0":                   1,
		" gpu.straggler.mad J/stage-0":                      0,
		" gpu.straggler.nodes active J/stage-0":             5,
		" gpu.straggler.nodes idle J/stage-0":               0,
		" gpu.straggler.nodes calibrating J/stage-0":        0,
		" gpu.straggler.nodes missing J/stage-0":            0,
		" gpu.straggler.quorum_met J/stage-0":               1,
		" gpu.straggler.coverage_low J/stage-0":             0,
		" gpu.straggler.stragglers J/stage-0":               1,
		" gpu.straggler.stragglers":                         1,
		" gpu.straggler.incident J/stage-0":                 0,
		" gpu.straggler.rank n2 J/stage-0":                  1,
		" gpu.straggler.signal.median J/stage-0 throughput": 10,
		"n0 gpu.node.suspicion J/stage-0":                   0,
		" gpu.straggler.threshold":                          0.95,
	} {
		assert.Contains(t, got, key)
		assert.InDelta(t, want, got[key], 1e-9, key)
	}

	c := r.ext.snap.Clusters["prod"]
	require.NotNil(t, c)
	assert.InDelta(t, 0.95, c.Wide.Threshold, 1e-9)
	v := c.Groups["J/stage-0"].Value
	assert.InDelta(t, 0.95, v.Threshold, 1e-9)
	assert.InDelta(t, 10, v.Ref, 1e-9)
	assert.Equal(t, 5, v.Nodes)
	assert.Equal(t, 50*time.Second, v.TTL)
	assert.True(t, v.QuorumMet)

	lines := r.logs.FilterLevelExact(zapcore.WarnLevel).All()
	require.Len(t, lines, 1, "one line per episode")
	assert.Contains(t, lines[0].Message, "Straggler n2: 60 % behind its peers in ")

	assert.True(t, v.All)
	require.Len(t, v.Verdicts.List(), 1)
	verdict := v.Verdicts.List()[0]
	assert.Equal(t, "n2", verdict.Node)
	assert.Equal(t, nodesignal.Throughput, verdict.Signal)
	assert.InDelta(t, 0.6, verdict.Loss, 0.01)
}

// TestGroupsWithoutVerdicts are published, for their nodes judge themselves then. So is a
// reference before the first threshold.
func TestGroupsWithoutVerdicts(t *testing.T) {
	rep := &straggler.Report{At: time.Now(), Groups: []straggler.GroupReport{{Cluster: "c", Threshold: rule.Threshold{Value: 0.5}}}}
	for i, tt := range []struct {
		why       unjudged.Reason
		straggler bool
		want      bool
		state     nodesignal.State
	}{
		{unjudged.Judged, false, true, nodesignal.StateActive},
		{unjudged.Levels, false, true, nodesignal.StateActive},
		{unjudged.Lockstep, false, true, nodesignal.StateActive},
		{unjudged.FewPeers, false, false, nodesignal.StateActive},
		{unjudged.Calibrating, false, false, nodesignal.StateCalibrating},
		{unjudged.Calibrating, false, true, nodesignal.StateActive},
		{unjudged.NoSignal, false, false, nodesignal.StateActive},
		{unjudged.Idle, false, false, nodesignal.StateIdle},
		{unjudged.Calibrating, true, true, nodesignal.StateActive},
	} {
		name := fmt.Sprintf("g%d %v %t", i, tt.want, tt.straggler)
		rep.Groups = append(rep.Groups, straggler.GroupReport{Cluster: "c", Group: name, Threshold: rule.Threshold{Value: 0.5, Ref: 10}})
		for n, why := range []unjudged.Reason{unjudged.Idle, tt.why} {
			rep.Nodes = append(rep.Nodes, straggler.NodeReport{
				NodeName: &straggler.NodeName{Cluster: "c", Group: name, Node: fmt.Sprintf("n%d", n)}, State: tt.state, Unjudged: why, Straggler: tt.straggler && n == 1,
			})
		}
	}
	c := snapshot(rep, createDefaultConfig().(*Config)).Clusters["c"]
	assert.Nil(t, c.Wide)
	require.Len(t, c.Groups, len(rep.Groups)-1)
	for name, e := range c.Groups {
		assert.InDeltaSlice(t, []float64{10, 0}, []float64{e.Ref, e.Threshold}, 0)
		assert.False(t, e.QuorumMet)
		assert.Contains(t, name, fmt.Sprintf(" %v %t", e.All, e.Verdicts != nil))
	}
}

func TestGatewayKeepsNoLockOverTheNextComponent(t *testing.T) {
	var r *gatewayRig
	next, err := consumer.NewMetrics(func(context.Context, pmetric.Metrics) error {
		require.True(t, r.g.mu.TryLock(), "the engine is locked while the next component works")
		r.g.mu.Unlock()
		return errors.New("refused")
	})
	require.NoError(t, err)
	r = newGatewayRig(t, nil, next)
	require.EqualError(t, r.g.ConsumeMetrics(t.Context(), fleet(1, 1, 1, 1, 1)), "refused", "the sender hears of it")
	r.g.hand(t.Context(), r.g.tick(t.Context(), time.Now()))
	m, err := r.tel.GetMetric("otelcol_processor_straggler_emit_failures")
	require.NoError(t, err)
	assert.NotEmpty(t, m.Data)
}

// TestASlowNextComponentKeepsNoThresholds: the snapshot is renewed with each
// tick, and the newest metrics wait while older ones are dropped and counted.
func TestASlowNextComponentKeepsNoThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handed atomic.Int64
		next, err := consumer.NewMetrics(func(ctx context.Context, md pmetric.Metrics) error {
			if md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Name() == "gpu.node.health_score" {
				return nil // a push
			}
			handed.Add(1)
			<-ctx.Done()
			return ctx.Err()
		})
		require.NoError(t, err)
		r := newGatewayRig(t, nil, next)
		require.NoError(t, r.g.Start(t.Context(), hostWith(r.ext)))
		for range 30 {
			r.push(fleet(1, 1, 1, 1, 1))
			time.Sleep(10 * time.Second)
		}
		synctest.Wait()
		assert.Less(t, time.Since(r.ext.snap.At), 11*time.Second)
		assert.GreaterOrEqual(t, handed.Load(), int64(15), "each is given up after an interval")
		require.NoError(t, r.g.Shutdown(t.Context()))
	})
}

// TestPushesAndTicksTogether is for the race detector: a report is read while
// pushes change the engine behind it.
func TestPushesAndTicksTogether(t *testing.T) {
	r := newGatewayRig(t, nil, consumertest.NewNop())
	var pushers sync.WaitGroup
	for n := range 4 {
		pushers.Go(func() {
			for i := range 200 {
				md := fleet(1, 0.9, float64(i%10)/10, 0.8, 0.9)
				md.ResourceMetrics().At(0).Resource().Attributes().PutStr("gpu.job.role", fmt.Sprintf("stage-%d", (i+n)%3))
				assert.NoError(t, r.g.ConsumeMetrics(t.Context(), md))
			}
		})
	}
	for range 100 {
		r.g.tick(t.Context(), time.Now())
	}
	pushers.Wait()
	assert.Equal(t, 5, r.g.engine.Nodes())
}

// TestBadScores pushes nonsense beside a valid fleet: the nonsense is counted,
// the fleet still gets its threshold.
func TestBadScores(t *testing.T) {
	r := newGatewayRig(t, nil, nil)
	md := fleet(1, 1, 1, 1, 1)
	bad := func(attrs map[string]any, score float64) {
		gauge(resource(md, attrs), "gpu.node.health_score", score)
	}
	node := func(name string) map[string]any { return map[string]any{"host.name": name, "k8s.cluster.name": "prod"} }
	bad(node("nan"), math.NaN())
	bad(map[string]any{"host.name": "x", "k8s.cluster.name": ""}, 0.5)
	bad(map[string]any{"k8s.cluster.name": "prod"}, 0.5)
	bad(node(strings.Repeat("x", 10<<20)), 0.5)
	bad(map[string]any{"host.name": map[string]any{"a": "b"}, "k8s.cluster.name": "prod"}, 0.5)
	histogram := resource(md, node("histogram")).ScopeMetrics().At(0).Metrics().AppendEmpty()
	histogram.SetName("gpu.node.health_score")
	histogram.SetEmptyHistogram().DataPoints().AppendEmpty()
	r.push(md)
	stranger := pushheaders.ContextWithCaller(t.Context(), pushheaders.Caller{Cluster: "mine", Authenticated: true})
	require.NoError(t, r.g.ConsumeMetrics(stranger, fleet(0, 0, 0, 0, 0)))
	got := r.tick()
	assert.InDelta(t, 0.95, got[" gpu.straggler.threshold J/stage-0"], 1e-9)
	assert.True(t, r.g.engine.Has("prod", "nan"), "it is there, whatever its value")
	assert.Equal(t, map[string]int64{
		"not_finite": 1, "no_cluster": 1, "no_node": 2, "name_too_long": 1, "attribute_too_long": 1, "wrong_type": 1, "foreign_cluster": 5,
	}, rejected(t, r.tel))
}

// TestStateOfANode: the point with a 1 names the state, and an unknown one is calibrating.
func TestStateOfANode(t *testing.T) {
	r := newGatewayRig(t, nil, nil)
	for _, tt := range []struct {
		state string
		value float64
		want  string
	}{{"idle", 1, "idle"}, {"active", 0, "idle"}, {"dancing", 1, "calibrating"}} {
		md := fleet(1)
		gauge(md.ResourceMetrics().At(0), "gpu.node.state", tt.value, "gpu.node.state", tt.state)
		r.push(md)
		assert.InDelta(t, 1, r.tick()[" gpu.straggler.nodes "+tt.want+" J/stage-0"], 0, tt.state)
	}
}

func ingeroPush(throughput, score float64, nodes ...string) pmetric.Metrics {
	md := pmetric.NewMetrics()
	for _, n := range nodes {
		rm := resource(md, map[string]any{"ingero.node.id": n, "ingero.cluster.id": "prod"})
		gauge(rm, "ingero.node.health_score", score, "ingero.node.state", "active", "ingero.workload_type", "training")
		gauge(rm, "ingero.node.throughput_ratio", throughput, "ingero.node.state", "active")
	}
	return md
}

func TestIngeroNodes(t *testing.T) {
	r := newGatewayRig(t, func(c *Config) {
		c.Compatibility = []string{"ingero"}
		c.GroupBy = []string{"ingero.workload_type"}
	}, nil)
	names := []string{"a", "b", "c", "d", "e"}
	r.push(ingeroPush(0.9, 0.27, names...))
	got := r.tick()
	assert.InDelta(t, 5, got[" gpu.straggler.nodes calibrating training"], 0, "the first score is never a score")

	r.push(ingeroPush(0.9, 0.94, names...))
	got = r.tick()
	assert.InDelta(t, 0.89, got[" gpu.straggler.threshold training"], 1e-9)
	assert.InDelta(t, 5, got[" gpu.straggler.nodes active training"], 0)

	ended := ingeroPush(0, 0.94, "a")
	throughput := ended.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(1)
	throughput.Gauge().DataPoints().AppendEmpty().SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
	r.push(ended)
	assert.InDelta(t, 1, r.tick()[" gpu.straggler.nodes calibrating training"], 0, "the last value counts, and the end of a series has none")

	plain := newGatewayRig(t, nil, nil)
	plain.push(ingeroPush(0.9, 0.94, names...))
	assert.Nil(t, plain.tick(), "only where it was asked for")
}

func TestStartErrorsSayWhatToConfigure(t *testing.T) {
	type other struct {
		component.StartFunc
		component.ShutdownFunc
	}
	for want, h := range map[string]host{
		"`threshold_extension` is \"straggler_threshold\", which `service::extensions` does not list":        {},
		"`threshold_extension` is \"straggler_threshold\", must be an extension of type straggler_threshold": hostWith(&other{}),
	} {
		r := newGatewayRig(t, nil, nil)
		require.EqualError(t, r.g.Start(t.Context(), h), want)
		require.NoError(t, r.g.Shutdown(t.Context()))
	}
	r := newGatewayRig(t, func(c *Config) { c.FleetViewExtension = &viewID }, nil)
	require.EqualError(t, r.g.Start(t.Context(), hostWith(r.ext)), "`fleet_view_extension` is \"fleet_view\", which `service::extensions` does not list")
	require.NoError(t, r.g.Shutdown(t.Context()))
	r = newGatewayRig(t, nil, nil)
	require.NoError(t, r.g.Start(t.Context(), hostWith(r.ext)))
	require.NoError(t, r.g.Shutdown(t.Context()))
	assert.Equal(t, 1, r.logs.FilterMessageSnippet("no `fleet_view_extension`: verdicts have no reason").Len())
}

// TestGatewayKeepsWhatItLearnt: after a restart the straggler is one with the first tick,
// since the same time. A damaged file is set aside, and the gateway runs.
func TestGatewayKeepsWhatItLearnt(t *testing.T) {
	directory := t.TempDir()
	file := filepath.Join(directory, "straggler.state")
	synctest.Test(t, func(t *testing.T) {
		life := func(run func(r *gatewayRig)) {
			r := newGatewayRig(t, func(c *Config) { c.StateDirectory = directory }, nil)
			require.NoError(t, r.g.Start(t.Context(), hostWith(r.ext)))
			run(r)
			require.NoError(t, r.g.Shutdown(t.Context()))
		}
		md := fleet(1, 1, 0.4, 1, 1)
		life(func(r *gatewayRig) {
			for range 30 {
				r.push(md)
				r.next()
			}
			assert.FileExists(t, file, "it is written while the gateway runs")
		})
		life(func(r *gatewayRig) {
			data, err := r.g.Snapshot()
			require.NoError(t, err)
			assert.Nil(t, data, "before its first tick it has nothing else to keep")
		})
		life(func(r *gatewayRig) {
			assert.Equal(t, 5, r.g.engine.Nodes())
			r.push(md)
			got := r.next()
			assert.InDelta(t, 1, got["n2 gpu.node.straggler J/stage-0"], 0)
			assert.InDelta(t, 0, got["n0 gpu.node.straggler J/stage-0"], 0)
			assert.Zero(t, got["n0 gpu.node.unjudged J/stage-0"], "no node warms up again")
		})
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		data[len(data)/2] ^= 1
		require.NoError(t, os.WriteFile(file, data, 0o600))
		life(func(r *gatewayRig) {
			assert.Zero(t, r.g.engine.Nodes())
			require.Len(t, r.logs.FilterMessageSnippet("the file is set aside").All(), 1)
			assert.FileExists(t, file+".set_aside")
		})
	})
}
