// SPDX-License-Identifier: Apache-2.0

package metricreading

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
)

// A point of any metric of the catalogue can be read, whatever its attributes:
// also of those without a reader.
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
			resource.Begin(New(zap.NewNop(), nil), pcommon.NewMap(), "", "")
			if points, ok := resource.Open(known, m); ok {
				var got Point
				if resource.Read(points.At(0), &got) == reading.Accepted {
					assert.True(t, known.Range.Holds(got.Value), known.Name)
				}
			}
		}
	})
}

func TestNumbersNameWhatTheirTextNames(t *testing.T) {
	names := identity.New([]string{"gpu.job.id"}, false)
	for want, values := range map[string][]any{
		"123": {"123", 123, 123.0}, "true": {true}, "1000000": {1e6}, "1234567890123": {1234567890123.0}, "-5": {-5.0}, "0.5": {0.5},
		"9223372036854775807": {int64(math.MaxInt64)}, "": {[]any{"123"}, map[string]any{"id": "123"}, nil},
	} {
		for _, value := range values {
			attrs := pcommon.NewMap()
			require.NoError(t, attrs.FromRaw(map[string]any{"gpu.job.id": value, "host.name": value}))
			Identify(&names, attrs)
			assert.Equal(t, []string{want, want}, append(names.GroupLabels, names.Node()))
		}
	}
}

// The log names the cluster that the product takes the resource to be of.
func TestTheLogNamesTheCallersCluster(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	reader := New(zap.New(core), nil)
	m := pmetric.NewMetric()
	m.SetName("hw.power")
	m.SetUnit("V")
	m.SetEmptyGauge().DataPoints().AppendEmpty()
	named := pcommon.NewMap()
	named.PutStr("k8s.cluster.name", "own")
	for _, tt := range []struct {
		attrs            pcommon.Map
		caller, fallback string
		want             string
	}{
		{named, "caller", "default", "own"},
		{pcommon.NewMap(), "caller", "default", "caller"},
		{pcommon.NewMap(), "", "default", "default"},
	} {
		var resource Resource
		resource.Begin(reader, tt.attrs, tt.caller, tt.fallback)
		_, ok := resource.Open(reading.ByName("hw.power"), m)
		assert.False(t, ok, "the unit is wrong")
		entries := logs.TakeAll()
		require.Len(t, entries, 1)
		assert.Equal(t, tt.want, entries[0].ContextMap()["cluster"])
	}
}
