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
	over := func(p pmetric.NumberDataPoint) {
		p.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
	}
	type point struct {
		signal string
		value  float64
		change func(pmetric.NumberDataPoint)
	}
	known := func(values map[nodesignal.Signal]float64) (v nodesignal.Values) {
		for s, x := range values {
			v.Set(s, x)
		}
		return v
	}
	for name, tc := range map[string]struct {
		points []point
		want   nodesignal.Values
		gone   []nodesignal.Signal
		bad    map[string]int64
		none   bool
	}{
		"all": {
			points: []point{{signal: "throughput", value: 7}, {signal: "compute", value: 0.9}, {signal: "interconnect", value: 1}, {signal: "cpu", value: 0.5}, {signal: "power", value: 700}, {signal: "memory", value: 0}},
			want:   known(map[nodesignal.Signal]float64{nodesignal.Throughput: 7, nodesignal.Compute: 0.9, nodesignal.Interconnect: 1, nodesignal.CPU: 0.5, nodesignal.Power: 700, nodesignal.Memory: 0}),
		},
		"one that changed":           {points: []point{{signal: "cpu", value: 0.5}}, want: known(map[nodesignal.Signal]float64{nodesignal.CPU: 0.5})},
		"one that is gone":           {points: []point{{signal: "cpu", value: 0.5}, {signal: "compute", change: over}}, want: known(map[nodesignal.Signal]float64{nodesignal.CPU: 0.5}), gone: []nodesignal.Signal{nodesignal.Compute}},
		"one that cannot be, beside": {points: []point{{signal: "throughput", value: math.NaN()}, {signal: "power", value: math.Inf(1)}, {signal: "cpu", value: 0.5}, {signal: "compute", value: -1}}, want: known(map[nodesignal.Signal]float64{nodesignal.CPU: 0.5}), gone: []nodesignal.Signal{nodesignal.Throughput, nodesignal.Compute, nodesignal.Power}, bad: map[string]int64{"not_finite": 2, "value_range": 1}},
		"twice, the first is gone":   {points: []point{{signal: "cpu", change: over}, {signal: "cpu", value: 0.5}}, want: known(map[nodesignal.Signal]float64{nodesignal.CPU: 0.5}), gone: []nodesignal.Signal{nodesignal.CPU}},
		"twice, the second is gone":  {points: []point{{signal: "cpu", value: 0.5}, {signal: "cpu", change: over}}, want: known(map[nodesignal.Signal]float64{nodesignal.CPU: 0.5})},
		"of a newer agent":           {points: []point{{signal: "vibration", value: 1}}, none: true},
		"the score is none":          {points: []point{{signal: "score", value: 1}}, none: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newGatewayRig(t, nil, nil)
			rm := resource(pmetric.NewMetrics(), map[string]any{"host.name": "n"})
			points := rm.ScopeMetrics().At(0).Metrics().AppendEmpty()
			points.SetName(gpusemconv.MetricNodeSignal)
			for _, p := range tc.points {
				dp := points.SetEmptyGauge
				if points.Type() == pmetric.MetricTypeGauge {
					dp = points.Gauge
				}
				to := dp().DataPoints().AppendEmpty()
				to.SetDoubleValue(p.value)
				to.Attributes().PutStr(gpusemconv.AttrSignal, p.signal)
				if p.change != nil {
					p.change(to)
				}
			}
			from := &r.g.observer.from
			from.Begin(r.g.observer.reader, rm.Resource().Attributes(), "", "")
			var found found
			any := r.g.observer.read(rm, &found)
			from.End(t.Context())
			assert.Equal(t, !tc.none, any)
			assert.Equal(t, tc.want, found.Values)
			var gone [nodesignal.Count]bool
			for _, s := range tc.gone {
				gone[s] = true
			}
			assert.Equal(t, gone, found.Gone)
			if tc.bad == nil {
				tc.bad = map[string]int64{}
			}
			assert.Equal(t, tc.bad, rejected(t, r.tel))
		})
	}
}

// TestAScoreThatIsGoneIsVoid as diff tells of it, and so is an impossible score.
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

// receiverGolden is what the nvml receiver writes for a machine.
func receiverGolden(t testing.TB, name string) pmetric.Metrics {
	text, err := os.ReadFile(filepath.Join("..", "..", "receiver", "nvmlreceiver", "testdata", name))
	require.NoError(t, err)
	var tree any
	require.NoError(t, yaml.Unmarshal(text, &tree))
	text, err = json.Marshal(tree)
	require.NoError(t, err)
	md, err := new(pmetric.JSONUnmarshaler).UnmarshalMetrics(text)
	require.NoError(t, err)
	return md
}

// TestSignalsFromWhatTheReceiverWrites holds the default sources to the
// receiver's golden files: a metric that is renamed is a signal that is lost.
func TestSignalsFromWhatTheReceiverWrites(t *testing.T) {
	cfg := nodescore.DefaultConfig()
	plan := nodescore.NewPlan(&cfg.Measures)
	all := []nodesignal.Signal{nodesignal.Throughput, nodesignal.Compute, nodesignal.Interconnect, nodesignal.CPU, nodesignal.Power, nodesignal.Memory}
	for name, want := range map[string][]nodesignal.Signal{
		"h100.yaml": all,
		"b200.yaml": all,
		// Its library knows no links.
		"eight_gpus.yaml": {nodesignal.Throughput, nodesignal.Compute, nodesignal.CPU, nodesignal.Power, nodesignal.Memory},
		"t4.yaml":         all,
	} {
		t.Run(name, func(t *testing.T) {
			md, reader := receiverGolden(t, name), metricreading.New(zap.NewNop(), nil)
			node := nodescore.NewNode(&cfg, plan)
			now := time.Unix(1_700_000_000, 0)
			a := agent{plan: plan}
			var res nodescore.Result
			for range 2 { // a rate takes two
				a.reading.Reset()
				for _, rm := range md.ResourceMetrics().All() {
					a.from.Begin(reader, rm.Resource().Attributes(), "", "")
					a.collect(rm)
				}
				node.Observe(&a.reading, now)
				res = node.Evaluate(now, "", threshold.Received{}, false)
				now = now.Add(cfg.Interval)
			}
			var got []nodesignal.Signal
			for s := range nodesignal.Count {
				if res.Signals.Known[s] {
					got = append(got, s)
				}
			}
			assert.Equal(t, want, got)
			assert.InDelta(t, 1, res.Signals.V[nodesignal.Compute], 0)
			if res.Signals.Known[nodesignal.Interconnect] {
				assert.InDelta(t, 1, res.Signals.V[nodesignal.Interconnect], 0, "healthy links")
			}
		})
	}
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
