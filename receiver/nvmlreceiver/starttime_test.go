// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// A small step back is a correction, and no reset: the counter stands still meanwhile.
func TestASmallStepBackIsHeld(t *testing.T) {
	for name, tt := range map[string]struct {
		values, want []int64
		starts       []pcommon.Timestamp
	}{
		"correction":         {[]int64{1_000_000, 999_999, 999_998, 1_000_005}, []int64{1_000_000, 1_000_000, 1_000_000, 1_000_005}, []pcommon.Timestamp{1, 1, 1, 1}},
		"beyond 2^53":        {[]int64{1<<60 + 1, 1 << 60, 1<<60 + 2}, []int64{1<<60 + 1, 1<<60 + 1, 1<<60 + 2}, []pcommon.Timestamp{1, 1, 1}},
		"reset":              {[]int64{1_000_000, 12, 13}, []int64{1_000_000, 12, 13}, []pcommon.Timestamp{1, 1, 1}},
		"by more than 1 %":   {[]int64{1000, 989}, []int64{1000, 989}, []pcommon.Timestamp{1, 1}},
		"few, and one less":  {[]int64{3, 4, 3}, []int64{3, 4, 3}, []pcommon.Timestamp{1, 1, 2}},
		"a reset after that": {[]int64{1000, 999, 0, 5}, []int64{1000, 1000, 0, 5}, []pcommon.Timestamp{1, 1, 2, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, double := range []bool{false, true} {
				if double && tt.values[0] > 1<<53 {
					continue // it is none of a float64's
				}
				var s startTimes
				for i, value := range tt.values {
					dp := pmetric.NewNumberDataPoint()
					dp.SetTimestamp(pcommon.Timestamp(i + 1))
					if dp.SetIntValue(value); double {
						dp.SetDoubleValue(float64(value))
					}
					assert.Equal(t, tt.starts[i], s.start("hw.energy", dp), "point %d", i)
					got := dp.IntValue()
					if double {
						got = int64(dp.DoubleValue())
					}
					assert.Equal(t, tt.want[i], got, "point %d", i)
				}
			}
		})
	}
}
