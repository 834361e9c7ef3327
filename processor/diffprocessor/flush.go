// SPDX-License-Identifier: Apache-2.0

package diffprocessor // import "github.com/gpu-collector/gpu-collector/processor/diffprocessor"

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// shutdownTimeout bounds the last flush where the Collector does not: its
// context for shutdown has no deadline. Kubernetes kills after 30 s.
const shutdownTimeout = 10 * time.Second

// flusher sends what waits in the table, once per interval, one after another.
type flusher struct {
	ending chan struct{}      // closed to end the loop
	ended  chan struct{}      // closed by the loop
	cancel context.CancelFunc // of a flush under way

	holding, dropping bool // in the last flush
}

func (p *diffProcessor) startFlusher() {
	ctx, cancel := context.WithCancel(context.Background())
	p.flusher = flusher{ending: make(chan struct{}), ended: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(p.flusher.ended)
		ticker := time.NewTicker(p.cfg.FlushInterval)
		defer ticker.Stop()
		for {
			select {
			case <-p.flusher.ending:
				return
			case <-ticker.C:
				// After an interval the rest waits for the next flush: a node with
				// much to send must not hold up the others' values. The time begins with the
				// first batch: to put a backlog in order takes longer than a batch.
				var began time.Time
				p.flush(ctx, func() bool {
					if began.IsZero() {
						began = time.Now()
					}
					return time.Since(began) >= p.cfg.FlushInterval
				})
			}
		}
	}()
}

// stopFlusher delivers what is held, as far as ctx allows.
func (p *diffProcessor) stopFlusher(ctx context.Context) {
	ctx, done := context.WithTimeout(ctx, shutdownTimeout)
	defer done()
	defer p.flusher.cancel()
	close(p.flusher.ending)
	select {
	case <-p.flusher.ended:
		p.flush(ctx, nil)
	case <-ctx.Done():
		// A flush is under way that does not end; its context ends.
		p.flusher.cancel()
		<-p.flusher.ended
	}
	if _, nodes := p.engine.Table.Counts(p.engine.Time()); nodes > 0 {
		p.logger.Warn("the next component did not take the last values of some nodes; their next reports bring them again",
			zap.Int64("nodes", nodes))
	}
}

func (p *diffProcessor) flush(ctx context.Context, enough func() bool) {
	done := p.engine.Flush(ctx, p.cfg.MaxBatchBytes, enough, p.send)
	p.telemetry.ProcessorDiffDroppedPoints.Add(ctx, done.Points)
	failing := done.Failed != nil || done.GaveUp != nil
	if failing {
		p.telemetry.ProcessorDiffFailedFlushes.Add(ctx, 1)
	}
	f := &p.flusher
	if done.Failed != nil && !f.holding {
		p.logger.Warn("the next component refuses; last values wait until it takes them", zap.Error(done.Failed))
	}
	if done.GaveUp != nil && !f.dropping {
		p.logger.Warn("the next component refuses some values for good, which are dropped; all of their nodes is sent again after a minute",
			zap.Error(done.GaveUp))
	}
	if !failing && (f.holding || f.dropping) {
		p.logger.Info("the next component takes values again")
	}
	f.holding, f.dropping = done.Failed != nil, done.GaveUp != nil
}
