// SPDX-License-Identifier: Apache-2.0

package record

import (
	"cmp"
	"maps"
	"slices"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

// stateSet is a metric with a point for each of several states.
type stateSet int

const (
	setStatus stateSet = iota
	setThrottle
	setRecovery
	setRepair
	setFabricState
	setFabricHealth
	setLinks
	numStateSets
)

// states is what has had a point of a GPU.
type states struct {
	had     [numStateSets]uint32 // a bit for each state
	up      gpuhealth.Reason     // empty before the first
	scored  bool
	reasons []reportedReason
	round   uint64 // 0: an earlier process reported it, and this one has not yet
}

// reportedReason is a reason of a GPU's health that held once.
type reportedReason struct {
	reason string
	action gpuhealth.Action
	holds  bool
}

// maxReasons bounds those of a GPU: all rules and the Xids that count at a time
// are fewer, those of a day may be more.
const maxReasons = 128

// update takes what holds now. Where there are too many, it drops the one over for longest.
func (st *states) update(now []gpuhealth.ActiveReason) {
	for i := range st.reasons {
		st.reasons[i].holds = false
	}
	for i := range now {
		reported := reportedReason{now[i].Reason, now[i].Action, true}
		held := reported
		held.holds = false
		if at := slices.Index(st.reasons, held); at >= 0 {
			st.reasons[at].holds = true
			continue
		}
		if len(st.reasons) >= maxReasons {
			if at := slices.IndexFunc(st.reasons, func(r reportedReason) bool { return !r.holds }); at >= 0 {
				st.reasons = slices.Delete(st.reasons, at, at+1)
			}
		}
		st.reasons = append(st.reasons, reported)
	}
}

// History remembers the states that held. Most states of a GPU never hold and need no
// point. A state that ends goes on with 0, so that its last point does not look as
// if it still held.
type History struct {
	byID  map[string]*states
	round uint64
	// reported are the reasons of hw.gpu.up that the earlier process gave last, until the
	// GPU answers. Those of MIG slices are their GPU's.
	reported map[string]gpuhealth.Reason
}

// Resume takes up what the points of an earlier process may still claim.
func (s *History) Resume(known []gpuhealth.Verdict, reported map[string]gpuhealth.Reason) {
	s.reported = reported
	s.byID = make(map[string]*states, len(known))
	for i := range known {
		v := &known[i]
		st := &states{scored: v.State != "" && v.State != gpuhealth.StateUnknown}
		st.update(v.Reasons)
		s.byID[v.UUID] = st
	}
}

// begin starts a report and forgets what the last one did not have: a MIG slice
// that was destroyed.
func (s *History) begin() {
	for id, st := range s.byID {
		if st.round != 0 && st.round != s.round {
			delete(s.byID, id)
		}
	}
	for id := range s.reported {
		if st := s.byID[id]; st != nil && st.up == gpuhealth.ReasonOK {
			delete(s.reported, id) // slices from now on are new
		}
	}
	s.round++
}

// of returns what was reported of a GPU, or of a MIG slice of the parent.
func (s *History) of(id, parent string) *states {
	st := s.byID[id]
	if st == nil {
		if s.byID == nil {
			s.byID = map[string]*states{}
		}
		st = &states{}
		s.byID[id] = st
	}
	if st.round == 0 {
		st.up = s.reported[cmp.Or(parent, id)]
	}
	st.round = s.round
	return st
}

// reports returns whether the state gets a point: it holds or did, or its absence
// is worth one too.
func (r *Recorder) reports(set stateSet, state int, holds, always bool) bool {
	bit := uint32(1) << state
	if holds {
		r.states.had[set] |= bit
	}
	return r.full || always || r.states.had[set]&bit != 0
}

// state adds the point of one of several states, where it gets one.
func state[A any](r *Recorder, set stateSet, i int, holds, always bool, of A, record func(pcommon.Timestamp, int64, string, A, ...metadata.MetricAttributeOption)) {
	if r.reports(set, i, holds, always) {
		record(r.ts, oneIf(holds), r.id, of, r.parent...)
	}
}

// Ended is the value of a point whose series has ended. No point
// of the metrics that end has a negative value.
const Ended = -1

// end turns points of value Ended into points without a value, which
// OpenTelemetry has for a series that ended: an exporter to Prometheus drops the
// series, where it would serve the last value on for minutes. Each is a metric of
// its own, at the end: the Collector's prometheus exporter (v0.155.0,
// accumulator.go) leaves out the points of a metric that follow one.
func end(md pmetric.Metrics) {
	all := Metrics(md)
	for i, n := 0, all.Len(); i < n; i++ {
		switch all.At(i).Name() {
		case gpusemconv.MetricGPUUp, gpusemconv.MetricGPUHealthScore, gpusemconv.MetricGPUAllocation:
			endSeries(all, i)
		}
	}
	all.RemoveIf(func(m pmetric.Metric) bool {
		return m.Type() == pmetric.MetricTypeGauge && m.Gauge().DataPoints().Len() == 0
	})
}

// Metrics are those of a report, which has one resource and one scope, or is empty.
func Metrics(md pmetric.Metrics) pmetric.MetricSlice {
	if md.ResourceMetrics().Len() == 0 {
		return pmetric.NewMetricSlice()
	}
	return md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics()
}

// endSeries moves the points of metric i whose series have ended.
func endSeries(metrics pmetric.MetricSlice, i int) {
	var ends []pmetric.Metric
	of := metrics.At(i)
	of.Gauge().DataPoints().RemoveIf(func(dp pmetric.NumberDataPoint) bool {
		if dp.IntValue() != Ended {
			return false
		}
		ends = append(ends, EndOf(of, dp))
		return true
	})
	for _, m := range ends {
		m.MoveTo(metrics.AppendEmpty())
	}
}

// EndOf is a metric whose point ends the series of a point.
func EndOf(of pmetric.Metric, p pmetric.NumberDataPoint) pmetric.Metric {
	m := pmetric.NewMetric()
	m.SetName(of.Name())
	m.SetDescription(of.Description())
	m.SetUnit(of.Unit())
	if of.Type() == pmetric.MetricTypeSum {
		m.SetEmptySum().SetIsMonotonic(of.Sum().IsMonotonic())
		m.Sum().SetAggregationTemporality(of.Sum().AggregationTemporality())
	} else {
		m.SetEmptyGauge()
	}
	end := Points(m).AppendEmpty()
	end.SetTimestamp(p.Timestamp())
	end.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
	p.Attributes().CopyTo(end.Attributes())
	return m
}

// Points are those of a metric of the receiver's, a sum or a gauge.
func Points(m pmetric.Metric) pmetric.NumberDataPointSlice {
	if m.Type() == pmetric.MetricTypeSum {
		return m.Sum().DataPoints()
	}
	return m.Gauge().DataPoints()
}

// The states in an order that does not change.
var (
	healthStates   = slices.Sorted(maps.Keys(metadata.MapAttributeHealthState))
	hardwareStates = slices.Sorted(maps.Keys(metadata.MapAttributeHwState))
)

// Verdict adds what is thought of the sample that was recorded last.
func (r *Recorder) Verdict(v *gpuhealth.Verdict) {
	for i, name := range hardwareStates {
		// The states of health, which always have a point, are the same.
		is := string(v.Hardware) == name
		if r.reports(setStatus, i, is, name == string(gpuhealth.HardwareOK)) {
			r.mb.RecordHwStatusDataPoint(r.ts, oneIf(is), r.id, gpuType, metadata.MapAttributeHwState[name], r.parent...)
		}
	}
	switch {
	case v.Score.OK:
		r.mb.RecordHwGpuHealthScoreDataPoint(r.ts, int64(v.Score.V), r.id, r.parent...)
	case r.states.scored:
		r.mb.RecordHwGpuHealthScoreDataPoint(r.ts, Ended, r.id, r.parent...)
	}
	r.states.scored = v.Score.OK
	for _, name := range healthStates {
		r.mb.RecordHwGpuHealthStateDataPoint(r.ts, oneIf(string(v.State) == name), r.id, metadata.MapAttributeHealthState[name], r.parent...)
	}
	r.states.update(v.Reasons)
	for _, reported := range r.states.reasons {
		r.mb.RecordHwGpuHealthReasonDataPoint(r.ts, oneIf(reported.holds), r.id, reported.reason, metadata.MapAttributeHealthAction[string(reported.action)], r.parent...)
	}
}

// Last ends the series of a GPU that is no longer waited for.
func (r *Recorder) Last(s *gpuhealth.Sample, v *gpuhealth.Verdict) {
	r.of(s)
	r.mb.RecordHwGpuUpDataPoint(r.ts, Ended, s.UUID, metadata.MapAttributeUpReason[string(cmp.Or(r.states.up, s.Reason))])
	r.states.scored = true
	r.Verdict(v)
}
