// SPDX-License-Identifier: Apache-2.0

package diffprocessor // import "github.com/gpu-collector/gpu-collector/processor/diffprocessor"

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/delta"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
)

// shutdownTimeout bounds the last flush where the Collector does not: its
// context for shutdown has no deadline. Kubernetes kills after 30 s.
const shutdownTimeout = 10 * time.Second

// flusher sends what the buffer holds, once per interval, one after another.
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
				// much to say must not hold up the others' news. The time begins with the
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
		// A flush is under way that does not end; it is told to.
		p.flusher.cancel()
		<-p.flusher.ended
	}
	if held := p.buffer.Points(); held > 0 {
		p.logger.Warn("the next component did not take the last values; their next reports will bring them again",
			zap.Int64("points", held))
	}
}

func (p *diffProcessor) flush(ctx context.Context, enough func() bool) {
	var sent []statetable.NodeKey
	held, dropped := p.buffer.Flush(delta.Hop{
		Send: func(md pmetric.Metrics, points, heartbeats int) error {
			if err := p.next.ConsumeMetrics(ctx, md); err != nil {
				return err
			}
			p.telemetry.ProcessorDiffForwardedPoints.Add(ctx, int64(points-heartbeats))
			p.telemetry.ProcessorDiffHeartbeats.Add(ctx, int64(heartbeats))
			return nil
		},
		Reads:     !p.next.Capabilities().MutatesData,
		Enough:    enough,
		Permanent: consumererror.IsPermanent,
		Sent:      func(node statetable.NodeKey) { sent = append(sent, node) },
		Forget:    p.engine.Table.ResyncNode,
	})
	p.sendHeld(ctx, sent)
	failing := held != nil || dropped != nil
	if failing {
		p.telemetry.ProcessorDiffFailedFlushes.Add(ctx, 1)
	}
	f := &p.flusher
	if held != nil && !f.holding {
		p.logger.Warn("the next component refuses; last values are held until it takes them", zap.Error(held))
	}
	if dropped != nil && !f.dropping {
		p.logger.Warn("the next component refuses some values for good, which are dropped; the next reports of their nodes are forwarded in full",
			zap.Error(dropped))
	}
	if !failing && (f.holding || f.dropping) {
		p.logger.Info("the next component takes values again")
	}
	f.holding, f.dropping = held != nil, dropped != nil
}

// observeBuffer registers the figures of the buffer, where there is one.
func (p *diffProcessor) observeBuffer() error {
	if p.buffer == nil {
		return nil
	}
	return errors.Join(
		p.telemetry.RegisterProcessorDiffPendingPointsCallback(gauge(p.buffer.Points)),
		p.telemetry.RegisterProcessorDiffReplacedPointsCallback(gauge(p.buffer.Replaced)),
		p.telemetry.RegisterProcessorDiffDroppedPointsCallback(gauge(p.buffer.Dropped)),
	)
}
