// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
)

// BenchmarkAppend writes 20,000 known series in one transaction.
func BenchmarkAppend(b *testing.B) {
	s := New(Config{Path: b.TempDir() + "/h.db", MaxSeries: 1e6, QueryTimeout: time.Minute})
	defer func() { _ = s.Close() }()
	series := make([]fleethistory.Sample, 20_000)
	for i := range series {
		series[i] = fleethistory.Sample{Cluster: "c", Node: fmt.Sprintf("node-%d", i/320), GPU: fmt.Sprintf("GPU-%d", i/40%8), Metric: fmt.Sprintf("hw.m%d", i%40)}
	}
	at := base.UnixMilli()
	b.ReportAllocs()
	for b.Loop() {
		for i := range series {
			series[i].At, series[i].Value = at, float64(i)
		}
		at += 10_000
		if err := s.Append(b.Context(), series, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*len(series))/b.Elapsed().Seconds(), "rows/s")
}
