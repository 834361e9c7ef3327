// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/scraper/scraperhelper"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadatatest"
)

// testSettings are receiver settings whose log and metrics a test can read.
type testSettings struct {
	receiver.Settings
	logs      *observer.ObservedLogs
	telemetry *componenttest.Telemetry
}

func settings(tb testing.TB) testSettings {
	tb.Helper()
	telemetry := componenttest.NewTelemetry()
	tb.Cleanup(func() { require.NoError(tb, telemetry.Shutdown(context.Background())) })
	core, logs := observer.New(zapcore.InfoLevel)
	set := metadatatest.NewSettings(telemetry)
	set.Logger = zap.New(core)
	return testSettings{Settings: set, logs: logs, telemetry: telemetry}
}

// node is a receiver that scrapes when a test asks it to.
type node struct {
	testing.TB
	testSettings
	receiver *nvmlReceiver
	ticks    chan time.Time
	reports  chan pmetric.Metrics
	cfg      *Config

	logsReceiver *nvmlReceiver
	records      consumertest.LogsSink
}

// The consumer of a signal gets nothing after that signal's shutdown, although the
// other signal still runs.
func TestNothingIsReadAfterTheFirstShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, func(cfg *Config) { cfg.LibraryPath = "/nonexistent/libnvidia-ml.so.1" })
		n.first()
		require.NoError(t, n.logsReceiver.Shutdown(context.Background()))
		select {
		case n.ticks <- time.Time{}:
			assert.Fail(t, "it still scrapes")
		case <-time.After(time.Hour): // of the bubble's clock: no reader is left
		}
		require.NoError(t, n.receiver.Shutdown(context.Background()))
	})
}

// TestTheFirstScrapeWaitsForAllPipelines: it comes with the start of the last of them, at once.
func TestTheFirstScrapeWaitsForAllPipelines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, cfg, shared := settings(t), createDefaultConfig().(*Config), &instances{}
		cfg.LibraryPath = "/nonexistent/libnvidia-ml.so.1"
		scraped := 0
		next, err := consumer.NewMetrics(func(context.Context, pmetric.Metrics) error { scraped++; return nil })
		require.NoError(t, err)
		metrics, err := createMetrics(shared, set.Settings, cfg, next)
		require.NoError(t, err)
		logs, err := createLogs(shared, set.Settings, cfg, consumertest.NewNop())
		require.NoError(t, err)
		for _, first := range []*nvmlReceiver{logs, metrics} {
			assert.Zero(t, scraped)
			require.NoError(t, first.Start(t.Context(), componenttest.NewNopHost()))
			synctest.Wait()
		}
		assert.Equal(t, 1, scraped)
		require.NoError(t, metrics.Shutdown(context.Background()))
		require.NoError(t, logs.Shutdown(context.Background()))
	})
}

// startNode starts a receiver under a fixed resource.
func startNode(tb testing.TB, change func(*Config)) *node {
	tb.Helper()
	n := &node{TB: tb, testSettings: settings(tb), ticks: make(chan time.Time), reports: make(chan pmetric.Metrics, 1)}
	n.cfg = createDefaultConfig().(*Config)
	host, id := "node-1", "0123456789abcdef0123456789abcdef"
	n.cfg.ResourceAttributes.HostName.OverrideValue = &host
	n.cfg.ResourceAttributes.HostID.OverrideValue = &id
	n.cfg.NodeName, n.cfg.Cluster = "node-1", "lab"
	n.cfg.InitialDelay = 0
	n.cfg.RetryInterval, n.cfg.Deadline = time.Nanosecond, time.Minute
	n.cfg.ProcPath, n.cfg.SysPath = filepath.Join("testdata", "host", "proc"), filepath.Join("testdata", "host", "sys")
	if change != nil {
		change(n.cfg)
	}
	next, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		n.reports <- md
		return nil
	})
	require.NoError(tb, err)
	shared := &instances{}
	n.receiver, err = createMetrics(shared, n.Settings, n.cfg, next, scraperhelper.WithTickerChannel(n.ticks))
	require.NoError(tb, err)
	logs, err := createLogs(shared, n.Settings, n.cfg, &n.records)
	require.NoError(tb, err)
	n.logsReceiver = logs
	require.NoError(tb, logs.Start(tb.Context(), componenttest.NewNopHost()))
	tb.Cleanup(func() { // for a test that failed before its own
		_ = n.receiver.Shutdown(context.Background())
		_ = logs.Shutdown(context.Background())
	})
	require.NoError(tb, n.receiver.Start(tb.Context(), componenttest.NewNopHost()))
	return n
}

// first is the report of the scrape that follows the start at once.
func (n *node) first() pmetric.Metrics { n.Helper(); return n.await() }

func (n *node) scrape() pmetric.Metrics {
	n.Helper()
	n.ticks <- time.Time{}
	return n.await()
}

func (n *node) await() pmetric.Metrics {
	n.Helper()
	select {
	case md := <-n.reports:
		return md
	case <-time.After(2 * time.Minute):
		n.Fatal("no report")
		panic("unreachable")
	}
}

func (n *node) shutdown() {
	n.Helper()
	require.NoError(n, n.receiver.Shutdown(context.Background()))
	require.NoError(n, n.logsReceiver.Shutdown(context.Background()))
}

// logRecords are the log records of the name, in the order they came.
func (n *node) logRecords(name string) []plog.LogRecord {
	var records []plog.LogRecord
	for _, ld := range n.records.AllLogs() {
		for _, rl := range ld.ResourceLogs().All() {
			for _, lr := range rl.ScopeLogs().At(0).LogRecords().All() {
				if lr.EventName() == name {
					records = append(records, lr)
				}
			}
		}
	}
	return records
}

// healthChanges are the GPU's changes of state, as from>to. They are complete
// after a shutdown.
func (n *node) healthChanges(uuid string) []string {
	var changes []string
	for _, lr := range n.logRecords(gpusemconv.EventHealthChange) {
		a := lr.Attributes().AsRaw()
		if a[gpusemconv.AttrHWID] == uuid {
			changes = append(changes, fmt.Sprintf("%v>%v", a[gpusemconv.AttrHealthFrom], a[gpusemconv.AttrHealthTo]))
		}
	}
	return changes
}

func TestNoLibrary(t *testing.T) {
	n := startNode(t, func(cfg *Config) { cfg.LibraryPath = "/nonexistent/libnvidia-ml.so.1" })
	assert.Zero(t, n.first().DataPointCount())
	for range 3 {
		assert.Zero(t, n.scrape().ResourceMetrics().Len())
	}
	n.shutdown()
	assert.Equal(t, 1, n.logs.FilterLevelExact(zapcore.WarnLevel).Len(), "%v", n.logs.All())
	assert.Zero(t, n.logs.FilterLevelExact(zapcore.ErrorLevel).Len())
}
