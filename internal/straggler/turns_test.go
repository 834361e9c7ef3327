// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/peergroup"
)

// turnsPlay is a group without labels whose nodes take each other's job in turns: job is
// whose each node does now, at is since when.
type turnsPlay struct {
	*play
	job, at []int
	loss    map[int]float64
}

func newTurnsPlay(t *testing.T, seed uint64, nodes int, ticks float64, levels ...float64) *turnsPlay {
	t.Helper()
	p := &turnsPlay{play: newPlay(t, []string{""}, nodes, nil), job: make([]int, nodes), at: make([]int, nodes), loss: map[int]float64{}}
	draw := rand.New(rand.NewPCG(seed, 5))
	for i := range p.job {
		p.job[i] = i % len(levels)
	}
	p.play.loss = func(_ string, i int) float64 {
		if ticks > 0 && draw.Float64() < 1/ticks {
			p.job[i], p.at[i] = (p.job[i]+1+draw.IntN(len(levels)-1))%len(levels), p.k
		}
		return 1 - levels[p.job[i]]*(1+0.01*draw.NormFloat64())*(1-p.loss[i])
	}
	return p
}

// misplaced are the nodes that share a cohort with another job's, or share none with
// their own's. Those that came to their job in the last ticks are not asked.
func (p *turnsPlay) misplaced() (n int) {
	g := p.e.clusters["c"].groups[peergroup.Default]
	cohort := map[int]uint8{}
	for i := range g.members {
		if p.k-p.at[i] <= turnTicks {
			continue
		}
		if k, ok := cohort[p.job[i]]; ok && k != g.members[i].cohort {
			n++
		}
		cohort[p.job[i]] = g.members[i].cohort
	}
	for a, ka := range cohort {
		for b, kb := range cohort {
			if a != b && ka == kb {
				n++
			}
		}
	}
	return n
}

// TestNodesThatTakeTurns are told apart by what they do now, and a fault among them is
// found as fast as in any job.
func TestNodesThatTakeTurns(t *testing.T) {
	for name, tc := range map[string]struct {
		nodes  int
		ticks  float64 // that a node stays at its job
		levels []float64
	}{
		"two":             {24, 90, []float64{0.6, 1}},
		"few nodes":       {12, 120, []float64{0.7, 1}},
		"every three min": {40, 18, []float64{0.6, 1}},
		"three jobs":      {36, 90, []float64{0.4, 0.65, 1}},
		"every half hour": {16, 180, []float64{0.55, 1}},
		"many, and quick": {96, 30, []float64{0.5, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTurnsPlay(t, 3, tc.nodes, tc.ticks, tc.levels...)
			p.ticks(500) // until five nodes have gone up
			require.Equal(t, len(tc.levels), p.cohorts())
			bad := 0
			for range 720 {
				require.Empty(t, onsets(p.ticks(1), SubjectNode), "at %d", p.k)
				bad += p.misplaced()
			}
			assert.Less(t, float64(bad), 0.002*float64(720*tc.nodes))
			p.loss[3], p.loss[6] = 0.15, 0.15
			found := map[string]bool{}
			for range 100 {
				for _, ev := range onsets(p.ticks(1), SubjectNode) {
					found[ev.Node] = true
				}
			}
			assert.Equal(t, map[string]bool{"-03": true, "-06": true}, found)
		})
	}
}

// TestAFaultIsNoTurn: where nobody takes turns, a node that falls to the very level of
// another job, and comes back and falls again, is slow and stays one of its own job.
func TestAFaultIsNoTurn(t *testing.T) {
	p := newTurnsPlay(t, 1, 24, 0, 0.6, 1)
	require.Empty(t, p.ticks(360))
	for range 4 {
		for _, i := range []int{1, 3, 5} {
			p.loss[i] = 0.4
		}
		p.ticks(60)
		assert.Zero(t, p.misplaced())
		for _, i := range []int{1, 3, 5} {
			assert.True(t, p.node(nodeName("", i)).Straggler)
		}
		clear(p.loss)
		p.ticks(60)
		assert.Zero(t, p.misplaced())
	}
}

// TestANodeGoesUpByItself, and down only after five others went up: no node does so for
// others however often it goes up itself.
func TestANodeGoesUpByItself(t *testing.T) {
	p := newTurnsPlay(t, 1, 24, 0, 0.6, 1)
	require.Empty(t, p.ticks(360))
	g := p.e.clusters["c"].groups[peergroup.Default]
	for i := range turnsRises {
		for range 3 { // the last of them stays where it went
			p.job[2*i], p.at[2*i] = 1, p.k
			require.Empty(t, p.ticks(10))
			require.Equal(t, uint8(1), g.members[2*i].cohort)
			g.members[2*i].cohort = 0
		}
		require.Len(t, g.split.rises, i+1)
		require.Empty(t, p.ticks(10))
	}
	require.True(t, groupOf(t, p.last, "c", peergroup.Default).Turns)
	p.job[1], p.at[1] = 0, p.k
	require.Empty(t, p.ticks(20))
	assert.Zero(t, p.misplaced())
	// Six hours without, and it is a fault again.
	require.Empty(t, p.ticks(6*360))
	p.job[3], p.at[3] = 0, p.k
	assert.Equal(t, []string{"node onset -03"}, brief(p.ticks(20)))
}

// TestAPauseIsNoTurn: nodes pause one after the other and come back, all do so.
func TestAPauseIsNoTurn(t *testing.T) {
	p := newPlay(t, []string{""}, 32, nil)
	p.loss = func(_ string, i int) float64 {
		if at := p.k % 90; at >= 60+i%3 && at < 66+i%3 {
			return 0.4
		}
		return 0
	}
	p.ticks(1500)
	assert.Zero(t, p.cohorts())
}

// TestTurn follows a value's way between levels.
func TestTurn(t *testing.T) {
	low, high := &Params{Centre: 6, Relative: true, Scale: 0.01}, &Params{Centre: 10, Relative: true, Scale: 0.01}
	for name, tc := range map[string]struct {
		levels []*Params
		own    int
		down   bool
		x      []float64
		end    int
	}{
		"up":                     {[]*Params{low, high}, 0, false, []float64{10, 10.1, 9.9}, 1},
		"not yet":                {[]*Params{low, high}, 0, false, []float64{10, 10.1}, 0},
		"not in one go":          {[]*Params{low, high}, 0, false, []float64{10, 6, 10, 10}, 0},
		"between":                {[]*Params{low, high}, 0, false, []float64{9, 9, 9, 9}, 0},
		"down":                   {[]*Params{low, high}, 1, true, []float64{6, 6, 6}, 0},
		"a fault":                {[]*Params{low, high}, 1, false, []float64{6, 6, 6, 6}, 1},
		"a level nobody knows":   {[]*Params{low, nil}, 0, true, []float64{10, 10, 10}, 0},
		"its own nobody knows":   {[]*Params{nil, high}, 0, true, []float64{10, 10, 10}, 0},
		"a little off its level": {[]*Params{low, high}, 1, true, []float64{9.7, 9.7, 9.7}, 1},
	} {
		toward, run, at := int8(-1), uint8(0), tc.own
		for _, x := range tc.x {
			at = Turn(tc.levels, at, x, tc.down, &toward, &run)
		}
		assert.Equal(t, tc.end, at, name)
	}
	assert.InDelta(t, 12, Moved(7.2, low, high, true), 1e-9)
	assert.InDelta(t, 11.2, Moved(7.2, low, high, false), 1e-9)
}
