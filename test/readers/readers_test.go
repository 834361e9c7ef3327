// SPDX-License-Identifier: Apache-2.0

// Package readers holds the readers of the product to one judgement of points.
package readers

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/exporter/fleetviewexporter"
	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor"
)

// reader is a component that reads metrics, with the counter of what it refuses.
type reader struct {
	consumer.Metrics
	of      reading.Purpose
	tel     *componenttest.Telemetry
	counter string
}

type view struct {
	component.StartFunc
	component.ShutdownFunc
	state *fleetstate.Store
}

func (v *view) State() *fleetstate.Store    { return v.state }
func (*view) History() fleethistory.History { return fleethistory.None{} }

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

func readers(t *testing.T) []reader {
	var all []reader
	begin := func(c component.Component, h host) {
		require.NoError(t, c.Start(t.Context(), h))
		t.Cleanup(func() { require.NoError(t, c.Shutdown(context.WithoutCancel(t.Context()))) })
	}
	straggler := stragglerprocessor.NewFactory()
	for mode, of := range map[string]reading.Purpose{"agent": reading.Score, "gateway": reading.Reasons | reading.Verdict | reading.Ingero} {
		tel := componenttest.NewTelemetry()
		cfg := straggler.CreateDefaultConfig().(*stragglerprocessor.Config)
		cfg.Mode = mode
		if mode == "gateway" {
			cfg.Compatibility = []string{"ingero"}
		}
		p, err := straggler.CreateMetrics(t.Context(), processor.Settings{
			ID: component.NewID(straggler.Type()), TelemetrySettings: tel.NewTelemetrySettings(),
		}, cfg, consumertest.NewNop())
		require.NoError(t, err)
		begin(p, host{})
		all = append(all, reader{p, of, tel, "otelcol_processor_straggler_rejected"})
	}
	tel, fleet := componenttest.NewTelemetry(), fleetviewexporter.NewFactory()
	cfg := fleet.CreateDefaultConfig().(*fleetviewexporter.Config)
	e, err := fleet.CreateMetrics(t.Context(), exporter.Settings{ID: component.NewID(fleet.Type()), TelemetrySettings: tel.NewTelemetrySettings()}, cfg)
	require.NoError(t, err)
	begin(e, host{cfg.Extension: &view{state: fleetstate.New(fleetstate.DefaultConfig())}})
	return append(all, reader{e, reading.View, tel, "otelcol_exporter_fleet_view_rejected"})
}

// refused returns what a reader has refused so far, by reason, of the reasons of
// the catalogue.
func (r *reader) refused(t require.TestingT) (out [reading.NumRefusals]int64) {
	m, err := r.tel.GetMetric(r.counter)
	if err != nil {
		return out // nothing yet
	}
	sum, ok := m.Data.(metricdata.Sum[int64])
	require.True(t, ok)
	for _, p := range sum.DataPoints {
		name, _ := p.Attributes.Value("reason")
		for why := reading.Accepted + 1; why < reading.NumRefusals; why++ {
			if why.String() == name.AsString() {
				out[why] = p.Value
			}
		}
	}
	return out
}

// judged returns what the catalogue refuses of a metric, by reason.
func judged(known *reading.Metric, m pmetric.Metric) [reading.NumRefusals]int64 {
	var from metricreading.Resource
	from.Begin(metricreading.New(zap.NewNop(), nil), pcommon.NewMap(), "", "")
	if points, ok := from.Open(known, m); ok {
		var p metricreading.Point
		for _, dp := range points.All() {
			from.Read(dp, &p)
		}
	}
	return from.Refused
}

// TestAllReadersRefuseTheSamePoints pushes any points of any metric to each reader:
// units, instruments, values, subjects and attributes that are right and that are
// not. The readers of a metric refuse what the catalogue refuses. The others refuse
// nothing. csv_replay makes points of all metrics, and refuses those that no reader
// would take.
func TestAllReadersRefuseTheSamePoints(t *testing.T) {
	all := readers(t)
	list := reading.All()
	refusals, replayed := map[reading.Refusal]bool{}, map[reading.Refusal]bool{}
	rapid.Check(t, func(rt *rapid.T) {
		known := &list[rapid.IntRange(0, len(list)-1).Draw(rt, "metric")]
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		if known.Subject() != reading.Group {
			rm.Resource().Attributes().PutStr("host.name", "n")
		}
		rm.Resource().Attributes().PutStr("k8s.cluster.name", "c")
		m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		draw(rt, known, m)

		want := judged(known, m)
		for why, n := range want {
			if n > 0 {
				refusals[reading.Refusal(why)] = true
			}
		}
		for i := range all {
			r := &all[i]
			before := r.refused(rt)
			own := pmetric.NewMetrics() // a gateway takes its own names out
			md.CopyTo(own)
			require.NoError(rt, r.ConsumeMetrics(context.Background(), own))
			got := r.refused(rt)
			for why := range got {
				got[why] -= before[why]
			}
			if known.For&r.of == 0 {
				require.Zero(rt, got, "%s by %s", known.Name, r.of)
			} else {
				require.Equal(rt, want, got, "%s by %s", known.Name, r.of)
			}
		}
		if skipped, ok := replay(t, rt, m); ok {
			want := judged(known, m)
			require.Equal(rt, want, skipped, "%s by csv_replay", known.Name)
			for why, n := range want {
				if n > 0 {
					replayed[reading.Refusal(why)] = true
				}
			}
		}
	})
	assert.Len(t, refusals, int(reading.NumRefusals)-1, "each refusal was drawn")
	assert.Len(t, replayed, int(reading.NumRefusals)-1, "and each by csv_replay")
}

// draw makes a metric of up to four points.
func draw(t *rapid.T, m *reading.Metric, to pmetric.Metric) {
	to.SetName(m.Name)
	to.SetUnit(rapid.SampledFrom([]string{m.Unit, m.Unit, m.Unit, "", "ms", "%", "kW", "{x}", "odd"}).Draw(t, "unit"))
	var points pmetric.NumberDataPointSlice
	kind := rapid.SampledFrom([]string{"right", "right", "right", "gauge", "counter", "updown", "delta", "histogram"}).Draw(t, "kind")
	if kind == "right" {
		kind = []string{"gauge", "counter", "updown"}[m.Kind]
	}
	switch kind {
	case "gauge":
		points = to.SetEmptyGauge().DataPoints()
	case "histogram":
		to.SetEmptyHistogram().DataPoints().AppendEmpty()
		return
	default:
		sum := to.SetEmptySum()
		sum.SetIsMonotonic(kind != "updown")
		sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		if kind == "delta" {
			sum.SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
		}
		points = sum.DataPoints()
	}
	for range rapid.IntRange(1, 4).Draw(t, "points") {
		p := points.AppendEmpty()
		switch rapid.IntRange(0, 9).Draw(t, "value") {
		case 0:
			p.SetFlags(p.Flags().WithNoRecordedValue(true))
		case 1:
			p.SetIntValue(rapid.Int64().Draw(t, "int"))
		case 2: // without a value
		case 3:
			p.SetDoubleValue(rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), 1.7e308, -1e-9}).Draw(t, "odd"))
		case 4: // which only another unit makes true
			p.SetDoubleValue(rapid.Float64Range(m.Range.Max, 1000*m.Range.Max).Draw(t, "more"))
		default:
			p.SetDoubleValue(rapid.Float64Range(m.Range.Min, m.Range.Max).Draw(t, "float"))
		}
		put := func(key string, values ...string) {
			if v := rapid.SampledFrom(values).Draw(t, key); v != "" {
				p.Attributes().PutStr(key, v)
			}
		}
		put("hw.id", "GPU-0", "GPU-1", "psu0", "")
		put("hw.parent", "", "", "GPU-0", "chassis")
		put("hw.type", "gpu", "", "network", "power_supply")
		for k := range m.Keys {
			values := []string{"", "odd"}
			for i := range m.Entries {
				if v := m.Entries[i].Values[k]; v != reading.Any && !slices.Contains(values, v) {
					values = append(values, v)
				}
			}
			put(m.Keys[k].Name, values...)
		}
	}
}
