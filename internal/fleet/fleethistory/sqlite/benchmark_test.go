// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/test/heap"
)

// BenchmarkMemory has the batcher take all series of a fleet at once, as after a
// start, and reports the heap that each still holds when they are written.
func BenchmarkMemory(b *testing.B) {
	const series = 50_000
	for b.Loop() {
		s := New(Config{Path: b.TempDir() + "/h.db", MaxSeries: series, QueryTimeout: time.Minute})
		w := written{s, make(chan int, series)}
		before := heap.Live()
		batcher := fleethistory.NewBatcher(fleethistory.BatchConfig{MaxSamples: 5000, MaxAge: 100 * time.Millisecond, QueueSize: series, QueueBytes: 1 << 30}, w, nil)
		batcher.Start()
		for _, count := range []int{series, series / 50} { // then as much as changes between two pushes
			for i := range count {
				batcher.Write([]fleethistory.Sample{{
					Cluster: "c", Node: fmt.Sprintf("node-%d", i/320), GPU: fmt.Sprintf("GPU-%d", i/40%8), Metric: fmt.Sprintf("hw.m%d", i%40), At: base.UnixMilli(),
				}})
			}
			for count > 0 {
				count -= <-w.samples
			}
		}
		if err := batcher.Shutdown(b.Context()); err != nil || batcher.Dropped() > 0 {
			b.Fatal(err, batcher.Dropped())
		}
		b.ReportMetric(float64(heap.Live()-before)/series, "B/series")
		_ = s.Close()
	}
}

// written is the number of written samples.
type written struct {
	fleethistory.Storage
	samples chan int
}

func (w written) Append(ctx context.Context, samples []fleethistory.Sample, episodes []fleethistory.Episode) error {
	err := w.Storage.Append(ctx, samples, episodes)
	w.samples <- len(samples)
	return err
}
