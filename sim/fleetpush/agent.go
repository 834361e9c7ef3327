// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodereport"
	"github.com/gpu-collector/gpu-collector/internal/reading"
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

// advance moves a job on. Its ranks are as fast as their GPUs: one that is lost stops all.
func (g *group) advance(by time.Duration) {
	if g.sim.Advance(by); g.play == nil {
		return
	}
	for r := range g.play.Ranks {
		k, gpus := &g.play.Ranks[r], len(g.play.Ranks)/len(g.sim.Nodes())
		k.Speed = g.sim.Nodes()[k.Node].Speed(r % gpus)
	}
	g.play.Advance(by.Seconds())
}

// Job moves the first job of a fleet with Ranks on.
func (f *Fleet) Job(by time.Duration) *ranks.Play {
	f.groups[0].advance(by)
	return f.groups[0].play
}

// addRanks adds what the nccl receiver of node i reports. Each process has one rank.
func (f *Fleet) addRanks(md pmetric.Metrics, id *identity, i int) {
	n, g := &f.nodes[i], &f.groups[f.nodes[i].group]
	g.mu.Lock()
	defer g.mu.Unlock()
	rm := md.ResourceMetrics().AppendEmpty()
	id.name(rm.Resource(), gpusemconv.AttrHostName, gpusemconv.AttrK8sNodeName, gpusemconv.AttrHostID, gpusemconv.AttrClusterName)
	metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
	for _, name := range [...]string{
		gpusemconv.MetricCollectiveTimeShare, gpusemconv.MetricCollectiveStalled,
		gpusemconv.MetricCommunicatorBandwidth, gpusemconv.MetricCommunicatorLatency, gpusemconv.MetricCommunicatorOperations,
	} {
		m, known := metrics.AppendEmpty(), reading.ByName(name)
		m.SetName(name)
		m.SetUnit(known.Unit)
		if m.SetEmptyGauge(); known.Kind == reading.Counter {
			m.SetEmptySum().SetIsMonotonic(true)
			m.Sum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		}
	}
	// add adds points to these metrics from the nth on.
	add := func(nth int, attrs pcommon.Map, values ...float64) {
		for k, v := range values {
			m := metrics.At(nth + k)
			p := points(m).AppendEmpty()
			attrs.CopyTo(p.Attributes())
			p.SetStartTimestamp(pcommon.NewTimestampFromTime(f.cfg.Start))
			p.SetTimestamp(pcommon.NewTimestampFromTime(n.at))
			if p.SetDoubleValue(v); reading.ByName(m.Name()).Integer {
				p.SetIntValue(int64(v))
			}
		}
	}
	for gpu := range id.gpus {
		rank := (i-g.first)*len(id.gpus) + gpu
		k := &g.play.Ranks[rank]
		if k.Seconds == 0 {
			continue // a job that hangs tells no more
		}
		attrs := pcommon.NewMap()
		attrs.PutStr(gpusemconv.AttrJobID, id.job)
		attrs.PutInt(gpusemconv.AttrJobRank, int64(rank))
		attrs.PutStr(gpusemconv.AttrHWID, id.gpus[gpu].uuid)
		attrs.PutInt(gpusemconv.AttrProcessPID, int64(1000+rank))
		in := func(t *ranks.Traffic) {
			attrs.PutStr(gpusemconv.AttrCommunicatorID, t.ID)
			attrs.PutStr(gpusemconv.AttrCommunicatorName, t.Name)
			attrs.PutInt(gpusemconv.AttrCommunicatorRank, int64(t.Place))
			attrs.PutInt(gpusemconv.AttrCommunicatorSize, int64(len(t.Members)))
		}
		in(&k.Traffic[len(k.Traffic)-1]) // that of all ranks
		add(0, attrs, k.Seconds/f.cfg.Step.Seconds(), 0)
		for j := range k.Traffic {
			t := &k.Traffic[j]
			if in(t); t.Count == 0 {
				continue
			}
			attrs.PutInt(gpusemconv.AttrCommunicatorNodes, int64(t.Nodes))
			attrs.PutStr(gpusemconv.AttrCollectiveOperation, t.Function)
			attrs.PutInt(gpusemconv.AttrCollectiveSize, t.Bytes)
			add(2, attrs, t.Bandwidth, t.Seconds/float64(t.Count), float64(t.Total))
		}
	}
}
