// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command diff measures the state table behind diff and wire_diff: its memory,
// the collector's pauses with it, how it scales with cores, and the allocations
// of an unchanged report. What a push costs is test/bench/push's.
package main // import "github.com/gpu-collector/gpu-collector/test/bench/diff"

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

// The product's promises.
const (
	maxUnchangedAllocs = 0
	maxBytesPerSeries  = 40
	maxPauseGrowth     = 1.5
	minScaling         = 1.7
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(w io.Writer) error {
	for _, measure := range []func(io.Writer) error{allocations, scaling, memory} {
		if err := measure(w); err != nil {
			return err
		}
	}
	return nil
}

func unchanged() pmetric.Metrics { return harness.Report(func() float64 { return 1 }) }

// newProcessor has deadbands that match none of the report's metrics, as most
// metrics match none, and no heartbeat: that is a point of its own.
func newProcessor() (processor.Metrics, error) {
	f := diffprocessor.NewFactory()
	cfg := f.CreateDefaultConfig().(*diffprocessor.Config)
	cfg.ResyncInterval, cfg.HeartbeatInterval = 0, time.Hour
	cfg.Deadbands = []deadband.Rule{{Metric: "hw.temperature", Absolute: 1}, {Metric: "hw.gpu.clock.*", Absolute: 30e6}}
	p, err := f.CreateMetrics(context.Background(), processortest.NewNopSettings(f.Type()), cfg, consumertest.NewNop())
	if err != nil {
		return nil, err
	}
	return p, p.Start(context.Background(), componenttest.NewNopHost())
}

// allocations counts those of an unchanged report, on average and whole ones.
// The collector rests meanwhile: that it empties the pools is not the report's
// doing.
func allocations(w io.Writer) error {
	p, err := newProcessor()
	if err != nil {
		return err
	}
	const reports = 100
	stock := make([]pmetric.Metrics, reports)
	for i := range stock {
		stock[i] = unchanged()
	}
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for range 2 { // to know the report, and its order
		if err := p.ConsumeMetrics(context.Background(), unchanged()); err != nil {
			return err
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, md := range stock {
		if err := p.ConsumeMetrics(context.Background(), md); err != nil {
			return err
		}
	}
	runtime.ReadMemStats(&after)
	figure.Fprint(w, "diff_unchanged_allocs", float64((after.Mallocs-before.Mallocs)/reports), "allocs", maxUnchangedAllocs, true)
	return p.Shutdown(context.Background())
}
