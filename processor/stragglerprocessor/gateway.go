// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// gateway compares nodes with their peers. Data passes through untouched;
// what it finds leaves by its own tick.
type gateway struct {
	cfg       *Config
	next      consumer.Metrics
	logger    *zap.Logger
	telemetry *metadata.TelemetryBuilder
	observer  *observer
	publisher threshold.Publisher // nil without a threshold extension

	mu     sync.Mutex
	engine *straggler.Engine

	// outbox holds the newest tick's metrics until the next component has time:
	// a slow one must not keep the thresholds from being renewed.
	outbox chan pmetric.Metrics

	stop context.CancelFunc
	done sync.WaitGroup
}

var _ processor.Metrics = (*gateway)(nil)

func newGateway(set processor.Settings, cfg *Config, next consumer.Metrics) (*gateway, error) {
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	return &gateway{
		cfg: cfg, next: next, logger: set.Logger, telemetry: tb,
		observer: newObserver(cfg, newRejects(tb)),
		engine:   straggler.New(cfg.engine()),
		outbox:   make(chan pmetric.Metrics, 1),
	}, nil
}

func (g *gateway) Start(_ context.Context, host component.Host) error {
	if g.cfg.ThresholdExtension == nil {
		g.logger.Warn("no `threshold_extension`: thresholds are computed, but no node gets to know them")
	} else {
		p, err := findExtension[threshold.Publisher](host, g.cfg.ThresholdExtension)
		if err != nil {
			return err
		}
		g.publisher = p
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	g.done.Go(func() { g.run(ctx) })
	g.done.Go(func() { g.emit(ctx) })
	return nil
}

func (g *gateway) Shutdown(context.Context) error {
	if g.stop != nil {
		g.stop()
		g.done.Wait()
	}
	g.telemetry.Shutdown()
	return nil
}

// Capabilities implements processor.Metrics: gateway mode only looks.
func (*gateway) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (g *gateway) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	g.mu.Lock()
	g.observer.observe(ctx, g.engine, md, time.Now())
	g.mu.Unlock()
	return g.next.ConsumeMetrics(ctx, md)
}

func (g *gateway) run(ctx context.Context) {
	ticker := time.NewTicker(g.cfg.PushInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			g.offer(ctx, g.tick(ctx, time.Now()))
		}
	}
}

// offer puts md into the outbox in place of what is still there.
func (g *gateway) offer(ctx context.Context, md pmetric.Metrics) {
	select {
	case <-g.outbox:
		g.telemetry.ProcessorStragglerEmitFailures.Add(ctx, 1)
	default:
	}
	// There is one writer, so that there is room now.
	g.outbox <- md
}

func (g *gateway) emit(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case md := <-g.outbox:
			g.hand(ctx, md)
		}
	}
}

// hand gives one tick's metrics to the next component.
func (g *gateway) hand(ctx context.Context, md pmetric.Metrics) {
	if md.DataPointCount() == 0 {
		return
	}
	limited, cancel := context.WithTimeout(ctx, g.cfg.PushInterval)
	defer cancel()
	if err := g.next.ConsumeMetrics(limited, md); err != nil {
		g.telemetry.ProcessorStragglerEmitFailures.Add(ctx, 1)
		g.logger.Debug("the next component refused this tick's metrics; the next tick has newer ones", zap.Error(err))
	}
}

// tick compares, publishes, logs what changed, and returns the metrics. Only
// the comparison holds up the pushes: the report is rewritten by the next Tick
// and by nothing else, and there is one ticker.
func (g *gateway) tick(ctx context.Context, now time.Time) pmetric.Metrics {
	began := time.Now()
	g.mu.Lock()
	report := g.engine.Tick(now)
	nodes := g.engine.Nodes()
	g.mu.Unlock()
	took := time.Since(began)

	snap := snapshot(report, g.cfg)
	md := reportMetrics(report, &g.observer.ids)
	g.log(report)
	g.telemetry.ProcessorStragglerTickDuration.Record(ctx, took.Seconds())
	g.telemetry.ProcessorStragglerNodes.Record(ctx, int64(nodes))
	if g.publisher != nil {
		g.publisher.Publish(snap)
	}
	return md
}

// snapshot turns a report into what the extension serves.
func snapshot(r *straggler.Report, cfg *Config) *threshold.Snapshot {
	snap := &threshold.Snapshot{At: r.At, TTL: cfg.ttl(), Clusters: make(map[string]*threshold.Cluster)}
	for i := range r.Groups {
		gr := &r.Groups[i]
		if !gr.Valid && gr.Ref == 0 {
			continue
		}
		v := threshold.Value{
			Group: gr.Group, Version: r.At.UnixMilli(), QuorumMet: gr.Quorum && gr.Valid,
			Median: gr.Median, Scale: straggler.MADToSigma * gr.MAD, K: cfg.Gateway.K,
			Nodes: gr.Counts[straggler.StateActive], Ref: gr.Ref, TTL: cfg.ttl(),
		}
		if gr.Valid {
			v.Threshold = gr.Threshold
		}
		e, err := threshold.NewEntry(v)
		if err != nil {
			continue // a name without a wire form: nobody can ask for it
		}
		c := snap.Clusters[gr.Cluster]
		if c == nil {
			c = &threshold.Cluster{Groups: make(map[string]*threshold.Entry)}
			snap.Clusters[gr.Cluster] = c
		}
		switch {
		case gr.Group != "":
			c.Groups[gr.Group] = e
		case gr.Valid:
			c.Wide = e
		}
	}
	return snap
}

// log writes one line per change. The line has to make sense by itself: for
// many it is the only thing they read.
func (g *gateway) log(r *straggler.Report) {
	for i := range r.Changes {
		n := &r.Changes[i]
		fields := []zap.Field{
			zap.String("node", n.Node), zap.String("cluster", n.Cluster), zap.String("group", n.Group),
			zap.Float64("score", round(n.Score)), zap.Float64("threshold", round(n.Threshold)),
		}
		if n.Straggler {
			g.logger.Warn(fmt.Sprintf("STRAGGLER %s: score %.2f is below the threshold %.2f since %s; the %d active nodes of %s have a median of %.2f",
				oneLine(n.Node), n.Score, n.Threshold, n.Since.UTC().Format(time.RFC3339), n.Active, n.Group, n.Median), fields...)
		} else {
			g.logger.Info(fmt.Sprintf("%s is no straggler any more (%s, score %.2f)", oneLine(n.Node), n.State, n.Score), fields...)
		}
	}
	for i := range r.Groups {
		gr := &r.Groups[i]
		if gr.PanicBegan && gr.Group != "" {
			g.logger.Warn("panic mode: too many nodes fell below the threshold at once, so that the threshold is held and nobody is accused",
				zap.String("cluster", gr.Cluster), zap.String("group", gr.Group),
				zap.Int("active", gr.Counts[straggler.StateActive]), zap.Float64("median", round(gr.Median)))
		}
	}
}

// oneLine quotes a name that could forge a line of a log.
func oneLine(name string) string {
	if threshold.ValidName(name) {
		return name
	}
	return strconv.QuoteToASCII(name)
}
