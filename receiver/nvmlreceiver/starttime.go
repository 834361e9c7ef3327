// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"strconv"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/record"
)

// maxStepBack is the share of a counter by which it may go back without having been reset: some
// drivers correct energies and bytes by a little. A reset begins at 0.
const maxStepBack = 0.01

// maxSeries bounds the counters whose start times are remembered: 256 GPUs
// with as many counters as the receiver could have.
const maxSeries = 256 * 64

// startTimes gives each monotonic series its start time. NVML does not report when a
// counter began, so the first point starts at its own time: the OpenTelemetry data
// model has that for an unknown start. A counter that goes back was reset after its
// last point, and starts there. One that goes back by a little keeps its last value until it is
// beyond that: Prometheus would take all of it for an increase.
type startTimes struct {
	series map[string]*counter
	key    []byte
}

type counter struct {
	start, last pcommon.Timestamp
	value       float64
	whole       int64 // the value of a whole number, which a float64 may round
}

// apply sets the start times of the monotonic sums in place.
func (s *startTimes) apply(md pmetric.Metrics) {
	for _, m := range record.Metrics(md).All() {
		// The receiver counts Xids itself and knows when it began: the builder has put the
		// time of its creation.
		if m.Type() != pmetric.MetricTypeSum || !m.Sum().IsMonotonic() || m.Name() == gpusemconv.MetricGPUXIDEvents {
			continue
		}
		for _, dp := range m.Sum().DataPoints().All() {
			dp.SetStartTimestamp(s.start(m.Name(), dp))
		}
	}
}

func (s *startTimes) start(name string, dp pmetric.NumberDataPoint) pcommon.Timestamp {
	value, isWhole := dp.DoubleValue(), dp.ValueType() == pmetric.NumberDataPointValueTypeInt
	if isWhole {
		value = float64(dp.IntValue())
	}
	s.seriesKey(name, dp.Attributes())

	c, known := s.series[string(s.key)]
	switch {
	case !known:
		if s.series == nil || len(s.series) >= maxSeries {
			// Out of bounds is out of the ordinary: all series start again.
			s.series = map[string]*counter{}
		}
		c = &counter{start: dp.Timestamp()}
		s.series[string(s.key)] = c
	case (value < c.value || isWhole && dp.IntValue() < c.whole) && value >= (1-maxStepBack)*c.value:
		if value = c.value; isWhole {
			dp.SetIntValue(c.whole)
		} else {
			dp.SetDoubleValue(value)
		}
	case value < c.value:
		c.start = c.last
	}
	c.last, c.value, c.whole = dp.Timestamp(), value, dp.IntValue()
	return c.start
}

// seriesKey relies on the builder putting attributes in the same order each time.
func (s *startTimes) seriesKey(name string, attributes pcommon.Map) {
	s.key = append(s.key[:0], name...)
	for _, v := range attributes.All() {
		s.key = append(s.key, 0)
		if v.Type() == pcommon.ValueTypeInt {
			s.key = strconv.AppendInt(s.key, v.Int(), 10)
		} else {
			s.key = append(s.key, v.Str()...)
		}
	}
}
