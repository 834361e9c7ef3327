// SPDX-License-Identifier: Apache-2.0

package fleetviewextension

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/extension/fleetviewextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/extension/fleetviewextension/web"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/platform/gauge"
	"github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/platform/serverguard"
)

var (
	_ extension.Extension = (*fleetViewExtension)(nil)
	_ fleetstate.Source   = (*fleetViewExtension)(nil)
)

// expireInterval is how often the store expires nodes, which stay for hours, or for a minute
// where room is short.
const expireInterval = 10 * time.Second

type fleetViewExtension struct {
	cfg       *Config
	set       extension.Settings
	telemetry *metadata.TelemetryBuilder
	state     *fleetstate.Store
	feed      *fleetstate.Feed
	history   fleethistory.History
	past      *past        // the history, where it writes
	client    *http.Client // of the history, where it asks a server
	short     memorybudget.Shortages

	api    *fleetapi.API
	server *serverguard.Server
	stop   chan struct{}
	tasks  sync.WaitGroup
}

func newExtension(set extension.Settings, cfg *Config) (*fleetViewExtension, error) {
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	state := fleetstate.New(cfg.state())
	e := &fleetViewExtension{
		cfg: cfg, set: set, telemetry: tb, state: state, feed: fleetstate.NewFeed(state),
		stop: make(chan struct{}),
	}
	e.newHistory()
	state.OnShort(e.logShortage)
	return e, nil
}

// logShortage logs once an hour that a cluster has no room left.
func (e *fleetViewExtension) logShortage(cluster string) {
	if name, due := e.short.Note(cluster, time.Now()); due {
		e.set.Logger.Warn("The fleet view drops what is new of a cluster: the cluster holds all that it may of `max_bytes`.",
			zap.String("cluster", name))
	}
}

// State implements fleetstate.Source.
func (e *fleetViewExtension) State() *fleetstate.Store { return e.state }

// Start serves API and page.
func (e *fleetViewExtension) Start(ctx context.Context, host component.Host) error {
	cfg, auth, err := withoutAuth(ctx, e.cfg.HTTP, host)
	if err != nil {
		return err
	}
	if err := e.startHistory(ctx, host); err != nil {
		return err
	}
	e.api = fleetapi.New(fleetapi.Options{
		Store: e.state, Feed: e.feed, History: e.history, Version: e.set.BuildInfo.Version, Pages: web.Handler(), Auth: auth,
		Stream: e.cfg.Stream.StreamOptions, Clients: e.cfg.Stream.MaxClients,
		Reader: reader,
	})
	allowed := e.cfg.AllowedHosts
	if auth != nil {
		allowed = []string{"*"}
	}
	// Not before: it may be called at once, and reads what is set above.
	if err := e.observe(); err != nil {
		return err
	}
	if e.server, err = serverguard.StartReaders(ctx, host, e.set.TelemetrySettings, "fleet_view", "http", &cfg, allowed, e.api); err != nil {
		return err
	}
	e.tasks.Go(e.run)
	return nil
}

// run makes frames for the watchers and expires nodes.
func (e *fleetViewExtension) run() {
	changes, expire := time.NewTicker(e.cfg.Stream.Interval), time.NewTicker(expireInterval)
	defer changes.Stop()
	defer expire.Stop()
	for {
		select {
		case <-e.stop:
			return
		case now := <-changes.C:
			e.feed.Advance(now)
		case now := <-expire.C:
			if n := e.state.Expire(now); n > 0 {
				e.set.Logger.Info("nodes forgotten, missing for `node_expiry`, or to make room", zap.Int("nodes", n))
			}
		}
	}
}

// observe registers the metrics of the store, the history and the stream.
func (e *fleetViewExtension) observe() error {
	return errors.Join(
		e.telemetry.RegisterExtensionFleetViewHistoryOkCallback(func(_ context.Context, o metric.Int64Observer) error {
			if e.cfg.History.Storage == storageNone {
				return nil
			}
			var ok int64
			if e.history.Status().Err == nil {
				ok = 1
			}
			o.Observe(ok)
			return nil
		}),
		e.telemetry.RegisterExtensionFleetViewNodesCallback(gauge.Of(func() int64 { return int64(e.state.Nodes()) })),
		e.telemetry.RegisterExtensionFleetViewStreamClientsCallback(gauge.Of(func() int64 { return int64(e.feed.Watchers()) })),
		e.telemetry.RegisterExtensionFleetViewStreamCutsCallback(gauge.Of(e.api.Cut)),
		e.telemetry.RegisterExtensionFleetViewDroppedCallback(func(_ context.Context, o metric.Int64Observer) error {
			status := e.history.Status()
			report := func(reason string, n int64) { o.Observe(n, metric.WithAttributes(attribute.String("reason", reason))) }
			if status.Dropped > 0 {
				report("history", status.Dropped)
			}
			e.state.Dropped(func(d fleetstate.Drop, n int64) { report(d.String(), n) })
			return nil
		}),
	)
}

// Shutdown ends the streams, then the server.
func (e *fleetViewExtension) Shutdown(ctx context.Context) error {
	var err error
	if e.server != nil {
		e.api.Close()
		close(e.stop)
		err = e.server.Shutdown(ctx)
		e.tasks.Wait()
	}
	err = errors.Join(err, e.stopHistory(ctx))
	e.telemetry.Shutdown()
	return err
}
