// SPDX-License-Identifier: Apache-2.0

package diffprocessor // import "github.com/gpu-collector/gpu-collector/processor/diffprocessor"

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/resync"
	"github.com/gpu-collector/gpu-collector/internal/platform/gauge"
	"github.com/gpu-collector/gpu-collector/internal/platform/hostextension"
	"github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
)

var _ processor.Metrics = (*diffProcessor)(nil)

// diffProcessor drops from each report the points that the next consumer has.
// The decisions are internal/lastvalue's.
type diffProcessor struct {
	id        component.ID
	cfg       *Config
	next      consumer.Metrics
	engine    *otlp.Engine // since Start
	telemetry *metadata.TelemetryBuilder
	logger    *zap.Logger
	short     memorybudget.Shortages

	cancels []func() // what Start has opened and subscribed
	flusher flusher
}

func newProcessor(cfg *Config, set processor.Settings, next consumer.Metrics) (*diffProcessor, error) {
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	return &diffProcessor{id: set.ID, cfg: cfg, next: next, telemetry: tb, logger: set.Logger}, nil
}

func (p *diffProcessor) observeTable() error {
	table := p.engine.Table
	read := func(figure func(lastvalue.Stats) int64) metric.Int64Callback {
		return gauge.Of(func() int64 { return figure(table.Stats()) })
	}
	return errors.Join(
		p.telemetry.RegisterProcessorDiffBytesCallback(gauge.Of(table.Bytes)),
		p.telemetry.RegisterProcessorDiffNodesCallback(read(func(s lastvalue.Stats) int64 { return s.Nodes })),
		p.telemetry.RegisterProcessorDiffNodesReportingCallback(gauge.Of(func() int64 { n, _ := table.Counts(p.engine.Time()); return n })),
		p.telemetry.RegisterProcessorDiffNodesPendingCallback(gauge.Of(func() int64 { _, n := table.Counts(p.engine.Time()); return n })),
		p.telemetry.RegisterProcessorDiffSeriesCallback(read(func(s lastvalue.Stats) int64 { return s.Series })),
		p.telemetry.RegisterProcessorDiffStalePointsCallback(read(func(s lastvalue.Stats) int64 { return s.Stale })),
		p.telemetry.RegisterProcessorDiffUnnamedSeriesCallback(read(func(s lastvalue.Stats) int64 { return s.Unnamed })),
		p.telemetry.RegisterProcessorDiffUntrackedPointsCallback(read(func(s lastvalue.Stats) int64 { return s.Untracked })),
		p.telemetry.RegisterProcessorDiffResyncsCallback(read(func(s lastvalue.Stats) int64 { return s.Resyncs })),
		p.telemetry.RegisterProcessorDiffRepeatedPointsCallback(read(func(s lastvalue.Stats) int64 { return s.Repeated })),
		p.telemetry.RegisterProcessorDiffEvictedNodesCallback(read(func(s lastvalue.Stats) int64 { return s.EvictedNodes })),
	)
}

func (*diffProcessor) Capabilities() consumer.Capabilities {
	return consumer.Capabilities{MutatesData: true}
}

func (p *diffProcessor) Start(_ context.Context, host component.Host) (err error) {
	defer func() {
		if err != nil {
			p.cancel()
		}
	}()
	owner, err := hostextension.Find[otlp.Owner](host, "table", "exposition", p.cfg.Table)
	if err != nil {
		return err
	}
	set := p.cfg.settings()
	set.OnClock = p.logClock
	engine, release, err := owner.Open(p.id.String(), set)
	if err != nil {
		return fmt.Errorf("`table` is %q: %w", p.cfg.Table, err)
	}
	p.engine, p.cancels = engine, append(p.cancels, release)
	if id := p.cfg.ThresholdExtension; id != nil {
		source, err := hostextension.Find[resync.Source](host, "threshold_extension", "straggler_threshold", *id)
		if err != nil {
			return err
		}
		p.cancels = append(p.cancels, source.Subscribe(engine.Table.Resync))
	}
	if err := p.observeTable(); err != nil {
		return err
	}
	if p.cfg.FlushInterval > 0 {
		p.startFlusher()
	}
	return nil
}

// cancel ends the subscriptions, and gives the table back.
func (p *diffProcessor) cancel() {
	for _, end := range slices.Backward(p.cancels) {
		end()
	}
	p.cancels = nil
}

func (p *diffProcessor) Shutdown(ctx context.Context) error {
	if p.flusher.ending != nil {
		p.stopFlusher(ctx)
		p.flusher.ending = nil
	}
	p.cancel()
	p.telemetry.Shutdown()
	return nil
}

// ConsumeMetrics forwards what of md the next consumer does not have, see otlp.Engine. With
// `flush_interval` only what the table cannot make goes on here and now, so that the sender
// learns what becomes of it.
func (p *diffProcessor) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	counts, err := p.engine.Consume(ctx, md, p.send)
	p.telemetry.ProcessorDiffReceivedPoints.Add(ctx, counts.Received)
	if counts.Ahead > 0 {
		p.telemetry.ProcessorDiffAheadPoints.Add(ctx, counts.Ahead)
	}
	for over, points := range counts.Over {
		p.over(ctx, over, points)
	}
	return err
}

// send is otlp.Send.
func (p *diffProcessor) send(ctx context.Context, m otlp.Message) error {
	if err := p.next.ConsumeMetrics(ctx, m.Metrics); err != nil {
		return err
	}
	p.telemetry.ProcessorDiffForwardedPoints.Add(ctx, m.Points-m.Heartbeats)
	p.telemetry.ProcessorDiffHeartbeats.Add(ctx, m.Heartbeats)
	p.telemetry.ProcessorDiffVanishedSeries.Add(ctx, m.Markers)
	return nil
}

// over counts points that were dropped for want of room, and logs it now and then.
func (p *diffProcessor) over(ctx context.Context, over otlp.Over, points int64) {
	cluster, logged := p.short.Note(over.Cluster, p.engine.Now())
	key := over.Limit.String()
	p.telemetry.ProcessorDiffOverLimitPoints.Add(ctx, points, metric.WithAttributeSet(attribute.NewSet(
		attribute.String("cluster", cluster), attribute.String("limit", key),
	)))
	if logged {
		p.logger.Warn("points of new series or nodes are dropped: raise the limit, or the memory, or find who sends so many",
			zap.String("cluster", cluster), zap.String("node", over.Node), zap.String("metric", over.Metric), zap.String("limit", key), zap.Int64(key, p.engine.Table.Max(over.Limit)))
	}
}

// logClock logs a wrong clock once a node, and once more when it is right again.
func (p *diffProcessor) logClock(c *lastvalue.Clock) {
	off := c.Behind.Abs().Round(time.Second).String() + map[bool]string{false: " behind", true: " ahead"}[c.Behind < 0]
	fields := []zap.Field{zap.String("cluster", c.Cluster), zap.String("node", c.Node), zap.String("clock", off)}
	if c.Right {
		p.logger.Info("the clock of a node is right again", fields...)
		return
	}
	p.logger.Warn("the clock of a node is off: see whether its NTP runs. The node counts as alive by the time of receipt; its points keep their time", fields...)
}
