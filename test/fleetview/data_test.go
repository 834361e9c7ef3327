// SPDX-License-Identifier: Apache-2.0

package fleetview

import (
	"cmp"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Each series has so many points, so far apart: more samples than are fetched
// for one answer, so that the time of a page has to be found.
const (
	points  = 200
	spacing = 5 * time.Second
)

type gpuMetric struct {
	name, unit string
	counter    bool
	attribute  [2]string
}

var gpuMetrics = []gpuMetric{
	{gpusemconv.MetricTemperature, "Cel", false, [2]string{gpusemconv.AttrSensorLocation, "gpu"}},
	{gpusemconv.MetricTemperature, "Cel", false, [2]string{gpusemconv.AttrSensorLocation, "memory"}},
	{gpusemconv.MetricGPUUtilization, "1", false, [2]string{gpusemconv.AttrGPUTask, "general"}},
	{gpusemconv.MetricPower, "W", false, [2]string{"zone", `row 1, rack\2`}},
	{gpusemconv.MetricErrors, "{error}", true, [2]string{gpusemconv.AttrErrorType, "corrected"}},
}

// nodes are cluster and name; the last one names no cluster.
var nodes = [][2]string{{"east", "node-a"}, {"east", "node-b.example"}, {"west", "node-a"}, {"", "node|c"}}

// dataset returns what is pushed, and the samples it is, the newest first. No
// two have the same time, so that the order is one.
func dataset(start time.Time) (pmetric.Metrics, []fleetapi.Sample) {
	md := pmetric.NewMetrics()
	var want []fleetapi.Sample
	series := 0
	for n, node := range nodes {
		rm := md.ResourceMetrics().AppendEmpty()
		attrs := rm.Resource().Attributes()
		attrs.PutStr(gpusemconv.AttrHostName, node[1])
		attrs.PutStr(gpusemconv.AttrHostID, "0123456789")
		attrs.PutStr(gpusemconv.AttrJobID, "train-7")
		if node[0] != "" {
			attrs.PutStr(gpusemconv.AttrClusterName, node[0])
		}
		sm := rm.ScopeMetrics().AppendEmpty()
		sm.Scope().SetName("test")
		add := func(dps pmetric.NumberDataPointSlice, sample fleetapi.Sample, set func(pcommon.Map)) {
			series++
			sample.Cluster, sample.Host = cmp.Or(node[0], "default"), node[1]
			for i := range points {
				dp := dps.AppendEmpty()
				sample.At = start.Add(time.Duration(i)*spacing + time.Duration(series)*7*time.Millisecond)
				sample.Value = float64((i*37+n*5)%256) / 8 // sums of these are exact
				switch sample.Metric {
				case gpusemconv.MetricErrors:
					sample.Value = float64(i + n)
				case gpusemconv.MetricGPUUtilization, gpusemconv.MetricNodeHealthScore:
					sample.Value /= 32 // a fraction
				}
				dp.SetTimestamp(pcommon.NewTimestampFromTime(sample.At))
				dp.SetStartTimestamp(pcommon.NewTimestampFromTime(start))
				dp.SetDoubleValue(sample.Value)
				set(dp.Attributes())
				want = append(want, sample)
			}
		}
		for _, m := range gpuMetrics {
			dps := newMetric(sm, m.name, m.unit, m.counter)
			for _, gpu := range []string{"GPU-" + node[0] + node[1] + "-0", "GPU-" + node[0] + node[1] + "-1"} {
				sample := fleetapi.Sample{Metric: m.name, GPU: gpu}
				if m.attribute[0] != "" {
					sample.Attributes = map[string]string{m.attribute[0]: m.attribute[1]}
				}
				add(dps, sample, func(attrs pcommon.Map) {
					attrs.PutStr(gpusemconv.AttrHWID, gpu)
					attrs.PutStr(gpusemconv.AttrHWType, "gpu")
					if m.attribute[0] != "" {
						attrs.PutStr(m.attribute[0], m.attribute[1])
					}
				})
			}
		}
		add(newMetric(sm, gpusemconv.MetricNodeHealthScore, "1", false), fleetapi.Sample{Metric: gpusemconv.MetricNodeHealthScore}, func(pcommon.Map) {})
	}
	slices.SortFunc(want, func(a, b fleetapi.Sample) int { return b.At.Compare(a.At) })
	return md, want
}

func newMetric(sm pmetric.ScopeMetrics, name, unit string, counter bool) pmetric.NumberDataPointSlice {
	m := sm.Metrics().AppendEmpty()
	m.SetName(name)
	m.SetUnit(unit)
	if !counter {
		return m.SetEmptyGauge().DataPoints()
	}
	sum := m.SetEmptySum()
	sum.SetIsMonotonic(true)
	sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	return sum.DataPoints()
}
