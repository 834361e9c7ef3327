// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// benchReport is one node's report: 8 GPUs, 40 metrics.
func benchReport() []Point {
	points := make([]Point, 320)
	for i := range points {
		points[i] = Point{Key: Mix(uint64(i), 1), Value: uint64(i), Kind: KindDouble, Time: 1_800_000_000e9}
	}
	return points
}

func BenchmarkReport(b *testing.B) {
	for _, bb := range []struct {
		name  string
		every int // one in how many points changes
	}{{"unchanged", 0}, {"tenth_changed", 10}, {"all_changed", 1}} {
		b.Run(bb.name, func(b *testing.B) {
			table := New(Settings{MaxNodes: 1, MaxSeries: 1000})
			points := benchReport()
			b.ReportAllocs()
			for b.Loop() {
				if bb.every > 0 {
					for i := 0; i < len(points); i += bb.every {
						points[i].Value++
					}
				}
				r := table.Begin(0)
				r.OpenNode(nodeA)
				for i := range points {
					r.Observe(&points[i])
				}
				r.CloseNode()
				r.Commit()
			}
		})
	}
}

const benchNodes = 4000 // x 320 = 1.28 M series

// benchTable is the table of a fleet, names and all.
func benchTable() *Table {
	table := New(Settings{MaxNodes: benchNodes, MaxSeries: benchNodes * 320})
	benchFill(table, benchNodes)
	return table
}

// benchFill has nodes report for the first time.
func benchFill(table *Table, nodes int) {
	points := benchReport()
	metrics := make([]Metric, 40)
	for i := range metrics {
		metrics[i] = Metric{ScopeName: "nvml", Name: fmt.Sprint("hw.gpu.metric.", i), Unit: "1", Description: "A metric of a GPU."}
	}
	for n := range nodes {
		name := fmt.Sprint("gpu-node-", n)
		r := table.Begin(0)
		r.OpenNode(KeyOf([]byte(name)))
		r.DescribeNode([]Attr{{Key: "k8s.node.name", Text: name}, {Key: "host.name", Text: name}, {Key: "host.id", Text: fmt.Sprintf("%032x", n)}})
		for i := range points {
			r.Observe(&points[i])
			r.Describe(&metrics[i/8], []Attr{{Key: "hw.id", Text: fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-%010d%02d", n, i%8)}, {Key: "gpu.index", Num: uint64(i % 8), Type: AttrInt}})
		}
		r.CloseNode()
		r.Commit()
	}
}

// BenchmarkMemory reports the heap per series of a full table, and how much longer
// the collector of garbage pauses beside it. Run it with -benchtime=1x.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		empty := benchPause()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		table := benchTable()
		full := benchPause()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(table.Stats().Series), "B/series")
		b.ReportMetric(full/empty, "pause-growth")
		b.ReportMetric(float64(table.bytes.Taken())/float64(after.HeapAlloc-before.HeapAlloc), "counted/heap")
		runtime.KeepAlive(table)
	}
}

// benchPause is the first decile of many: in a longer pause another process had
// the core.
func benchPause() float64 {
	var pauses []time.Duration
	for range 101 {
		runtime.GC()
		var s debug.GCStats
		debug.ReadGCStats(&s)
		pauses = append(pauses, s.Pause[0])
	}
	slices.Sort(pauses)
	return float64(pauses[len(pauses)/10])
}

// BenchmarkReports takes unchanged reports of different nodes on all cores: with
// -cpu 1,2 it shows how the table scales.
func BenchmarkReports(b *testing.B) {
	table, points := benchTable(), benchReport()
	var next atomic.Int64
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for node := int(next.Add(1)); pb.Next(); node += 7 {
			r := table.Begin(0)
			r.OpenNode(KeyOf(fmt.Appendf(nil, "gpu-node-%d", node%benchNodes)))
			for i := range points {
				r.Observe(&points[i])
			}
			r.CloseNode()
			r.Commit()
		}
	})
}
