// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"errors"
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/rankattr"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/wire"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// Ingero's metrics and attributes (its agent's internal/health/emitter).
const (
	ingeroScore      = "ingero.node.health_score"
	ingeroThroughput = "ingero.node.throughput_ratio"
	ingeroState      = "ingero.node.state"
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
	ids     identifier
	ingero  bool
	rejects *rejects
	reader  *metricreading.Reader
	facts   *factReader
	id      identity // scratch
}

func newObserver(cfg *Config, r *rejects, log *zap.Logger) *observer {
	return &observer{ids: newIdentifier(cfg), ingero: cfg.ingero(), rejects: r, reader: metricreading.New(log), facts: newFactReader(cfg)}
}

// observe takes what each resource says about its node. What is not valid is
// counted and left out; the rest of the push still counts.
func (o *observer) observe(ctx context.Context, e *straggler.Engine, md pmetric.Metrics, now time.Time) {
	caller := wire.CallerFromContext(ctx)
	for _, rm := range md.ResourceMetrics().All() {
		attrs := rm.Resource().Attributes()
		o.ids.read(&o.id, caller, attrs)
		o.facts.begin(o.reader.Resource(attrs), &o.id, caller, now)
		found, ok := o.read(ctx, rm)
		o.facts.end(ctx, o.rejects)
		if !ok {
			continue
		}
		for _, v := range attrs.All() {
			if v.Type() == pcommon.ValueTypeStr && len(v.Str()) > maxAttribute {
				o.rejects.add(ctx, errLongAttribute)
			}
		}
		if caller.Authenticated && o.id.cluster != caller.Cluster {
			o.rejects.add(ctx, errForeignCluster)
			continue
		}
		found.Cluster, found.Node, found.Peers = o.id.cluster, o.id.node, o.id.peers
		o.fillPeers(rm)
		if found.ingero && found.HasScore && !e.Has(found.Cluster, found.Node) {
			// The first score of Ingero's agent is always about 0.27: its
			// throughput term starts at 0.
			found.HasScore, found.State = false, straggler.StateCalibrating
		}
		// The first report of a node may hold the one part of its state, the
		// second the other; a heartbeat after them means that nothing will come.
		if found.Heartbeat && !found.HasScore && !found.HasState && found.Values.Known == [nodesignal.Count]bool{} &&
			e.Wants(found.Cluster, found.Node) && resync.Ask(ctx, found.Node) {
			e.Asked(found.Cluster, found.Node)
		}
		if err := e.Observe(&found.Observation, now); err != nil {
			o.rejects.add(ctx, err)
		}
	}
}

// found is an observation and where it came from.
type found struct {
	straggler.Observation
	ingero bool
}

// read looks for a score, the signals behind it, or a heartbeat, and hands
// everything else on to the facts. A value that cannot be used is counted and
// voids the one before: the node is alive, but there is nothing to compare it by.
func (o *observer) read(ctx context.Context, rm pmetric.ResourceMetrics) (f found, any bool) {
	ingeroIdleWindow := false
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			name := m.Name()
			switch known := reading.ByName(name); {
			case known == nil && o.ingero && name == ingeroScore:
				f.ingero = f.takeScore(metricreading.Points(m), 1, ingeroState)
				any = any || f.ingero
			case known == nil && o.ingero && name == ingeroThroughput:
				if p, ok := last(metricreading.Points(m)); ok && metricreading.Number(p) == 0 {
					ingeroIdleWindow = true
				}
			case known == nil:
				o.facts.from.Foreign(name)
			case known.For&reading.Verdict != 0:
				any = o.verdict(ctx, &f, known, m) || any
			case known.For&reading.Reasons != 0:
				o.facts.take(known, m)
			}
		}
	}
	if f.HasScore && !(f.Score >= 0 && f.Score <= 1) {
		o.rejects.add(ctx, straggler.ErrScoreRange)
		f.HasScore, f.NoScore = false, true
	}
	if f.ingero && ingeroIdleWindow && f.State == straggler.StateActive {
		// Active without a single launch in its window: just restored or stuck
		// between jobs, not slow.
		f.State = straggler.StateCalibrating
	}
	return f, any
}

// verdict reads a metric that nodes are compared by. Ranges of scores and signals
// are the engine's business.
func (o *observer) verdict(ctx context.Context, f *found, known *reading.Metric, m pmetric.Metric) bool {
	metric, ok := o.facts.from.Open(known, m)
	if !ok {
		return false
	}
	switch known.Entries[0].Field {
	case reading.NodeHealthScore:
		return f.takeScore(metric.Points, metric.Scale, gpusemconv.AttrNodeState)
	case reading.NodeState:
		return f.takeState(metric.Points)
	case reading.NodeSignal:
		return o.takeSignals(ctx, f, metric.Points)
	case reading.NodeCulprit:
		return f.takeCulprit(metric.Points)
	case reading.Heartbeat:
		f.Heartbeat = true
		return true
	default:
		return false
	}
}

func (f *found) takeScore(points pmetric.NumberDataPointSlice, scale float64, stateAttr string) bool {
	p, ok := last(points)
	if !ok {
		// Without a point that has a value, it is gone.
		f.NoScore = points.Len() > 0
		return f.NoScore
	}
	f.Score, f.HasScore = scale*metricreading.Number(p), true
	if v, ok := p.Attributes().Get(stateAttr); ok {
		f.setState(v.Str())
	}
	return true
}

// takeState reads the state metric: the point with a 1 names the state.
func (f *found) takeState(points pmetric.NumberDataPointSlice) bool {
	for _, p := range points.All() {
		if v, ok := p.Attributes().Get(gpusemconv.AttrNodeState); ok && !p.Flags().NoRecordedValue() && metricreading.Number(p) == 1 {
			f.setState(v.Str())
			return true
		}
	}
	return false
}

// setState takes a state that is not known for one in which a node is not to
// be compared.
func (f *found) setState(name string) {
	s, known := straggler.ParseState(name)
	if !known {
		s = straggler.StateCalibrating
	}
	f.State, f.HasState = s, true
}

// takeSignals reads the raw signals: those that are told, and those that are
// told to be gone. Of the others the push says nothing, as behind diff.
func (o *observer) takeSignals(ctx context.Context, f *found, points pmetric.NumberDataPointSlice) (any bool) {
	for _, p := range points.All() {
		name, ok := p.Attributes().Get(gpusemconv.AttrSignal)
		if !ok {
			continue
		}
		s, err := nodesignal.Parse(name.Str())
		if err != nil || s == nodesignal.Score {
			continue // of a newer agent
		}
		any = true
		x := metricreading.Number(p)
		switch {
		case p.Flags().NoRecordedValue():
			f.Gone[s] = !f.Values.Known[s]
		case x >= 0 && !math.IsInf(x, 1):
			f.Values.Set(s, x)
		default:
			o.rejects.add(ctx, straggler.ErrSignalRange)
			f.Gone[s] = !f.Values.Known[s]
		}
	}
	return any
}

// takeCulprit reads whom of the node the node itself names.
func (f *found) takeCulprit(points pmetric.NumberDataPointSlice) (any bool) {
	for _, p := range points.All() {
		if v, ok := p.Attributes().Get(gpusemconv.AttrSignal); !ok || v.Str() != nodesignal.Throughput.String() {
			continue
		}
		any = true
		switch of := rankattr.Subject(p.Attributes()); {
		case p.Flags().NoRecordedValue():
			f.NoCulprit = of
		case metricreading.Number(p) == 1:
			f.Culprit, f.HasCulprit = of, true
		default:
			f.Culprit, f.HasCulprit = nodesignal.Subject{}, true
		}
	}
	return any
}

// fillPeers takes peer attributes that Ingero puts on the point, not on the
// resource: the workload type.
func (o *observer) fillPeers(rm pmetric.ResourceMetrics) {
	if !o.ingero {
		return
	}
	var attrs pcommon.Map
	found := false
	for i, name := range o.ids.groupBy {
		if o.id.peers[i] != "" {
			continue
		}
		if !found {
			if attrs, found = scoreAttributes(rm); !found {
				return
			}
		}
		if v, ok := attrs.Get(name); ok {
			o.id.peers[i] = metricreading.Text(v)
		}
	}
}

func scoreAttributes(rm pmetric.ResourceMetrics) (pcommon.Map, bool) {
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			if m.Name() == ingeroScore {
				if p, ok := last(metricreading.Points(m)); ok {
					return p.Attributes(), true
				}
			}
		}
	}
	return pcommon.Map{}, false
}

// last returns the newest point that has a value.
func last(points pmetric.NumberDataPointSlice) (pmetric.NumberDataPoint, bool) {
	for i := points.Len() - 1; i >= 0; i-- {
		if p := points.At(i); !p.Flags().NoRecordedValue() {
			return p, true
		}
	}
	return pmetric.NumberDataPoint{}, false
}

// rejects counts what was not used, by reason.
type rejects struct {
	telemetry *metadata.TelemetryBuilder
	sets      map[error]metric.MeasurementOption
	refusals  [reading.NumRefusals]metric.MeasurementOption
}

// reasons are the values of the reason attribute.
var reasons = map[error]string{
	straggler.ErrNoCluster:       "no_cluster",
	straggler.ErrNoNode:          "no_node",
	straggler.ErrNameTooLong:     "name_too_long",
	straggler.ErrScoreRange:      "score_range",
	straggler.ErrSignalRange:     "signal_range",
	straggler.ErrTooManyClusters: "max_clusters",
	straggler.ErrTooManyGroups:   "max_groups",
	straggler.ErrTooManyNodes:    "max_nodes",
	straggler.ErrClusterGroups:   "cluster_groups",
	straggler.ErrClusterNodes:    "cluster_nodes",
	errForeignCluster:            "foreign_cluster",
	errLongAttribute:             "attribute_too_long",
	reason.ErrName:               "fact_name",
	reason.ErrTooManyNodes:       "fact_max_nodes",
	reason.ErrClusterNodes:       "fact_cluster_nodes",
	reason.ErrTooManyDevices:     "fact_max_devices",
	errGPUs:                      "max_gpus",
}

func newRejects(tb *metadata.TelemetryBuilder) *rejects {
	r := &rejects{telemetry: tb, sets: make(map[error]metric.MeasurementOption, len(reasons))}
	for err, name := range reasons {
		r.sets[err] = because(name)
	}
	for why := range reading.NumRefusals {
		r.refusals[why] = because(why.String())
	}
	return r
}

func because(reason string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", reason)))
}

// refused counts what the catalogue refused.
func (r *rejects) refused(ctx context.Context, counts *[reading.NumRefusals]int64) {
	for why, n := range counts {
		if n > 0 {
			r.telemetry.ProcessorStragglerRejected.Add(ctx, n, r.refusals[why])
		}
	}
}

// add counts err, one of the keys of reasons.
func (r *rejects) add(ctx context.Context, err error) { r.addN(ctx, err, 1) }

func (r *rejects) addN(ctx context.Context, err error, n int64) {
	r.telemetry.ProcessorStragglerRejected.Add(ctx, n, r.sets[err])
}
