// SPDX-License-Identifier: Apache-2.0

// Package counterstart gives counters of hardware their start times.
package counterstart // import "github.com/gpu-collector/gpu-collector/internal/counterstart"

import (
	"slices"
	"strconv"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// maxSeries bounds the counters whose start times are remembered: 256 devices
// with as many counters as a receiver could have.
const maxSeries = 256 * 64

// Times gives each monotonic series its start time. The hardware does not say when a
// counter began, so the first point starts at its own time: the OpenTelemetry data
// model has that for an unknown start. A counter that goes back was reset after its
// last point, and starts there.
type Times struct {
	// Except are metrics that keep the start time that they have.
	Except []string

	series map[string]*counter
	key    []byte
}

type counter struct {
	start, last pcommon.Timestamp
	value       float64
}

// Apply sets the start times of the monotonic sums in place.
func (s *Times) Apply(md pmetric.Metrics) {
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if m.Type() != pmetric.MetricTypeSum || !m.Sum().IsMonotonic() || slices.Contains(s.Except, m.Name()) {
					continue
				}
				for _, dp := range m.Sum().DataPoints().All() {
					dp.SetStartTimestamp(s.start(m.Name(), dp))
				}
			}
		}
	}
}

func (s *Times) start(name string, dp pmetric.NumberDataPoint) pcommon.Timestamp {
	value := dp.DoubleValue()
	if dp.ValueType() == pmetric.NumberDataPointValueTypeInt {
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
	case value < c.value:
		c.start = c.last
	}
	c.last, c.value = dp.Timestamp(), value
	return c.start
}

// seriesKey relies on the builder putting attributes in the same order each time.
func (s *Times) seriesKey(name string, attributes pcommon.Map) {
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
