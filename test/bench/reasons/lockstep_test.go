// SPDX-License-Identifier: Apache-2.0

package reasons

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/sim/ranks"
)

// lockstep is a job whose ranks tell of their collective operations. A rail is the
// communicator of the ranks with one place on each node.
type lockstep struct {
	play   *ranks.Play
	job    ranks.Job
	bytes  float64 // of an operation of a rail
	shares []float64
	faults []lockstepFault
	ids    [][]string // hw.id by node and GPU
}

// lockstepFault is one of a rank, of all of a node's ranks (rank -1), or of a rail.
type lockstepFault struct {
	from, until time.Duration
	node, rank  int
	loss, rail  float64
}

func newLockstep(rng *rand.Rand) *lockstep {
	step := 1 + rng.Float64()
	j := ranks.Job{TP: gpusPerNode, DP: nodesPerJob, PP: 1, GPUs: gpusPerNode, MicroBatches: 4, Blocks: 2, Noise: 0.02, Bias: 0.005, Jitter: 0.03}
	j.Compute = step / float64(j.MicroBatches*j.Blocks)
	j.TensorTime, j.DataTime, j.PipeTime = j.Compute*0.1, step*0.15, j.Compute*0.02
	return &lockstep{job: j, play: ranks.New(j, rng), bytes: j.DataTime * 100e9}
}

// advance plays the job up to a time.
func (l *lockstep) advance(at time.Duration) {
	for l.play.Now() < at.Seconds() {
		now := time.Duration(l.play.Now() * float64(time.Second))
		f := ranks.Faults{Slower: make([]float64, l.job.Ranks())}
		for i := range l.faults {
			x := &l.faults[i]
			if now < x.from || now >= x.until {
				continue
			}
			if x.rail > 0 {
				f.RailOf, f.Rail = x.rank, x.rail
				continue
			}
			for g := range gpusPerNode {
				if x.rank < 0 || x.rank == g {
					f.Slower[x.node*gpusPerNode+g] = x.loss
				}
			}
		}
		l.play.Step(&f)
	}
	l.shares = l.play.Shares(poll.Seconds(), l.shares)
}

func railID(gpu int) string { return fmt.Sprintf("0x%x", 0xa0+gpu) }

// tell adds what the ranks of a node tell to its report.
func (l *lockstep) tell(md pmetric.Metrics, node int, now time.Time) {
	if l.ids[node] == nil {
		l.ids[node] = gpuIDs(md)
	}
	rm := md.ResourceMetrics().AppendEmpty()
	md.ResourceMetrics().At(0).Resource().CopyTo(rm.Resource())
	metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
	put := func(name, unit string, gpu int, v float64) pcommon.Map {
		m := metrics.AppendEmpty()
		m.SetName(name)
		m.SetUnit(unit)
		p := m.SetEmptyGauge().DataPoints().AppendEmpty()
		p.SetTimestamp(pcommon.NewTimestampFromTime(now))
		p.SetDoubleValue(v)
		a := p.Attributes()
		a.PutStr(gpusemconv.AttrHWID, l.ids[node][gpu])
		a.PutInt(gpusemconv.AttrJobRank, int64(node*gpusPerNode+gpu))
		return a
	}
	for gpu := range gpusPerNode {
		rank := node*gpusPerNode + gpu
		put(gpusemconv.MetricCollectiveShare, "1", gpu, l.shares[rank])
		least, total := l.play.Data(rank)
		if least == 0 {
			continue
		}
		put(gpusemconv.MetricCommunicatorShare, "1", gpu, total/poll.Seconds()).PutStr(gpusemconv.AttrCommunicatorID, railID(gpu))
		a := put(gpusemconv.MetricCommunicatorBandwidth, "By/s", gpu, l.bytes/least)
		a.PutStr(gpusemconv.AttrCommunicatorID, railID(gpu))
		a.PutInt(gpusemconv.AttrCommunicatorRank, int64(node))
		a.PutInt(gpusemconv.AttrCommunicatorSize, nodesPerJob)
		a.PutInt(gpusemconv.AttrCommunicatorNodes, nodesPerJob)
		a.PutStr(gpusemconv.AttrCollectiveOperation, "AllReduce")
		a.PutInt(gpusemconv.AttrCollectiveSize, 1<<30)
	}
}

// gpuIDs are the hw.id of a report's GPUs, by their place.
func gpuIDs(md pmetric.Metrics) []string {
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if m.Name() != gpusemconv.MetricGPUUtilization {
					continue
				}
				var ids []string
				for _, p := range m.Gauge().DataPoints().All() {
					id, _ := p.Attributes().Get(gpusemconv.AttrHWID)
					ids = append(ids, id.Str())
				}
				return ids
			}
		}
	}
	return nil
}

// lockstepCause draws a fault of the job, and what has to be said of it.
type lockstepCause func(rng *rand.Rand, l *lockstep, from time.Duration) (*injection, []fleetpush.Fault)

// Of the rank the record names the GPU, of a rail the communicator. A rail with a port
// that has errors has its node named.
var lockstepCauses = map[string]lockstepCause{
	"rank": func(rng *rand.Rand, l *lockstep, from time.Duration) (*injection, []fleetpush.Fault) {
		x := lockstepFault{from: from, until: from + lasts, node: rng.IntN(nodesPerJob), rank: rng.IntN(gpusPerNode), loss: 0.1 + 0.3*rng.Float64()}
		l.faults = append(l.faults, x)
		return &injection{nodes: []int{x.node}, want: []reason.Reason{reason.OneRank}, right: func(o *onset) bool { return o.gpu == l.ids[x.node][x.rank] }}, nil
	},
	"ranks_of_a_node": func(rng *rand.Rand, l *lockstep, from time.Duration) (*injection, []fleetpush.Fault) {
		x := lockstepFault{from: from, until: from + lasts, node: rng.IntN(nodesPerJob), rank: -1, loss: 0.1 + 0.3*rng.Float64()}
		l.faults = append(l.faults, x)
		return &injection{nodes: []int{x.node}, want: []reason.Reason{reason.Unexplained}}, nil
	},
	"communicator": func(rng *rand.Rand, l *lockstep, from time.Duration) (*injection, []fleetpush.Fault) {
		return l.slowRail(rng, from, reason.SlowLink), nil
	},
	"communicator_and_port": func(rng *rand.Rand, l *lockstep, from time.Duration) (*injection, []fleetpush.Fault) {
		in := l.slowRail(rng, from, "network_errors")
		rail, node := l.faults[len(l.faults)-1].rank, rng.IntN(nodesPerJob)
		right := in.right
		in.right = func(o *onset) bool {
			return o.subject == "node" && slices.Equal(o.nodes, []int{node}) || right(o) && o.faulty == fleetpush.NodeName(node)
		}
		// A port without the part that makes the fleet's own job slow: that is the rail's.
		return in, []fleetpush.Fault{{
			Target: fleetsim.Target{Node: node},
			Fault:  fleetsim.Fault{Kind: fleetsim.PortErrors, GPU: rail, From: from, Until: from + lasts, Severity: 0.35 + 0.55*rng.Float64()},
		}}
	},
}

func (l *lockstep) slowRail(rng *rand.Rand, from time.Duration, want reason.Reason) *injection {
	x := lockstepFault{from: from, until: from + lasts, rank: rng.IntN(gpusPerNode), rail: 1.4 + 1.6*rng.Float64()}
	l.faults = append(l.faults, x)
	in := &injection{want: []reason.Reason{want}, right: func(o *onset) bool { return o.subject == "communicator" && o.ids == railID(x.rank) }}
	for n := range nodesPerJob {
		in.nodes = append(in.nodes, n)
	}
	return in
}

// measureLockstep gives one job faults of a kind, one after the other.
func measureLockstep(t *testing.T, cause lockstepCause, faults int, seed uint64) *result {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 11))
	l := newLockstep(rng)
	l.ids = make([][]string, nodesPerJob)
	cfg := fleetpush.Config{Nodes: nodesPerJob, GPUs: gpusPerNode, Ports: true, Jobs: 1, Seed: seed, NoSteps: true, Load: fleetsim.Training}
	var injections []*injection
	end := warm
	for range faults {
		from := end + time.Duration(rng.Int64N(int64(2*time.Minute)))
		in, ports := cause(rng, l, from)
		in.fault = fleetsim.Fault{Kind: "lockstep", From: from, Until: from + lasts}
		injections = append(injections, in)
		cfg.Faults = append(cfg.Faults, ports...)
		end = from + lasts + calm
	}
	f := newFleet(t, cfg)
	f.lockstep = l
	f.run(t, end)
	f.shutdown(t)
	require.Len(t, l.ids[0], gpusPerNode)
	return f.judge(injections, end)
}
