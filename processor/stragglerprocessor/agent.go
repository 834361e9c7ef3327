// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/detect/peergroup"
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodereport"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/platform/hostextension"
	"github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// agent scores the nodes whose data passes. It usually sees one; a replay or
// a head node sends data of many.
type agent struct {
	cfg       *Config
	nodeCfg   nodescore.Config
	plan      *nodescore.Plan
	next      consumer.Metrics
	logger    *zap.Logger
	telemetry *metadata.TelemetryBuilder
	rejects   *rejects
	reader    *metricreading.Reader
	ids       identifier
	nodeName  string
	source    threshold.Source // nil without a threshold extension
	clock     reading.Clock

	mu      sync.Mutex
	from    metricreading.Resource // scratch
	reading nodescore.Reading      // scratch
	models  []string               // scratch
	nodes   map[fleetstate.Key]*agentNode
	slots   *fairshare.Ledger[string] // by cluster
	short   memorybudget.Shortages
	swept   time.Time
}

type agentNode struct {
	fleetstate.Key
	// named are the peer attributes that its reports name. labels are the
	// same, with the model of its GPUs where no label names one.
	named, labels []string

	memory peergroup.Memory
	models peergroup.Models
	group  string
	seen   time.Time
	score  *nodescore.Node
	slots  int // that are counted
}

var _ processor.Metrics = (*agent)(nil)

func newAgent(set processor.Settings, cfg *Config, next consumer.Metrics) (*agent, error) {
	nodeCfg, _ := cfg.node() // Validate has returned its mistakes
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	rejects, plan := newRejects(tb), nodescore.NewPlan(&nodeCfg.Measures)
	// Without a name, data that names no node is passed on unscored and counted.
	_, name := cfg.OwnNode()
	return &agent{
		cfg: cfg, nodeCfg: nodeCfg, plan: plan, next: next, logger: set.Logger, telemetry: tb,
		rejects: rejects, reader: metricreading.New(set.Logger, rejects.counter), ids: newIdentifier(cfg), nodeName: name,
		nodes: make(map[fleetstate.Key]*agentNode), slots: cfg.agentSlots(plan),
	}, nil
}

func (a *agent) Start(_ context.Context, host component.Host) (err error) {
	if a.cfg.ThresholdExtension == nil {
		a.logger.Info("no `threshold_extension`: nodes judge themselves by their own past only")
	} else if a.source, err = hostextension.Find[threshold.Source](host, "threshold_extension", "straggler_threshold", *a.cfg.ThresholdExtension); err != nil {
		return err
	}
	a.reader.Join()
	return nil
}

func (a *agent) Shutdown(context.Context) error {
	a.reader.Leave()
	a.telemetry.Shutdown()
	return nil
}

// Capabilities implements processor.Metrics: the scores are added to the push.
func (*agent) Capabilities() consumer.Capabilities { return consumer.Capabilities{MutatesData: true} }

func (a *agent) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	a.score(ctx, md, a.clock.Now())
	return a.next.ConsumeMetrics(ctx, md)
}

// pending is a node that this push has readings of.
type pending struct {
	node *agentNode
	ts   pcommon.Timestamp
}

func (a *agent) score(ctx context.Context, md pmetric.Metrics, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()

	var due []pending
	changed := a.sweep(now)
	caller := pushheaders.CallerFromContext(ctx)
	for _, rm := range md.ResourceMetrics().All() {
		a.reading.Reset()
		attrs := rm.Resource().Attributes()
		a.from.Begin(a.reader, attrs, caller.Cluster, a.ids.defaultCluster)
		a.models = a.models[:0]
		ts := a.collect(rm)
		a.from.End(ctx)
		id, labels := a.ids.read(caller, attrs)
		if id.Node != "" {
			a.name(attrs, id)
		}
		if a.reading.Empty() && len(a.models) == 0 {
			continue
		}
		if id.Node == "" {
			if a.nodeName == "" {
				a.rejects.add(ctx, nodesignal.ErrNoNode)
				continue
			}
			id.Node = a.nodeName
			attrs.PutStr(gpusemconv.AttrHostName, a.nodeName)
			a.name(attrs, id)
		}
		n, fresh := a.node(ctx, id, labels, now)
		if n == nil {
			continue
		}
		changed = changed || fresh
		n.seen = now
		if a.reading.Empty() {
			continue
		}
		dropped, short := n.score.ObserveWithin(a.slots.Room(n.Cluster), &a.reading, now)
		if dropped > 0 {
			a.rejects.addN(ctx, errGPUs, int64(dropped))
		}
		if short > 0 {
			a.rejectForMemory(ctx, n.Cluster, short, now)
		}
		a.keep(n)
		if n.score.Due(now) && !slices.ContainsFunc(due, func(p pending) bool { return p.node == n }) {
			due = append(due, pending{n, ts})
		}
	}
	// Their names belong to the push.
	a.reading.Reset()
	clear(a.models[:cap(a.models)])
	if changed {
		a.claim()
	}
	for _, p := range due {
		a.evaluate(md, p, now)
		a.keep(p.node)
	}
}

// name writes the cluster of a node whose resource has none, as a job's: else one node
// would be two, of which one would be missing when the job ends.
func (*agent) name(attrs pcommon.Map, id fleetstate.Key) {
	if _, named := attrs.Get(gpusemconv.AttrClusterName); !named && id.Cluster != "" {
		attrs.PutStr(gpusemconv.AttrClusterName, id.Cluster)
	}
}

// node finds or adds the node of an identity and reports whether the claim has to
// follow. It returns nil for a node that cannot be taken.
func (a *agent) node(ctx context.Context, id fleetstate.Key, labels []string, now time.Time) (*agentNode, bool) {
	tooLong := func(s string) bool { return len(s) > pushheaders.MaxNameLength }
	if tooLong(id.Cluster) || tooLong(id.Node) || slices.ContainsFunc(labels, tooLong) {
		a.rejects.add(ctx, nodesignal.ErrNameTooLong)
		return nil, false
	}
	n := a.nodes[id]
	if n != nil {
		changed := a.regroup(n, labels, now)
		if changed {
			n.score.Restart()
			a.keep(n)
		}
		return n, changed
	}
	switch {
	case id.Cluster == "":
		a.rejects.add(ctx, nodesignal.ErrNoCluster)
		return nil, false
	case len(a.nodes) >= a.cfg.Agent.MaxNodes:
		a.rejects.add(ctx, fairshare.ErrFull)
		return nil, false
	case a.slots.Room(id.Cluster) < agentNodeSlots:
		a.rejectForMemory(ctx, id.Cluster, 1, now)
		return nil, false
	}
	n = &agentNode{
		Key:   fleetstate.Key{Cluster: strings.Clone(id.Cluster), Node: strings.Clone(id.Node)},
		score: nodescore.NewNode(&a.nodeCfg, a.plan),
		named: make([]string, len(labels)),
	}
	a.regroup(n, labels, now)
	a.keep(n)
	a.nodes[n.Key] = n
	return n, true
}

// regroup follows what a report names of a node's group, and reports whether
// that is another one now.
func (a *agent) regroup(n *agentNode, labels []string, now time.Time) bool {
	named, changed := n.memory.Merge(n.named, labels, now, a.cfg.ttl())
	if changed {
		n.named = make([]string, len(named))
		for i, p := range named {
			n.named[i] = strings.Clone(p)
		}
	}
	if a.ids.model >= 0 {
		changed = n.models.Add(a.models, now, a.cfg.ttl()) || changed
	}
	if !changed && n.group != "" {
		return false
	}
	n.labels = slices.Clone(n.named)
	if i := a.ids.model; i >= 0 && n.labels[i] == "" {
		n.labels[i] = n.models.Name
	}
	before := n.group
	n.group = peergroup.Key(n.labels)
	return n.group != before
}

// sweep forgets nodes that no longer report, and reports whether there were any.
func (a *agent) sweep(now time.Time) bool {
	if now.Sub(a.swept) < a.cfg.ttl() {
		return false
	}
	a.swept = now
	before := len(a.nodes)
	maps.DeleteFunc(a.nodes, func(_ fleetstate.Key, n *agentNode) bool {
		if now.Sub(n.seen) <= max(a.cfg.Agent.CachedTTL, a.cfg.ttl()) {
			return false
		}
		a.slots.Give(n.Cluster, n.slots)
		return true
	})
	return len(a.nodes) != before
}

// claim sets the cluster, node and groups that the pushes ask for. One connection has one
// cluster; nodes of another are judged by their own past.
func (a *agent) claim() {
	if a.source == nil {
		return
	}
	var c pushheaders.Claim
	groups := map[string]struct{}{}
	for _, key := range slices.SortedFunc(maps.Keys(a.nodes), fleetstate.Key.Compare) {
		if c.Cluster == "" {
			c.Cluster = key.Cluster
		}
		if key.Cluster != c.Cluster {
			a.logger.Warn("one agent sends data of nodes of several clusters; only those of the first get thresholds",
				zap.String("first", c.Cluster), zap.String("other", key.Cluster))
			break
		}
		c.Node = key.Node
		groups[a.nodes[key].group] = struct{}{}
	}
	if len(a.nodes) != 1 {
		c.Node = ""
	}
	c.Groups = slices.Sorted(maps.Keys(groups))
	a.source.SetClaim(c)
}

// evaluate adds what is found to the push, on a resource that is the same whichever
// report led to it. So a node has one score and not one per source.
func (a *agent) evaluate(md pmetric.Metrics, p pending, now time.Time) {
	var peers threshold.Received
	var known, reachable bool
	if a.source != nil {
		peers, known = a.source.Received(p.node.Cluster, p.node.group)
		reachable = a.source.Reachable()
	}
	res := p.node.score.Evaluate(now, p.node.Node, peers, known)
	rm := md.ResourceMetrics().AppendEmpty()
	a.ids.stamp(rm.Resource().Attributes(), p.node.Cluster, p.node.Node, p.node.labels)
	nodereport.Append(rm, metadata.ScopeName, cmp.Or(p.ts, pcommon.NewTimestampFromTime(now)), &res, reachable)
	if res.Changed {
		a.logVerdict(p.node, &res)
	}
	if p.node.score.HasUnnamedRanks() && a.reader.Once(p.node.Cluster, "ranks without a name") {
		a.logger.Warn("ranks of a job have no name, so that no verdict can name the slow rank: set gpu.job.rank on their points or resources",
			zap.String("cluster", p.node.Cluster), zap.String("node", p.node.Node))
	}
}

func (a *agent) logVerdict(n *agentNode, res *nodescore.Result) {
	fields := []zap.Field{
		zap.String("node", n.Node), zap.String("cluster", n.Cluster), zap.String("group", n.group),
		zap.Float64("score", round(res.Score)), zap.Float64("threshold", round(res.Threshold)),
		zap.Stringer("mode", res.Mode),
	}
	if v := &res.Verdict; v.Node != "" {
		fields = append(fields, zap.Float64("loss", round(v.Loss)))
		if v.Signal < nodesignal.Count {
			fields = append(fields, zap.Stringer("signal", v.Signal))
			if v.Signal != nodesignal.Throughput { // ranks in lockstep are all alike
				fields = appendSubject(fields, res.Signals.Worst[v.Signal])
			}
		}
	}
	if res.Straggler {
		if since := res.Since; !since.IsZero() { // else it has been slow for as long as it was compared
			fields = append(fields, zap.Time("since", since))
		}
		a.logger.Warn("this node takes itself for a straggler", fields...)
		return
	}
	a.logger.Info("this node no longer takes itself for a straggler", fields...)
}
