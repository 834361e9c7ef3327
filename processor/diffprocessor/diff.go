// SPDX-License-Identifier: Apache-2.0

package diffprocessor // import "github.com/gpu-collector/gpu-collector/processor/diffprocessor"

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/delta"
	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/steadytime"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
)

// sweepsPerTTL is how often within a TTL the table is searched for what
// expired, which is so at most a quarter late.
const sweepsPerTTL = 4

var _ processor.Metrics = (*diffProcessor)(nil)

// diffProcessor drops from each report the points that the next consumer has.
// The decisions are internal/delta/statetable's.
type diffProcessor struct {
	cfg       *Config
	next      consumer.Metrics
	table     *statetable.Table
	telemetry *metadata.TelemetryBuilder
	scratch   sync.Pool // of *delta.Filter

	// epoch is what the table's time counts from, by the monotonic clock.
	epoch time.Time
	now   func() time.Time

	buffer *delta.Buffer // nil when reports are forwarded inline
	logger *zap.Logger

	stop    context.CancelFunc // nil before Start
	cancel  func()             // the subscription, or nil
	workers sync.WaitGroup
	flusher flusher
}

func newProcessor(cfg *Config, set processor.Settings, next consumer.Metrics) (*diffProcessor, error) {
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	p := &diffProcessor{
		cfg:       cfg,
		next:      next,
		telemetry: tb,
		epoch:     time.Now(),
		now:       new(steadytime.Clock).Now,
		logger:    set.Logger,
		table:     statetable.New(cfg.table()),
	}
	bands := deadband.NewCache(cfg.Deadbands)
	p.scratch.New = func() any {
		f := new(delta.Filter)
		f.Bands, f.WholeNodes = bands, cfg.Granularity == GranularityNode
		return f
	}
	if cfg.FlushInterval > 0 {
		p.buffer = delta.NewBuffer(delta.Limits{
			Points:       cfg.MaxPendingPoints,
			ClusterShare: cfg.ClusterShare,
			// What is beyond the table's bound is forwarded each time; a node a
			// little over it loses nothing.
			NodePoints: 2 * cfg.MaxSeriesPerNode,
			BatchBytes: cfg.MaxBatchBytes,
		}, p.table.Known)
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
		ClusterShare:      c.ClusterShare,
		VanishedAfter:     c.VanishedAfter,
		OpaqueInterval:    delta.OpaqueInterval,
		WholeNodes:        c.Granularity == GranularityNode,
		TTL:               c.TTL,
		ResyncInterval:    c.ResyncInterval,
		HeartbeatInterval: c.HeartbeatInterval,
		Rand:              rand.Int64N,
	}
}

// observeTable lets the table's own figures be read when metrics are collected.
func (p *diffProcessor) observeTable() error {
	read := func(figure func(statetable.Stats) int64) metric.Int64Callback {
		return func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(figure(p.table.Stats()))
			return nil
		}
	}
	return errors.Join(
		p.telemetry.RegisterProcessorDiffNodesCallback(read(func(s statetable.Stats) int64 { return s.Nodes })),
		p.telemetry.RegisterProcessorDiffNodesReportingCallback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(p.table.Reporting(p.now().Sub(p.epoch)))
			return nil
		}),
		p.telemetry.RegisterProcessorDiffSeriesCallback(read(func(s statetable.Stats) int64 { return s.Series })),
		p.telemetry.RegisterProcessorDiffStalePointsCallback(read(func(s statetable.Stats) int64 { return s.Stale })),
		p.telemetry.RegisterProcessorDiffUnnamedSeriesCallback(read(func(s statetable.Stats) int64 { return s.Unnamed })),
		p.telemetry.RegisterProcessorDiffUntrackedPointsCallback(read(func(s statetable.Stats) int64 { return s.Untracked })),
		p.telemetry.RegisterProcessorDiffResyncsCallback(read(func(s statetable.Stats) int64 { return s.Resyncs })),
		p.telemetry.RegisterProcessorDiffRepeatedPointsCallback(read(func(s statetable.Stats) int64 { return s.Repeated })),
		p.telemetry.RegisterProcessorDiffUnrepeatablePointsCallback(read(func(s statetable.Stats) int64 { return s.Unrepeatable })),
		p.telemetry.RegisterProcessorDiffAskedNodesCallback(read(func(s statetable.Stats) int64 { return s.Asked })),
		p.telemetry.RegisterProcessorDiffEvictedNodesCallback(read(func(s statetable.Stats) int64 { return s.EvictedNodes })),
		p.observeBuffer(),
	)
}

func (*diffProcessor) Capabilities() consumer.Capabilities {
	return consumer.Capabilities{MutatesData: true}
}

func (p *diffProcessor) Start(_ context.Context, host component.Host) error {
	if id := p.cfg.ThresholdExtension; id != nil {
		source, err := findSource(host, *id)
		if err != nil {
			return err
		}
		p.cancel = source.Subscribe(func(r resync.Request) { p.table.Resync(r.Cluster, r.Node) })
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	if p.buffer != nil {
		p.startFlusher()
	}
	p.workers.Go(func() {
		ticker := time.NewTicker(p.cfg.TTL / sweepsPerTTL)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				p.table.Sweep(p.now().Sub(p.epoch))
			}
		}
	})
	return nil
}

// findSource returns the extension id as a resync.Source, or an error that says
// what to configure.
func findSource(host component.Host, id component.ID) (resync.Source, error) {
	ext, ok := host.GetExtensions()[id]
	if !ok {
		return nil, fmt.Errorf("`threshold_extension` is %q, which `service::extensions` does not list", id)
	}
	source, ok := ext.(resync.Source)
	if !ok {
		return nil, fmt.Errorf("`threshold_extension` is %q, must be a straggler_threshold extension", id)
	}
	return source, nil
}

func (p *diffProcessor) Shutdown(ctx context.Context) error {
	if p.cancel != nil {
		p.cancel()
	}
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

// ConsumeMetrics forwards what of md the next consumer does not have, and takes
// note of it only when the next consumer accepts. Reports of different nodes
// run side by side; of two reports of one node that overlap, what both forward
// is forwarded once more by the report after them, since their order at the
// next hop is not known.
//
// With a buffer, that is the next consumer for all that it can hold: it keeps
// what it accepts until it is delivered. What it cannot hold is passed on
// here and now, so that its sender learns whether it was lost.
func (p *diffProcessor) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	outdated, err := p.reduce(ctx, md)
	if err != nil {
		return err
	}
	if p.buffer == nil {
		p.sendHeld(ctx, outdated)
		return nil
	}
	if points := md.DataPointCount(); points > 0 {
		if err := p.next.ConsumeMetrics(ctx, md); err != nil {
			return err
		}
		p.telemetry.ProcessorDiffForwardedPoints.Add(ctx, int64(points))
	}
	return nil
}

// sendHeld sends what the table has of nodes whose report the next component got as
// a difference to what it does not have, as it has just said; of nodes that reported
// since it sends nothing. What is refused, or not among it, comes with their next reports.
func (p *diffProcessor) sendHeld(ctx context.Context, nodes []statetable.NodeKey) {
	for accepted := true; accepted && len(nodes) > 0; {
		report := p.table.Begin(p.now().Sub(p.epoch))
		var md pmetric.Metrics
		var beats int
		md, beats, nodes = delta.Held(report, nodes, p.cfg.MaxBatchBytes)
		accepted = p.sendReport(ctx, report, md, beats)
	}
}

func (p *diffProcessor) sendReport(ctx context.Context, report *statetable.Report, md pmetric.Metrics, beats int) (accepted bool) {
	defer func() { // also when the next consumer panics, as in reduce
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

// reduce hands on what the next hop does not have; with a buffer, what that does
// not hold is left in md. It returns the report's nodes if the next hop said meanwhile that
// it lacks any.
func (p *diffProcessor) reduce(ctx context.Context, md pmetric.Metrics) (outdated []statetable.NodeKey, err error) {
	f := p.scratch.Get().(*delta.Filter)
	f.Now, f.Answer = p.now(), resync.AnswerOf(ctx)
	f.Report = p.table.Begin(f.Now.Sub(p.epoch))
	losses := p.table.Losses()
	// Also when the next consumer panics: a report that never ends would keep
	// its nodes for ever.
	accepted, lost := false, false
	defer func() {
		switch {
		case accepted:
			f.Report.Commit()
		case lost && !f.Answer.Lose():
			f.Report.Lose()
		default:
			f.Report.Abort()
		}
		if accepted && p.table.Losses() != losses {
			outdated = slices.Clone(f.Nodes)
		}
		f.Reset()
		p.scratch.Put(f)
	}()

	f.Filter(md)
	p.telemetry.ProcessorDiffReceivedPoints.Add(ctx, f.Received)
	if f.Ahead > 0 {
		p.telemetry.ProcessorDiffAheadPoints.Add(ctx, f.Ahead)
	}
	switch {
	case md.ResourceMetrics().Len() == 0:
	case p.buffer != nil:
		if lost = !p.buffer.Take(md); lost {
			return nil, nil // no room for all, which is counted; the next report brings it again
		}
		p.telemetry.ProcessorDiffVanishedSeries.Add(ctx, f.Vanished)
	default:
		if err := p.next.ConsumeMetrics(ctx, md); err != nil {
			return nil, err
		}
		p.telemetry.ProcessorDiffForwardedPoints.Add(ctx, f.Forwarded)
		p.telemetry.ProcessorDiffHeartbeats.Add(ctx, f.Heartbeats)
		p.telemetry.ProcessorDiffVanishedSeries.Add(ctx, f.Vanished)
	}
	accepted = true
	return nil, nil
}
