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

	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/rankattr"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
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
	facts   *factReader
	id      identity // scratch
}

func newObserver(cfg *Config, r *rejects) *observer {
	return &observer{ids: newIdentifier(cfg), ingero: cfg.ingero(), rejects: r, facts: newFactReader(cfg)}
}

// observe takes what each resource says about its node. What is not valid is
// counted and left out; the rest of the push still counts.
func (o *observer) observe(ctx context.Context, e *straggler.Engine, md pmetric.Metrics, now time.Time) {
	caller := threshold.CallerFromContext(ctx)
	for _, rm := range md.ResourceMetrics().All() {
		attrs := rm.Resource().Attributes()
		o.facts.begin(ctx, &o.ids, attrs, now)
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
		o.ids.read(&o.id, ctx, attrs)
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
			switch name := m.Name(); {
			case name == gpusemconv.MetricNodeHealthScore:
				any = f.takeScore(m, gpusemconv.AttrNodeState) || any
			case name == gpusemconv.MetricNodeState:
				any = f.takeState(m) || any
			case name == gpusemconv.MetricNodeSignal:
				any = o.takeSignals(ctx, &f, m) || any
			case name == gpusemconv.MetricNodeCulprit:
				any = f.takeCulprit(m) || any
			case name == gpusemconv.MetricNodeHeartbeat:
				f.Heartbeat, any = true, true
			case o.ingero && name == ingeroScore:
				f.ingero = f.takeScore(m, ingeroState)
				any = any || f.ingero
			case o.ingero && name == ingeroThroughput:
				if p, ok := last(m); ok && number(p) == 0 {
					ingeroIdleWindow = true
				}
			default:
				o.facts.take(m)
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

func (f *found) takeScore(m pmetric.Metric, stateAttr string) bool {
	p, ok := last(m)
	if !ok {
		// Without a point that has a value, it is gone.
		f.NoScore = numberPoints(m).Len() > 0
		return f.NoScore
	}
	f.Score, f.HasScore = number(p), true
	if v, ok := p.Attributes().Get(stateAttr); ok {
		f.setState(v.Str())
	}
	return true
}

// takeState reads the state metric: the point with a 1 names the state.
func (f *found) takeState(m pmetric.Metric) bool {
	for _, p := range numberPoints(m).All() {
		if v, ok := p.Attributes().Get(gpusemconv.AttrNodeState); ok && !p.Flags().NoRecordedValue() && number(p) == 1 {
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

// signals are those that a node tells, by name. One that is not known is of a
// newer agent.
var signals = func() map[string]nodesignal.Signal {
	m := make(map[string]nodesignal.Signal)
	for s := range nodesignal.Score {
		m[s.String()] = s
	}
	return m
}()

// takeSignals reads the raw signals: those that are told, and those that are
// told to be gone. Of the others the push says nothing, as behind diff.
func (o *observer) takeSignals(ctx context.Context, f *found, m pmetric.Metric) (any bool) {
	for _, p := range numberPoints(m).All() {
		name, ok := p.Attributes().Get(gpusemconv.AttrSignal)
		if !ok {
			continue
		}
		s, ok := signals[name.Str()]
		if !ok {
			continue
		}
		any = true
		x := number(p)
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
func (f *found) takeCulprit(m pmetric.Metric) (any bool) {
	for _, p := range numberPoints(m).All() {
		if v, ok := p.Attributes().Get(gpusemconv.AttrSignal); !ok || v.Str() != nodesignal.Throughput.String() {
			continue
		}
		any = true
		switch of := rankattr.Subject(p.Attributes()); {
		case p.Flags().NoRecordedValue():
			f.NoCulprit = of
		case number(p) == 1:
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
			o.id.peers[i] = text(v)
		}
	}
}

func scoreAttributes(rm pmetric.ResourceMetrics) (pcommon.Map, bool) {
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			if m.Name() == ingeroScore {
				if p, ok := last(m); ok {
					return p.Attributes(), true
				}
			}
		}
	}
	return pcommon.Map{}, false
}

// last returns the newest point of a gauge that has a value.
func last(m pmetric.Metric) (pmetric.NumberDataPoint, bool) {
	points := numberPoints(m)
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
	errReading:                   "reading_range",
	reason.ErrName:               "fact_name",
	reason.ErrRange:              "fact_range",
	reason.ErrTooManyNodes:       "fact_max_nodes",
	reason.ErrClusterNodes:       "fact_cluster_nodes",
	reason.ErrTooManyDevices:     "fact_max_devices",
	errGPUs:                      "max_gpus",
}

func newRejects(tb *metadata.TelemetryBuilder) *rejects {
	r := &rejects{telemetry: tb, sets: make(map[error]metric.MeasurementOption, len(reasons))}
	for err, name := range reasons {
		r.sets[err] = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", name)))
	}
	return r
}

// add counts err, one of the keys of reasons.
func (r *rejects) add(ctx context.Context, err error) { r.addN(ctx, err, 1) }

func (r *rejects) addN(ctx context.Context, err error, n int64) {
	r.telemetry.ProcessorStragglerRejected.Add(ctx, n, r.sets[err])
}
