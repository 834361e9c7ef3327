// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"runtime"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/sharedinstance"
)

// gateways are those of the process: one for all pipelines that name it.
type gateways = sharedinstance.Instances[*Config, *gateway]

type gatewayHandle = sharedinstance.Handle[*gateway]

// gatewayMetrics is a gateway's part in one metrics pipeline. Data passes
// through untouched; what the ticks find is added.
type gatewayMetrics struct {
	*gateway
	handle *gatewayHandle
	next   consumer.Metrics

	// outbox holds the newest tick's metrics until the next component has time:
	// a slow one must not keep the thresholds from being renewed.
	outbox chan []pmetric.Metrics
	cancel context.CancelFunc
	done   sync.WaitGroup
}

var _ processor.Metrics = (*gatewayMetrics)(nil)

func newGatewayMetrics(h *gatewayHandle, next consumer.Metrics) *gatewayMetrics {
	p := &gatewayMetrics{gateway: h.Get(), handle: h, next: next, outbox: make(chan []pmetric.Metrics, 1)}
	p.join(func(o *outputs) { o.metrics = append(o.metrics, p) })
	return p
}

// Start starts the gateway when it is the first of its parts.
func (p *gatewayMetrics) Start(_ context.Context, host component.Host) error {
	if err := p.handle.Start(func() error { return p.start(host) }); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.done.Go(func() { p.emit(ctx) })
	return nil
}

// Shutdown ends the ticks for all parts: the service ends them together, and
// the next component takes no more from here on.
func (p *gatewayMetrics) Shutdown(context.Context) error {
	p.halt()
	if p.cancel != nil {
		p.cancel()
		p.done.Wait()
	}
	return p.handle.Shutdown(p.close)
}

// Capabilities implements processor.Metrics: gateway mode only looks.
func (*gatewayMetrics) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (p *gatewayMetrics) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	p.observe(ctx, md, p.clock.Now())
	return p.next.ConsumeMetrics(ctx, md)
}

// offer puts a tick into the outbox in place of what is still there.
func (p *gatewayMetrics) offer(ctx context.Context, tick []pmetric.Metrics) {
	select {
	case <-p.outbox:
		p.telemetry.ProcessorStragglerEmitFailures.Add(ctx, 1)
	default:
	}
	// There is one writer, so that there is room now.
	p.outbox <- tick
}

func (p *gatewayMetrics) emit(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case tick := <-p.outbox:
			p.hand(ctx, tick)
		}
	}
}

// hand gives one tick's metrics to the next component, as far as it has time until
// the next tick.
func (p *gatewayMetrics) hand(ctx context.Context, tick []pmetric.Metrics) {
	limited, cancel := context.WithTimeout(ctx, p.cfg.PushInterval)
	defer cancel()
	var refused error
	for _, md := range tick {
		if md.DataPointCount() == 0 {
			continue
		}
		if err := limited.Err(); err != nil {
			refused = err
			break
		}
		if err := p.next.ConsumeMetrics(limited, md); err != nil && refused == nil {
			refused = err
		}
		runtime.Gosched() // see nodesPerBatch
	}
	if refused != nil {
		p.telemetry.ProcessorStragglerEmitFailures.Add(ctx, 1)
		p.logger.Debug("the next component refused metrics of this tick; the next tick has newer ones", zap.Error(refused))
	}
}

// gatewayLogs is a gateway's part in one logs pipeline: records pass through
// untouched, episodes are added.
type gatewayLogs struct {
	*gateway
	handle *gatewayHandle
	next   consumer.Logs
	sink   *logSink
}

var _ processor.Logs = (*gatewayLogs)(nil)

func newGatewayLogs(h *gatewayHandle, next consumer.Logs) *gatewayLogs {
	g := h.Get()
	p := &gatewayLogs{gateway: g, handle: h, next: next, sink: newLogSink(next, g.logger, func() {
		g.telemetry.ProcessorStragglerEpisodesDropped.Add(context.Background(), 1)
	})}
	p.join(func(o *outputs) { o.logs = append(o.logs, p.sink) })
	return p
}

// Start starts the gateway when it is the first of its parts.
func (p *gatewayLogs) Start(_ context.Context, host component.Host) error {
	if err := p.handle.Start(func() error { return p.start(host) }); err != nil {
		return err
	}
	p.sink.start()
	return nil
}

// Shutdown ends the ticks for all parts and hands on the episodes that wait.
func (p *gatewayLogs) Shutdown(ctx context.Context) error {
	p.halt()
	p.sink.shutdown(ctx)
	return p.handle.Shutdown(p.close)
}

// Capabilities implements processor.Logs: what passes is not looked at.
func (*gatewayLogs) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

// ConsumeLogs implements processor.Logs.
func (p *gatewayLogs) ConsumeLogs(ctx context.Context, ld plog.Logs) error {
	return p.next.ConsumeLogs(ctx, ld)
}

// outputs are the parts of a gateway that take what its ticks find.
type outputs struct {
	metrics []*gatewayMetrics
	logs    []*logSink
}
