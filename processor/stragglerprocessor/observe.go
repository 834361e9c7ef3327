// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/detect/collective"
	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

var (
	errForeignCluster = errors.New("cluster is not the authenticated client's")
	errLongAttribute  = errors.New("resource attribute is longer than 4 KiB")
)

// maxAttribute is the length from which a resource attribute is counted: it
// becomes a label of every series of its node. Kubernetes stops at 63 bytes
// for a label's value, command lines are the longest in practice.
const maxAttribute = 4 << 10

// observer reads pushes into an engine.
type observer struct {
	ids identifier
	// compares are the metrics that nodes are compared by.
	compares reading.Purpose
	rejects  *rejects
	log      *zap.Logger
	reader   *metricreading.Reader
	from     metricreading.Resource // that is being read
	views    views
	starts   starts
	ranks    *collective.Tracker // of ranks
	maxNodes int
	short    memorybudget.Shortages
}

func newObserver(cfg *Config, r *rejects, log *zap.Logger) *observer {
	o := &observer{
		ids: newIdentifier(cfg), compares: reading.Verdict, rejects: r, log: log,
		reader: metricreading.New(log, r.counter), views: views{aliases: aliases{}}, starts: starts{}, ranks: collective.New(cfg.bounded()),
		maxNodes: cfg.bounded().MaxNodes,
	}
	o.reader.Drops = cfg.RefusedPoints == refusedDrop
	if cfg.ingero() {
		o.compares |= reading.Ingero
	}
	return o
}

// observe gives each resource's report of its node to the engine. It counts points that
// are not valid and leaves them out.
func (o *observer) observe(ctx context.Context, e *straggler.Engine, md pmetric.Metrics, now time.Time) {
	caller := pushheaders.CallerFromContext(ctx)
	for _, rm := range md.ResourceMetrics().All() {
		attrs := rm.Resource().Attributes()
		id, labels := o.ids.read(caller, attrs)
		o.name(id, attrs)
		o.from.Begin(o.reader, attrs, caller.Cluster, o.ids.defaultCluster)
		found := found{foreign: caller.Authenticated && id.Cluster != caller.Cluster}
		found.Cluster, found.Node, found.GroupLabels = id.Cluster, id.Node, labels
		ok := o.read(rm, &found)
		refused := o.from.Refused != [reading.NumRefusals]int64{}
		o.from.End(ctx)
		if refused && o.reader.Drops {
			drop(rm, found.Heartbeat)
		}
		if found.foreign {
			o.rejects.add(ctx, errForeignCluster)
			continue
		}
		if !ok {
			continue
		}
		for _, v := range attrs.All() {
			if v.Type() == pcommon.ValueTypeStr && len(v.Str()) > maxAttribute {
				o.rejects.add(ctx, errLongAttribute)
			}
		}
		devices := 0
		if view := o.views.node(id.Cluster, id.Node); view != nil {
			devices = len(view.GPUs)
			found.Contested = found.Contested || view.Crowded()
		}
		if found.ingero && found.HasScore && !e.Has(found.Cluster, found.Node) {
			// The first score of Ingero's agent is always about 0.27: its
			// throughput term starts at 0.
			found.HasScore, found.State = false, nodesignal.StateCalibrating
		}
		if err := e.Observe(&found.Observation, now); err != nil {
			o.rejected(ctx, found.Cluster, err, now)
			continue
		}
		o.ranks.Alive(found.Cluster, found.Node, devices, now)
		for i := range found.ranks {
			if err := found.ranks[i].report(o.ranks, id, now); err != nil {
				o.rejected(ctx, found.Cluster, err, now)
			}
		}
	}
}

// found is an observation and where it came from.
type found struct {
	nodesignal.Observation
	foreign bool // the cluster is not the authenticated client's
	// Of Ingero's agent: score is the newest point of its score, and idle is
	// set where its window had no launch.
	ingero, idle bool
	score        pmetric.NumberDataPoint
	ranks        []rankPoint
}

// read looks for a score, the signals behind it, or a heartbeat, and hands
// nothing else on. A value that cannot be used is counted and
// voids the one before: the node is alive, but there is nothing to compare it by.
func (o *observer) read(rm pmetric.ResourceMetrics, f *found) (any bool) {
	var p metricreading.Point
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			switch known := reading.ByName(m.Name()); {
			case known == nil:
			case known.For&(o.compares|reading.Ranks) != 0:
				any = o.take(f, &p, known, m, rm.Resource().Attributes()) || any
			default:
				o.from.Check(known, m)
				if known.Kind == reading.Counter && known.Subject() == reading.GPU && !f.foreign {
					f.Contested = o.starts.older(fleetstate.Key{Cluster: f.Cluster, Node: f.Node}, known, m, o.maxNodes) || f.Contested
				}
			}
		}
	}
	if f.ingero {
		o.completeIngero(f)
	}
	return any
}

// drop takes the points out of a resource whose values the catalogue refuses, and metrics
// that have none left. A report with a heartbeat has changes only, in which an
// absent point means that the last value holds: there the series end.
func drop(rm pmetric.ResourceMetrics, changes bool) {
	for _, sm := range rm.ScopeMetrics().All() {
		sm.Metrics().RemoveIf(func(m pmetric.Metric) bool {
			known := reading.ByName(m.Name())
			if known != nil {
				metricreading.Drop(known, m, changes)
			}
			return known != nil && metricreading.Count(m) == 0
		})
	}
}

// take reads a metric that nodes or ranks are compared by, and reports whether it is a sign
// of life of the node.
func (o *observer) take(f *found, p *metricreading.Point, known *reading.Metric, m pmetric.Metric, resource pcommon.Map) (any bool) {
	points, ok := o.from.Open(known, m)
	if !ok {
		return false
	}
	ofRanks := known.For&o.compares == 0
	for i := range points.Len() {
		switch refusal := o.from.Read(points.At(i), p); {
		case ofRanks && refusal == reading.Accepted:
			f.ranks = append(f.ranks, rankPointOf(p, resource))
		case !ofRanks && refusal != reading.BadSubject:
			any = f.take(p) || any
		}
	}
	return any || ofRanks && points.Len() > 0
}

// take takes a point. Its value is NaN where the series has ended, or cannot be
// used. It reports whether the point is a sign of life of the node.
func (f *found) take(p *metricreading.Point) bool {
	void := math.IsNaN(p.Value)
	switch p.Field {
	case reading.NodeHealthScore, reading.IngeroScore:
		ingero := p.Field == reading.IngeroScore
		if ingero {
			f.ingero, f.score = true, p.NumberDataPoint
		}
		if p.Ended {
			f.NoScore = !f.HasScore
			return true
		}
		f.Score, f.HasScore, f.NoScore = p.Value, !void, void
		if ingero && p.Texts[0] != "" {
			f.setState(p.Texts[0])
		}
	case reading.IngeroThroughput:
		f.idle = p.Value == 0 || p.Ended && f.idle
		return false
	case reading.NodeState:
		if p.Value != 1 { // the point with a 1 names the state
			return false
		}
		f.setState(p.Texts[0])
	case reading.NodeSignal:
		s, err := nodesignal.Parse(p.Texts[0])
		if err != nil || s == nodesignal.Score {
			return false // of a newer agent
		}
		// Behind diff, the push has no point of the others.
		if void {
			f.Gone[s] = !f.Values.Known[s]
		} else {
			f.Values.Set(s, p.Value)
		}
	case reading.Heartbeat:
		f.Heartbeat = f.Heartbeat || !void
		return !void
	default:
		return false
	}
	return true
}

// completeIngero adds what Ingero's agent sends beside its score. The point names
// peers, such as the workload type, that the resource does not.
func (o *observer) completeIngero(f *found) {
	if f.idle && f.State == nodesignal.StateActive {
		// Active without a single launch in its window: just restored or stuck
		// between jobs, not slow.
		f.State = nodesignal.StateCalibrating
	}
	for key, v := range f.score.Attributes().All() {
		o.ids.names.Complete(key, metricreading.Text(v))
	}
}

// setState takes a state that is not known for one in which a node is not to
// be compared.
func (f *found) setState(name string) {
	s, known := nodesignal.ParseState(name)
	if !known {
		s = nodesignal.StateCalibrating
	}
	f.State, f.HasState = s, true
}

// rejects counts what was not used, by reason.
type rejects struct {
	counter metric.Int64Counter
	removed metric.Int64Counter // of metrics
	sets    map[error]metric.MeasurementOption
}

// reasons are the values of the reason attribute.
var reasons = map[error]string{
	nodesignal.ErrNoCluster:      "no_cluster",
	nodesignal.ErrNoNode:         "no_node",
	nodesignal.ErrNameTooLong:    "name_too_long",
	nodesignal.ErrScoreRange:     "value_range",
	nodesignal.ErrSignalRange:    "value_range",
	fairshare.ErrFull:            "max_nodes",
	errForeignCluster:            "foreign_cluster",
	errLongAttribute:             "attribute_too_long",
	collective.ErrTooMany:        "max_communicators",
	collective.ErrTooManyClasses: "max_operations",
	collective.ErrTooManyRanks:   "max_ranks",
	errGPUs:                      "max_gpus",
	errAgentBytes:                "max_bytes",
}

func newRejects(tb *metadata.TelemetryBuilder) *rejects {
	r := &rejects{counter: tb.ProcessorStragglerRejected, removed: tb.ProcessorStragglerRemoved, sets: make(map[error]metric.MeasurementOption, len(reasons))}
	for err, name := range reasons {
		r.sets[err] = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", name)))
	}
	return r
}

// add counts err, one of the keys of reasons.
func (r *rejects) add(ctx context.Context, err error) { r.addN(ctx, err, 1) }

func (r *rejects) addN(ctx context.Context, err error, n int64) { r.counter.Add(ctx, n, r.sets[err]) }

// Why a metric was taken out of a push.
var (
	ownName = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", "own_name")))
	alike   = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", "alike")))
)

// takeOut takes the metrics out of a push that a gateway alone may write, whatever
// their type, and logs that once per cluster: no other client may publish verdicts.
func (o *observer) takeOut(ctx context.Context, md pmetric.Metrics) {
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			sm.Metrics().RemoveIf(func(m pmetric.Metric) bool {
				if !gpusemconv.IsReserved(m.Name(), m.Unit()) {
					return false
				}
				id, _ := o.ids.read(pushheaders.CallerFromContext(ctx), rm.Resource().Attributes())
				if o.reader.Once(id.Cluster, "reserved name") {
					o.log.Warn("a metric was taken out of a push: only a gateway gives names like this. Name it otherwise. A pipeline without this processor takes the verdicts of another gateway",
						zap.String("metric", pushheaders.Clip(m.Name())), zap.Strings("reserved", gpusemconv.Reserved[:]),
						zap.String("cluster", id.Cluster), zap.String("node", id.Node))
				}
				why := alike
				if reading.ByName(m.Name()) != nil {
					why = ownName
				}
				o.rejects.removed.Add(ctx, 1, why)
				return true
			})
		}
	}
}

// identifier reads identities out of resources, and writes them.
type identifier struct {
	names          identity.Names // scratch
	groupBy        []string
	model          int // of gpu.model in groupBy, -1 for none
	defaultCluster string
}

func newIdentifier(c *Config) identifier {
	return identifier{
		names: identity.New(c.GroupBy, c.ingero()), groupBy: c.GroupBy,
		model: slices.Index(c.GroupBy, gpusemconv.AttrGPUModel), defaultCluster: c.DefaultCluster,
	}
}

// read returns the node of a resource, and its labels, which are good until the next call.
func (r *identifier) read(caller pushheaders.Caller, attrs pcommon.Map) (key fleetstate.Key, labels []string) {
	metricreading.Identify(&r.names, attrs)
	return fleetstate.Key{Cluster: r.names.Cluster(caller.Cluster, r.defaultCluster), Node: r.names.Node()}, r.names.GroupLabels
}

// stamp writes an identity: what the node's score, signals and verdict carry,
// whichever of its reports led to them. A text about many nodes or groups leaves
// node or peers empty.
func (r *identifier) stamp(attrs pcommon.Map, cluster, node string, labels []string) {
	put := func(key, text string) {
		if text != "" {
			attrs.PutStr(key, text)
		}
	}
	put(gpusemconv.AttrHostName, node)
	attrs.PutStr(gpusemconv.AttrClusterName, cluster)
	for i, name := range r.groupBy[:min(len(r.groupBy), len(labels))] {
		put(name, labels[i])
	}
}
