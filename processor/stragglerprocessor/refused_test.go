// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"
	zaptest "go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// falseValues is a push with true values, false ones and those that nobody judges.
func falseValues() (pmetric.Metrics, pmetric.ResourceMetrics) {
	md := pmetric.NewMetrics()
	rm := resource(md, map[string]any{"host.name": "n1"})
	gauge(rm, "hw.power", 3.69e12, "hw.id", "g1", "hw.type", "gpu")
	gauge(rm, "hw.temperature", 4294967295, "hw.id", "g1", "hw.sensor_location", "gpu")
	gauge(rm, "hw.temperature", 41, "hw.id", "g2", "hw.sensor_location", "gpu")
	gauge(rm, "hw.gpu.memory.usage", 2147483632, "hw.id", "view")
	gauge(rm, "hw.gpu.mode", 7, "hw.id", "nobody's")
	gauge(rm, "hw.power", 3.69e12, "hw.id", "no type")
	gauge(rm, "hw.errors", 2147483632, "hw.id", "not a sum", "hw.type", "gpu", "error.type", "corrected")
	gauge(rm, "gpu.node.health_score", math.NaN())
	gauge(rm, "my.metric", 4294967295, "hw.id", "foreign")
	gauge(rm, "hw.gpu.power.limit", 1e9, "hw.id", "in volts")
	metrics := rm.ScopeMetrics().At(rm.ScopeMetrics().Len() - 1).Metrics()
	metrics.At(metrics.Len() - 1).SetUnit("V")
	histogram := metrics.AppendEmpty()
	histogram.SetName("hw.gpu.utilization")
	histogram.SetEmptyHistogram().DataPoints().AppendEmpty().SetSum(1e300)
	return md, rm
}

// What cannot be true goes no further than the gateway, whoever would read it and whoever
// it is of; one key passes it on.
func TestRefusedPoints(t *testing.T) {
	for _, key := range []string{refusedDrop, refusedPass} {
		t.Run(key, func(t *testing.T) {
			tel := componenttest.NewTelemetry()
			t.Cleanup(func() { require.NoError(t, tel.Shutdown(context.Background())) })
			tb, err := metadata.NewTelemetryBuilder(tel.NewTelemetrySettings())
			require.NoError(t, err)
			core, logs := zaptest.New(zap.WarnLevel)
			cfg := createDefaultConfig().(*Config)
			cfg.RefusedPoints = key
			o := newObserver(cfg, newRejects(tb), zap.New(core))
			e := straggler.New(cfg.engine())
			md, _ := falseValues()
			before := md.DataPointCount()
			o.observe(t.Context(), e, md, time.Unix(1e9, 0))
			assert.EqualValues(t, 5, rejected(t, tel)["value_range"]+rejected(t, tel)["not_finite"], "and two of another mistake")
			line := logs.FilterMessageSnippet("hw.power is 3.69e+12").All()
			require.Len(t, line, 1)
			assert.Equal(t, "n1", line[0].ContextMap()["node"])
			if key == refusedPass {
				assert.Equal(t, before, md.DataPointCount())
				assert.NotContains(t, line[0].ContextMap(), "dropped")
				return
			}
			assert.Equal(t, true, line[0].ContextMap()["dropped"])
			assert.Equal(t, before-7, md.DataPointCount())
			names := map[string]int{}
			for _, sm := range md.ResourceMetrics().At(0).ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					names[m.Name()]++
				}
			}
			assert.Equal(t, map[string]int{"hw.temperature": 1, "my.metric": 1, "hw.gpu.power.limit": 1, "hw.gpu.utilization": 1}, names,
				"metrics that have nothing left are gone")

			// Behind a tier that sends changes, what is not sent still holds: the series ends.
			md, rm := falseValues()
			gauge(rm, "gpu.node.heartbeat", 1e9)
			o.observe(t.Context(), e, md, time.Unix(1e9, 0))
			assert.Equal(t, before+1, md.DataPointCount())
			ended := 0
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					if m.Type() == pmetric.MetricTypeGauge {
						for _, dp := range m.Gauge().DataPoints().All() {
							if dp.Flags().NoRecordedValue() {
								ended++
							}
						}
					}
				}
			}
			assert.Equal(t, 7, ended)
		})
	}
}
