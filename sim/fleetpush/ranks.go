// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"math/rand/v2"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// shareNoise and rateNoise are how shares and bandwidths of ten seconds scatter, the first
// as those of an H100's ranks do in one second.
const shareNoise, rateNoise = 0.002, 0.02

// member is a rank in a communicator.
type member struct {
	pcommon.Map
	share, rate float64
}

// members are those of node i: a process has one rank, which is in a communicator of its job
// and in one of its node. Ranks are told under the first.
func (f *Fleet) members(i int, id *identity, v []values) (ranks, all []member) {
	n, g, gpus := f.nodes[i].group, &f.groups[f.nodes[i].group], f.cfg.GPUs
	for gpu := range gpus {
		share, rank := v[gpu].v[inCollectives], (i-g.first)*gpus+gpu
		for _, c := range [...]struct {
			name                    string
			nth, rank, nodes, bytes int
			rate                    float64
		}{{"world:0", 0, rank, g.nodes, 256 << 20, 40e9}, {"tp:0", 1 + i, gpu, 1, 16 << 20, 350e9}} {
			if share == 0 || c.nodes*gpus < 2 {
				continue
			}
			d := digits{state: f.cfg.Seed ^ uint64(n)<<32 ^ uint64(c.nth)}
			m := member{pcommon.NewMap(), share, c.rate}
			m.PutStr(gpusemconv.AttrJobID, id.job)
			m.PutInt(gpusemconv.AttrJobRank, int64(rank))
			m.PutStr(gpusemconv.AttrHWID, id.gpus[gpu].uuid)
			m.PutInt(gpusemconv.AttrProcessPID, int64(1000+gpu))
			m.PutStr(gpusemconv.AttrCommunicatorID, "0x"+string(d.fill(make([]byte, 14), 16)))
			m.PutStr(gpusemconv.AttrCommunicatorName, c.name)
			m.PutInt(gpusemconv.AttrCommunicatorRank, int64(c.rank))
			m.PutInt(gpusemconv.AttrCommunicatorSize, int64(c.nodes*gpus))
			if c.nth == 0 {
				ranks = append(ranks, member{pcommon.NewMap(), share, 0})
				m.CopyTo(ranks[len(ranks)-1].Map)
			}
			m.PutInt(gpusemconv.AttrCommunicatorNodes, int64(c.nodes))
			m.PutStr(gpusemconv.AttrCollectiveOperation, "AllReduce")
			m.PutInt(gpusemconv.AttrCollectiveSize, int64(c.bytes))
			all = append(all, m)
		}
	}
	return ranks, all
}

// addRanks adds what the nccl receiver of node i reports.
func (f *Fleet) addRanks(md pmetric.Metrics, i int, id *identity, v []values) {
	n := &f.nodes[i]
	ranks, all := f.members(i, id, v)
	if len(all) == 0 {
		return
	}
	rm := md.ResourceMetrics().AppendEmpty()
	id.name(rm.Resource(), gpusemconv.AttrHostName, gpusemconv.AttrK8sNodeName, gpusemconv.AttrHostID, gpusemconv.AttrClusterName)
	metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
	add := func(name string, of []member, value func(*member) float64) {
		m, known := metrics.AppendEmpty(), reading.ByName(name)
		m.SetName(name)
		m.SetUnit(known.Unit)
		m.SetEmptyGauge()
		if known.Kind == reading.Counter {
			m.SetEmptySum().SetIsMonotonic(true)
			m.Sum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		}
		for k := range of {
			p := points(m).AppendEmpty()
			of[k].CopyTo(p.Attributes())
			p.SetStartTimestamp(pcommon.NewTimestampFromTime(f.cfg.Start))
			p.SetTimestamp(pcommon.NewTimestampFromTime(n.at))
			if p.SetDoubleValue(value(&of[k])); known.Integer {
				p.SetIntValue(int64(p.DoubleValue()))
			}
		}
	}
	rng := rand.New(rand.NewPCG(f.cfg.Seed<<20+uint64(i), uint64(n.ticks)))
	step := fleetsim.StepTime.Seconds() // with one operation of each communicator
	add(gpusemconv.MetricCollectiveTimeShare, ranks, func(m *member) float64 { return max(0, m.share+shareNoise*rng.NormFloat64()) })
	add(gpusemconv.MetricCollectiveStalled, ranks, func(*member) float64 { return 0 })
	add(gpusemconv.MetricCommunicatorBandwidth, all, func(m *member) float64 { return m.rate * (1 + rateNoise*rng.NormFloat64()) })
	add(gpusemconv.MetricCommunicatorLatency, all, func(m *member) float64 { return m.share * step * float64(len(ranks)) / float64(len(all)) })
	add(gpusemconv.MetricCommunicatorOperations, all, func(*member) float64 { return float64(n.ticks) * f.cfg.Step.Seconds() / step })
}
