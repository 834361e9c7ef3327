// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodereport"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/sim/ranks"
)

// scope is the one under which the straggler processor reports.
const scope = "github.com/gpu-collector/gpu-collector/processor/stragglerprocessor"

// addVerdict adds what a node's agent finds out about it.
func addVerdict(md pmetric.Metrics, id *identity, model string, now time.Time, res *nodescore.Result, reachable bool) {
	rm := md.ResourceMetrics().AppendEmpty()
	id.name(rm.Resource(), gpusemconv.AttrHostName, gpusemconv.AttrClusterName, gpusemconv.AttrJobID)
	rm.Resource().Attributes().PutStr(gpusemconv.AttrGPUModel, model)
	nodereport.Append(rm, scope, pcommon.NewTimestampFromTime(now), res, reachable)
}

// addStep adds what the training job of a node tells its agent.
func addStep(md pmetric.Metrics, id *identity, now time.Time, seconds float64) {
	rm := md.ResourceMetrics().AppendEmpty()
	id.name(rm.Resource(), gpusemconv.AttrHostName, gpusemconv.AttrClusterName, gpusemconv.AttrJobID)
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName(gpusemconv.MetricAppStepDuration)
	m.SetUnit(reading.ByName(m.Name()).Unit)
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetDoubleValue(seconds)
	p.SetTimestamp(pcommon.NewTimestampFromTime(now))
}

// Advance moves the nth job on, and its ranks if the fleet has such. They are as fast as their
// GPUs: one that is lost stops all.
func (f *Fleet) Advance(nth int, by time.Duration) *ranks.Play {
	g := &f.groups[nth]
	if g.sim.Advance(by); g.play == nil {
		return nil
	}
	for r := range g.play.Ranks {
		g.play.Ranks[r].Speed = g.sim.Nodes()[r/f.cfg.GPUs].Speed(r % f.cfg.GPUs)
	}
	g.play.Advance(by.Seconds())
	return g.play
}

// addRanks adds what the nccl receiver of node i reports. Each process has one rank.
func (f *Fleet) addRanks(md pmetric.Metrics, id *identity, i int) {
	n, g := &f.nodes[i], &f.groups[f.nodes[i].group]
	g.mu.Lock()
	defer g.mu.Unlock()
	rm := md.ResourceMetrics().AppendEmpty()
	id.name(rm.Resource(), hostAttrs...)
	metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
	for nth, name := range [...]string{
		gpusemconv.MetricCollectiveTimeShare, gpusemconv.MetricCollectiveStalled,
		gpusemconv.MetricCommunicatorBandwidth, gpusemconv.MetricCommunicatorLatency, gpusemconv.MetricCommunicatorOperations,
	} {
		m, known, ofRank := metrics.AppendEmpty(), reading.ByName(name), nth < 2
		m.SetName(name)
		m.SetUnit(known.Unit)
		if m.SetEmptyGauge(); known.Kind == reading.Counter {
			m.SetEmptySum().SetIsMonotonic(true)
			m.Sum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		}
		for gpu := range id.gpus {
			k := &g.play.Ranks[(i-g.first)*len(id.gpus)+gpu]
			for j, t := range k.Traffic {
				if t.Count == 0 || ofRank && j+1 < len(k.Traffic) { // the last is that of all ranks
					continue
				}
				p := metricreading.Points(m).AppendEmpty()
				p.SetStartTimestamp(pcommon.NewTimestampFromTime(f.cfg.Start))
				p.SetTimestamp(pcommon.NewTimestampFromTime(n.at))
				v := [...]float64{k.Seconds / f.cfg.Step.Seconds(), 0, t.Bandwidth, t.Seconds / float64(t.Count), float64(t.Total)}[nth]
				if p.SetDoubleValue(v); known.Integer {
					p.SetIntValue(int64(v))
				}
				attrs := p.Attributes()
				attrs.PutStr(gpusemconv.AttrJobID, id.job)
				attrs.PutInt(gpusemconv.AttrJobRank, int64(t.Rank))
				attrs.PutStr(gpusemconv.AttrHWID, id.gpus[gpu].UUID)
				attrs.PutInt(gpusemconv.AttrProcessPID, int64(1000+t.Rank))
				attrs.PutStr(gpusemconv.AttrCommunicatorID, t.ID)
				attrs.PutStr(gpusemconv.AttrCommunicatorName, t.Name)
				attrs.PutInt(gpusemconv.AttrCommunicatorRank, int64(t.Place))
				attrs.PutInt(gpusemconv.AttrCommunicatorSize, int64(t.Size))
				if !ofRank {
					attrs.PutInt(gpusemconv.AttrCommunicatorNodes, int64(t.Nodes))
					attrs.PutStr(gpusemconv.AttrCollectiveOperation, t.Function)
					attrs.PutInt(gpusemconv.AttrCollectiveSize, t.Bytes)
				}
			}
		}
	}
}

// Answer is what came back of a push.
type Answer struct {
	// Accepted is true when the report was taken, Answered when anybody said
	// anything about it.
	Accepted, Answered bool
	// Headers gives the values of a header of the answer, nil without an answer.
	Headers func(string) []string
}

// Heard is what an answer taught a node.
type Heard struct {
	// Threshold is true when the answer had one for the node's group, New when
	// the node had not heard it before.
	Threshold, New bool
	// Err is what was not valid in the headers.
	Err error
}

// Hear takes the answer to a node's push, as an agent's threshold extension does.
func (f *Fleet) Hear(i int, a Answer, now time.Time) (h Heard) {
	n := &f.nodes[i]
	g := &f.groups[n.group]
	var values []threshold.Value
	if a.Answered && a.Headers != nil {
		values, h.Err = threshold.ParseAnswer(a.Headers(gpusemconv.HeaderParams), a.Headers(gpusemconv.HeaderVerdict), "")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reachable = a.Answered
	for j := range values {
		if values[j].Group == g.name {
			h.Threshold = true
			h.New = n.received.Hear(values[j], now) || h.New
		}
	}
	return h
}
