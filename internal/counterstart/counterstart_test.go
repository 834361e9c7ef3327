// SPDX-License-Identifier: Apache-2.0

package counterstart

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

func TestStartTimes(t *testing.T) {
	var s Times
	start := func(metric, gpu string, ts pcommon.Timestamp, value int64) pcommon.Timestamp {
		md := pmetric.NewMetrics()
		m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName(metric)
		m.SetEmptySum().SetIsMonotonic(true)
		dp := m.Sum().DataPoints().AppendEmpty()
		dp.Attributes().PutStr("hw.id", gpu)
		dp.SetTimestamp(ts)
		dp.SetIntValue(value)
		s.Apply(md)
		return dp.StartTimestamp()
	}
	assert.EqualValues(t, 10, start("e", "a", 10, 5), "unknown start: the first point's own time")
	assert.EqualValues(t, 10, start("e", "a", 20, 5))
	assert.EqualValues(t, 10, start("e", "a", 30, 9))
	assert.EqualValues(t, 35, start("e", "b", 35, 1), "series are apart")
	assert.EqualValues(t, 30, start("e", "a", 40, 8), "reset after the last point")
	assert.EqualValues(t, 30, start("e", "a", 50, 8))
	assert.EqualValues(t, 50, start("e", "a", 60, 0))
	assert.EqualValues(t, 35, start("e", "b", 70, 1))
	assert.EqualValues(t, 80, start("f", "b", 80, 0))
}

func TestStartTimesLeaveOtherMetricsAlone(t *testing.T) {
	var s Times
	md := pmetric.NewMetrics()
	m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	dp := m.SetEmptySum().DataPoints().AppendEmpty()
	dp.SetStartTimestamp(3)
	dp.SetTimestamp(9)
	s.Apply(md)
	assert.EqualValues(t, 3, dp.StartTimestamp())
}

func TestStartTimesAreBounded(t *testing.T) {
	var s Times
	dp := pmetric.NewNumberDataPoint()
	for i := range maxSeries + 5 {
		dp.Attributes().PutStr("hw.id", string(rune(i)))
		s.start("m", dp)
	}
	assert.LessOrEqual(t, len(s.series), maxSeries)
}
