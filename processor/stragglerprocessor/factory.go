// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"errors"
	"runtime"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/platform/logsink"
	"github.com/gpu-collector/gpu-collector/internal/platform/sharedinstance"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

type gatewayHandle = sharedinstance.Handle[*gateway]

// part is a gateway's in one pipeline: data passes through, but for metrics that only
// a gateway may write.
type part struct {
	*gateway
	handle *gatewayHandle
	begin  func()
	end    func(context.Context)
}

// Start starts the gateway when it is the first of its parts.
func (p *part) Start(_ context.Context, host component.Host) error {
	if err := p.handle.Start(func() error { return p.start(host) }); err != nil {
		return err
	}
	p.begin()
	return nil
}

// Shutdown ends the ticks for all parts: the service ends them together, and
// the next component takes no more from here on.
func (p *part) Shutdown(ctx context.Context) error {
	p.halt()
	p.end(ctx)
	return p.handle.Shutdown(p.close)
}

// Capabilities implements the processors: logs are only passed on.
func (*part) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

// gatewayMetrics is a gateway's part in one metrics pipeline; what the ticks
// find is added.
type gatewayMetrics struct {
	part
	next consumer.Metrics

	// outbox holds the newest tick's metrics until the next component has time:
	// a slow one must not keep the thresholds from being renewed.
	outbox chan []pmetric.Metrics
}

var _ processor.Metrics = (*gatewayMetrics)(nil)

func newGatewayMetrics(h *gatewayHandle, next consumer.Metrics) *gatewayMetrics {
	p := &gatewayMetrics{next: next, outbox: make(chan []pmetric.Metrics, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	p.part = part{
		h.Get(), h,
		func() { done.Go(func() { p.emit(ctx) }) },
		func(context.Context) { cancel(); done.Wait() },
	}
	p.join(func(o *outputs) { o.metrics = append(o.metrics, p) })
	return p
}

// Capabilities implements processor.Metrics: names of a gateway are taken out.
func (*gatewayMetrics) Capabilities() consumer.Capabilities {
	return consumer.Capabilities{MutatesData: true}
}

func (p *gatewayMetrics) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	p.observe(ctx, md, p.clock.Now())
	return p.next.ConsumeMetrics(ctx, md)
}

// offer puts a tick into the outbox, and drops an older one that is still there.
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

// gatewayLogs is a gateway's part in one logs pipeline; episodes are added.
type gatewayLogs struct {
	part
	next consumer.Logs
}

var _ processor.Logs = (*gatewayLogs)(nil)

// maxRecordsQueued bounds the episodes that wait for a pipeline.
const maxRecordsQueued = 1000

func newGatewayLogs(h *gatewayHandle, next consumer.Logs) *gatewayLogs {
	g := h.Get()
	sink := logsink.New(next, g.logger, maxRecordsQueued, func() {
		g.telemetry.ProcessorStragglerEpisodesDropped.Add(context.Background(), 1)
	})
	g.join(func(o *outputs) { o.logs = append(o.logs, sink) })
	return &gatewayLogs{part{g, h, sink.Start, sink.Shutdown}, next}
}

// ConsumeLogs implements processor.Logs.
func (p *gatewayLogs) ConsumeLogs(ctx context.Context, ld plog.Logs) error {
	return p.next.ConsumeLogs(ctx, ld)
}

// outputs are the parts of a gateway that take what its ticks find.
type outputs struct {
	metrics []*gatewayMetrics
	logs    []*logsink.Sink
}

// NewFactory returns the factory of the straggler processor.
func NewFactory() processor.Factory {
	// The process has one gateway for all pipelines that name it.
	shared := &sharedinstance.Instances[*Config, *gateway]{}
	acquire := func(set processor.Settings, cfg *Config) (*gatewayHandle, error) {
		return shared.Acquire(cfg, func() (*gateway, error) { return newGateway(set, cfg) })
	}
	return processor.NewFactory(metadata.Type, createDefaultConfig,
		processor.WithMetrics(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Metrics) (processor.Metrics, error) {
			if cfg := cfg.(*Config); cfg.Mode == modeAgent {
				return newAgent(set, cfg, next)
			}
			h, err := acquire(set, cfg.(*Config))
			if err != nil {
				return nil, err
			}
			return newGatewayMetrics(h, next), nil
		}, metadata.MetricsStability),
		processor.WithLogs(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Logs) (processor.Logs, error) {
			if cfg.(*Config).Mode == modeAgent {
				return nil, errors.New("`mode` is \"agent\", which adds nothing to a logs pipeline: only a processor in mode \"gateway\" belongs there")
			}
			h, err := acquire(set, cfg.(*Config))
			if err != nil {
				return nil, err
			}
			return newGatewayLogs(h, next), nil
		}, metadata.LogsStability))
}
