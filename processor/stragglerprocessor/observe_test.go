// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// TestSignals reads pushes of one node: whole ones, and what diff makes of them.
func TestSignals(t *testing.T) {
	type point struct {
		signal string
		value  float64
	}
	ended := math.MaxFloat64 // a point without a value
	cpu := map[nodesignal.Signal]float64{nodesignal.CPU: 0.5}
	for name, tc := range map[string]struct {
		points []point
		want   map[nodesignal.Signal]float64
		gone   []nodesignal.Signal
		bad    map[string]int64
	}{
		"all": {
			points: []point{{"throughput", 7}, {"compute", 0.9}, {"interconnect", 1}, {"cpu", 0.5}, {"power", 700}, {"memory", 0}},
			want: map[nodesignal.Signal]float64{
				nodesignal.Throughput: 7, nodesignal.Compute: 0.9, nodesignal.Interconnect: 1,
				nodesignal.CPU: 0.5, nodesignal.Power: 700, nodesignal.Memory: 0,
			},
		},
		"one that changed": {points: []point{{"cpu", 0.5}}, want: cpu},
		"one that is gone": {points: []point{{"cpu", 0.5}, {"compute", ended}}, want: cpu, gone: []nodesignal.Signal{nodesignal.Compute}},
		"one that cannot be, beside": {
			points: []point{{"throughput", math.NaN()}, {"power", math.Inf(1)}, {"cpu", 0.5}, {"compute", -1}}, want: cpu,
			gone: []nodesignal.Signal{nodesignal.Throughput, nodesignal.Compute, nodesignal.Power}, bad: map[string]int64{"not_finite": 2, "value_range": 1},
		},
		"twice, the first is gone":  {points: []point{{"cpu", ended}, {"cpu", 0.5}}, want: cpu, gone: []nodesignal.Signal{nodesignal.CPU}},
		"twice, the second is gone": {points: []point{{"cpu", 0.5}, {"cpu", ended}}, want: cpu},
		"of a newer agent":          {points: []point{{"vibration", 1}}},
		"the score is none":         {points: []point{{"score", 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newGatewayRig(t, nil, nil)
			rm := resource(pmetric.NewMetrics(), map[string]any{"host.name": "n"})
			for _, p := range tc.points {
				if dp := gauge(rm, gpusemconv.MetricNodeSignal, p.value, gpusemconv.AttrSignal, p.signal); p.value == ended {
					dp.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
				}
			}
			from := &r.g.observer.from
			from.Begin(r.g.observer.reader, rm.Resource().Attributes(), "", "")
			var found, want found
			any := r.g.observer.read(rm, &found)
			from.End(t.Context())
			assert.Equal(t, tc.want != nil, any)
			for s, x := range tc.want {
				want.Values.Set(s, x)
			}
			for _, s := range tc.gone {
				want.Gone[s] = true
			}
			assert.Equal(t, want.Values, found.Values)
			assert.Equal(t, want.Gone, found.Gone)
			if tc.bad == nil {
				tc.bad = map[string]int64{}
			}
			assert.Equal(t, tc.bad, rejected(t, r.tel))
		})
	}
}

// TestAScoreThatIsGoneIsVoid, as diff ends it, and so is an impossible score.
func TestAScoreThatIsGoneIsVoid(t *testing.T) {
	for name, change := range map[string]func(pmetric.NumberDataPoint){
		"gone":     func(p pmetric.NumberDataPoint) { p.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true)) },
		"nonsense": func(p pmetric.NumberDataPoint) { p.SetDoubleValue(math.NaN()) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newGatewayRig(t, nil, nil)
			r.push(fleet(1, 1, 1, 1, 1))
			assert.InDelta(t, 1, r.tick()[" gpu.straggler.quorum_met J/stage-0"], 0)
			md := fleet(1)
			change(md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0))
			r.push(md)
			assert.Zero(t, r.tick()[" gpu.straggler.quorum_met J/stage-0"])
		})
	}
}

// TestObservePointsWithoutAllocation: what is allocated does not grow with the
// points of a push.
func TestObservePointsWithoutAllocation(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	cfg.Mode = modeGateway
	g, err := newGateway(processor.Settings{TelemetrySettings: componenttest.NewNopTelemetrySettings()}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	allocs := func(points int) float64 {
		md := fleet(0.97)
		rm := md.ResourceMetrics().At(0)
		for i := range points {
			gauge(rm, gpusemconv.MetricNodeSignal, 0.9, gpusemconv.AttrSignal, nodesignal.Signal(i%int(nodesignal.Score)).String())
			gauge(rm, gpusemconv.MetricTemperature, 60, "hw.id", "GPU-1", "hw.sensor_location", "gpu")
		}
		e := straggler.New(cfg.engine())
		g.observer.observe(t.Context(), e, md, noon)
		return testing.AllocsPerRun(100, func() { g.observer.observe(t.Context(), e, md, noon) })
	}
	assert.InDelta(t, allocs(1), allocs(200), 0)
}

// TestSignalsFromWhatTheReceiverWrites holds the default sources to the receiver's golden file
// of a healthy H100: each input takes the points of its own field.
func TestSignalsFromWhatTheReceiverWrites(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "receiver", "nvmlreceiver", "testdata", "h100.yaml"))
	require.NoError(t, err)
	var tree any
	require.NoError(t, yaml.Unmarshal(text, &tree))
	text, err = json.Marshal(tree)
	require.NoError(t, err)
	md, err := new(pmetric.JSONUnmarshaler).UnmarshalMetrics(text)
	require.NoError(t, err)
	cfg := nodescore.DefaultConfig()
	a := agent{plan: nodescore.NewPlan(&cfg.Measures)}
	node, reader := nodescore.NewNode(&cfg, a.plan), metricreading.New(zap.NewNop(), nil)
	var got nodescore.Signals
	for i := range 2 { // a rate takes two
		a.reading.Reset()
		for _, rm := range md.ResourceMetrics().All() {
			a.from.Begin(reader, rm.Resource().Attributes(), "", "")
			a.collect(rm)
		}
		now := noon.Add(time.Duration(i) * cfg.Interval)
		node.Observe(&a.reading, now)
		got = node.Evaluate(now, "", threshold.Received{}, false).Signals
	}
	for _, s := range []nodesignal.Signal{nodesignal.Throughput, nodesignal.Compute, nodesignal.Interconnect, nodesignal.CPU, nodesignal.Power, nodesignal.Memory} {
		assert.True(t, got.Known[s], s)
	}
	assert.Equal(t, []float64{1, 1}, []float64{got.V[nodesignal.Compute], got.V[nodesignal.Interconnect]}, "clocks and links are whole")
}

// TestASourceOfOnesOwn is a metric that only the configuration knows.
func TestASourceOfOnesOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAgentRig(t, func(c *Config) {
			tokens := nodescore.Source{Ratio: nodescore.Ratio{Metric: "tokens", Attributes: map[string]string{"phase": "train"}}}
			c.Signals = map[string]SignalConfig{"throughput": {Sources: []nodescore.Source{tokens}}}
		})
		md := pmetric.NewMetrics()
		rm := resource(md, map[string]any{"host.name": "n1"})
		gauge(rm, "tokens", 7, "phase", "train")
		gauge(rm, "tokens", 9, "phase", "evaluation")
		gauge(rm, "tokens", 9, "phase", "train", "hw.id", "MIG-0", "hw.parent", "GPU-0")
		gauge(rm, "tokens", -1, "phase", "train")
		assert.InDelta(t, 7, r.push(md)["n1 gpu.node.signal throughput"], 0)
		assert.Equal(t, map[string]int64{"value_range": 1}, rejected(t, r.tel))
	})
}

// TestRefusedPoints: a gateway drops values that cannot be true, unless one key passes them
// on. In a report of changes an absent point means no change, so that the series ends there.
func TestRefusedPoints(t *testing.T) {
	for _, tt := range []struct {
		key       string
		heartbeat bool
		gone, end int
	}{{refusedDrop, false, 7, 1}, {refusedDrop, true, 0, 8}, {refusedPass, true, 0, 1}} {
		r := newGatewayRig(t, func(c *Config) { c.RefusedPoints = tt.key }, nil)
		md := pmetric.NewMetrics()
		rm := resource(md, map[string]any{"host.name": "n1"})
		gauge(rm, "hw.power", 3.69e12, "hw.id", "g1", "hw.type", "gpu")
		gauge(rm, "hw.temperature", 4294967295, "hw.id", "g1", "hw.sensor_location", "gpu")
		gauge(rm, "hw.temperature", 41, "hw.id", "g2", "hw.sensor_location", "gpu")
		gauge(rm, "hw.gpu.memory.usage", 2147483632, "hw.id", "view")
		gauge(rm, "hw.gpu.mode", 7, "hw.id", "no gpu")
		gauge(rm, "hw.power", 3.69e12, "hw.id", "no type")
		gauge(rm, "hw.errors", 2147483632, "hw.id", "not a sum", "hw.type", "gpu", "error.type", "corrected")
		gauge(rm, "gpu.node.health_score", math.Inf(1))
		gauge(rm, "hw.gpu.mode", 9, "hw.id", "ended").SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
		gauge(rm, "my.metric", 4294967295, "hw.id", "foreign")
		gauge(rm, "hw.gpu.power.limit", 1e9, "hw.id", "in volts")
		metrics := rm.ScopeMetrics().At(0).Metrics()
		metrics.At(metrics.Len() - 1).SetUnit("V")
		histogram := metrics.AppendEmpty()
		histogram.SetName("hw.gpu.utilization")
		histogram.SetEmptyHistogram().DataPoints().AppendEmpty().SetSum(1e300)
		if tt.heartbeat {
			gauge(rm, "gpu.node.heartbeat", 1e9)
		}
		before := md.DataPointCount()
		r.push(md)
		assert.EqualValues(t, 7, rejected(t, r.tel)["value_range"]+rejected(t, r.tel)["not_finite"], "the view finds other mistakes")
		line := r.logs.FilterMessageSnippet("hw.power is 3.69e+12").All()
		require.Len(t, line, 1)
		assert.Equal(t, "n1", line[0].ContextMap()["node"])
		assert.Equal(t, tt.key == refusedDrop, line[0].ContextMap()["dropped"] == true)
		out := r.sink.AllMetrics()[0]
		assert.Equal(t, before-tt.gone, out.DataPointCount())
		ended := 0
		left := values(out)
		for series, v := range left {
			if math.IsNaN(v) {
				ended++
				delete(left, series)
			}
		}
		assert.Equal(t, tt.end, ended)
		if tt.gone > 0 {
			assert.Equal(t, map[string]float64{"n1 hw.temperature g2 gpu": 41, "n1 my.metric foreign": 4294967295, "n1 hw.gpu.power.limit in volts": 1e9}, left)
			assert.Equal(t, 5, out.MetricCount(), "metrics that have nothing left are gone")
		}
	}
}
