// SPDX-License-Identifier: Apache-2.0

package statetable

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
		table := fleetTable(10_000)
		scrape := func(part uint64, to io.Writer) (series int) {
			x := forever(Exposition{Part: part, Parts: parts})
			w, err := gzip.NewWriterLevel(to, gzip.BestSpeed)
			if err != nil {
				b.Fatal(err)
			}
			done, err := x.Write(w, TableAt{table, 0})
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

// fleetTable is a table of nodes with eight GPUs and 433 series each.
func fleetTable(nodes int) *Table {
	const series, gpus = 433, 8
	table := New(Settings{MaxNodes: nodes, MaxSeries: nodes * series})
	var metrics [series/gpus + 1]Metric
	for i := range metrics {
		metrics[i] = Metric{ScopeName: "nvml", Name: fmt.Sprint("hw.gpu.metric.", i), Unit: "1", Description: "A metric of a GPU."}
	}
	for n := range nodes {
		name := fmt.Sprintf("node-%06d", n)
		r := table.Begin(0)
		r.OpenNode(KeyOf([]byte(name)))
		r.DescribeNode(host("c", name, attr("host.id", fmt.Sprintf("%032x", n)), attr("k8s.node.name", name)))
		var ids [gpus]string
		for g := range ids {
			ids[g] = fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-%010d%02d", n, g)
		}
		for i := range series {
			r.Observe(&Point{Key: Mix(uint64(i), 1), Value: uint64(i), Kind: KindInt, Time: 1_800_000_000e9})
			r.Describe(&metrics[i/gpus], []Attr{attr("hw.id", ids[i%gpus]), attr("kind", strconv.Itoa(i/gpus%5))})
		}
		r.CloseNode()
		r.Commit()
	}
	return table
}

// heap is what is in use.
func heap() int {
	var s runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first left in pools
	runtime.ReadMemStats(&s)
	return int(s.HeapAlloc)
}
