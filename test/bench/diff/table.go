// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// Series of the table: 1.28 million.
const nodes, gpus, metrics = 4000, 8, 40

// fill makes a table of a fleet, names and all.
func fill() *statetable.Table {
	t := statetable.New(statetable.Settings{MaxNodes: nodes, MaxSeries: nodes * gpus * metrics, TTL: time.Hour, VanishedAfter: time.Minute})
	described := make([]statetable.Metric, metrics)
	for i := range described {
		described[i] = statetable.Metric{ScopeName: "nvml", Name: fmt.Sprint("hw.gpu.metric.", i), Unit: "1", Description: "A metric of a GPU."}
	}
	for n := range nodes {
		name := fmt.Sprint("gpu-node-", n)
		r := t.Begin(0)
		r.OpenNode(statetable.KeyOf([]byte(name)))
		r.DescribeNode([]statetable.Attr{
			{Key: "k8s.cluster.name", Text: "research-west"},
			{Key: "k8s.node.name", Text: name},
			{Key: "host.name", Text: name},
			{Key: "host.id", Text: fmt.Sprintf("%032x", n)},
		})
		for g := range gpus {
			attrs := []statetable.Attr{
				{Key: "hw.id", Text: fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-%010d%02d", n, g)},
				{Key: "gpu.index", Num: uint64(g), Type: statetable.AttrInt},
			}
			for m := range metrics {
				r.Observe(point(m, g))
				r.Describe(&described[m], attrs)
			}
		}
		r.CloseNode()
		r.Commit()
	}
	return t
}

func point(metric, gpu int) statetable.Point {
	return statetable.Point{
		Key:   statetable.Mix(uint64(metric), uint64(gpu)),
		Value: uint64(gpu), Kind: statetable.KindDouble, Time: 1_700_000_000e9,
	}
}

// memory fills a table and looks at the heap, and at the collector's pauses
// before and after.
func memory(w io.Writer) error {
	empty := pause()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // twice: a sync.Pool keeps its victims for one cycle
	runtime.ReadMemStats(&before)
	t := fill()
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	series := float64(t.Stats().Series)
	figure.FprintOnly(w, "diff_series", series, "series")
	figure.Fprint(w, "diff_bytes_per_series", float64(after.HeapAlloc-before.HeapAlloc)/series, "bytes", maxBytesPerSeries, true)
	full := pause()
	figure.FprintOnly(w, "diff_gc_pause_empty", empty, "us")
	figure.FprintOnly(w, "diff_gc_pause_full", full, "us")
	figure.Fprint(w, "diff_gc_pause_growth", full/empty, "x", maxPauseGrowth, true)
	runtime.KeepAlive(t)
	return nil
}

// pause returns what the collector's pauses take when nothing else is in their
// way, in microseconds: the first decile of many. The longer ones are those in
// which another process had the core.
func pause() float64 {
	const cycles = 101
	pauses := make([]float64, 0, cycles)
	for range cycles {
		runtime.GC()
		var s debug.GCStats
		debug.ReadGCStats(&s)
		pauses = append(pauses, float64(s.Pause[0])/1e3)
	}
	slices.Sort(pauses)
	return pauses[cycles/10]
}

// scaling compares unchanged reports on one core and on two: each goroutine has
// nodes of its own, as pushes do. The best of several turns counts, for on a
// shared machine the others take from both.
func scaling(w io.Writer) error {
	t := fill()
	const reports = 5_000
	turn := func(cores int) float64 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
		var wg sync.WaitGroup
		began := time.Now()
		for g := range cores {
			wg.Go(func() {
				for i := range reports {
					name := fmt.Appendf(nil, "gpu-node-%d", (i*cores+g)%nodes)
					r := t.Begin(time.Second)
					r.OpenNode(statetable.KeyOf(name))
					for gpu := range gpus {
						for m := range metrics {
							r.Observe(point(m, gpu))
						}
					}
					r.CloseNode()
					r.Commit()
				}
			})
		}
		wg.Wait()
		return float64(reports*cores) / time.Since(began).Seconds()
	}
	var one, two float64
	for range 25 {
		one, two = max(one, turn(1)), max(two, turn(2))
	}
	figure.FprintOnly(w, "diff_reports_per_second_1core", one, "reports/s")
	figure.FprintOnly(w, "diff_reports_per_second_2core", two, "reports/s")
	figure.Fprint(w, "diff_scaling_2core", two/one, "x", minScaling, false)
	return nil
}
