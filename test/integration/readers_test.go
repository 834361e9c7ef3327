// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/gpu-collector/gpu-collector/exporter/fleetviewexporter"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor"
)

// fleetView is the extension that the exporter writes to.
type fleetView struct {
	component.StartFunc
	component.ShutdownFunc
	state *fleetstate.Store
}

func (v *fleetView) State() *fleetstate.Store    { return v.state }
func (*fleetView) History() fleethistory.History { return fleethistory.None{} }

type viewHost map[component.ID]component.Component

func (h viewHost) GetExtensions() map[component.ID]component.Component { return h }

// pointReader is a component that reads metrics, with the counter of what it refuses.
type pointReader struct {
	consumer.Metrics
	reads   reading.Purpose
	tel     *componenttest.Telemetry
	counter string
}

// refused are how many points it has refused, by reason.
func (r *pointReader) refused(t *testing.T) map[string]int64 {
	t.Helper()
	by := map[string]int64{}
	m, err := r.tel.GetMetric(r.counter)
	if err != nil {
		return by // nothing yet
	}
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		why, _ := p.Attributes.Value("reason")
		by[why.AsString()] += p.Value
	}
	return by
}

func pointReaders(t *testing.T) map[string]*pointReader {
	t.Helper()
	all := map[string]*pointReader{}
	straggler, fleet := stragglerprocessor.NewFactory(), fleetviewexporter.NewFactory()
	for mode, reads := range map[string]reading.Purpose{"agent": reading.Score, "gateway": reading.Verdict} {
		r := &pointReader{reads: reads, tel: componenttest.NewTelemetry(), counter: "otelcol_processor_straggler_rejected"}
		cfg := straggler.CreateDefaultConfig().(*stragglerprocessor.Config)
		cfg.Mode = mode
		p, err := straggler.CreateMetrics(t.Context(), processor.Settings{ID: component.NewID(straggler.Type()), TelemetrySettings: r.tel.NewTelemetrySettings()}, cfg, consumertest.NewNop())
		require.NoError(t, err)
		require.NoError(t, p.Start(t.Context(), viewHost{}))
		r.Metrics, all[mode] = p, r
	}
	r := &pointReader{reads: reading.View, tel: componenttest.NewTelemetry(), counter: "otelcol_exporter_fleet_view_rejected"}
	cfg := fleet.CreateDefaultConfig().(*fleetviewexporter.Config)
	e, err := fleet.CreateMetrics(t.Context(), exporter.Settings{ID: component.NewID(fleet.Type()), TelemetrySettings: r.tel.NewTelemetrySettings()}, cfg)
	require.NoError(t, err)
	require.NoError(t, e.Start(t.Context(), viewHost{cfg.Extension: &fleetView{state: fleetstate.New(fleetstate.DefaultConfig())}}))
	r.Metrics, all["fleet view"] = e, r
	return all
}

// TestAllReadersRefuseTheSamePoints pushes each metric of the catalogue right and wrong.
// Those who read the metric refuse the wrong point for the same reason, and the others
// refuse nothing: two readers never take one point for two things.
func TestAllReadersRefuseTheSamePoints(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		spoil func(m pmetric.Metric, p pmetric.NumberDataPoint, known *reading.Metric)
		want  reading.Refusal
	}{
		"right":        {func(pmetric.Metric, pmetric.NumberDataPoint, *reading.Metric) {}, reading.Accepted},
		"another unit": {func(m pmetric.Metric, _ pmetric.NumberDataPoint, _ *reading.Metric) { m.SetUnit("odd") }, reading.WrongUnit},
		"another type": {func(m pmetric.Metric, _ pmetric.NumberDataPoint, _ *reading.Metric) {
			m.SetEmptyHistogram().DataPoints().AppendEmpty()
		}, reading.WrongType},
		"over its range": {func(_ pmetric.Metric, p pmetric.NumberDataPoint, known *reading.Metric) {
			p.SetDoubleValue(10 * known.Range.Max)
		}, reading.ValueRange},
	} {
		readers := pointReaders(t)
		want := map[string]int64{}
		list := reading.All()
		for i := range list {
			known := &list[i]
			if known.Subject() != reading.GPU || len(known.Keys) > 0 {
				continue
			}
			md := pmetric.NewMetrics()
			m := node(md, "n", map[string]string{"k8s.cluster.name": "c"}).AppendEmpty()
			m.SetName(known.Name)
			m.SetUnit(known.Unit)
			points := m.SetEmptyGauge().DataPoints
			if known.Kind != 0 {
				sum := m.SetEmptySum()
				sum.SetIsMonotonic(known.Kind == reading.Counter)
				sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
				points = sum.DataPoints
			}
			p := points().AppendEmpty()
			p.SetDoubleValue(known.Range.Max)
			p.Attributes().PutStr("hw.id", "GPU-0")
			p.Attributes().PutStr("hw.type", "gpu")
			tt.spoil(m, p, known)
			for name, r := range readers {
				own := pmetric.NewMetrics()
				md.CopyTo(own)
				require.NoError(t, r.ConsumeMetrics(t.Context(), own))
				// A gateway drops what cannot be true of metrics that it does not read, too.
				atTheDoor := name == "gateway" && tt.want == reading.ValueRange
				if (known.For&r.reads != 0 || atTheDoor) && tt.want != reading.Accepted {
					want[name]++
				}
			}
		}
		for name, r := range readers {
			expected := map[string]int64{}
			if tt.want != reading.Accepted {
				// A gateway's comparison reads nothing of a GPU.
				if require.True(t, want[name] > 0 || name == "gateway", "the %s reads some", name); want[name] > 0 {
					expected[tt.want.String()] = want[name]
				}
			}
			assert.Equal(t, expected, r.refused(t), "%s, by the %s", what, name)
		}
	}
}
