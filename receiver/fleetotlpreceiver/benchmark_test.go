// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// nodeReport is one node's report: 8 GPUs with 40 metrics each, 320 points, of which one in
// ten has another value.
func nodeReport(other float64) pmetric.Metrics {
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
			if (i*8+gpu)%10 == 0 {
				dp.SetDoubleValue(other)
			}
			dp.Attributes().PutStr("hw.id", fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a%02d", gpu))
		}
	}
	return md
}

// BenchmarkPush has client and server in one process: compare the ways, not the figures.
func BenchmarkPush(b *testing.B) {
	msgs := [][]byte{encode(b, nodeReport(1)), encode(b, nodeReport(2))}
	for _, table := range []bool{true, false} {
		var s *server
		if table {
			s, _, _ = compared(b, nil, nil, nil)
		} else {
			s = fleet(b, nil)
		}
		for transport, push := range s.pushers("gpu-cluster", "lab") {
			for name, different := range map[string]int{"unchanged": 1, "one_in_10_changed": 2} {
				b.Run(fmt.Sprintf("%s/table=%v/%s", transport, table, name), func(b *testing.B) {
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						require.NoError(b, push(b, msgs[i%different]))
					}
				})
			}
		}
	}
}
