// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"encoding/binary"
	"runtime"
	"testing"
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
					r.Observe(points[i])
				}
				r.CloseNode()
				r.Commit()
			}
		})
	}
}

// BenchmarkMemory fills a table with a million series and more and reports the
// heap per series. Run it with -benchtime=1x.
func BenchmarkMemory(b *testing.B) {
	const nodes = 4000 // x 320 = 1.28 M series
	points := benchReport()
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		table := New(Settings{MaxNodes: nodes, MaxSeries: nodes * len(points)})
		var id [8]byte
		for n := range uint64(nodes) {
			binary.BigEndian.PutUint64(id[:], n)
			r := table.Begin(0)
			r.OpenNode(KeyOf(id[:]))
			for i := range points {
				r.Observe(points[i])
			}
			r.CloseNode()
			r.Commit()
		}
		runtime.GC()
		runtime.GC() // twice: a sync.Pool keeps its victims for one cycle
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(table.Stats().Series), "B/series")
		runtime.KeepAlive(table)
	}
}
