// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// TestNothingIsBehindAMarkerInItsMetric: of delta metrics, too, which are not
// compared.
func TestNothingIsBehindAMarkerInItsMetric(t *testing.T) {
	for _, temporality := range []pmetric.AggregationTemporality{pmetric.AggregationTemporalityCumulative, pmetric.AggregationTemporalityDelta} {
		t.Run(temporality.String(), func(t *testing.T) {
			md := pmetric.NewMetrics()
			rm := md.ResourceMetrics().AppendEmpty()
			rm.Resource().Attributes().PutStr("host.name", "n")
			m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
			m.SetName("m")
			m.SetUnit("By")
			sum := m.SetEmptySum()
			sum.SetAggregationTemporality(temporality)
			sum.SetIsMonotonic(true)
			for i, ended := range []bool{true, false, true, false} {
				dp := sum.DataPoints().AppendEmpty()
				dp.SetTimestamp(pcommon.NewTimestampFromTime(testTime))
				dp.Attributes().PutInt("i", int64(i))
				dp.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(ended))
				if !ended {
					dp.SetIntValue(7)
				}
			}
			out, err := decode(newSame(false).push(t, encode(t, md), 0, true))
			require.NoError(t, err)
			var parts []int
			next := int64(0)
			for _, m := range out.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
				assert.Equal(t, "m", m.Name())
				assert.Equal(t, "By", m.Unit())
				assert.Equal(t, temporality, m.Sum().AggregationTemporality())
				assert.True(t, m.Sum().IsMonotonic())
				for _, dp := range m.Sum().DataPoints().All() {
					i, _ := dp.Attributes().Get("i")
					assert.Equal(t, next, i.Int())
					next++
				}
				parts = append(parts, m.Sum().DataPoints().Len())
			}
			assert.Equal(t, []int{1, 2, 1}, parts)
		})
	}
}
