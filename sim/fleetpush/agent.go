// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"fmt"
	"sync"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodereport"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// scope is the one under which the straggler processor reports.
const scope = "github.com/gpu-collector/gpu-collector/processor/stragglerprocessor"

// verdicts writes what the agents of a fleet find out about their nodes: one
// compiled resource for each set of points that there may be, made when it is
// first needed. There are at most 2^10 such sets, of which a fleet shows a few.
type verdicts struct {
	like  *identity
	model string

	mu     sync.RWMutex
	shapes map[shape]*verdict
}

// shape is which points an evaluation has.
type shape struct {
	score, bySignals, threshold bool
	known                       [nodesignal.Count]bool
}

// verdict is the resource of a shape, and what its points show.
type verdict struct {
	resource resource
	of       []func(res *nodescore.Result, reachable bool) float64
}

func shapeOf(res *nodescore.Result) shape {
	return shape{res.HasScore, res.BySignals, res.Mode != nodescore.ModeNone, res.Signals.Known}
}

func (v *verdicts) write(dst []byte, id *identity, now uint64, res *nodescore.Result, reachable bool) ([]byte, error) {
	s := shapeOf(res)
	v.mu.RLock()
	t := v.shapes[s]
	v.mu.RUnlock()
	if t == nil {
		var err error
		if t, err = v.compile(res); err != nil {
			return dst, err
		}
		v.mu.Lock()
		if v.shapes == nil {
			v.shapes = map[shape]*verdict{}
		}
		v.shapes[s] = t
		v.mu.Unlock()
	}
	from := len(dst)
	dst = append(dst, t.resource.bytes...)
	t.resource.fill(dst[from:], id, now, func(i int) float64 { return t.of[i](res, reachable) })
	return dst, nil
}

// compile makes the resource for evaluations of the shape that res has.
func (v *verdicts) compile(res *nodescore.Result) (*verdict, error) {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	attrs := rm.Resource().Attributes()
	attrs.PutStr(gpusemconv.AttrHostName, v.like.node)
	attrs.PutStr(gpusemconv.AttrClusterName, v.like.cluster)
	attrs.PutStr(gpusemconv.AttrJobID, v.like.job)
	attrs.PutStr(gpusemconv.AttrGPUModel, v.model)
	nodereport.Append(rm, scope, 1, res, false)

	t := &verdict{}
	for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
		for _, dp := range m.Gauge().DataPoints().All() {
			f, err := valueOf(m.Name(), dp.Attributes())
			if err != nil {
				return nil, err
			}
			t.of = append(t.of, f)
		}
	}
	return t, t.resource.compile(md)
}

// valueOf tells what a point of nodereport shows.
func valueOf(metric string, attrs pcommon.Map) (func(*nodescore.Result, bool) float64, error) {
	label := func(attr string) string {
		v, _ := attrs.Get(attr)
		return v.AsString()
	}
	switch metric {
	case gpusemconv.MetricNodeState:
		if s, ok := straggler.ParseState(label(gpusemconv.AttrNodeState)); ok {
			return func(r *nodescore.Result, _ bool) float64 { return flag(r.State == s) }, nil
		}
	case gpusemconv.MetricNodeHealthScore:
		return func(r *nodescore.Result, _ bool) float64 { return r.Score }, nil
	case gpusemconv.MetricNodeSignal:
		s, err := nodesignal.Parse(label(gpusemconv.AttrSignal))
		return func(r *nodescore.Result, _ bool) float64 { return r.Signals.V[s] }, err
	case gpusemconv.MetricAgentStraggler:
		return func(r *nodescore.Result, _ bool) float64 { return flag(r.Straggler) }, nil
	case gpusemconv.MetricAgentSuspicion:
		return func(r *nodescore.Result, _ bool) float64 { return r.Suspicion }, nil
	case gpusemconv.MetricAgentThreshold:
		return func(r *nodescore.Result, _ bool) float64 { return r.Threshold }, nil
	case gpusemconv.MetricAgentDetectionMode:
		for m := range nodescore.NumModes {
			if m.String() == label(gpusemconv.AttrDetectionMode) {
				return func(r *nodescore.Result, _ bool) float64 { return flag(r.Mode == m) }, nil
			}
		}
	case gpusemconv.MetricAgentGatewayReachable:
		return func(_ *nodescore.Result, reachable bool) float64 { return flag(reachable) }, nil
	}
	return nil, fmt.Errorf("the agent's metric %s has a point %v that is not known here", metric, attrs.AsRaw())
}
