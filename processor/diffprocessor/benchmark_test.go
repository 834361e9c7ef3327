// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
)

// nodeReport is one node's report: 8 GPUs with 40 metrics each, 320 points.
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
