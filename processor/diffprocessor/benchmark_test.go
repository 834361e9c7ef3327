// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
)

// nodeReport is one node's report: 8 GPUs with 40 metrics each, 320 points.
func nodeReport(node string) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("k8s.cluster.name", "research-west")
	rm.Resource().Attributes().PutStr("k8s.node.name", node)
	rm.Resource().Attributes().PutStr("host.name", node)
	rm.Resource().Attributes().PutStr("host.id", "7c0bbb52f1d24eb9a4f16d6a8a2f4d2e")
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName("nvmlreceiver")
	for i := range 40 {
		m := sm.Metrics().AppendEmpty()
		m.SetName(fmt.Sprintf("hw.gpu.metric_%02d", i))
		m.SetDescription("A metric of a GPU.")
		m.SetUnit("1")
		points := m.SetEmptyGauge().DataPoints()
		for gpu := range 8 {
			dp := points.AppendEmpty()
			dp.SetTimestamp(pcommon.Timestamp(946_684_800e9))
			dp.SetDoubleValue(float64(gpu))
			dp.Attributes().PutStr("hw.id", fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a%02d", gpu))
			dp.Attributes().PutInt("gpu.index", int64(gpu))
		}
	}
	return md
}

// change moves every n-th point to another value; 0 moves none.
func change(md pmetric.Metrics, every int, value float64) {
	i := 0
	for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		for _, dp := range m.Gauge().DataPoints().All() {
			dp.SetTimestamp(dp.Timestamp() + 10e9)
			if every > 0 && i%every == 0 {
				dp.SetDoubleValue(value)
			}
			i++
		}
	}
}

var benchCases = []struct {
	name  string
	every int
}{{"unchanged", 0}, {"tenth_changed", 10}, {"all_changed", 1}}

// BenchmarkDiff is the processor alone, without the heartbeat: what a report
// costs beyond having been received. Since a report loses its points, a stock of
// copies is made outside the measured time.
func BenchmarkDiff(b *testing.B) {
	for _, bb := range benchCases {
		b.Run(bb.name, func(b *testing.B) {
			p := newBenchProcessor(b, time.Hour)
			full := nodeReport("node-1")
			var stock [64]pmetric.Metrics
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if i%len(stock) == 0 {
					b.StopTimer()
					for j := range stock {
						change(full, bb.every, float64(100+i+j))
						stock[j] = pmetric.NewMetrics()
						full.CopyTo(stock[j])
					}
					b.StartTimer()
				}
				if err := p.ConsumeMetrics(b.Context(), stock[i%len(stock)]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func newBenchProcessor(b *testing.B, heartbeat time.Duration) *diffProcessor {
	cfg := createDefaultConfig().(*Config)
	cfg.ResyncInterval, cfg.HeartbeatInterval = 0, heartbeat
	p, err := newProcessor(cfg, processortest.NewNopSettings(metadata.Type), consumertest.NewNop())
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, p.Shutdown(b.Context())) })
	require.NoError(b, p.ConsumeMetrics(b.Context(), nodeReport("node-1")))
	return p
}
