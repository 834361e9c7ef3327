// SPDX-License-Identifier: Apache-2.0

package wirediffextension // import "github.com/gpu-collector/gpu-collector/extension/wirediffextension"

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensioncapabilities"
	"go.opentelemetry.io/collector/extension/extensionmiddleware"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpu-collector/gpu-collector/extension/wirediffextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/delta"
	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/steadytime"
)

// sweepsPerTTL is how often within a TTL the table is searched for what
// expired, which is so at most a quarter late.
const sweepsPerTTL = 4

var (
	_ extension.Extension            = (*wireDiff)(nil)
	_ extensionmiddleware.HTTPServer = (*wireDiff)(nil)
	_ extensionmiddleware.GRPCServer = (*wireDiff)(nil)

	_ extensioncapabilities.Dependent = (*wireDiff)(nil)
)

// wireDiff takes pushes through a state table before the receiver decodes them.
// Several receivers may share one.
type wireDiff struct {
	cfg       *Config
	table     *statetable.Table
	telemetry *metadata.TelemetryBuilder
	pushes    sync.Pool // of *push

	// epoch is what the table's time counts from, by the monotonic clock.
	epoch time.Time
	clock steadytime.Clock
	room  room

	stop    context.CancelFunc // nil before Start
	cancel  func()             // the subscription, or nil
	sweeper sync.WaitGroup
}

func newExtension(cfg *Config, set extension.Settings) (*wireDiff, error) {
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	e := &wireDiff{cfg: cfg, telemetry: tb, epoch: time.Now()}
	e.table = statetable.New(statetable.Settings{
		MaxNodes:          cfg.MaxNodes,
		MaxSeries:         cfg.MaxSeries,
		MaxSeriesPerNode:  cfg.MaxSeriesPerNode,
		ClusterShare:      cfg.ClusterShare,
		VanishedAfter:     cfg.VanishedAfter,
		OpaqueInterval:    delta.OpaqueInterval,
		WholeNodes:        cfg.Granularity == GranularityNode,
		TTL:               cfg.TTL,
		ResyncInterval:    cfg.ResyncInterval,
		HeartbeatInterval: cfg.HeartbeatInterval,
		Rand:              rand.Int64N,
		Full:              e.room.isLacking,
	})
	e.pushes.New = func() any { return newPush(cfg) }
	if err := e.observeTable(); err != nil {
		tb.Shutdown()
		return nil, err
	}
	return e, nil
}

// observeTable lets the table's own figures be read when metrics are collected.
func (e *wireDiff) observeTable() error {
	read := func(figure func(statetable.Stats) int64) metric.Int64Callback {
		return func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(figure(e.table.Stats()))
			return nil
		}
	}
	return errors.Join(
		e.telemetry.RegisterExtensionWireDiffNodesCallback(read(func(s statetable.Stats) int64 { return s.Nodes })),
		e.telemetry.RegisterExtensionWireDiffSeriesCallback(read(func(s statetable.Stats) int64 { return s.Series })),
		e.telemetry.RegisterExtensionWireDiffStalePointsCallback(read(func(s statetable.Stats) int64 { return s.Stale })),
		e.telemetry.RegisterExtensionWireDiffUnnamedSeriesCallback(read(func(s statetable.Stats) int64 { return s.Unnamed })),
		e.telemetry.RegisterExtensionWireDiffUntrackedPointsCallback(read(func(s statetable.Stats) int64 { return s.Untracked })),
		e.telemetry.RegisterExtensionWireDiffResyncsCallback(read(func(s statetable.Stats) int64 { return s.Resyncs })),
		e.telemetry.RegisterExtensionWireDiffRepeatedPointsCallback(read(func(s statetable.Stats) int64 { return s.Repeated })),
		e.telemetry.RegisterExtensionWireDiffUnrepeatablePointsCallback(read(func(s statetable.Stats) int64 { return s.Unrepeatable })),
		e.telemetry.RegisterExtensionWireDiffAskedNodesCallback(read(func(s statetable.Stats) int64 { return s.Asked })),
		e.telemetry.RegisterExtensionWireDiffEvictedNodesCallback(read(func(s statetable.Stats) int64 { return s.EvictedNodes })),
	)
}

// Dependencies implements extensioncapabilities.Dependent: the threshold
// extension is there before this one.
func (e *wireDiff) Dependencies() []component.ID {
	if e.cfg.ThresholdExtension == nil {
		return nil
	}
	return []component.ID{*e.cfg.ThresholdExtension}
}

// Start begins to listen to the next hop, and to forget what is not heard of.
func (e *wireDiff) Start(_ context.Context, host component.Host) error {
	if id := e.cfg.ThresholdExtension; id != nil {
		source, err := findSource(host, *id)
		if err != nil {
			return err
		}
		e.cancel = source.Subscribe(func(r resync.Request) { e.table.Resync(r.Cluster, r.Node) })
	}
	ctx, stop := context.WithCancel(context.Background())
	e.stop = stop
	e.sweeper.Go(func() {
		ticker := time.NewTicker(e.cfg.TTL / sweepsPerTTL)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				e.table.Sweep(time.Since(e.epoch))
			}
		}
	})
	return nil
}

// findSource returns the extension id as a resync.Source, or an error that says
// what to configure.
func findSource(host component.Host, id component.ID) (resync.Source, error) {
	ext, ok := host.GetExtensions()[id]
	if !ok {
		return nil, fmt.Errorf("`threshold_extension` is %q, which `service::extensions` does not list", id)
	}
	source, ok := ext.(resync.Source)
	if !ok {
		return nil, fmt.Errorf("`threshold_extension` is %q, must be a straggler_threshold extension", id)
	}
	return source, nil
}

// Shutdown ends what Start began.
func (e *wireDiff) Shutdown(context.Context) error {
	if e.cancel != nil {
		e.cancel()
	}
	if e.stop != nil {
		e.stop()
		e.sweeper.Wait()
	}
	e.telemetry.Shutdown()
	return nil
}
