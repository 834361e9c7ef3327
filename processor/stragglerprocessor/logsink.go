// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"time"

	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
)

const (
	// maxRecordsQueued bounds the episodes that wait for a pipeline. A cluster has half of
	// what the others leave: its many episodes cost nobody else's their place.
	maxRecordsQueued = 1000
	// A record is offered again after retryFirst, then after twice as long each time
	// up to retryMax. It is given up after retryFor, as the events of a node's agent
	// are.
	retryFirst = time.Second
	retryMax   = 30 * time.Second
	retryFor   = time.Hour
	// attemptTimeout bounds one call of the next component, and the flush at the end.
	attemptTimeout = 5 * time.Second
)

// logSink hands log records to one pipeline, oldest first, from a goroutine of
// its own: the comparison waits for no log store. Events, unlike state, are
// news once, so that a newer one does not take an older one's place.
type logSink struct {
	next    consumer.Logs
	logger  *zap.Logger
	dropped func()

	queue  chan queued
	places *fairshare.Ledger[string]
	stop   chan struct{}
	done   chan struct{}
	// work ends when a shutdown has no more time.
	work   context.Context
	cancel context.CancelFunc
}

// queued is a record of a cluster.
type queued struct {
	plog.Logs
	cluster string
}

func newLogSink(next consumer.Logs, logger *zap.Logger, dropped func()) *logSink {
	return &logSink{
		next: next, logger: logger, dropped: dropped,
		queue: make(chan queued, maxRecordsQueued), stop: make(chan struct{}),
		places: fairshare.New[string](maxRecordsQueued, fairshare.Half),
	}
}

// offer queues one record of a cluster, or counts it when there is no room.
func (s *logSink) offer(cluster string, ld plog.Logs) {
	if !s.places.TakeAll(cluster, 1) {
		s.dropped()
		return
	}
	s.queue <- queued{ld, cluster} // a place is a place there
}

func (s *logSink) start() {
	s.done = make(chan struct{})
	s.work, s.cancel = context.WithCancel(context.Background())
	go s.run()
}

func (s *logSink) run() {
	defer close(s.done)
	for {
		select {
		case <-s.stop:
			s.flush()
			return
		case r := <-s.queue:
			s.places.Give(r.cluster, 1)
			if !s.deliver(r.Logs) {
				s.dropped()
			}
		}
	}
}

// deliver offers a record until it is taken, or cannot be; at a shutdown once more.
func (s *logSink) deliver(ld plog.Logs) bool {
	began := time.Now()
	for wait := retryFirst; ; wait = min(2*wait, retryMax) {
		err := s.attempt(ld)
		switch {
		case err == nil:
			return true
		case consumererror.IsPermanent(err) || time.Since(began)+wait > retryFor:
			s.logger.Warn("a log pipeline did not take an episode", zap.Error(err))
			return false
		}
		s.logger.Debug("a log pipeline did not take an episode yet", zap.Error(err), zap.Duration("again_in", wait))
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-s.stop:
			timer.Stop()
			return s.attempt(ld) == nil
		}
	}
}

func (s *logSink) attempt(ld plog.Logs) error {
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

// flush offers what is queued once.
func (s *logSink) flush() {
	for {
		select {
		case r := <-s.queue:
			s.places.Give(r.cluster, 1)
			if s.attempt(r.Logs) != nil {
				s.dropped()
			}
		default:
			return
		}
	}
}

// shutdown hands on what is queued, for as long as ctx lasts. It counts the rest.
func (s *logSink) shutdown(ctx context.Context) {
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
