// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ran plays a job for ten minutes and returns each rank's share of the last nine.
func ran(j *Job, faults ...Fault) (p *Play, shares []float64) {
	j.Faults, j.Bias = faults, 0
	p = New(j, 1)
	p.Advance(60)
	p.Advance(540)
	for r := range p.Ranks {
		shares = append(shares, p.Ranks[r].Seconds/540)
	}
	return p, shares
}

func lookalikes() map[string]Job {
	pipeline, sharded, rails := Typical(4, 8), Typical(4, 4), Typical(8, 2)
	pipeline.DP, pipeline.PP = 2, 2
	sharded.TP, sharded.DP, sharded.Sharded, sharded.DPTime = 1, 16, true, 0.01
	rails.World = false
	return map[string]Job{"tensor": Typical(4, 8), "pipeline": pipeline, "sharded": sharded, "rails": rails}
}

// Without noise the time of a step is its work and its transfers.
func TestTheTimeOfAStep(t *testing.T) {
	j := Typical(4, 8)
	j.Noise, j.Jitter = 0, 0
	p, shares := ran(&j)
	step := 12*j.Work + 8*j.TPTime + j.DPTime + 0.001
	assert.InDelta(t, 1-12*j.Work/step, shares[9], 0.002)
	tp, dp := p.Ranks[9].Traffic[0], p.Ranks[9].Traffic[1]
	assert.InDelta(t, 540/step, dp.Count, 1)
	assert.InDelta(t, 8*540/step, tp.Count, 8)
	assert.InEpsilon(t, float64(tp.Bytes)*2*7/8/j.TPTime, tp.Bandwidth, 1e-6)
	assert.Equal(t, []int{1, 9, 17, 25}, dp.Members)
	assert.Equal(t, [5]int{4, 1, 1, 1, 1}, [5]int{dp.Nodes, dp.Place, tp.Nodes, tp.Place, p.Ranks[9].Node})
}

// Who computes longer delays all, and waits less by what it lost; all others are alike.
func TestTheLateOneWaitsLeast(t *testing.T) {
	for name, j := range lookalikes() {
		for _, f := range []Fault{
			{Kind: GPU, At: 5, By: 0.2, From: 1e9},
			{Kind: Host, At: 1, By: 0.5, Until: 50},
			{Kind: GPU, At: 5, By: 0.1},
			{Kind: GPU, At: 5, By: 0.3, From: 59},
			{Kind: Host, At: 1, By: 0.1},
			{Kind: Input, At: 5, By: 0.08},
		} {
			t.Run(fmt.Sprintf("%s %+v", name, f), func(t *testing.T) {
				p, shares := ran(&j, f)
				well := slices.Max(shares)
				lost := (1 - well) * f.By / (1 - f.By)
				if f.Kind == Input {
					lost = float64(p.steps) / 600 * f.By
				}
				for r, share := range shares {
					if f.From < 60 && f.Until == 0 && (f.Kind == Host && p.Ranks[r].Node == 1 || f.Kind != Host && r == 5) {
						assert.InDelta(t, well-lost, share, 0.02)
					} else {
						assert.InDelta(t, well, share, 0.015, "rank %d", r)
					}
				}
			})
		}
	}
}

// Slow links take all ranks' time alike, and show in the bandwidth of whom they carry.
func TestSlowLinks(t *testing.T) {
	for _, f := range []Fault{{Kind: Rail, At: 3, By: 0.5}, {Kind: Fabric, By: 0.5}} {
		j := lookalikes()["pipeline"]
		j.Jitter = 0
		p, shares := ran(&j, f)
		for r := range p.Ranks {
			assert.InDelta(t, shares[0], shares[r], 0.01, "rank %d", r)
			takes := j.DPTime
			if f.Kind == Fabric || r%8 == 3 {
				takes *= 2
			}
			assert.InEpsilon(t, (512<<20)/takes, p.Ranks[r].Traffic[1].Bandwidth, 0.01, "rank %d", r)
			assert.InEpsilon(t, (16<<20)*1.75/j.TPTime, p.Ranks[r].Traffic[0].Bandwidth, 0.01, "rank %d", r)
		}
	}
}

// What a job does by design shows where it is to show.
func TestTraits(t *testing.T) {
	j := lookalikes()["pipeline"]
	j.LastStage = 0.05
	_, shares := ran(&j)
	for r := range 16 {
		assert.Less(t, shares[16+r], shares[r]-0.01, "the last stage waits less")
	}

	j = Typical(2, 4)
	j.FirstWrites, j.Checkpoint, j.CheckpointEvery = true, 20, 100
	_, shares = ran(&j)
	for r := 1; r < 8; r++ {
		assert.InDelta(t, shares[0]+5*20.0/540, shares[r], 0.02, "who waits for the first one's checkpoint")
	}

	j = Typical(2, 4)
	j.Phase, j.PhaseEvery, j.StartUp, j.Imbalance, j.ImbalanceEvery = 0.6, 60, 10, 0.3, 30
	p := New(&j, 1)
	p.Advance(10)
	assert.LessOrEqual(t, p.Ranks[1].Traffic[1].Count, 1, "the first steps compile")
	p.Advance(50)
	lowest, counts := map[int]bool{}, []int{}
	for range 20 {
		p.Advance(30)
		lowest[slices.IndexFunc(p.Ranks, func(a Rank) bool {
			return !slices.ContainsFunc(p.Ranks, func(b Rank) bool { return b.Seconds < a.Seconds })
		})] = true
		counts = append(counts, p.Ranks[0].Traffic[1].Count)
	}
	assert.Greater(t, len(lowest), 4, "another rank each time")
	assert.Greater(t, slices.Max(counts), slices.Min(counts)*5/4, "phases")
}

// A rank that stops has all others stop.
func TestHang(t *testing.T) {
	for name, j := range lookalikes() {
		j.Faults = []Fault{{Kind: GPU, At: 5, By: 1, From: 30}}
		p := New(&j, 1)
		p.Advance(30)
		assert.Positive(t, p.Ranks[0].Seconds)
		p.Advance(30)
		p.Advance(30)
		for r := range p.Ranks {
			assert.Zero(t, p.Ranks[r].Seconds, "%s, rank %d", name, r)
		}
	}
}

// All jobs that are drawn run, and the same seed gives the same. Each operation is told
// once, in its tick.
func TestDrawnJobs(t *testing.T) {
	kinds := map[[2]int]bool{}
	for seed := range uint64(80) {
		j := Draw(rand.New(rand.NewPCG(seed, 1)))
		p, again := New(&j, seed), New(&j, seed)
		require.True(t, j.Ranks() >= 8 && j.Ranks() <= 256, "%+v", j)
		kinds[[2]int{j.TP, j.PP}] = true
		told, at, all := make([]float64, j.Ranks()), 0.0, 0.0
		p.Each = func(o Operation) {
			assert.True(t, o.Ended > at && o.Ended <= at+30 && o.Began < o.Ended)
			told[o.Rank] += o.Ended - o.Began
			all++
		}
		for ; at < 300; at += 30 {
			clear(told)
			p.Advance(30)
			again.Advance(30)
			require.Equal(t, p.Ranks, again.Ranks)
			for r := range p.Ranks {
				assert.InDelta(t, p.Ranks[r].Seconds, told[r], 1e-9)
			}
		}
		assert.Positive(t, all, "%+v", j)
	}
	assert.Len(t, kinds, 5, "%v", kinds)
}
