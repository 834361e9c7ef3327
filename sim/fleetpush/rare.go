// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"strconv"
	"sync"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// addRare adds the series that a GPU has once something has happened to it,
// which the receiver's report of a healthy one lacks.
func addRare(metrics pmetric.MetricSlice) {
	of := func(name string) pmetric.Metric {
		for _, m := range metrics.All() {
			if m.Name() == name {
				return m
			}
		}
		m := metrics.AppendEmpty()
		m.SetName(name)
		return m
	}
	add := func(m pmetric.Metric, attr, value string, more ...string) {
		p := points(m).AppendEmpty()
		p.SetIntValue(0)
		p.Attributes().PutStr(gpusemconv.AttrHWID, "")
		for i := 0; i+1 < len(more); i += 2 {
			p.Attributes().PutStr(more[i], more[i+1])
		}
		p.Attributes().PutStr(attr, value)
	}
	m := of(gpusemconv.MetricGPUThrottleActive)
	m.SetDescription("1 while the reason holds the clocks down, else 0. An idle GPU is not throttled.")
	m.SetUnit("1")
	m.SetEmptyGauge()
	add(m, gpusemconv.AttrReason, "power_cap")
	add(m, gpusemconv.AttrReason, "hw_slowdown")

	add(of(gpusemconv.MetricGPUNVLinkLinks), gpusemconv.AttrState, "down")
	add(of(gpusemconv.MetricGPUUp), gpusemconv.AttrReason, string(gpuhealth.ReasonLost))
	for _, state := range [...]gpuhealth.HardwareState{gpuhealth.HardwareDegraded, gpuhealth.HardwareFailed, gpuhealth.HardwarePredictedFailure} {
		add(of(gpusemconv.MetricHWStatus), gpusemconv.AttrHWState, string(state), gpusemconv.AttrHWType, "gpu")
	}
}

// ends are the series of hw.gpu.up that end when the GPU is lost, and when it is
// back: points without a value, in metrics of their own behind all others.
func (l *layout) addEnds(upMetric pmetric.Metric, gpus int) error {
	for _, end := range [...]struct {
		reason gpuhealth.Reason
		facts  facts
	}{{gpuhealth.ReasonOK, wentDown}, {gpuhealth.ReasonLost, cameUp}} {
		md := pmetric.NewMetrics()
		m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		upMetric.CopyTo(m)
		points(m).RemoveIf(func(p pmetric.NumberDataPoint) bool {
			v, _ := p.Attributes().Get(gpusemconv.AttrReason)
			return v.Str() != string(end.reason)
		})
		p := points(m).At(0)
		ended := pmetric.NewNumberDataPoint()
		p.Attributes().CopyTo(ended.Attributes())
		ended.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
		ended.CopyTo(p)
		if err := l.addMetric(m, gpus); err != nil {
			return err
		}
		last := &l.metrics[len(l.metrics)-1]
		for g := range last.gpus {
			for i := range last.gpus[g] {
				last.gpus[g][i].facts = end.facts
			}
		}
	}
	return nil
}

// extra is a metric whose series have names that are not known in advance.
type extra uint8

const (
	noExtra extra = iota
	extraReasons
	extraXids
)

// extras makes the points of such metrics when they are first needed. The rubric
// knows some hundred of them; what a fault names beyond is bounded by the faults.
type extras struct {
	mu      sync.RWMutex
	reasons map[[2]string]*point
	xids    map[uint64]*point
	rubric  *gpuhealth.Rubric
}

func newExtras() *extras {
	return &extras{reasons: map[[2]string]*point{}, xids: map[uint64]*point{}, rubric: gpuhealth.DefaultRubric()}
}

// addExtras adds the metrics themselves.
func (l *layout) addExtras(gpus int) error {
	for _, kind := range [...]extra{extraReasons, extraXids} {
		m := pmetric.NewMetric()
		if kind == extraReasons {
			reasonMetric(m, "", "")
		} else {
			xidMetric(m, 1, "")
		}
		if err := l.addMetric(m, gpus); err != nil {
			return err
		}
		last := &l.metrics[len(l.metrics)-1]
		last.extra = kind
		for g := range last.gpus {
			last.gpus[g] = nil
		}
	}
	return nil
}

func reasonMetric(m pmetric.Metric, reason, action string) {
	m.SetName(gpusemconv.MetricGPUHealthReason)
	m.SetDescription("1 while the reason holds the score down, 0 once it no longer does; absent before.")
	m.SetUnit("1")
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetIntValue(0)
	p.Attributes().PutStr(gpusemconv.AttrHWID, "")
	p.Attributes().PutStr(gpusemconv.AttrReason, reason)
	p.Attributes().PutStr(gpusemconv.AttrAction, action)
}

func xidMetric(m pmetric.Metric, code uint64, class string) {
	m.SetName(gpusemconv.MetricGPUXIDEvents)
	m.SetDescription("Xid errors that the driver reported since the receiver listens.")
	m.SetUnit("{event}")
	s := m.SetEmptySum()
	s.SetIsMonotonic(true)
	s.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	p := s.DataPoints().AppendEmpty()
	p.SetIntValue(0)
	p.Attributes().PutStr(gpusemconv.AttrHWID, "")
	p.Attributes().PutInt(gpusemconv.AttrXIDCode, int64(code))
	p.Attributes().PutStr(gpusemconv.AttrXIDClass, class)
}

// xid returns the point that counts a code.
func (e *extras) xid(code uint64) *point {
	e.mu.RLock()
	p := e.xids[code]
	e.mu.RUnlock()
	if p != nil {
		return p
	}
	m := pmetric.NewMetric()
	xidMetric(m, code, string(e.rubric.Xid(code).Class))
	p = single(m)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.xids[code] = p
	return p
}

// reason returns the point of a reason.
func (e *extras) reason(r *gpuhealth.ActiveReason) *point {
	key := [2]string{r.Reason, string(r.Action)}
	e.mu.RLock()
	p := e.reasons[key]
	e.mu.RUnlock()
	if p != nil {
		return p
	}
	m := pmetric.NewMetric()
	reasonMetric(m, key[0], key[1])
	p = single(m)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reasons[key] = p
	return p
}

// single returns the one point of a metric of GPUs.
func single(m pmetric.Metric) *point {
	var l layout
	if err := l.addMetric(m, 1); err != nil {
		// The same metric was compiled with the layout.
		panic("fleetpush: " + strconv.Quote(m.Name()) + ": " + err.Error())
	}
	p := &l.metrics[0].gpus[0][0]
	p.facts, p.source = 0, given
	return p
}
