// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"cmp"
	"math"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// seriesName is one series of a world of nodes.
type seriesName struct {
	node, metric string
	gpu          int
}

// stated is what a series has: a number, and where a sum starts.
type stated struct {
	value float64
	start pcommon.Timestamp
}

// The metrics of that world, one of each kind; "banded" has a deadband.
var kinds = []string{"banded", "integer", "sum", "histogram"}

var band = lastvalue.Band{Metric: "band*", Absolute: 1.5, Relative: 0.1}

// nodesEpoch is the nodes' own: their clocks are so far behind the tiers' that a point with a
// tier's time instead of theirs is seen at once.
const nodesEpoch = pcommon.Timestamp(1_700_000_000*time.Second - 30*24*time.Hour)

// dataPoint is a point of any type.
type dataPoint interface {
	Timestamp() pcommon.Timestamp
	SetTimestamp(pcommon.Timestamp)
	Flags() pmetric.DataPointFlags
	SetFlags(pmetric.DataPointFlags)
	Attributes() pcommon.Map
}

// encodeReport writes the values of series as one report, in the order of the names.
func encodeReport(node string, at time.Duration, names []seriesName, state map[seriesName]stated) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, node)
	sm := rm.ScopeMetrics().AppendEmpty()
	for _, name := range names {
		sent := state[name]
		m := sm.Metrics().AppendEmpty()
		m.SetName(name.metric)
		var point dataPoint
		switch name.metric {
		case "banded":
			dp := m.SetEmptyGauge().DataPoints().AppendEmpty()
			dp.SetDoubleValue(sent.value)
			point = dp
		case "integer":
			dp := m.SetEmptyGauge().DataPoints().AppendEmpty()
			dp.SetIntValue(int64(sent.value))
			point = dp
		case "sum":
			m.SetEmptySum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			m.Sum().SetIsMonotonic(true)
			dp := m.Sum().DataPoints().AppendEmpty()
			dp.SetStartTimestamp(sent.start)
			dp.SetDoubleValue(sent.value)
			point = dp
		case "histogram":
			m.SetEmptyHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			dp := m.Histogram().DataPoints().AppendEmpty()
			dp.SetCount(uint64(max(0, sent.value)))
			dp.SetSum(sent.value)
			point = dp
		}
		point.SetTimestamp(nodesEpoch + pcommon.Timestamp(at))
		point.Attributes().PutInt("gpu", int64(name.gpu))
	}
	return md
}

// eachPoint yields the points of those metrics, and whether they end their series. The
// rest of a metric is skipped where yield returns false.
func eachPoint(md pmetric.Metrics, yield func(name seriesName, sent stated, at time.Duration, end bool) bool) {
	for _, rm := range md.ResourceMetrics().All() {
		node, _ := rm.Resource().Attributes().Get(gpusemconv.AttrHostName)
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if !slices.Contains(kinds, m.Name()) {
					continue
				}
				point := func(dp dataPoint, sent stated) bool {
					gpu, _ := dp.Attributes().Get("gpu")
					name := seriesName{node.Str(), m.Name(), int(gpu.Int())}
					return yield(name, sent, time.Duration(dp.Timestamp()-nodesEpoch), dp.Flags().NoRecordedValue())
				}
				if m.Type() == pmetric.MetricTypeHistogram {
					for _, dp := range m.Histogram().DataPoints().All() {
						if !point(dp, stated{value: dp.Sum()}) {
							break
						}
					}
					continue
				}
				var points pmetric.NumberDataPointSlice
				if m.Type() == pmetric.MetricTypeSum {
					points = m.Sum().DataPoints()
				} else {
					points = m.Gauge().DataPoints()
				}
				for _, dp := range points.All() {
					sent := stated{dp.DoubleValue(), dp.StartTimestamp()}
					if dp.ValueType() == pmetric.NumberDataPointValueTypeInt {
						sent.value = float64(dp.IntValue())
					}
					if !point(dp, sent) {
						break
					}
				}
			}
		}
	}
}

// receiver is the next hop: the last value that it got of each series. It is as particular as
// prometheusexporter, which skips what comes after a point without a value in the
// same metric.
type receiver map[seriesName]stated

func (r receiver) apply(md pmetric.Metrics, points int) {
	eachPoint(md, func(name seriesName, sent stated, _ time.Duration, end bool) bool {
		if points--; points < 0 {
			return false
		}
		if end {
			delete(r, name)
			return false
		}
		r[name] = sent
		return true
	})
}

// agrees reports whether what the receiver has of a series will do for the truth.
func agrees(name seriesName, has, truth stated) bool {
	if name.metric != "banded" {
		return has == truth
	}
	return math.Abs(has.value-truth.value) <= max(band.Absolute, band.Relative*math.Abs(truth.value)) &&
		(has.value == 0) == (truth.value == 0)
}

// namesOf are those of a node's series.
func namesOf(truth map[seriesName]stated, node string) []seriesName {
	var out []seriesName
	for name := range truth {
		if name.node == node {
			out = append(out, name)
		}
	}
	slices.SortFunc(out, func(a, b seriesName) int {
		return cmp.Or(cmp.Compare(a.metric, b.metric), cmp.Compare(a.gpu, b.gpu))
	})
	return out
}
