// SPDX-License-Identifier: Apache-2.0

package metricreading

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// A point of any metric of the catalogue can be read, whatever its attributes say:
// also of those that nobody reads.
func TestEveryMetricCanBeRead(t *testing.T) {
	names := []string{"hw.id", "hw.parent", "hw.type", "site"}
	for i := range reading.All() {
		for _, key := range reading.All()[i].Keys {
			names = append(names, key.Name, key.Alias)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		for i := range reading.All() {
			known := &reading.All()[i]
			m := pmetric.NewMetric()
			m.SetName(known.Name)
			m.SetUnit(rapid.SampledFrom([]string{"", known.Unit, known.Unit, "ms"}).Draw(t, "unit"))
			points := m.SetEmptyGauge().DataPoints()
			if known.Kind != reading.Gauge && rapid.IntRange(0, 9).Draw(t, "as a sum") > 0 {
				sum := m.SetEmptySum()
				sum.SetIsMonotonic(known.Kind == reading.Counter)
				sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
				points = sum.DataPoints()
			}
			p := points.AppendEmpty()
			p.SetDoubleValue(rapid.Float64().Draw(t, "value"))
			for _, name := range rapid.SliceOfN(rapid.SampledFrom(names), 0, 4).Draw(t, "names") {
				p.Attributes().PutStr(name, rapid.SampledFrom([]string{"", "gpu", "network", "0", "x"}).Draw(t, "text"))
			}
			var resource Resource
			resource.Begin(New(zap.NewNop(), nil), pcommon.NewMap())
			for got := range resource.All(m) {
				assert.True(t, known.Range.Holds(got.Value), known.Name)
			}
		}
	})
}
