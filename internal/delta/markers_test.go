// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// TestNothingIsBehindAMarkerInItsMetric: of delta metrics, too, which are not
// compared.
func TestNothingIsBehindAMarkerInItsMetric(t *testing.T) {
	for _, temporality := range []pmetric.AggregationTemporality{pmetric.AggregationTemporalityCumulative, pmetric.AggregationTemporalityDelta} {
		md := report("", 1)
		m := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0)
		m.SetUnit("By")
		sum := m.SetEmptySum()
		sum.SetAggregationTemporality(temporality)
		sum.SetIsMonotonic(true)
		for i, ended := range []bool{true, false, true, false} {
			dp := sum.DataPoints().AppendEmpty()
			dp.Attributes().PutInt("i", int64(i))
			dp.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(ended))
			dp.SetIntValue(7)
		}
		out, err := decode(newSame().push(t, encode(t, md), 0, true))
		require.NoError(t, err)
		var parts []int
		next := int64(0)
		for _, part := range out.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
			for _, dp := range part.Sum().DataPoints().All() {
				i, _ := dp.Attributes().Get("i")
				assert.Equal(t, next, i.Int())
				next++
			}
			parts = append(parts, part.Sum().DataPoints().Len())
			assert.Equal(t, metricHash(m, 0), metricHash(part, 0), "name, unit, temporality")
		}
		assert.Equal(t, []int{1, 2, 1}, parts)
	}
}
