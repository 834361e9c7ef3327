// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

func (p *play) throughput() SignalReport {
	return groupOf(p.t, p.last, "c", p.groups[0]).Signals[nodesignal.Throughput]
}

// TestAFallOfAllIsNoIncident: it is told as a number, and usual after six hours.
func TestAFallOfAllIsNoIncident(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	require.Empty(t, p.ticks(360))
	p.slow(0.2, all...)
	require.Empty(t, p.ticks(6*360))
	assert.InDelta(t, 0.2, p.throughput().Fall, 0.01)
	assert.InDelta(t, 10.05, p.throughput().Params.Level, 0.05)
	require.Empty(t, p.ticks(1))
	assert.Zero(t, p.throughput().Fall, "it is usual now")
	assert.InDelta(t, 8.04, p.throughput().Params.Level, 0.05)

	p.loss = func(_ string, i int) float64 { return map[bool]float64{true: 0.5, false: 0.2}[i == 4] }
	require.Equal(t, []string{"node onset j-04"}, brief(p.ticks(20)), "nodes are found as before")
	p.slow(0)
	assert.Equal(t, []string{"node end j-04 recovered"}, brief(p.ticks(60)))
}

// TestPhasesOfAJobAreNoIncidents: each 20 minutes all nodes do less for five.
func TestPhasesOfAJobAreNoIncidents(t *testing.T) {
	for name, loss := range map[string]float64{"13 %": 0.13, "half": 0.5} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			p := newPlay(t, []string{"j"}, 16, nil)
			p.loss = func(string, int) float64 {
				x := 1 + 0.015*rng.NormFloat64()
				if p.k%120 >= 90 {
					x *= 1 - loss
				}
				return 1 - x
			}
			assert.Empty(t, p.ticks(2000))
		})
	}
}

// TestALoadThatGoesIsNoIncident: the nodes of a service, which vary much, have
// less and less to do.
func TestALoadThatGoesIsNoIncident(t *testing.T) {
	for _, tc := range []struct{ sd, fall, ticks float64 }{{0.04, 0.4, 360}, {0.06, 0.09, 1}} {
		testLoad(t, tc.sd, tc.fall, tc.ticks)
	}
}

func testLoad(t *testing.T, sd, fall, ticks float64) {
	t.Helper()
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 1))
		noise := [32]float64{}
		p := newPlay(t, []string{"j"}, 32, nil)
		p.loss = func(_ string, i int) float64 {
			noise[i] = 0.9*noise[i] + sd*0.436*rng.NormFloat64()
			gone := fall * min(1, max(0, float64(p.k-60)/ticks))
			return 1 - (1-gone)*(1+noise[i])
		}
		assert.Empty(t, onsets(p.ticks(1200), SubjectGroup), "seed %d", seed)
	}
}

// TestAFallCountsFromTheSignalsOwnGap: 0.115 more CPU pressure is no more than
// healthy nodes may differ by, even if only most have it.
func TestAFallCountsFromTheSignalsOwnGap(t *testing.T) {
	for name, tc := range map[string]struct {
		cpu  float64
		told []string
	}{
		"less": {0.87, nil},
		"more": {0.70, []string{"group onset 10 stragglers"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, nil)
			var told []Event
			for k := range 200 {
				for i := range 16 {
					o := Observation{Cluster: "c", Node: nodeName("j", i), Peers: []string{"j"}, HasState: true}
					o.Values.Set(nodesignal.CPU, 0.985)
					if k >= 100 && i < 10 {
						o.Values.Set(nodesignal.CPU, tc.cpu)
					}
					require.NoError(t, f.e.Observe(&o, f.now))
				}
				told = append(told, f.tick().Events...)
			}
			assert.Equal(t, tc.told, brief(told))
		})
	}
}

// TestAFaultOfMostIsOneIncident: the others did not fall, and the numbers are
// those of the two parts.
func TestAFaultOfMostIsOneIncident(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, nil)
	require.Empty(t, p.ticks(360))
	most := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	p.slow(0.2, most...)
	began := p.now
	require.Empty(t, p.ticks(5), "all may follow")
	told := p.ticks(5)
	require.Equal(t, []string{"group onset 11 stragglers"}, brief(told))
	assert.InDelta(t, 8.04, told[0].Value, 0.1)
	assert.InDelta(t, 10.05, told[0].Median, 0.05)
	assert.InDelta(t, 0.2, told[0].Gap, 0.02)
	assert.LessOrEqual(t, told[0].At.Sub(began), 100*time.Second)
	require.Empty(t, p.ticks(6*360-10), "it lasts")
	assert.InDelta(t, 2, p.node("j-00").Suspicion, 1e-6)
	assert.Equal(t, []string{"group end 0 relearned"}, brief(p.ticks(30)))
	require.Empty(t, p.ticks(400))
	assert.False(t, p.node("j-00").Straggler, "most are what is usual")
	assert.InDelta(t, 8.04, p.throughput().Params.Level, 0.1)
	p.slow(0)
	assert.Empty(t, p.ticks(400))
}

// TestPartsThatComeBackOneAfterTheOther are no fault of those that come last.
func TestPartsThatComeBackOneAfterTheOther(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, nil)
	p.ticks(60)
	p.loss = func(_ string, i int) float64 {
		if p.k < 100 || (i >= 12 && p.k >= 140) || p.k >= 155 {
			return 0
		}
		return 0.2
	}
	assert.Empty(t, p.ticks(200))
}

// TestAFaultThatTakesNodesWithIt: six of twenty vanish as most of the others
// become slow; and five that just go idle.
func TestAFaultThatTakesNodesWithIt(t *testing.T) {
	told := func(mutate func(p *play)) []string {
		p := newPlay(t, []string{"j"}, 20, nil)
		require.Empty(t, p.ticks(200))
		mutate(p)
		return brief(p.ticks(100))
	}
	assert.Equal(t, []string{"group onset 8 stragglers", "missing onset 6"}, told(func(p *play) {
		p.silent = func(_ string, i int) bool { return i < 6 }
		p.slow(0.2, 6, 7, 8, 9, 10, 11, 12, 13)
	}))
	assert.Empty(t, told(func(p *play) {
		p.idle = func(_ string, i int) bool { return i < 6 }
		p.loss = func(string, int) float64 { return 0.2 }
	}))
	assert.Equal(t, []string{"missing onset 6"}, told(func(p *play) {
		p.silent = func(_ string, i int) bool { return i < 6 }
		p.loss = func(string, int) float64 { return 0.2 }
	}), "all of those that are left: no one to tell it from a phase by")
}
