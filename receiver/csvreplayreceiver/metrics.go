// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	semconv "github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/replay"
)

// maxSumSeries bounds the table of start times; a node of 8 GPUs has about 100 sums.
const maxSumSeries = 1 << 20

// translator makes pdata of the engine's steps.
type translator struct {
	cluster string
	version string
	starts  *replay.Starts
	// dropped counts points of sums that found no place in starts.
	dropped int64
}

// appendNode adds one resource with the node's points, all of them at now.
func (t *translator) appendNode(md pmetric.Metrics, node *replay.Node, now time.Time) {
	rm := md.ResourceMetrics().AppendEmpty()
	putAttributes(rm.Resource().Attributes(), node.Attributes)
	if t.cluster != "" {
		rm.Resource().Attributes().PutStr(semconv.AttrClusterName, t.cluster)
	}
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(metadata.ScopeName)
	sm.Scope().SetVersion(t.version)

	timestamp := pcommon.NewTimestampFromTime(now)
	var open *replay.Metric
	var points pmetric.NumberDataPointSlice
	for i := range node.Points {
		p := &node.Points[i]
		start := time.Time{}
		if p.Metric.Kind == replay.KindSum {
			var ok bool
			if start, ok = t.starts.At(node.Attributes, p, now); !ok {
				t.dropped++
				continue
			}
		}
		// The engine keeps the points of a metric together.
		if p.Metric != open {
			open = p.Metric
			points = appendMetric(sm.Metrics(), open)
		}
		dp := points.AppendEmpty()
		dp.SetTimestamp(timestamp)
		if !start.IsZero() {
			dp.SetStartTimestamp(pcommon.NewTimestampFromTime(start))
		}
		if p.Metric.Integer {
			dp.SetIntValue(int64(p.Value))
		} else {
			dp.SetDoubleValue(p.Value)
		}
		attrs := dp.Attributes()
		attrs.EnsureCapacity(len(p.Identity) + len(p.Attributes))
		putAttributes(attrs, p.Identity)
		putAttributes(attrs, p.Attributes)
	}
}

func appendMetric(metrics pmetric.MetricSlice, d *replay.Metric) pmetric.NumberDataPointSlice {
	m := metrics.AppendEmpty()
	m.SetName(d.Name)
	m.SetDescription(d.Description)
	m.SetUnit(d.Unit)
	if d.Kind == replay.KindGauge {
		return m.SetEmptyGauge().DataPoints()
	}
	sum := m.SetEmptySum()
	sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	sum.SetIsMonotonic(d.Kind == replay.KindSum)
	return sum.DataPoints()
}

func putAttributes(m pcommon.Map, attrs []replay.Attribute) {
	for i := range attrs {
		if a := &attrs[i]; a.Text != "" {
			m.PutStr(a.Key, a.Text)
		} else {
			m.PutInt(a.Key, a.Number)
		}
	}
}
