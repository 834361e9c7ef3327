// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvmlreceiver

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/pdatatest/pmetrictest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// These tests go through the real ABI: go-nvml loads a libnvidia-ml.so.1 of
// ours. The linker binds its symbols once per process, so a test that needs
// another library runs in a process of its own.

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

func startFake(tb testing.TB, state *fakenvml.State) (n *node, rewrite func()) {
	tb.Helper()
	rewrite = state.Install(tb)
	library := fakenvml.Library(tb)
	return startNode(tb, func(cfg *Config) { cfg.LibraryPath = library }), rewrite
}

// awaitGoroutines waits for calls that hung to end, and with them the session
// that they kept open: the next test needs a fresh one.
func awaitGoroutines(t *testing.T, before goleak.Option) {
	t.Helper()
	var err error
	for began := time.Now(); time.Since(began) < time.Minute; {
		if err = goleak.Find(before); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// until scrapes until the GPUs are up as wanted: on a busy machine some of those that
// answer do after a short deadline.
func (n *node) until(want map[string]string) (md pmetric.Metrics) {
	n.Helper()
	require.Eventually(n, func() bool {
		md = n.scrape()
		return assert.ObjectsAreEqual(want, up(md))
	}, time.Minute, time.Millisecond)
	return md
}

func compareGolden(t *testing.T, name string, actual pmetric.Metrics) {
	t.Helper()
	path := filepath.Join("testdata", name)
	err := pmetrictest.CompareMetrics(readGolden(t, path), actual, ignoreTimes()...)
	if err != nil && *update {
		writeGolden(t, path, actual)
		return
	}
	require.NoError(t, err, "if that is meant: go test ./receiver/nvmlreceiver -run 'Models|EightGPUs' -update")
}

// A golden file is OTLP JSON written as YAML, without times.
func writeGolden(t *testing.T, path string, md pmetric.Metrics) {
	t.Helper()
	kept := pmetric.NewMetrics()
	md.CopyTo(kept)
	for _, p := range points(kept) {
		p.SetTimestamp(0)
		p.SetStartTimestamp(0)
	}
	text, err := (&pmetric.JSONMarshaler{}).MarshalMetrics(kept)
	require.NoError(t, err)
	var tree any
	require.NoError(t, json.Unmarshal(text, &tree))
	text, err = yaml.Marshal(tree)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
}

func readGolden(t *testing.T, path string) pmetric.Metrics {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var tree any
	require.NoError(t, yaml.Unmarshal(text, &tree))
	text, err = json.Marshal(tree)
	require.NoError(t, err)
	md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(text)
	require.NoError(t, err)
	return md
}

func ignoreTimes() []pmetrictest.CompareMetricsOption {
	return []pmetrictest.CompareMetricsOption{
		pmetrictest.IgnoreTimestamp(), pmetrictest.IgnoreStartTimestamp(),
		pmetrictest.IgnoreMetricsOrder(), pmetrictest.IgnoreMetricDataPointsOrder(),
	}
}

func TestFailingCallCostsItsFieldOnly(t *testing.T) {
	n, _ := startFake(t, fakenvml.NewState(2).SetGPU(0, "call.nvmlDeviceGetPowerUsage.return", int(nvml.Unknown)))
	md := n.first()
	assert.NotContains(t, values(md, "hw.power", nil), fakenvml.UUID(0))
	assert.Equal(t, upAll(2), up(md))
	metadatatest.AssertEqualReceiverNvmlCallFailures(t, n.telemetry, []metricdata.DataPoint[int64]{{
		Attributes: attribute.NewSet(attribute.String("function", "nvmlDeviceGetPowerUsage"), attribute.String("return", "unknown")),
		Value:      1,
	}}, metricdatatest.IgnoreTimestamp(), metricdatatest.IgnoreExemplars())
	duration, err := n.telemetry.GetMetric("otelcol_receiver_nvml_call_duration")
	require.NoError(t, err)
	histogram, ok := duration.Data.(metricdata.Histogram[float64])
	require.True(t, ok)
	assert.Greater(t, histogram.DataPoints[0].Count, uint64(20), "every call of a scrape is timed")
	n.shutdown()
}

func TestHangingGPU(t *testing.T) {
	state := fakenvml.NewState(2)
	rewrite := state.Install(t)
	library := fakenvml.Library(t)
	const deadline = time.Second
	before := goleak.IgnoreCurrent()
	n := startNode(t, func(cfg *Config) { cfg.LibraryPath, cfg.Deadline = library, deadline })
	n.first()
	n.until(upAll(2))

	state.SetGPU(1, "hang", "nvmlDeviceGetTemperatureV")
	rewrite()
	began := time.Now()
	md := n.scrape()
	ended := time.Now()
	assert.Equal(t, "hang", up(md)[fakenvml.UUID(1)])
	for _, p := range points(md) {
		assert.WithinRange(t, p.Timestamp().AsTime(), began, ended.Add(-deadline), "the others are of the moment that they were read")
	}
	n.shutdown()
	assert.Equal(t, 1, n.logs.FilterMessage("NVML was left as it is").Len())

	state.DeleteGPU(1, "hang")
	rewrite()
	awaitGoroutines(t, before)
}

func TestShutdownDuringAHangingScrape(t *testing.T) {
	state := fakenvml.NewState(2).SetGPU(1, "hang", "*")
	rewrite := state.Install(t)
	library := fakenvml.Library(t)
	before := goleak.IgnoreCurrent()
	n := startNode(t, func(cfg *Config) {
		cfg.LibraryPath, cfg.Deadline, cfg.CollectionInterval = library, time.Hour, time.Hour
	})
	n.shutdown()
	assert.Zero(t, n.first().DataPointCount(), "a scrape that was cut short reports no GPU")
	state.DeleteGPU(1, "hang")
	rewrite()
	awaitGoroutines(t, before)
}

func TestCountersThatGoBack(t *testing.T) {
	state := fakenvml.NewState(1).SetGPU(0, "ecc.uncorrected.volatile", 7)
	n, rewrite := startFake(t, state)
	series := map[string]string{"error.type": "uncorrected", "gpu.ecc.counter": "volatile"}
	first := point(t, n.first(), "hw.errors", series)
	state.SetGPU(0, "ecc.uncorrected.volatile", 2)
	rewrite()
	reset := point(t, n.scrape(), "hw.errors", series)
	assert.EqualValues(t, 2, reset.IntValue())
	assert.Equal(t, first.Timestamp(), reset.StartTimestamp())
	n.shutdown()
}

// BenchmarkScrape reports the CPU time of all threads, which is what a scrape
// costs the workload of the node.
func BenchmarkScrape(b *testing.B) {
	for _, gpus := range []int{1, 8, 16} {
		b.Run(fmt.Sprintf("gpus=%d", gpus), func(b *testing.B) {
			fakenvml.NewH100(gpus).Install(b)
			cfg := createDefaultConfig().(*Config)
			cfg.LibraryPath = fakenvml.Library(b)
			r, err := createMetrics(&instances{}, settings(b).Settings, cfg, consumertest.NewNop())
			require.NoError(b, err)
			points := 0
			before := cpuTime(b)
			b.ReportAllocs()
			for b.Loop() {
				md, err := r.scraper.scrape(context.Background())
				if points = md.DataPointCount(); err != nil || points == 0 {
					b.Fatalf("%d points, %v", points, err)
				}
			}
			b.StopTimer()
			b.ReportMetric((cpuTime(b)-before).Seconds()*1000/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(points), "points/op")
			require.NoError(b, r.scraper.shutdown(context.Background()))
		})
	}
}

// cpuTime is what the process has used, in user and in kernel mode.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func upAll(gpus int) map[string]string {
	out := map[string]string{}
	for i := range gpus {
		out[fakenvml.UUID(i)] = "ok"
	}
	return out
}
