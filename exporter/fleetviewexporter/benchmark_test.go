// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// report is a node's full report: 8 GPUs of 40 points each, as the nvml
// receiver sends them, with readings that change from one to the next.
func report(node string, tick int) pmetric.Metrics {
	b := newReport("bench", node)
	for g := range 8 {
		b.fullGPU(g, tick)
	}
	return b.md
}

// BenchmarkReport compares what a gateway does with a report of 320 points
// anyway, decoding it, with what the views add. The two take turns, as they do
// in a gateway, and the medians are compared: other work on the machine then
// touches both alike.
func BenchmarkReport(b *testing.B) {
	const nodes = 1000
	var bodies [][]byte
	for tick := range 2 {
		for i := range nodes {
			md := report(fmt.Sprintf("node-%04d", i), tick)
			require.Equal(b, 320, md.DataPointCount())
			body, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
			require.NoError(b, err)
			bodies = append(bodies, body)
		}
	}
	e := newTestExporter(b)
	var receive, view []time.Duration
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		began := time.Now()
		req := pmetricotlp.NewExportRequest()
		if err := req.UnmarshalProto(bodies[i%len(bodies)]); err != nil {
			b.Fatal(err)
		}
		received := time.Now()
		if err := e.pushMetrics(b.Context(), req.Metrics()); err != nil {
			b.Fatal(err)
		}
		receive, view = append(receive, received.Sub(began)), append(view, time.Since(received))
	}
	slices.Sort(receive)
	slices.Sort(view)
	r, v := receive[len(receive)/2], view[len(view)/2]
	b.ReportMetric(float64(r.Nanoseconds()), "receive-ns/report")
	b.ReportMetric(float64(v.Nanoseconds()), "view-ns/report")
	b.ReportMetric(100*float64(v)/float64(r), "view-%")
}

// reportBuilder makes reports of one node.
type reportBuilder struct {
	md      pmetric.Metrics
	metrics pmetric.MetricSlice
	byName  map[string]pmetric.NumberDataPointSlice
}

func newReport(cluster, node string) *reportBuilder {
	b := &reportBuilder{md: pmetric.NewMetrics(), byName: map[string]pmetric.NumberDataPointSlice{}}
	rm := b.md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, cluster)
	if node != "" {
		rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, node)
		rm.Resource().Attributes().PutStr(gpusemconv.AttrHostID, "id-of-"+node)
	}
	b.metrics = rm.ScopeMetrics().AppendEmpty().Metrics()
	return b
}

func (b *reportBuilder) attr(name, value string) *reportBuilder {
	b.md.ResourceMetrics().At(0).Resource().Attributes().PutStr(name, value)
	return b
}

// point adds a point with pairs of attributes; nil is a point without a value.
func (b *reportBuilder) point(metric string, value any, attrs ...any) *reportBuilder {
	points, ok := b.byName[metric]
	if !ok {
		m := b.metrics.AppendEmpty()
		m.SetName(metric)
		if known := reading.ByName(metric); known != nil && known.Kind == reading.Counter {
			sum := m.SetEmptySum()
			sum.SetIsMonotonic(true)
			sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			points = sum.DataPoints()
		} else {
			points = m.SetEmptyGauge().DataPoints()
		}
		b.byName[metric] = points
	}
	p := points.AppendEmpty()
	p.SetTimestamp(1)
	switch v := value.(type) {
	case int:
		p.SetIntValue(int64(v))
	case float64:
		p.SetDoubleValue(v)
	case nil:
		p.SetFlags(p.Flags().WithNoRecordedValue(true))
	}
	for i := 0; i < len(attrs); i += 2 {
		switch v := attrs[i+1].(type) {
		case string:
			p.Attributes().PutStr(attrs[i].(string), v)
		case int:
			p.Attributes().PutInt(attrs[i].(string), int64(v))
		}
	}
	return b
}

func uuid(g int) string { return fmt.Sprintf("GPU-%08x-2222-3333-4444-555555555555", g) }

// fullGPU adds the 40 points of a GPU; the views know half of them.
func (b *reportBuilder) fullGPU(g, tick int) {
	id := []any{gpusemconv.AttrHWID, uuid(g)}
	with := func(attrs ...any) []any { return append(append([]any{}, id...), attrs...) }
	x := float64(tick + g)
	b.point(gpusemconv.MetricGPUInfo, 1, with(gpusemconv.AttrGPUIndex, g, gpusemconv.AttrHWModel, "NVIDIA H100 80GB HBM3",
		attrSerial, "16500000", attrDriver, "570.1", attrBusID, "0000:18:00.0", gpusemconv.AttrHWVendor, "NVIDIA")...)
	b.point(gpusemconv.MetricGPUUp, 1, with(gpusemconv.AttrReason, "ok")...)
	b.point(gpusemconv.MetricGPUHealthScore, 100, id...)
	for _, s := range []string{"unknown", "healthy", "degraded", "unhealthy"} {
		on := 0
		if s == "healthy" {
			on = 1
		}
		b.point(gpusemconv.MetricGPUHealthState, on, with(gpusemconv.AttrState, s)...)
	}
	b.point(gpusemconv.MetricTemperature, 50+x, with(gpusemconv.AttrSensorLocation, "gpu")...)
	b.point(gpusemconv.MetricTemperature, 60+x, with(gpusemconv.AttrSensorLocation, "memory")...)
	b.point(gpusemconv.MetricPower, 600+x, with(gpusemconv.AttrHWType, "gpu")...)
	b.point(gpusemconv.MetricGPUPowerLimit, 700.0, with(gpusemconv.AttrLimit, "enforced")...)
	b.point(gpusemconv.MetricGPUPowerLimit, 700.0, with(gpusemconv.AttrLimit, "max")...)
	b.point(gpusemconv.MetricGPUUtilization, 0.9, with(gpusemconv.AttrGPUTask, "general")...)
	b.point(gpusemconv.MetricGPUClock, 1.9e9-1e6*x, with(gpusemconv.AttrClock, "sm")...)
	b.point(gpusemconv.MetricGPUClock, 2.6e9, with(gpusemconv.AttrClock, "memory")...)
	b.point(gpusemconv.MetricGPUClockLimit, 1.98e9, with(gpusemconv.AttrClock, "sm")...)
	b.point(gpusemconv.MetricGPUMemoryUsage, 70e9+x, id...)
	b.point(gpusemconv.MetricGPUMemoryUtil, 0.8, id...)
	b.point(gpusemconv.MetricGPUMemoryLimit, 80e9, id...)
	for _, kind := range []string{"corrected", "uncorrected"} {
		for _, counter := range []string{"volatile", "aggregate"} {
			b.point(gpusemconv.MetricErrors, 0, with(gpusemconv.AttrHWType, "gpu", gpusemconv.AttrErrorType, kind, gpusemconv.AttrMemoryLocation, "all", gpusemconv.AttrECCCounter, counter)...)
		}
	}
	for _, reason := range []string{"sw_thermal", "hw_thermal", "power_brake", "power_cap", "hw_slowdown", "sync_boost"} {
		b.point(gpusemconv.MetricGPUThrottleActive, 0, with(gpusemconv.AttrReason, reason)...)
	}
	b.point(gpusemconv.MetricGPUPCIeLinkWidth, 16, with(gpusemconv.AttrKind, "current")...)
	b.point(gpusemconv.MetricGPUPCIeLinkWidth, 16, with(gpusemconv.AttrKind, "max")...)
	b.point(gpusemconv.MetricGPUPCIeReplays, 0, with(gpusemconv.AttrKind, "replay")...)
	for _, cause := range []string{"corrected", "uncorrected"} {
		b.point(gpusemconv.MetricGPURemappedRows, 0, with(gpusemconv.AttrCause, cause)...)
	}
	b.point(gpusemconv.MetricGPURecoveryAction, 1, with(gpusemconv.AttrAction, "none")...)
	b.point(gpusemconv.MetricEnergy, 1e9+x, with(gpusemconv.AttrHWType, "gpu")...)
	for link := range 4 {
		b.point("hw.gpu.io", 1e12+x, with("gpu.link", "pcie", "network.io.direction", strconv.Itoa(link))...)
	}
}

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
