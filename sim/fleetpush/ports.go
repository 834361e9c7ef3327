// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"fmt"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// addPorts adds what the fabric receiver reads of the reasons: a port next to each GPU,
// and the host.
func addPorts(md pmetric.Metrics, id *identity, now, start time.Time, gpus []values, whole *values) {
	rm := md.ResourceMetrics().AppendEmpty()
	id.name(rm.Resource(), gpusemconv.AttrHostName, gpusemconv.AttrK8sNodeName, gpusemconv.AttrHostID, gpusemconv.AttrClusterName, gpusemconv.AttrJobID)
	metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
	add := func(field reading.Field, hwID string, v float64, attrs ...string) {
		known, _ := reading.Of(field)
		var m pmetric.Metric
		if n := metrics.Len(); n > 0 && metrics.At(n-1).Name() == known.Name {
			m = metrics.At(n - 1)
		} else {
			m = metrics.AppendEmpty()
			m.SetName(known.Name)
			m.SetUnit(known.Unit)
			if known.Kind == reading.Gauge {
				m.SetEmptyGauge()
			} else {
				m.SetEmptySum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
				m.Sum().SetIsMonotonic(known.Kind == reading.Counter)
			}
		}
		p := points(m).AppendEmpty()
		p.SetTimestamp(pcommon.NewTimestampFromTime(now))
		p.SetStartTimestamp(pcommon.NewTimestampFromTime(start))
		if known.Integer {
			p.SetIntValue(int64(v))
		} else {
			p.SetDoubleValue(v)
		}
		if hwID != "" {
			p.Attributes().PutStr(gpusemconv.AttrHWID, hwID)
		}
		for i := 0; i < len(attrs); i += 2 {
			p.Attributes().PutStr(attrs[i], attrs[i+1])
		}
	}
	for i := range gpus {
		port, at := &gpus[i].port, fmt.Sprintf("mlx5_%d/1", i)
		add(reading.NetworkUp, at, flag(port.Up))
		if port.Up {
			add(reading.NetworkBandwidth, at, port.Bandwidth)
		}
		if port.Downed > 0 {
			add(reading.NetworkErrors, at, port.Downed, gpusemconv.AttrHWType, "network", gpusemconv.AttrErrorType, "link_downed")
		}
		add(reading.NetworkErrors, at, port.Symbols, gpusemconv.AttrHWType, "network", gpusemconv.AttrErrorType, "symbol_error")
		add(reading.NetworkRetransmits, at, port.Again, gpusemconv.AttrErrorType, "out_of_sequence")
		add(reading.NetworkPackets, at, port.Packets, gpusemconv.AttrNetworkIODirection, "transmit")
	}
	add(reading.CPUSteal, "", whole.v[steal], "cpu.mode", "steal")
	add(reading.IOPressure, "", whole.v[diskPressure])
}
