// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/driver"
	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/repair"
)

// tick is how often the machine lets time pass, and stepTimeout bounds one step.
const tick, stepTimeout = time.Second, 2 * time.Minute

var (
	errNotActive = errors.New("another instance is the active one")
	errStopped   = errors.New("the actor has stopped")
	errNotKept   = errors.New("the state of repair could not be written to its storage")
)

// actor drives a machine. One goroutine owns the machine; calls to drivers are in others,
// one at a time.
type actor struct {
	cfg       *Config
	set       exporter.Settings
	log       *zap.Logger
	telemetry *metadata.TelemetryBuilder
	reader    *metricreading.Reader
	now       func() time.Time
	tick      time.Duration

	drivers []driver.Driver
	route   map[repair.Step]driver.Driver
	keep    keeper
	audit   auditor

	lease *lease // nil: this is the only instance
	times leaseTimes
	// acting is held by the worker during a call of a driver.
	acting sync.Mutex

	requests chan func(*run) error
	lead     chan *term
	cancel   context.CancelFunc
	done     []chan struct{}
	stopped  chan struct{}

	active  atomic.Bool
	open    atomic.Bool
	byState atomic.Pointer[map[repair.State]int64]
}

func newActor(cfg *Config, set exporter.Settings, now func() time.Time, tick time.Duration, times leaseTimes) (*actor, error) {
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	return &actor{
		cfg: cfg, set: set, log: set.Logger, telemetry: tb, now: now, tick: tick, times: times,
		reader:   metricreading.New(set.Logger, tb.ExporterVerdictActionsRejected),
		requests: make(chan func(*run) error), lead: make(chan *term), stopped: make(chan struct{}),
	}, nil
}

func (a *actor) start(ctx context.Context, host component.Host) error {
	if err := a.observe(); err != nil {
		return err
	}
	if err := a.keep.start(ctx, host, a.cfg, a.set.ID); err != nil {
		return err
	}
	if err := a.audit.start(ctx, host, a); err != nil {
		return errors.Join(err, a.keep.stop(ctx))
	}
	if err := a.connect(ctx, host); err != nil {
		return errors.Join(err, a.audit.stop(ctx), a.keep.stop(ctx))
	}
	life, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	r := &run{actor: a, life: life, machine: a.restore(ctx), results: make(chan func()), kept: true}
	if a.lease == nil {
		r.term = &term{ctx: life}
		a.active.Store(true)
	}
	a.spawn(r.loop)
	if a.lease != nil {
		a.spawn(func() { a.lease.elect(untilClosed(a.stopped)) }) // the last word is written before it is given up
	}
	return nil
}

// untilClosed is a context that ends when c is closed.
func untilClosed(c <-chan struct{}) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-c
		cancel()
	}()
	return ctx
}

// spawn runs f until shutdown waits for it.
func (a *actor) spawn(f func()) {
	done := make(chan struct{})
	a.done = append(a.done, done)
	go func() {
		defer close(done)
		f()
	}()
}

func (a *actor) shutdown(ctx context.Context) error {
	if a.cancel == nil {
		a.telemetry.Shutdown()
		return nil
	}
	a.cancel()
	for _, d := range a.done {
		select {
		case <-d:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	a.telemetry.Shutdown()
	return errors.Join(a.audit.stop(ctx), a.keep.stop(ctx))
}

// restore returns a machine with the state that was kept. A state that cannot be read
// opens the breaker, since the number of nodes that were acted upon is lost.
func (a *actor) restore(ctx context.Context) *repair.Machine {
	m := repair.New(a.cfg.machine())
	data, err := a.keep.load(ctx)
	if err == nil && data != nil {
		err = m.Restore(data)
	}
	if err != nil {
		a.log.Error("The state of repair cannot be read. The breaker is open until `breaker::reset` is changed.", zap.Error(err))
		m = repair.New(a.cfg.machine())
		m.Trip(repair.RuleStateLost, a.now())
	}
	if a.lease == nil { // otherwise its history may know the word
		m.ResetBreaker(a.cfg.Breaker.Reset, "configuration", a.now())
	}
	m.Listen(a.now())
	return m
}

// do runs f where the machine is, and waits for what it led to: to be audited and kept.
func (a *actor) do(ctx context.Context, f func(m *repair.Machine, now time.Time)) error {
	if !a.active.Load() {
		return errNotActive
	}
	answer := make(chan error, 1)
	request := func(r *run) error {
		f(r.machine, a.now())
		err := r.settle()
		answer <- err
		return err
	}
	select {
	case a.requests <- request:
	case <-ctx.Done():
		return ctx.Err()
	case <-a.stopped:
		return errStopped
	}
	return <-answer
}

func (a *actor) pushLogs(ctx context.Context, ld plog.Logs) error {
	return a.do(ctx, func(m *repair.Machine, now time.Time) {
		for _, rl := range ld.ResourceLogs().All() {
			cluster, node := sender(rl.Resource().Attributes())
			if cluster != a.cfg.Cluster {
				a.telemetry.ExporterVerdictActionsForeign.Add(ctx, 1)
				continue
			}
			for _, sl := range rl.ScopeLogs().All() {
				for _, lr := range sl.LogRecords().All() {
					readRecord(m, lr, rl.Resource().Attributes(), node, now)
				}
			}
		}
	})
}

func (a *actor) pushMetrics(ctx context.Context, md pmetric.Metrics) error {
	return a.do(ctx, func(m *repair.Machine, now time.Time) {
		var from metricreading.Resource
		for _, rm := range md.ResourceMetrics().All() {
			cluster, node := sender(rm.Resource().Attributes())
			if cluster != a.cfg.Cluster {
				a.telemetry.ExporterVerdictActionsForeign.Add(ctx, 1)
				continue
			}
			from.Begin(a.reader, rm.Resource().Attributes(), "", "")
			readMetrics(m, &from, rm, node, now)
			from.End(ctx)
		}
	})
}
