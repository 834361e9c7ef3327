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
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
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

// nodeReport is one node's report, 8 GPUs with 40 metrics each.
func nodeReport() pmetric.Metrics {
	const node = "node-1"
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("k8s.cluster.name", "research-west")
	rm.Resource().Attributes().PutStr("k8s.node.name", node)
	rm.Resource().Attributes().PutStr("host.name", node)
	rm.Resource().Attributes().PutStr("host.id", "7c0bbb52f1d24eb9a4f16d6a8a2f4d2e")
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName("github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver")
	for i := range 40 {
		m := sm.Metrics().AppendEmpty()
		m.SetName(fmt.Sprintf("hw.gpu.metric_%02d", i))
		m.SetDescription("A metric of a GPU.")
		m.SetUnit("1")
		points := m.SetEmptyGauge().DataPoints()
		for gpu := range 8 {
			dp := points.AppendEmpty()
			dp.SetTimestamp(pcommon.Timestamp(1_700_000_000e9))
			dp.SetDoubleValue(float64(gpu + 1))
			dp.Attributes().PutStr("hw.id", fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a%02d", gpu))
			dp.Attributes().PutInt("gpu.index", int64(gpu))
		}
	}
	return md
}

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
		stock[i] = nodeReport()
	}
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for range 2 { // to know the report, and its order
		if err := p.ConsumeMetrics(context.Background(), nodeReport()); err != nil {
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
