// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command straggler measures one tick of the straggler engine over a hundred
// thousand nodes in two thousand groups, on one core, with the plain rule beside it.
package main // import "github.com/gpu-collector/gpu-collector/test/bench/straggler"

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-collector/gpu-collector/internal/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

const (
	nodes  = 100_000
	groups = 2_000
	warm   = 10
	ticks  = 60
	// The product's promises.
	maxTickMillis = 20
	maxAllocs     = 0
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(w io.Writer) error {
	runtime.LockOSThread() // the thread's own CPU time is what counts
	plain, _, err := measure(straggler.DecisionThreshold)
	if err != nil {
		return err
	}
	cusum, allocs, err := measure(straggler.DecisionCUSUM)
	if err != nil {
		return err
	}
	figure.FprintOnly(w, "straggler_tick_plain", plain, "ms")
	figure.Fprint(w, "straggler_tick", cusum, "ms", maxTickMillis, true)
	figure.Fprint(w, "straggler_tick_allocs", allocs, "allocs", maxAllocs, true)
	return nil
}

// measure returns the CPU time of the best of several ticks, each after new
// values of every node, and the allocations of one: on a shared machine the
// others take caches and time from all but the best.
func measure(decision straggler.Decision) (millis, allocs float64, err error) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	cfg := straggler.DefaultConfig()
	cfg.Decision, cfg.MaxNodes = decision, 2*nodes // a cluster gets half
	e := straggler.New(cfg)
	rng := rand.New(rand.NewPCG(1, 2))
	names, peers := make([]string, nodes), make([][]string, groups)
	for i := range names {
		names[i] = fmt.Sprintf("gpu-node-%06d", i)
	}
	for i := range peers {
		peers[i] = []string{fmt.Sprintf("job-%d", i), "worker"}
	}
	at := time.Unix(1_700_000_000, 0)
	millis = 1e9
	for k := range warm + ticks {
		for i, name := range names {
			x := 0.9 * (1 + 0.01*rng.NormFloat64())
			o := straggler.Observation{Cluster: "research-west", Node: name, Peers: peers[i%groups], Score: min(x, 1), HasScore: true}
			o.Values.Set(nodesignal.Throughput, 1000*x)
			o.Values.Set(nodesignal.Compute, 0.95*(1+0.01*rng.NormFloat64()))
			if err := e.Observe(&o, at); err != nil {
				return 0, 0, err
			}
		}
		at = at.Add(10 * time.Second)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := cpuTime()
		e.Tick(at)
		took := cpuTime() - began
		runtime.ReadMemStats(&after)
		if k >= warm {
			millis = min(millis, took.Seconds()*1e3)
			allocs = max(allocs, float64(after.Mallocs-before.Mallocs))
		}
	}
	return millis, allocs, nil
}

func cpuTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // never fails on Linux
	return time.Duration(ts.Nano())
}
