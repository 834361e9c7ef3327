// SPDX-License-Identifier: Apache-2.0

package standbyextension

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensioncapabilities"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/extension/standbyextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/hostextension"
	"github.com/gpu-collector/gpu-collector/internal/statecopy"
	"github.com/gpu-collector/gpu-collector/internal/webguard"
)

var (
	_ storage.Extension                     = (*standby)(nil)
	_ extensioncapabilities.Dependent       = (*standby)(nil)
	_ extensioncapabilities.PipelineWatcher = (*standby)(nil)
)

// standby waits in Start until its process is the active one: none of the components that
// come after it, and no receiver, runs in a process that stands by.
type standby struct {
	cfg       *Config
	set       extension.Settings
	telemetry *metadata.TelemetryBuilder
	name      string // of this life of the process
	lock      lock
	again     func() error // restarts the pipelines

	storage storage.Extension // nil without
	server  *http.Server
	serving sync.WaitGroup
	relay   *relay
	senders []*sender

	active, ready atomic.Bool
	split         splitBrain

	mu      sync.Mutex
	clients map[clientKey]storage.Client
	book    statecopy.Book
	from    string    // the address of the active process that this one got copies from
	relays  []string  // what that serves
	copied  time.Time // when it was heard last

	stop    context.CancelFunc
	running sync.WaitGroup
}

func newStandby(set extension.Settings, cfg *Config) (*standby, error) {
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	s := &standby{
		cfg: cfg, set: set, telemetry: tb, name: host + "_" + rand.Text()[:8],
		clients: map[clientKey]storage.Client{}, again: hangUp,
	}
	s.split.log = set.Logger
	s.relay = newRelay(cfg.Relay, cfg.MaxConnections, s.target)
	return s, s.observe()
}

// observe registers the gauges.
func (s *standby) observe() error {
	flag := func(is func() bool) metric.Int64Callback {
		return func(_ context.Context, o metric.Int64Observer) error {
			v := int64(0)
			if is() {
				v = 1
			}
			o.Observe(v)
			return nil
		}
	}
	return errors.Join(
		s.telemetry.RegisterExtensionStandbyActiveCallback(flag(s.active.Load)),
		s.telemetry.RegisterExtensionStandbySplitBrainCallback(flag(func() bool { return s.split.on(time.Now()) })),
		s.telemetry.RegisterExtensionStandbyRelayedConnectionsCallback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(int64(s.relay.count()))
			return nil
		}),
		s.telemetry.RegisterExtensionStandbyCopyAgeCallback(func(_ context.Context, o metric.Float64Observer) error {
			o.Observe(s.copyAge(time.Now()).Seconds())
			return nil
		}),
	)
}

// Dependencies implements extensioncapabilities.Dependent.
func (s *standby) Dependencies() []component.ID {
	if s.cfg.StorageID == nil {
		return nil
	}
	return []component.ID{*s.cfg.StorageID}
}

// Start implements component.Component. It returns once this process is the active one.
func (s *standby) Start(ctx context.Context, host component.Host) error {
	if s.cfg.StorageID != nil {
		ext, err := hostextension.Find[storage.Extension](host, "storage", "storage", *s.cfg.StorageID)
		if err != nil {
			return err
		}
		s.storage = ext
	}
	if l := s.cfg.Lock.Lease.Get(); s.cfg.Lock.Lease.HasValue() {
		lock, err := newLeaseLock(*l, s.name, s.set.Logger)
		if err != nil {
			return err
		}
		s.lock = lock
	} else {
		s.lock = newFileLock(s.cfg.Lock.File, s.name)
	}
	if err := s.serve(ctx, host); err != nil {
		return err
	}
	for i := range s.cfg.Peers {
		client, err := s.cfg.Peers[i].ToClient(ctx, host.GetExtensions(), s.set.TelemetrySettings)
		if err != nil {
			return fmt.Errorf("`peers`: %w", err)
		}
		s.senders = append(s.senders, newSender(s, s.cfg.Peers[i].Endpoint, client))
	}
	if err := s.wait(ctx); err != nil {
		return err
	}
	run, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	for _, p := range s.senders {
		s.running.Go(func() { p.run(run) })
	}
	s.running.Go(func() { s.keep(run) })
	return nil
}

// wait returns once this process holds the lock, and nobody hands connections on any more.
func (s *standby) wait(ctx context.Context) error {
	if err := s.relay.open(ctx); err != nil {
		return fmt.Errorf("`relay`: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The service is not up yet, and hears no signal: without this a process that stands by
	// after a reload would not end.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		select {
		case sig := <-signals:
			s.set.Logger.Info("This gateway ends while it stands by.")
			signal.Reset(sig)
			if self, err := os.FindProcess(os.Getpid()); err == nil {
				_ = self.Signal(sig)
			}
		case <-ctx.Done():
		}
	}()
	s.set.Logger.Info("This gateway stands by.", zap.String("name", s.name))
	if err := s.lock.acquire(ctx); err != nil {
		return errors.Join(err, s.relay.close())
	}
	s.mu.Lock() // a copy that comes now is taken before, or not at all
	s.active.Store(true)
	from, heard := s.from, s.copied
	s.mu.Unlock()
	s.telemetry.ExtensionStandbyTakeovers.Add(ctx, 1)
	s.set.Logger.Info("This gateway is the active one.", zap.String("name", s.name), zap.String("before", from), zap.Time("copy_of", heard))
	return s.relay.close()
}

// keep has the pipelines start anew, and so stand by, when the lock is lost.
func (s *standby) keep(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-s.lock.lost():
		s.active.Store(false)
		s.set.Logger.Error("This gateway is no longer the active one: its lock was lost. It stands by from now on.", zap.String("name", s.name))
		if err := s.again(); err != nil {
			s.set.Logger.Error("The pipelines cannot be restarted.", zap.Error(err))
		}
	}
}

// hangUp has the Collector restart its pipelines.
func hangUp() error { return syscall.Kill(os.Getpid(), syscall.SIGHUP) }

// Holds reports whether this process is the active one, and no other can be. A component
// asks before it tells something.
func (s *standby) Holds() bool { return s.active.Load() && s.lock.holds() }

// Ready implements extensioncapabilities.PipelineWatcher.
func (s *standby) Ready() error {
	s.ready.Store(true)
	return nil
}

// NotReady implements extensioncapabilities.PipelineWatcher.
func (s *standby) NotReady() error {
	s.ready.Store(false)
	return nil
}

// Shutdown implements component.Component. The standbys get the last writes before one
// of them may take over.
func (s *standby) Shutdown(ctx context.Context) error {
	var err error
	if s.stop != nil {
		if s.Holds() {
			s.flush()
		}
		s.stop()
		s.running.Wait()
	}
	s.active.Store(false)
	if s.lock != nil {
		s.lock.release(ctx)
	}
	if s.server != nil {
		if err = s.server.Shutdown(ctx); err != nil {
			err = errors.Join(err, s.server.Close())
		}
		s.serving.Wait()
	}
	err = errors.Join(err, s.relay.close())
	s.relay.end()
	s.mu.Lock()
	for _, c := range s.clients {
		err = errors.Join(err, c.Close(ctx))
	}
	clear(s.clients)
	s.mu.Unlock()
	s.telemetry.Shutdown()
	return err
}

// serve opens the server for copies and probes.
func (s *standby) serve(ctx context.Context, host component.Host) error {
	ln, err := s.cfg.HTTP.ToListener(ctx)
	if err != nil {
		return fmt.Errorf("`http::endpoint` %s cannot be listened on: %w", s.cfg.HTTP.NetAddr.Endpoint, err)
	}
	if s.server, err = s.cfg.HTTP.ToServer(ctx, host.GetExtensions(), s.set.TelemetrySettings, s.handler()); err != nil {
		return errors.Join(err, ln.Close())
	}
	webguard.EndUnasked(s.server)
	s.serving.Go(func() {
		if err := s.server.Serve(ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
			componentstatus.ReportStatus(host, componentstatus.NewPermanentErrorEvent(err))
		}
	})
	return nil
}
