// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadatatest"
)

// gpuReport has a gauge, a sum, a histogram, an exponential histogram and a
// summary of each GPU.
func gpuReport(at time.Duration, gpus ...string) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, "n")
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName("nvml")
	sm.Scope().SetVersion("1")
	// 2000-01-01, where the clock of testing/synctest starts.
	stamp := pcommon.Timestamp(946_684_800*time.Second + at)
	metric := func(name string) pmetric.Metric {
		m := sm.Metrics().AppendEmpty()
		m.SetName(name)
		m.SetUnit("u")
		m.SetDescription("d")
		return m
	}
	const cumulative = pmetric.AggregationTemporalityCumulative
	gauge, sum := metric("gauge").SetEmptyGauge(), metric("sum").SetEmptySum()
	histogram, exponential := metric("histogram").SetEmptyHistogram(), metric("exponential").SetEmptyExponentialHistogram()
	summary := metric("summary").SetEmptySummary()
	sum.SetIsMonotonic(true)
	sum.SetAggregationTemporality(cumulative)
	histogram.SetAggregationTemporality(cumulative)
	exponential.SetAggregationTemporality(cumulative)
	attributes := func(attrs pcommon.Map, gpu string) {
		attrs.PutStr("hw.id", gpu)
		attrs.PutInt("index", 1)
		attrs.PutBool("shared", true)
		attrs.PutDouble("share", 0.5)
	}
	for _, gpu := range gpus {
		g, s := gauge.DataPoints().AppendEmpty(), sum.DataPoints().AppendEmpty()
		h, e, q := histogram.DataPoints().AppendEmpty(), exponential.DataPoints().AppendEmpty(), summary.DataPoints().AppendEmpty()
		g.SetTimestamp(stamp)
		g.SetIntValue(1)
		attributes(g.Attributes(), gpu)
		s.SetTimestamp(stamp)
		s.SetIntValue(1)
		attributes(s.Attributes(), gpu)
		h.SetTimestamp(stamp)
		attributes(h.Attributes(), gpu)
		e.SetTimestamp(stamp)
		attributes(e.Attributes(), gpu)
		q.SetTimestamp(stamp)
		attributes(q.Attributes(), gpu)
	}
	return md
}

// ends is the report with its points made ends of their series.
func ends(md pmetric.Metrics) pmetric.Metrics {
	flags := pmetric.DefaultDataPointFlags.WithNoRecordedValue(true)
	for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		switch m.Type() {
		case pmetric.MetricTypeGauge:
			dp := m.Gauge().DataPoints().At(0)
			end := pmetric.NewNumberDataPoint()
			end.SetTimestamp(dp.Timestamp())
			dp.Attributes().CopyTo(end.Attributes())
			end.SetFlags(flags)
			end.CopyTo(dp)
		case pmetric.MetricTypeSum:
			dp := m.Sum().DataPoints().At(0)
			end := pmetric.NewNumberDataPoint()
			end.SetTimestamp(dp.Timestamp())
			dp.Attributes().CopyTo(end.Attributes())
			end.SetFlags(flags)
			end.CopyTo(dp)
		case pmetric.MetricTypeHistogram:
			m.Histogram().DataPoints().At(0).SetFlags(flags)
		case pmetric.MetricTypeExponentialHistogram:
			m.ExponentialHistogram().DataPoints().At(0).SetFlags(flags)
		case pmetric.MetricTypeSummary:
			m.Summary().DataPoints().At(0).SetFlags(flags)
		case pmetric.MetricTypeEmpty:
		}
	}
	return md
}

func TestAVanishedGPUEndsItsSeries(t *testing.T) {
	for name, relayed := range map[string]bool{"full reports": false, "reports of another tier": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := new(consumertest.MetricsSink)
				p := newTestProcessor(t, sink, func(c *Config) { c.HeartbeatInterval, c.ResyncInterval = time.Hour, 0 })
				var at time.Duration
				push := func(gpus ...string) {
					md := gpuReport(at, gpus...)
					if relayed {
						m := md.ResourceMetrics().At(0).ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
						m.SetName(gpusemconv.MetricNodeHeartbeat)
						m.SetEmptyGauge().DataPoints().AppendEmpty().SetIntValue(1)
					}
					require.NoError(t, p.ConsumeMetrics(t.Context(), md))
					time.Sleep(10 * time.Second)
					at += 10 * time.Second
				}
				push("GPU-0", "GPU-1")
				sink.Reset()
				for range 30 {
					push("GPU-0")
				}
				require.NoError(t, p.Shutdown(t.Context()))
				if relayed {
					assert.Zero(t, sink.DataPointCount())
					return
				}
				require.Equal(t, 5, sink.DataPointCount(), "one for each series, once")
				got := sink.AllMetrics()[0]
				stamp := got.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0).Timestamp()
				want := ends(gpuReport(time.Duration(stamp)-946_684_800*time.Second, "GPU-1"))
				all := want.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics()
				require.Equal(t, 1, got.ResourceMetrics().At(0).ScopeMetrics().Len())
				sm := got.ResourceMetrics().At(0).ScopeMetrics().At(0)
				assert.Equal(t, "nvml", sm.Scope().Name())
				assert.Equal(t, "1", sm.Scope().Version())
				require.Equal(t, all.Len(), sm.Metrics().Len())
				for i, m := range sm.Metrics().All() {
					assert.Equal(t, all.At(i), m, m.Name())
				}
			})
		})
	}
}

// TestAClockAheadIsCountedAndSetRightAtOnce has a node's clock run ahead and
// then be set right: each value goes on, and none with a time to come.
func TestAClockAheadIsCountedAndSetRightAtOnce(t *testing.T) {
	for _, ahead := range []time.Duration{2 * time.Minute, 4 * time.Minute, 365 * 24 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			sink, tel := new(consumertest.MetricsSink), componenttest.NewTelemetry()
			t.Cleanup(func() { require.NoError(t, tel.Shutdown(context.Background())) })
			set := processortest.NewNopSettings(metadata.Type)
			set.TelemetrySettings = tel.NewTelemetrySettings()
			p, err := newProcessor(createDefaultConfig().(*Config), set, sink)
			require.NoError(t, err)
			require.NoError(t, p.Start(t.Context(), componenttest.NewNopHost()))
			t.Cleanup(func() { require.NoError(t, p.Shutdown(context.Background())) })
			start := time.Unix(946_684_800, 0)
			for i, wrong := range []time.Duration{0, ahead, ahead, 0, 0} {
				at := time.Duration(i) * 10 * time.Second
				p.engine.Now = func() time.Time { return start.Add(at) }
				require.NoError(t, p.ConsumeMetrics(t.Context(), report("n", at+wrong, float64(i))))
				require.Len(t, sink.AllMetrics(), i+1)
				dp := sink.AllMetrics()[i].ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0)
				assert.InDelta(t, i, dp.DoubleValue(), 0)
				assert.Equal(t, start.Add(at).UTC(), dp.Timestamp().AsTime())
			}
			metadatatest.AssertEqualProcessorDiffAheadPoints(t, tel, []metricdata.DataPoint[int64]{{Value: 2}}, metricdatatest.IgnoreTimestamp())
		})
	}
}
