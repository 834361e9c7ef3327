// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"fmt"
	"math"
	"sync"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodereport"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/nodesignal"
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

// verdict is the resource of a shape in bytes.
type verdict struct {
	bytes  []byte
	names  []place
	points []verdictPoint
}

type verdictPoint struct {
	time, value int
	integer     bool
	of          func(res *nodescore.Result, reachable bool) float64
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
	dst = append(dst, t.bytes...)
	b := dst[from:]
	id.write(b, t.names)
	for i := range t.points {
		p := &t.points[i]
		put64(b[p.time:], now)
		x := p.of(res, reachable)
		if p.integer {
			put64(b[p.value:], uint64(int64(x)))
		} else {
			put64(b[p.value:], math.Float64bits(x))
		}
	}
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

	var of []func(*nodescore.Result, bool) float64
	for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
		for _, dp := range m.Gauge().DataPoints().All() {
			f, err := valueOf(m.Name(), dp.Attributes())
			if err != nil {
				return nil, err
			}
			of = append(of, f)
		}
	}
	resource, err := encode(md)
	if err != nil {
		return nil, err
	}
	t := &verdict{bytes: append(appendHead(nil, fieldResourceMetrics, len(resource)), resource...)}
	from := len(t.bytes) - len(resource)
	if t.names, err = names(resource); err != nil {
		return nil, err
	}
	for i := range t.names {
		t.names[i].at += from
	}
	if err = t.find(resource, from, of); err != nil {
		return nil, err
	}
	return t, nil
}

// find finds the points of a resource, which are in the order of of.
func (t *verdict) find(resource []byte, from int, of []func(*nodescore.Result, bool) float64) error {
	var errs error
	each := func(at, end int, number int, f func(at, end int)) {
		err := fields(resource[at:end], func(x field) {
			if int(x.number) == number {
				f(at+x.content, at+x.end)
			}
		})
		if err != nil {
			errs = err
		}
	}
	each(0, len(resource), int(fieldScopeMetrics), func(at, end int) {
		each(at, end, int(fieldMetrics), func(at, end int) {
			each(at, end, int(fieldGauge), func(at, end int) {
				each(at, end, int(fieldDataPoints), func(at, end int) {
					p := verdictPoint{}
					if len(t.points) < len(of) {
						p.of = of[len(t.points)]
					}
					err := fields(resource[at:end], func(x field) {
						switch x.number {
						case fieldTime:
							p.time = from + at + x.content
						case fieldDouble, fieldInt:
							p.value, p.integer = from+at+x.content, x.number == fieldInt
						}
					})
					if err != nil {
						errs = err
					}
					t.points = append(t.points, p)
				})
			})
		})
	})
	if errs == nil && len(t.points) != len(of) {
		errs = fmt.Errorf("%d points in the bytes, %d in the metrics", len(t.points), len(of))
	}
	return errs
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
