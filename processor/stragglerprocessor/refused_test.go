// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// What cannot be true goes no further than the gateway, whoever would read it and whoever
// it is of; one key passes it on. Behind a tier that sends changes, what is not sent still
// holds: the series ends.
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
		gauge(rm, "hw.gpu.mode", 7, "hw.id", "nobody's")
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
		assert.EqualValues(t, 7, rejected(t, r.tel)["value_range"]+rejected(t, r.tel)["not_finite"], "the view tells of other mistakes")
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
