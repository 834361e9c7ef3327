// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/record"
)

var testTime = time.Unix(1_700_000_000, 0)

// points are all points of the report.
func points(md pmetric.Metrics) []pmetric.NumberDataPoint {
	var points []pmetric.NumberDataPoint
	for _, m := range all(md) {
		points = append(points, pointsOf(m)...)
	}
	return points
}

func pointsOf(m pmetric.Metric) []pmetric.NumberDataPoint {
	var all []pmetric.NumberDataPoint
	for _, dp := range record.Points(m).All() {
		all = append(all, dp)
	}
	return all
}

// find returns the points of the metric that have the attributes, and a value.
func find(md pmetric.Metrics, metric string, attributes map[string]string) []pmetric.NumberDataPoint {
	return slices.DeleteFunc(findAll(md, metric, attributes), func(p pmetric.NumberDataPoint) bool { return p.Flags().NoRecordedValue() })
}

// ended are the UUIDs of the points that end their series.
func ended(md pmetric.Metrics, metric string, attributes map[string]string) []string {
	var uuids []string
	for _, p := range findAll(md, metric, attributes) {
		if p.Flags().NoRecordedValue() && p.ValueType() == pmetric.NumberDataPointValueTypeEmpty {
			id, _ := p.Attributes().Get("hw.id")
			uuids = append(uuids, id.Str())
		}
	}
	return uuids
}

func findAll(md pmetric.Metrics, metric string, attributes map[string]string) []pmetric.NumberDataPoint {
	var found []pmetric.NumberDataPoint
	for _, m := range all(md) {
		if m.Name() != metric {
			continue
		}
	next:
		for _, dp := range pointsOf(m) {
			for k, want := range attributes {
				if got, ok := dp.Attributes().Get(k); !ok || got.Str() != want {
					continue next
				}
			}
			found = append(found, dp)
		}
	}
	return found
}

func point(t *testing.T, md pmetric.Metrics, metric string, attributes map[string]string) pmetric.NumberDataPoint {
	t.Helper()
	found := find(md, metric, attributes)
	require.Len(t, found, 1)
	return found[0]
}

// values maps each GPU's UUID to the value of its point.
func values(md pmetric.Metrics, metric string, attributes map[string]string) map[string]float64 {
	out := map[string]float64{}
	for _, dp := range find(md, metric, attributes) {
		id, _ := dp.Attributes().Get("hw.id")
		if dp.ValueType() == pmetric.NumberDataPointValueTypeInt {
			out[id.Str()] = float64(dp.IntValue())
		} else {
			out[id.Str()] = dp.DoubleValue()
		}
	}
	return out
}

// up maps each GPU's UUID to the reason of hw.gpu.up.
func up(md pmetric.Metrics) map[string]string {
	out := map[string]string{}
	for _, dp := range find(md, "hw.gpu.up", nil) {
		id, _ := dp.Attributes().Get("hw.id")
		reason, _ := dp.Attributes().Get("reason")
		out[id.Str()] = reason.Str()
		if (reason.Str() == "ok") != (dp.IntValue() == 1) {
			out[id.Str()] += " contradicts the value"
		}
	}
	return out
}

// sumOf is the value of a counter of the receiver's own.
func sumOf(t *testing.T, m metricdata.Metrics) int64 {
	t.Helper()
	sum, ok := m.Data.(metricdata.Sum[int64])
	require.True(t, ok, "%T", m.Data)
	total := int64(0)
	for _, dp := range sum.DataPoints {
		total += dp.Value
	}
	return total
}

func all(md pmetric.Metrics) (metrics []pmetric.Metric) {
	for _, m := range record.Metrics(md).All() {
		metrics = append(metrics, m)
	}
	return metrics
}
