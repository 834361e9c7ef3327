// SPDX-License-Identifier: Apache-2.0

package diffprocessor // import "github.com/gpu-collector/gpu-collector/processor/diffprocessor"

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/delta"
	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/hostextension"
	"github.com/gpu-collector/gpu-collector/internal/memorybudget"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
)

// sweepsPerTTL is how often within a TTL the table is searched for what
// expired, which is so at most a quarter late.
const sweepsPerTTL = 4

// pressedSweepsPerTTL is how often within a TTL that is while something finds no room:
// each 9.4 s with the default.
const pressedSweepsPerTTL = 64

var (
	_ processor.Metrics = (*diffProcessor)(nil)
	_ delta.Downstream  = (*diffProcessor)(nil)
)

// diffProcessor drops from each report the points that the next consumer has.
// The decisions are internal/delta's.
type diffProcessor struct {
	id        component.ID
	cfg       *Config
	next      consumer.Metrics
	engine    *delta.Engine
	telemetry *metadata.TelemetryBuilder

	buffer *delta.Buffer // nil when reports are forwarded inline
	logger *zap.Logger
	short  memorybudget.Shortages

	stop    context.CancelFunc // nil before Start
	cancels []func()           // what Start has subscribed and registered
	workers sync.WaitGroup
	flusher flusher
}

func newProcessor(cfg *Config, set processor.Settings, next consumer.Metrics) (*diffProcessor, error) {
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	p := &diffProcessor{id: set.ID, cfg: cfg, next: next, telemetry: tb, logger: set.Logger}
	table := cfg.table()
	table.OnClock = p.tellClock
	p.engine = delta.NewEngine(table, cfg.Deadbands, p)
	if cfg.FlushInterval > 0 {
		p.buffer = delta.NewBuffer(delta.Limits{
			Points:       cfg.pendingPoints(),
			ClusterShare: cfg.ClusterShare,
			// Points beyond the table's bound are forwarded each time; a node a
			// little over it loses nothing.
			NodePoints: 2 * cfg.MaxSeriesPerNode,
			BatchBytes: cfg.MaxBatchBytes,
		}, p.engine.Table.Known)
	}
	if err := p.observeTable(); err != nil {
		tb.Shutdown()
		return nil, err
	}
	return p, nil
}

// table is what the processor's table is made by.
func (c *Config) table() statetable.Settings {
	return statetable.Settings{
		MaxNodes:          c.MaxNodes,
		MaxSeries:         c.MaxSeries,
		MaxSeriesPerNode:  c.MaxSeriesPerNode,
		MaxBytes:          int(c.bytes()),
		DropOver:          c.OverLimit == OverLimitDrop,
		ClusterShare:      c.ClusterShare,
		VanishedAfter:     c.VanishedAfter,
		OpaqueInterval:    delta.OpaqueInterval,
		TTL:               c.TTL,
		ResyncInterval:    c.ResyncInterval,
		HeartbeatInterval: c.HeartbeatInterval,
		Rand:              rand.Int64N,
	}
}

// gauge is a figure that is read when metrics are collected.
func gauge(figure func() int64) metric.Int64Callback {
	return func(_ context.Context, o metric.Int64Observer) error {
		o.Observe(figure())
		return nil
	}
}

func (p *diffProcessor) observeTable() error {
	table := p.engine.Table
	read := func(figure func(statetable.Stats) int64) metric.Int64Callback {
		return gauge(func() int64 { return figure(table.Stats()) })
	}
	return errors.Join(
		p.telemetry.RegisterProcessorDiffBytesCallback(gauge(table.Bytes)),
		p.telemetry.RegisterProcessorDiffNodesCallback(read(func(s statetable.Stats) int64 { return s.Nodes })),
		p.telemetry.RegisterProcessorDiffNodesReportingCallback(gauge(func() int64 { return table.Reporting(p.engine.Time()) })),
		p.telemetry.RegisterProcessorDiffSeriesCallback(read(func(s statetable.Stats) int64 { return s.Series })),
		p.telemetry.RegisterProcessorDiffStalePointsCallback(read(func(s statetable.Stats) int64 { return s.Stale })),
		p.telemetry.RegisterProcessorDiffUnnamedSeriesCallback(read(func(s statetable.Stats) int64 { return s.Unnamed })),
		p.telemetry.RegisterProcessorDiffUntrackedPointsCallback(read(func(s statetable.Stats) int64 { return s.Untracked })),
		p.telemetry.RegisterProcessorDiffResyncsCallback(read(func(s statetable.Stats) int64 { return s.Resyncs })),
		p.telemetry.RegisterProcessorDiffRepeatedPointsCallback(read(func(s statetable.Stats) int64 { return s.Repeated })),
		p.telemetry.RegisterProcessorDiffUnrepeatablePointsCallback(read(func(s statetable.Stats) int64 { return s.Unrepeatable })),
		p.telemetry.RegisterProcessorDiffEvictedNodesCallback(read(func(s statetable.Stats) int64 { return s.EvictedNodes })),
		p.observeBuffer(),
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
	if id := p.cfg.ThresholdExtension; id != nil {
		source, err := hostextension.Find[resync.Source](host, "threshold_extension", "straggler_threshold", *id)
		if err != nil {
			return err
		}
		p.cancels = append(p.cancels, source.Subscribe(func(r resync.Request) { p.engine.Table.Resync(r.Cluster, r.Node) }))
	}
	if id := p.cfg.Exposition; id != nil {
		exposition, err := hostextension.Find[delta.Exposition](host, "exposition", "exposition", *id)
		if err != nil {
			return err
		}
		p.cancels = append(p.cancels, exposition.Register(p.id.String(), p.engine))
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	if p.buffer != nil {
		p.startFlusher()
	}
	p.workers.Go(func() {
		ticker := time.NewTicker(p.cfg.TTL / sweepsPerTTL)
		defer ticker.Stop()
		look := time.NewTicker(p.cfg.TTL / pressedSweepsPerTTL)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			case <-look.C:
				if !p.engine.Table.Pressed() {
					continue
				}
			}
			p.engine.Table.Sweep(p.engine.Time())
		}
	})
	return nil
}

// cancel ends the subscriptions.
func (p *diffProcessor) cancel() {
	for _, end := range p.cancels {
		end()
	}
	p.cancels = nil
}

func (p *diffProcessor) Shutdown(ctx context.Context) error {
	p.cancel()
	if p.stop != nil {
		p.stop()
		p.workers.Wait()
		if p.buffer != nil {
			p.stopFlusher(ctx)
		}
		p.stop = nil
	}
	p.telemetry.Shutdown()
	return nil
}

// ConsumeMetrics forwards what of md the next consumer does not have, see delta.Engine.
//
// A buffer keeps the points that it accepts until they are delivered, so it stands for
// the next consumer. Points that it cannot hold are passed on here and now, so that
// their sender learns whether they were lost.
func (p *diffProcessor) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	return p.engine.Consume(ctx, md)
}

// Deliver implements delta.Downstream.
func (p *diffProcessor) Deliver(ctx context.Context, md pmetric.Metrics, counts delta.Counts) (missed delta.Missed, err error) {
	p.telemetry.ProcessorDiffReceivedPoints.Add(ctx, counts.Received)
	if counts.Ahead > 0 {
		p.telemetry.ProcessorDiffAheadPoints.Add(ctx, counts.Ahead)
	}
	for i := range counts.Over {
		p.over(ctx, &counts.Over[i])
	}
	passes := md.ResourceMetrics().Len() > 0
	if p.buffer != nil {
		missed = p.buffer.Take(md, counts.Bytes) // what is missed is counted; the next reports bring it again
		counts.Forwarded, counts.Heartbeats = int64(md.DataPointCount()), 0
		passes = counts.Forwarded > 0
	}
	if passes {
		if err := p.next.ConsumeMetrics(ctx, md); err != nil {
			return nil, err
		}
		p.telemetry.ProcessorDiffForwardedPoints.Add(ctx, counts.Forwarded)
		p.telemetry.ProcessorDiffHeartbeats.Add(ctx, counts.Heartbeats)
	}
	if len(missed) == 0 {
		p.telemetry.ProcessorDiffVanishedSeries.Add(ctx, counts.Vanished)
	}
	return missed, nil
}

// over counts points that were dropped for want of room, and says so now and then.
func (p *diffProcessor) over(ctx context.Context, over *delta.Over) {
	cluster, tell := p.short.Note(over.Cluster, p.engine.Now())
	key := over.Limit.String()
	p.telemetry.ProcessorDiffOverLimitPoints.Add(ctx, over.Points, metric.WithAttributeSet(attribute.NewSet(
		attribute.String("cluster", cluster), attribute.String("limit", key),
	)))
	if tell {
		p.logger.Warn("points of new series or nodes are dropped: raise the limit, or the memory, or find who sends so many",
			zap.String("cluster", cluster), zap.String("limit", key), zap.Int64(key, p.cfg.limit(over.Limit)))
	}
}

// Outdated implements delta.Downstream. The next component has just said that it lacks
// the state of these nodes, so it gets their state from the table. Refused or missing
// points come with the nodes' next reports. With a buffer, the flush does it.
func (p *diffProcessor) Outdated(ctx context.Context, nodes []statetable.NodeKey) {
	if p.buffer == nil {
		p.sendHeld(ctx, nodes)
	}
}

// tellClock says so once a node, and once more when it is well again.
func (p *diffProcessor) tellClock(c *statetable.Clock) {
	off := c.Behind.Abs().Round(time.Second).String() + map[bool]string{false: " behind", true: " ahead"}[c.Behind < 0]
	fields := []zap.Field{zap.String("cluster", c.Cluster), zap.String("node", c.Node), zap.String("clock", off)}
	if c.Right {
		p.logger.Info("the clock of a node is right again", fields...)
		return
	}
	p.logger.Warn("the clock of a node is off: see whether its NTP runs. The node counts as alive by the time of receipt; its points keep their time", fields...)
}

func (p *diffProcessor) sendHeld(ctx context.Context, nodes []statetable.NodeKey) {
	for accepted := true; accepted && len(nodes) > 0; {
		report := p.engine.Table.Begin(p.engine.Time())
		var md pmetric.Metrics
		var beats int
		md, beats, nodes = delta.Held(report, nodes, p.cfg.MaxBatchBytes)
		accepted = p.sendReport(ctx, report, md, beats)
	}
}

func (p *diffProcessor) sendReport(ctx context.Context, report *statetable.Report, md pmetric.Metrics, beats int) (accepted bool) {
	defer func() { // also when the next consumer panics
		if accepted {
			report.Commit()
		} else {
			report.Abort()
		}
	}()
	points := md.DataPointCount()
	if points == 0 || p.next.ConsumeMetrics(ctx, md) != nil {
		return false
	}
	p.telemetry.ProcessorDiffForwardedPoints.Add(ctx, int64(points-beats))
	p.telemetry.ProcessorDiffHeartbeats.Add(ctx, int64(beats))
	return true
}
