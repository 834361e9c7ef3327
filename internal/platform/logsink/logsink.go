// SPDX-License-Identifier: Apache-2.0

// Package logsink hands log records to a pipeline that may be slow or away.
package logsink // import "github.com/gpu-collector/gpu-collector/internal/platform/logsink"

import (
	"context"
	"time"

	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"
)

const (
	// A record is offered again after retryFirst, then after twice as long each time
	// up to retryMax. It is given up after retryFor, as the events of a node's agent
	// are.
	retryFirst = time.Second
	retryMax   = 30 * time.Second
	retryFor   = time.Hour
	// attemptTimeout bounds one call of the next component, and the flush at the end.
	attemptTimeout = 5 * time.Second
)

// Sink hands log records to one pipeline, oldest first, from a goroutine of
// its own: their maker waits for no log store. Each event, unlike state, counts: a newer
// one does not replace an older one.
type Sink struct {
	next    consumer.Logs
	logger  *zap.Logger
	dropped func()

	queue chan plog.Logs
	stop  chan struct{}
	done  chan struct{}
	// work ends when a shutdown has no more time.
	work   context.Context
	cancel context.CancelFunc
}

// New returns a sink with room for so many records. It calls dropped for each that it gives up.
func New(next consumer.Logs, logger *zap.Logger, room int, dropped func()) *Sink {
	return &Sink{
		next: next, logger: logger, dropped: dropped,
		queue: make(chan plog.Logs, room), stop: make(chan struct{}),
	}
}

// Offer queues one record, or counts it when there is no room.
func (s *Sink) Offer(ld plog.Logs) {
	select {
	case s.queue <- ld:
	default:
		s.dropped()
	}
}

// Start begins to hand records on.
func (s *Sink) Start() {
	s.done = make(chan struct{})
	s.work, s.cancel = context.WithCancel(context.Background())
	go s.run()
}

func (s *Sink) run() {
	defer close(s.done)
	for {
		select {
		case ld := <-s.queue:
			s.deliver(ld)
		case <-s.stop:
			for len(s.queue) > 0 {
				s.deliver(<-s.queue)
			}
			return
		}
	}
}

// deliver offers a record until it is taken, or counts one that cannot be. A shutdown ends the
// wait for the next offer.
func (s *Sink) deliver(ld plog.Logs) {
	began, ended := time.Now(), false
	for wait := retryFirst; ; wait = min(2*wait, retryMax) {
		err := s.attempt(ld)
		switch {
		case err == nil:
			return
		case ended || consumererror.IsPermanent(err) || time.Since(began)+wait > retryFor:
			s.logger.Warn("a log pipeline did not take a record", zap.Error(err))
			s.dropped()
			return
		}
		s.logger.Debug("a log pipeline did not take a record yet", zap.Error(err), zap.Duration("again_in", wait))
		select {
		case <-time.After(wait):
		case <-s.stop:
			ended = true
		}
	}
}

func (s *Sink) attempt(ld plog.Logs) error {
	ctx, cancel := context.WithTimeout(s.work, attemptTimeout)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return err
	}
	// A component behind may change what it was given.
	own := plog.NewLogs()
	ld.CopyTo(own)
	return s.next.ConsumeLogs(ctx, own)
}

// Shutdown hands on what is queued, for as long as ctx lasts. It counts the rest.
func (s *Sink) Shutdown(ctx context.Context) {
	if s.done == nil {
		return
	}
	close(s.stop)
	limited, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	defer context.AfterFunc(limited, s.cancel)()
	<-s.done
	s.cancel()
}
