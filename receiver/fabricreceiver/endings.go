// SPDX-License-Identifier: Apache-2.0

package fabricreceiver

import (
	"slices"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// endings ends the series that a report lacks and that the report before had: with one
// point without a value, so that a port that vanished does not look as it last did.
type endings struct {
	last, now map[string]ended
	key       []byte
}

// ended is a series that may end.
type ended struct {
	metric     pmetric.Metric // without points
	attributes pcommon.Map
	device     string
}

// apply adds the ends to a report. Series of devices that were silent go on.
func (e *endings) apply(md pmetric.Metrics, resource pcommon.Resource, ts pcommon.Timestamp, silent []string) {
	if e.now == nil {
		e.now = map[string]ended{}
	}
	clear(e.now)
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				e.take(m)
			}
		}
	}
	var over []string
	for key, s := range e.last {
		if _, goesOn := e.now[key]; goesOn {
			continue
		}
		if slices.Contains(silent, s.device) {
			e.now[key] = s
		} else {
			over = append(over, key)
		}
	}
	slices.Sort(over)
	for _, key := range over {
		s := e.last[key]
		dp := points(metricOf(md, resource, s.metric)).AppendEmpty()
		dp.SetTimestamp(ts)
		dp.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
		s.attributes.CopyTo(dp.Attributes())
	}
	e.last, e.now = e.now, e.last
}

func (e *endings) take(m pmetric.Metric) {
	var bare pmetric.Metric
	made := false
	for _, dp := range points(m).All() {
		e.key = append(append(e.key[:0], m.Name()...), 0)
		for _, v := range dp.Attributes().All() {
			e.key = append(append(e.key, v.Str()...), 0)
		}
		if s, ok := e.last[string(e.key)]; ok {
			e.now[string(e.key)] = s
			continue
		}
		if !made {
			made, bare = true, pmetric.NewMetric()
			m.CopyTo(bare)
			points(bare).RemoveIf(func(pmetric.NumberDataPoint) bool { return true })
		}
		s := ended{metric: bare, attributes: pcommon.NewMap()}
		dp.Attributes().CopyTo(s.attributes)
		if id, ok := s.attributes.Get(gpusemconv.AttrHWID); ok {
			s.device = deviceOf(id.Str())
		}
		e.now[string(e.key)] = s
	}
}

// metricOf returns the metric of a report, which gets it if need be.
func metricOf(md pmetric.Metrics, resource pcommon.Resource, like pmetric.Metric) pmetric.Metric {
	if md.ResourceMetrics().Len() == 0 {
		rm := md.ResourceMetrics().AppendEmpty()
		resource.CopyTo(rm.Resource())
		rm.ScopeMetrics().AppendEmpty()
	}
	metrics := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics()
	for _, m := range metrics.All() {
		if m.Name() == like.Name() {
			return m
		}
	}
	m := metrics.AppendEmpty()
	like.CopyTo(m)
	return m
}

func points(m pmetric.Metric) pmetric.NumberDataPointSlice {
	if m.Type() == pmetric.MetricTypeSum {
		return m.Sum().DataPoints()
	}
	return m.Gauge().DataPoints()
}
