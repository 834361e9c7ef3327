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
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
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
	plain, err := measure(straggler.DecisionThreshold)
	if err != nil {
		return err
	}
	cusum, err := measure(straggler.DecisionCUSUM)
	if err != nil {
		return err
	}
	figure.FprintOnly(w, "straggler_tick_plain", plain.best(), "ms")
	figure.Fprint(w, "straggler_tick", cusum.best(), "ms", maxTickMillis, true)
	figure.FprintOnly(w, "straggler_tick_median", cusum.median(), "ms")
	figure.Fprint(w, "straggler_tick_allocs", cusum.allocs, "allocs", maxAllocs, true)
	return nil
}

// measured are several ticks.
type measured struct {
	millis []float64 // CPU time of each, sorted
	allocs float64   // the most of one
}

// best is what a tick takes where nobody else is: on a shared machine others take
// caches and time from all but the best.
func (m *measured) best() float64 { return m.millis[0] }

func (m *measured) median() float64 { return m.millis[len(m.millis)/2] }

// measure returns the cost of ticks without the collector of garbage, each after
// new values of every node.
func measure(decision straggler.Decision) (*measured, error) {
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
	m := &measured{}
	for k := range warm + ticks {
		for i, name := range names {
			x := 0.9 * (1 + 0.01*rng.NormFloat64())
			o := straggler.Observation{Cluster: "research-west", Node: name, Peers: peers[i%groups], Score: min(x, 1), HasScore: true}
			o.Values.Set(nodesignal.Throughput, 1000*x)
			o.Values.Set(nodesignal.Compute, 0.95*(1+0.01*rng.NormFloat64()))
			if err := e.Observe(&o, at); err != nil {
				return nil, err
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
			m.millis = append(m.millis, took.Seconds()*1e3)
			m.allocs = max(m.allocs, float64(after.Mallocs-before.Mallocs))
		}
	}
	slices.Sort(m.millis)
	return m, nil
}

func cpuTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // never fails on Linux
	return time.Duration(ts.Nano())
}
