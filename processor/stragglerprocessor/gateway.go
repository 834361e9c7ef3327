// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/detect/robust"
	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/hostextension"
	"github.com/gpu-collector/gpu-collector/internal/platform/statefile"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// gateway compares nodes with their peers. Its parts are in the pipelines that
// name it: what passes there is observed, what it finds leaves by its own tick.
type gateway struct {
	cfg        *Config
	logger     *zap.Logger
	telemetry  *metadata.TelemetryBuilder
	observer   *observer
	explainer  *explainer // used by the ticks alone, with mu held
	reporter   reporter   // used by the ticks alone
	mismatches mismatches // used by the ticks alone
	recorded   bool       // an episode since the state was written; used by the ticks alone
	id         component.ID
	version    string
	publisher  threshold.Publisher // nil without a threshold extension

	mu     sync.Mutex
	engine *straggler.Engine
	ticked atomic.Bool
	keeper *statefile.Keeper

	clock reading.Clock

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
	return &gateway{
		cfg: cfg, logger: set.Logger, telemetry: tb,
		observer: o, explainer: newExplainer(cfg, &o.views),
		reporter: reporter{ids: &o.ids},
		engine:   straggler.New(cfg.bounded()),
		id:       set.ID,
		version:  set.BuildInfo.Version,
	}, nil
}

// join adds an output. The service makes all parts before it starts the first.
func (g *gateway) join(add func(*outputs)) {
	g.outputsMu.Lock()
	defer g.outputsMu.Unlock()
	add(&g.outputs)
}

func (g *gateway) start(host component.Host) (err error) {
	if g.cfg.ThresholdExtension == nil {
		g.logger.Warn("no `threshold_extension`: thresholds are computed, but no node gets to know them")
	} else if g.publisher, err = hostextension.Find[threshold.Publisher](host, "threshold_extension", "straggler_threshold", *g.cfg.ThresholdExtension); err != nil {
		return err
	}
	if g.cfg.FleetViewExtension == nil {
		g.logger.Info("no `fleet_view_extension`: verdicts have no reason and no cost in GPU-hours, and nodes with fewer GPUs than their peers are not found")
	} else {
		source, err := hostextension.Find[fleetstate.Source](host, "fleet_view_extension", "fleet_view", *g.cfg.FleetViewExtension)
		if err != nil {
			return err
		}
		g.observer.views.store = source.State()
	}
	g.join(func(o *outputs) {
		switch {
		case len(o.metrics) == 0:
			g.logger.Warn("no metrics pipeline names this processor: there are no nodes to compare")
		case len(o.logs) == 0:
			g.logger.Info("no logs pipeline names this processor: episodes are written to this log only")
		}
	})
	g.keeper = statefile.Start(g.cfg.StateDirectory, g.id.String(), stateForm, g, g.clock.Now(), g.logger)
	ctx, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	g.observer.reader.Join()
	g.done.Go(func() { g.run(ctx) })
	return nil
}

// halt ends the ticks.
func (g *gateway) halt() {
	if g.stop != nil {
		g.stop()
		g.done.Wait()
	}
}

func (g *gateway) close() error {
	g.observer.reader.Leave()
	g.telemetry.Shutdown()
	g.keeper.Shutdown()
	return nil
}

func (g *gateway) observe(ctx context.Context, md pmetric.Metrics, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.observer.takeOut(ctx, md)
	g.observer.observe(ctx, g.engine, md, now)
}

func (g *gateway) run(ctx context.Context) {
	ticker := time.NewTicker(g.cfg.PushInterval)
	defer ticker.Stop()
	kept := g.clock.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			now := g.clock.Now()
			g.offer(ctx, g.tick(ctx, now))
			if g.recorded || now.Sub(kept) >= keepEach {
				kept, g.recorded = now, false
				g.keeper.Changed()
			}
		}
	}
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
	g.mu.Lock()
	events, slow := g.observer.ranks.Tick(g.engine, now)
	for err, n := range g.observer.ranks.Refused {
		g.observer.rejects.addN(ctx, err, n)
	}
	report := g.engine.Tick(now)
	g.ticked.Store(true)
	nodes := g.engine.Nodes()
	mismatches := g.mismatches.look(report, g.observer.ids.model, g.observer.views.gpus)
	report.Events, report.Open = append(report.Events, events...), append(report.Open, slow...)
	g.explainer.explain(report)
	records, open := copies(report.Events), copies(report.Open)
	g.recorded = g.recorded || len(records) > 0
	g.mu.Unlock()
	took := time.Since(began)

	snap := snapshot(report, g.cfg)
	snap.Standing = g.standing
	metrics := g.reporter.metrics(report)
	for i := range mismatches {
		mismatches[i].log(g.logger)
	}
	for i := range records {
		g.announce(ctx, &records[i], now)
	}
	g.observer.views.show(records, open)
	g.count(ctx, &report.Counters)
	g.telemetry.ProcessorStragglerTickDuration.Record(ctx, took.Seconds())
	g.telemetry.ProcessorStragglerNodes.Record(ctx, int64(nodes))
	if g.publisher != nil {
		g.publisher.Publish(snap)
	}
	return metrics
}

// copies of episodes, which pushes may change between ticks.
func copies(list []*episode.Episode) []episode.Episode {
	all := make([]episode.Episode, len(list))
	for i, e := range list {
		all[i] = *e
	}
	return all
}

// standing looks one node up, for the extension that was asked.
func (g *gateway) standing(cluster, node string) threshold.Standing {
	g.mu.Lock()
	defer g.mu.Unlock()
	group, active, why, known := g.engine.Standing(cluster, node)
	if !known {
		return threshold.Standing{}
	}
	return threshold.Standing{Node: node, Group: group, Active: active, Needed: g.cfg.Gateway.MinPeers, Why: why}
}

// announce writes one event to the log, and to the logs pipelines.
func (g *gateway) announce(ctx context.Context, e *episode.Episode, now time.Time) {
	logEpisode(e, g.logger)
	g.telemetry.ProcessorStragglerEpisodes.Add(ctx, 1, metric.WithAttributeSet(attribute.NewSet(
		attribute.String("phase", string(e.Phase)), attribute.String("subject", string(e.Subject)))))
	g.outputsMu.Lock()
	defer g.outputsMu.Unlock()
	for _, sink := range g.outputs.logs {
		sink.Offer(record(e, &g.observer.ids, g.version, now))
	}
}

// count adds the engine's counters to the telemetry.
func (g *gateway) count(ctx context.Context, c *straggler.Counters) {
	t := g.telemetry
	for _, add := range [...]struct {
		to metric.Int64Counter
		n  int64
	}{
		{t.ProcessorStragglerGroupChanges, c.GroupChanges},
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
		// A group without verdicts is published too: else its nodes would keep the last ones.
		v := threshold.Value{
			Group: gr.Group, Version: r.At.UnixMilli(), QuorumMet: gr.Quorum && gr.Valid,
			Median: gr.Median, Scale: robust.MADToSigma * gr.MAD, K: cfg.Gateway.K,
			Nodes: gr.Counts[nodesignal.StateActive], Ref: gr.Ref, TTL: cfg.ttl(),
		}
		if gr.Valid {
			v.Threshold = gr.Value
		}
		var stragglers []threshold.Verdict
		v.All, stragglers = verdictsOf(groupMembers(r.Nodes, gr.Cluster, gr.Group))
		v.Verdicts = threshold.NewVerdicts(v.Group, v.Version, stragglers)
		e, err := threshold.NewEntry(v)
		if err != nil {
			continue // a name without a wire form: no client can ask for it
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

// verdictsOf returns the verdicts on a group's nodes. judged: the gateway compares them, is
// about to, or has no verdict by intent. Else the nodes have to judge themselves.
func verdictsOf(nodes []straggler.NodeReport) (judged bool, stragglers []threshold.Verdict) {
	for i := range nodes {
		n := &nodes[i]
		switch n.Unjudged {
		case unjudged.Judged, unjudged.Noise, unjudged.Levels, unjudged.Lockstep:
			judged = true
		case unjudged.Calibrating:
			judged = judged || n.State == nodesignal.StateActive // it warms up
		}
		if !n.Straggler {
			continue
		}
		v := threshold.Verdict{Node: n.Node, Loss: max(n.Gap, 0), Signal: n.Signal}
		if n.Since.Unix() > 0 { // else it was slow before it was watched
			v.Since = n.Since
		}
		judged, stragglers = true, append(stragglers, v)
	}
	return judged, stragglers
}
