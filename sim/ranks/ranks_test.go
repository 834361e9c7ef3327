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
func ran(j *Job) (p *Play, shares []float64) {
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
	pipeline.DP, pipeline.PP, pipeline.PPBytes = 2, 2, 64<<20
	sharded.TP, sharded.DP, sharded.Sharded = 1, 16, true
	sharded.take(0.5, 0.1, 0.15)
	rails.World = false
	return map[string]Job{"tensor": Typical(4, 8), "pipeline": pipeline, "sharded": sharded, "rails": rails}
}

// Without noise the time of a step is its work and its transfers, and the rest is waiting.
func TestTheTimeOfAStep(t *testing.T) {
	j := Typical(4, 8)
	j.Noise, j.Bias, j.Jitter = 0, 0, 0
	p, shares := ran(&j)
	k := &p.Ranks[9]
	require.Len(t, k.Traffic, 3)
	steps := float64(k.Traffic[1].Count)
	step := 0.375 + 0.05*7/8 + 0.075*3/4
	assert.InDelta(t, 540/step, steps, 20, "with latency and the world's meeting")
	assert.InDelta(t, 1-0.375/step, shares[9], 0.005)
	assert.InDelta(t, 1-steps*0.375/540, shares[9], 0.002)
	assert.InDelta(t, 8*steps, k.Traffic[0].Count, 8)
	assert.InEpsilon(t, j.NVLink, k.Traffic[0].Bandwidth, 0.01)
	assert.InEpsilon(t, j.Network, k.Traffic[1].Bandwidth, 0.01)
	assert.Equal(t, [4]any{4, 4, 1, 1}, [4]any{len(k.Traffic[1].Members), k.Traffic[1].Nodes, k.Traffic[1].Place, k.Node})
	assert.Equal(t, [3]any{8, 1, 1}, [3]any{len(k.Traffic[0].Members), k.Traffic[0].Nodes, k.Traffic[0].Place})
}

// Who computes longer delays all, and waits less by what it lost; all others are alike.
func TestTheLateOneWaitsLeast(t *testing.T) {
	for name, j := range lookalikes() {
		for fault, f := range map[string]Fault{
			"none": {Kind: GPU, At: 5, By: 0.2, From: 1e9}, "gpu": {Kind: GPU, At: 5, By: 0.1}, "worse": {Kind: GPU, At: 5, By: 0.3, From: 59},
			"host": {Kind: Host, At: 1, By: 0.1}, "input": {Kind: Input, At: 5, By: 0.08}, "over": {Kind: Host, At: 1, By: 0.5, Until: 50},
		} {
			t.Run(name+" "+fault, func(t *testing.T) {
				j := j
				j.Bias, j.Faults = 0, []Fault{f}
				p, shares := ran(&j)
				well, slow, nwell, nslow := 0.0, 0.0, 0.0, 0.0
				late := func(r int) bool {
					return f.From < 60 && f.Until == 0 && (f.Kind == Host && p.Ranks[r].Node == 1 || f.Kind != Host && r == 5)
				}
				for r, s := range shares {
					if late(r) {
						slow, nslow = slow+s, nslow+1
					} else {
						well, nwell = well+s, nwell+1
					}
				}
				well, slow = well/nwell, slow/max(1, nslow)
				for r, s := range shares {
					if !late(r) {
						assert.InDelta(t, well, s, 0.01, "rank %d", r)
					}
				}
				if nslow > 0 {
					lost := (1 - well) * f.By / (1 - f.By)
					if f.Kind == Input {
						lost = float64(p.steps) / 600 * f.By
					}
					assert.InDelta(t, lost, well-slow, 0.015)
				}
			})
		}
	}
}

// Slow links take all ranks' time alike, and show in the bandwidth of whom they carry.
func TestSlowLinks(t *testing.T) {
	for _, f := range []Fault{{Kind: Rail, At: 3, By: 0.5}, {Kind: Fabric, By: 0.5}} {
		j := Typical(4, 8)
		j.Bias, j.Jitter, j.Faults = 0, 0, []Fault{f}
		p, shares := ran(&j)
		for r := range p.Ranks {
			assert.InDelta(t, shares[0], shares[r], 0.01, "rank %d", r)
			want := j.Network
			if f.Kind == Fabric || r%8 == 3 {
				want /= 2
			}
			assert.InEpsilon(t, want, p.Ranks[r].Traffic[1].Bandwidth, 0.01, "rank %d", r)
			assert.InEpsilon(t, j.NVLink, p.Ranks[r].Traffic[0].Bandwidth, 0.01, "rank %d", r)
		}
	}
}

// What a job does by design shows where it is to show.
func TestTraits(t *testing.T) {
	pipeline := lookalikes()["pipeline"]
	pipeline.LastStage, pipeline.Bias = 0.05, 0
	_, shares := ran(&pipeline)
	for r := range 16 {
		assert.Less(t, shares[16+r], shares[r]-0.01, "the last stage waits less")
	}

	j := Typical(2, 4)
	j.FirstWrites, j.Checkpoint, j.CheckpointEvery = true, 20, 100
	p, shares := ran(&j)
	for r := 1; r < 8; r++ {
		assert.InDelta(t, shares[0]+5*20.0/540, shares[r], 0.02, "who waits for the first one's checkpoint")
	}
	assert.Greater(t, p.Ranks[1].Traffic[0].Seconds, 80.0)

	j = Typical(2, 4)
	j.Phase, j.PhaseEvery, j.StartUp, j.Bias = 0.6, 60, 10, 0
	p = New(&j, 1)
	p.Advance(10)
	start := p.Ranks[1].Traffic[1].Count
	p.Advance(50)
	var counts []int
	for range 10 {
		p.Advance(60)
		counts = append(counts, p.Ranks[1].Traffic[1].Count)
		for r := range p.Ranks {
			assert.InDelta(t, p.Ranks[0].Seconds, p.Ranks[r].Seconds, 4)
		}
	}
	assert.LessOrEqual(t, start, 1, "the first steps compile")
	assert.Greater(t, slices.Max(counts), slices.Min(counts)+20, "%v", counts)

	j = Typical(2, 4)
	j.Imbalance, j.ImbalanceEvery, j.Noise, j.Bias = 0.3, 30, 0, 0
	p = New(&j, 1)
	lowest := map[int]bool{}
	for range 20 {
		p.Advance(30)
		at := 0
		for r := range p.Ranks {
			if p.Ranks[r].Seconds < p.Ranks[at].Seconds {
				at = r
			}
		}
		lowest[at] = true
	}
	assert.Greater(t, len(lowest), 4, "another rank each time")
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
	kinds := map[string]bool{}
	for seed := range uint64(50) {
		j := Draw(rand.New(rand.NewPCG(seed, 1)))
		p, again := New(&j, seed), New(&j, seed)
		require.True(t, j.Ranks() >= 8 && j.Ranks() <= 256, "%+v", j)
		kinds[fmt.Sprint(j.TP, j.PP, j.Sharded, j.World)] = true
		told := make([]float64, j.Ranks())
		at, all := 0.0, 0.0
		p.Each = func(o Operation) {
			assert.True(t, o.Ended > at && o.Ended <= at+30 && o.Began < o.Ended)
			told[o.Rank] += o.Ended - o.Began
			all += o.Ended - o.Began
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
	assert.Greater(t, len(kinds), 7)
}

func BenchmarkTenMinutes(b *testing.B) {
	j := Typical(32, 8)
	j.take(1, 0.1, 0.15)
	for b.Loop() {
		p := New(&j, 1)
		for range 60 {
			p.Advance(10)
		}
	}
}
