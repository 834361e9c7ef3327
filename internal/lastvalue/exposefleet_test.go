// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
)

// BenchmarkExposedFleet has 10,000 nodes of 433 series, as the simulator's, in a table,
// and scrapes them in parts with gzip. It reports the longest part, and the most heap
// that table, names and the scrape of a part take. Run it with -benchtime=1x.
func BenchmarkExposedFleet(b *testing.B) {
	const parts = 16
	for b.Loop() {
		empty := heap()
		table := filled(10_000, 433, 2, "", false)
		scrape := func(part uint64, to io.Writer) (series int) {
			x := forever(Exposition{Part: part, Parts: parts})
			w, err := gzip.NewWriterLevel(to, gzip.BestSpeed)
			if err != nil {
				b.Fatal(err)
			}
			done, err := x.Write(w, table, 0)
			if err = errors.Join(err, w.Close()); err != nil {
				b.Fatal(err)
			}
			return done.Series
		}
		series, longest := 0, time.Duration(0)
		for part := range uint64(parts) {
			began := time.Now()
			series += scrape(part, io.Discard)
			longest = max(longest, time.Since(began))
		}
		most := watched{}
		scrape(0, &most)
		b.ReportMetric(float64(series), "series")
		b.ReportMetric(longest.Seconds(), "s/part")
		b.ReportMetric(float64(most.heap-empty)/float64(table.Stats().Series), "B/series")
		runtime.KeepAlive(table)
	}
}

// watched looks at the heap now and then while it is written to.
type watched struct{ writes, heap int }

func (w *watched) Write(p []byte) (int, error) {
	if w.writes++; w.writes%64 == 0 {
		w.heap = max(w.heap, heap())
	}
	return len(p), nil
}

// BenchmarkScrape has 1,000 nodes of 433 series, without names of GPUs and with eight GPUs
// each under dcgm-exporter's names.
func BenchmarkScrape(b *testing.B) {
	scrape := func(b *testing.B, x Exposition, table *Table) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := x.Write(io.Discard, table, 0); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("names", func(b *testing.B) { scrape(b, forever(Exposition{}), filled(1000, 433, 2, "", false)) })
	b.Run("dcgm", func(b *testing.B) {
		table := newTable(roomy)
		for n := range 1000 {
			var points []told
			for _, metric := range []string{"hw.gpu.info", "hw.power", "hw.energy", "hw.gpu.memory.limit", "hw.gpu.memory.usage"} {
				for gpu := range 8 {
					points = append(points, say(metric, fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-%08d%04d", n, gpu), 7,
						"gpu.index", strconv.Itoa(gpu), "hw.model", "NVIDIA H100 80GB HBM3", "gpu.pci.bus_id", "00000000:1B:00.0", "hw.driver_version", "570.124.06"))
				}
			}
			tell(table, 0, host("c", fmt.Sprint("gpu-node-", n)), points...)
		}
		scrape(b, forever(Exposition{DCGM: true}), table)
	})
}
