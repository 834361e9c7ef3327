// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/hostextension"
	"github.com/gpu-collector/gpu-collector/internal/steadytime"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/topology"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// gateway compares nodes with their peers. Its parts are in the pipelines that
// name it: what passes there is observed, what it finds leaves by its own tick.
type gateway struct {
	cfg       *Config
	logger    *zap.Logger
	telemetry *metadata.TelemetryBuilder
	observer  *observer
	explainer *explainer // used by the ticks alone, with mu held
	reporter  reporter   // used by the ticks alone
	version   string
	decision  straggler.Decision
	publisher threshold.Publisher // nil without a threshold extension
	topology  *topology.File      // nil without a `topology_file`; used by the ticks alone
	keeper    *stateKeeper        // used by the ticks alone
	ends      []episode           // of before a restart, for the first tick to tell
	silences  silences
	id        component.ID

	mu     sync.Mutex
	engine *straggler.Engine

	clock steadytime.Clock

	outputsMu sync.Mutex
	outputs   outputs

	stop context.CancelFunc
	done sync.WaitGroup
}

func newGateway(set processor.Settings, cfg *Config) (*gateway, error) {
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	o := newObserver(cfg, newRejects(tb), set.Logger)
	engine := cfg.bounded()
	g := &gateway{
		cfg: cfg, logger: set.Logger, telemetry: tb,
		observer: o, explainer: newExplainer(cfg, o.facts),
		reporter: reporter{ids: &o.ids, minPeers: engine.MinPeers},
		keeper:   newStateKeeper(cfg, set.Logger), id: set.ID,
		decision: engine.Decision,
		version:  set.BuildInfo.Version,
		silences: silences{jobPeer: cfg.jobPeer()},
	}
	g.begin()
	return g, nil
}

// join adds an output. The service makes all parts before it starts the first.
func (g *gateway) join(add func(*outputs)) {
	g.outputsMu.Lock()
	defer g.outputsMu.Unlock()
	add(&g.outputs)
}

func (g *gateway) start(ctx context.Context, host component.Host) error {
	if g.cfg.TopologyFile != "" {
		file, err := topology.Open(g.cfg.TopologyFile)
		if err != nil {
			return fmt.Errorf("`topology_file`: %w", err)
		}
		g.topology = file
		g.engine.Place(file.Table())
		g.logger.Info("topology file read", zap.String("file", g.cfg.TopologyFile), zap.Int("nodes", len(file.Table())))
	}
	g.silences.join(host)
	if g.cfg.ThresholdExtension == nil {
		g.logger.Warn("no `threshold_extension`: thresholds are computed, but no node gets to know them")
	} else {
		p, err := hostextension.Find[threshold.Publisher](host, "threshold_extension", "straggler_threshold", *g.cfg.ThresholdExtension)
		if err != nil {
			return err
		}
		g.publisher = p
	}
	g.join(func(o *outputs) {
		switch {
		case len(o.metrics) == 0:
			g.logger.Warn("no metrics pipeline names this processor: there are no nodes to compare")
		case len(o.logs) == 0:
			g.logger.Info("no logs pipeline names this processor: episodes are told in this log only")
		}
	})
	if err := g.resume(ctx, host); err != nil {
		return err
	}
	ticks, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	g.observer.reader.Join()
	g.done.Go(func() { g.run(ticks) })
	return nil
}

// halt ends the ticks.
func (g *gateway) halt(ctx context.Context) {
	if g.stop != nil {
		g.stop()
		g.done.Wait()
		g.stop = nil
		g.stopKeeping(ctx)
	}
}

func (g *gateway) close() error {
	g.observer.reader.Leave()
	g.telemetry.Shutdown()
	return nil
}

func (g *gateway) observe(ctx context.Context, md pmetric.Metrics, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.observer.takeOut(ctx, md)
	g.observer.observe(ctx, g.engine, md, now)
}

func (g *gateway) run(ctx context.Context) {
	interval := g.cfg.PushInterval
	if a := g.keeper.active; a == nil || a.Holds() {
		// Those of nodes at once: an alert without delay would not wait for a tick.
		md := pmetric.NewMetrics()
		if g.silences.tick(md, &straggler.Report{At: g.clock.Now()}); md.DataPointCount() > 0 {
			g.offer(ctx, []pmetric.Metrics{md})
		}
	}
	// The nodes have an interval to push in.
	next := multiple(g.clock.Now().Add(2*interval-1), interval)
	timer := time.NewTimer(next.Sub(g.clock.Now()))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if now := g.clock.Now(); !now.Before(next) {
			at := multiple(now, interval)
			if a := g.keeper.active; a != nil && !a.Holds() {
				// It was suspended, or is cut off: another process tells by now.
				next = at.Add(interval)
				timer.Reset(next.Sub(now))
				continue
			}
			g.offer(ctx, g.tick(ctx, at))
			next = at.Add(interval)
		}
		timer.Reset(next.Sub(g.clock.Now()))
	}
}

// multiple is the newest multiple of an interval of the wall clock. Gateways that tick
// there tell of an episode under the same id.
func multiple(now time.Time, interval time.Duration) time.Time {
	return time.Unix(0, now.UnixNano()/int64(interval)*int64(interval))
}

// offer gives every metrics pipeline the metrics of a tick, each its own.
func (g *gateway) offer(ctx context.Context, tick []pmetric.Metrics) {
	g.outputsMu.Lock()
	defer g.outputsMu.Unlock()
	for i, p := range g.outputs.metrics {
		own := tick
		if i+1 < len(g.outputs.metrics) {
			own = make([]pmetric.Metrics, len(tick))
			for i, md := range tick {
				own[i] = pmetric.NewMetrics()
				md.CopyTo(own[i])
				runtime.Gosched() // see nodesPerBatch
			}
		}
		p.offer(ctx, own)
	}
}

// tick compares, publishes, logs what changed, and returns the metrics. Only
// the comparison holds up the pushes: the report is rewritten by the next Tick
// and by nothing else, and there is one ticker.
func (g *gateway) tick(ctx context.Context, now time.Time) []pmetric.Metrics {
	began := time.Now()
	places, moved := g.reread()
	g.mu.Lock()
	if moved {
		g.engine.Place(places)
	}
	report := g.engine.Tick(now)
	g.observer.facts.sweep(now)
	nodes := g.engine.Nodes()
	found := append(slices.Clip(g.ends), g.explainer.episodes(report)...)
	g.ends = nil
	found = append(found, g.explainer.links(g.observer.ranks.links.Tick(now), report, g.observer.ranks)...)
	found = append(found, g.explainer.hangs(g.observer.ranks.hangs.Tick(now), report, g.observer.ranks)...)
	for i := range found {
		g.reporter.jobs.note(&found[i])
	}
	g.reporter.jobs.tick(report, g.observer.facts)
	g.mu.Unlock()
	took := time.Since(began)

	snap := snapshot(report, g.cfg)
	metrics := g.reporter.metrics(report)
	g.silences.tick(metrics[0], report)
	g.warn(report)
	for i := range found {
		g.announce(ctx, &found[i], now)
	}
	g.count(ctx, &report.Counters)
	g.telemetry.ProcessorStragglerTickDuration.Record(ctx, took.Seconds())
	g.telemetry.ProcessorStragglerNodes.Record(ctx, int64(nodes))
	if g.publisher != nil {
		g.publisher.Publish(snap)
	}
	g.keep(now, found)
	return metrics
}

// reread looks at the topology file, and returns its table when that is new.
func (g *gateway) reread() (t topology.Table, moved bool) {
	if g.topology == nil {
		return nil, false
	}
	moved, err := g.topology.Look()
	switch {
	case err != nil:
		g.logger.Warn("topology file cannot be read", zap.Error(err))
	case moved:
		g.logger.Info("topology file read again", zap.String("file", g.cfg.TopologyFile), zap.Int("nodes", len(g.topology.Table())))
	}
	return g.topology.Table(), moved
}

// announce tells of one event: in the log, and in the logs pipelines.
func (g *gateway) announce(ctx context.Context, ep *episode, now time.Time) {
	ep.tell(g.logger)
	g.telemetry.ProcessorStragglerEpisodes.Add(ctx, 1, metric.WithAttributeSet(attribute.NewSet(
		attribute.String("phase", ep.Kind.String()), attribute.String("subject", ep.Subject.String()))))
	g.outputsMu.Lock()
	defer g.outputsMu.Unlock()
	for _, sink := range g.outputs.logs {
		ld := ep.record(&g.observer.ids, g.version, now)
		g.silences.stamp(ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Attributes(), ep.scope(&g.silences), now)
		sink.offer(ep.Cluster, ld)
	}
}

// count adds up what the engine did not take at its word.
func (g *gateway) count(ctx context.Context, c *straggler.Counters) {
	t := g.telemetry
	for _, add := range [...]struct {
		to metric.Int64Counter
		n  int64
	}{
		{t.ProcessorStragglerGroupChanges, c.GroupChanges},
		{t.ProcessorStragglerReclaimedClusters, c.ReclaimedClusters},
		{t.ProcessorStragglerContested, c.Contested},
		{t.ProcessorStragglerStuck, c.Stuck},
		{t.ProcessorStragglerFlapping, c.Flapping},
		{t.ProcessorStragglerFolded, c.Folded},
	} {
		if add.n > 0 {
			add.to.Add(ctx, add.n)
		}
	}
}

// snapshot turns a report into what the extension serves.
func snapshot(r *straggler.Report, cfg *Config) *threshold.Snapshot {
	snap := &threshold.Snapshot{At: r.At, TTL: cfg.ttl(), Clusters: make(map[string]*threshold.Cluster)}
	for i := range r.Groups {
		gr := &r.Groups[i]
		v := threshold.Of(gr, r.At, cfg.Gateway.K, cfg.ttl())
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

// warn tells when a threshold stands still. With decision cusum nobody is
// judged by it, and an incident says the same.
func (g *gateway) warn(r *straggler.Report) {
	if g.decision != straggler.DecisionThreshold {
		return
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
