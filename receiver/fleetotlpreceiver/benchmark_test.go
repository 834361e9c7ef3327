// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// nodeReport is one node's report: 8 GPUs with 40 metrics each, 320 points.
func nodeReport() pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("k8s.cluster.name", "lab")
	rm.Resource().Attributes().PutStr("host.name", "n")
	sm := rm.ScopeMetrics().AppendEmpty()
	for i := range 40 {
		m := sm.Metrics().AppendEmpty()
		m.SetName(fmt.Sprintf("hw.gpu.metric_%02d", i))
		m.SetDescription("A metric of a GPU.")
		points := m.SetEmptyGauge().DataPoints()
		for gpu := range 8 {
			dp := points.AppendEmpty()
			dp.SetTimestamp(pcommon.Timestamp(1_700_000_000e9))
			dp.SetDoubleValue(float64(gpu))
			dp.Attributes().PutStr("hw.id", fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a%02d", gpu))
		}
	}
	return md
}

// BenchmarkPush has client and server in one process: compare the ways, not the figures.
func BenchmarkPush(b *testing.B) {
	msg := encode(b, nodeReport())
	for _, table := range []bool{true, false} {
		var s *server
		if table {
			s, _, _ = compared(b, nil, nil, nil)
		} else {
			s = fleet(b, nil)
		}
		for transport, push := range s.pushers("gpu-cluster", "lab") {
			b.Run(fmt.Sprintf("%s/table=%v", transport, table), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					require.NoError(b, push(b, msg))
				}
			})
		}
	}
}
