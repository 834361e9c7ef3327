// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// ran plays a job for ten minutes and returns each rank's share of the last nine.
func ran(j Job, faults ...Fault) (p *Play, shares []float64) {
	j.Faults, j.Bias = faults, 0
	p = New(&j, 1)
	p.Advance(60)
	p.Advance(540)
	for r := range p.Ranks {
		shares = append(shares, p.Ranks[r].Seconds/540)
	}
	return p, shares
}

func pipelined() Job {
	j := Typical(4, 8)
	j.DP, j.PP = 2, 2
	return j
}

// Without noise the time of a step is its work and its transfers. Slow links take all ranks'
// time, and show in the bandwidth of whom they carry.
func TestTheTimeOfAStep(t *testing.T) {
	j := Typical(4, 8)
	j.Noise, j.Jitter = 0, 0
	p, shares := ran(j, Fault{Kind: Rail, At: 3, By: 0.5})
	step := 12*j.Work + 8*j.TPTime + 2*j.DPTime + 0.002
	for r, share := range shares {
		assert.InDelta(t, 1-12*j.Work/step, share, 0.002)
		tp, dp, takes := p.Ranks[r].Traffic[0], p.Ranks[r].Traffic[1], j.DPTime
		if r%8 == 3 {
			takes *= 2
		}
		assert.InDelta(t, 540/step, dp.Count, 1)
		assert.InEpsilon(t, float64(tp.Bytes)*2*7/8/j.TPTime, tp.Bandwidth, 1e-6)
		assert.InEpsilon(t, float64(dp.Bytes)*2*3/4/takes, dp.Bandwidth, 1e-6)
		assert.Equal(t, [7]int{4, 4, r / 8, 8, 1, r % 8, r / 8}, [7]int{dp.Size, dp.Nodes, dp.CommRank, tp.Size, tp.Nodes, tp.CommRank, p.Ranks[r].Node})
	}
}

// A rank that computes longer delays all, and waits less by what it lost; all others are alike.
func TestTheLateOneWaitsLeast(t *testing.T) {
	sharded := Typical(4, 4)
	sharded.TP, sharded.DP, sharded.Sharded, sharded.DPTime, sharded.World = 1, 16, true, 0.01, false
	for name, j := range map[string]Job{"tensor": Typical(4, 8), "pipeline": pipelined(), "sharded": sharded} {
		for _, f := range []Fault{
			{Kind: GPU, At: 5, By: 0.2, From: 1e9}, {Kind: GPU, At: 5, By: 0.3, From: 59}, {Kind: Host, At: 1, By: 0.1}, {Kind: Input, At: 5, By: 0.08},
		} {
			p, shares := ran(j, f)
			well := slices.Max(shares)
			lost := (1 - well) * f.By / (1 - f.By)
			if f.Kind == Input {
				lost = float64(p.steps) / 600 * f.By
			}
			for r, share := range shares {
				want := well
				if f.From < 60 && (f.Kind == Host && p.Ranks[r].Node == 1 || f.Kind != Host && r == 5) {
					want -= lost
				}
				assert.InDelta(t, want, share, 0.018, "%s %+v rank %d", name, f, r)
			}
		}
	}
}

// What a job does by design shows where it is to show, and a rank that stops stops all.
func TestTraits(t *testing.T) {
	j := pipelined()
	j.LastStage = 0.05
	_, shares := ran(j)
	assert.Less(t, slices.Max(shares[16:]), slices.Min(shares[:16])-0.01, "the last stage waits less")

	j = Typical(2, 4)
	j.FirstWrites, j.Checkpoint, j.CheckpointEvery = true, 20, 100
	_, shares = ran(j)
	assert.InDelta(t, shares[0]+5*20.0/540, slices.Min(shares[1:]), 0.02, "all others wait for the first one's checkpoint")

	j.FirstWrites, j.Phase, j.PhaseEvery, j.StartUp, j.Imbalance, j.ImbalanceEvery = false, 0.6, 60, 10, 0.3, 30
	p, shares := ran(j)
	assert.Less(t, slices.Max(shares)-slices.Min(shares), 0.1, "the heavy load goes around")
	p.Ranks[3].Speed = 0
	p.Advance(10)
	p.Advance(10)
	assert.Empty(t, p.Done)
}

// The lines are those of a real file of 2.30.7.
func TestLines(t *testing.T) {
	const (
		meta = `"metadata":{"inspector_output_format_version":"v4.0","git_rev":"unknown","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":2000000,"hostname":"node-000001","pid":1009},`
		coll = `"coll_perf":{"coll":"ReduceScatter","coll_sn":4,"coll_msg_size_bytes":1048576,"coll_exec_time_us":250,"coll_timing_source":"kernel_gpu","coll_algobw_gbs":16.777216,"coll_busbw_gbs":12.582912}`
	)
	of := Traffic{ID: "0x14a586f79c44f0", Name: "dp:0", Rank: 9, CommRank: 1, Size: 4, Nodes: 2, Function: "ReduceScatter", Bytes: 1 << 20, bus: 3 << 20, algorithm: 4 << 20}
	p := &Play{Ranks: slices.Repeat([]Rank{{Node: 1}}, 16), until: 1, Done: []Operation{{Traffic: &of, began: 0.5, ended: 0.50025, peer: 3, number: 4}}}
	line := func() string { return string(p.Dump(time.Unix(2, 0))["node-000001-pid1009.log"]) }
	assert.JSONEq(t, `{"header":{"id":"0x14a586f79c44f0","comm_name":"dp:0","rank":1,"n_ranks":4,"nnodes":2},`+meta+coll+"}", line())
	of.Function = "Recv"
	assert.Contains(t, line(), `"p2p_perf":{"p2p":"Recv","p2p_peer":3,"p2p_sn":4,"p2p_msg_size_bytes":1048576,"p2p_exec_time_us":250,"p2p_timing_source":"kernel_gpu","p2p_algobw_gbs":16.777216,"p2p_busbw_gbs":12.582912}}`)
}
