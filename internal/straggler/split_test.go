// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/peergroup"
)

// twoJobs is a group without labels, the last ten of whose nodes do work of
// another kind.
func twoJobs(t *testing.T, difference float64) *play {
	t.Helper()
	p := newPlay(t, []string{""}, 20, nil)
	p.differ(difference)
	return p
}

func (p *play) differ(by float64, slow ...int) {
	p.loss = func(_ string, i int) float64 {
		x := 1.0
		if i >= 10 {
			x -= by
		}
		for _, s := range slow {
			if s == i {
				x *= 0.8
			}
		}
		return 1 - x
	}
}

func (p *play) cohorts() int { return len(groupOf(p.t, p.last, "c", peergroup.Default).Cohorts) }

// TestSplitStaysForHalfOfTheGap that made it; without any it is made anew.
func TestSplitStaysForHalfOfTheGap(t *testing.T) {
	p := twoJobs(t, 0.06)
	p.ticks(200)
	require.Zero(t, p.cohorts(), "6 % are too few to tell jobs apart")

	p = twoJobs(t, 0.10)
	p.ticks(200)
	require.Equal(t, 2, p.cohorts())
	g := groupOf(t, p.last, "c", peergroup.Default)
	assert.Equal(t, nodesignal.Throughput, g.SplitBy)
	low, high := g.Cohorts[0], g.Cohorts[1]
	assert.False(t, low.HasFrom)
	assert.True(t, high.HasFrom)
	assert.InDelta(t, 9.55, high.From, 0.1, "halfway")
	assert.Equal(t, []int{10, 10}, []int{low.Active, high.Active})
	assert.InDelta(t, 9.05, low.Signals[nodesignal.Throughput].Params.Centre, 0.06)
	assert.InDelta(t, 10.05, high.Signals[nodesignal.Throughput].Params.Centre, 0.06)
	assert.False(t, g.Signals[nodesignal.Throughput].Known, "the group as a whole is not compared")

	p.differ(0.055)
	assert.Empty(t, p.ticks(600))
	assert.Equal(t, 2, p.cohorts(), "more than half of 8 %")
	p.differ(0.02)
	assert.Empty(t, p.ticks(600))
	assert.Zero(t, p.cohorts(), "one job")
	p.differ(0.055)
	assert.Empty(t, p.ticks(600))
	assert.Zero(t, p.cohorts(), "less than 8 % splits nothing")
}

func TestEachSideOfASplitFindsItsStraggler(t *testing.T) {
	p := twoJobs(t, 0.4)
	require.Empty(t, p.ticks(200))
	p.differ(0.4, 3, 15)
	assert.ElementsMatch(t, []string{"node onset -03", "node onset -15"}, brief(p.ticks(20)))
	assert.Empty(t, p.ticks(400), "nor does it become one of the slower job")
	assert.True(t, p.node("-03").Straggler)
	other := p.loss
	p.loss = func(g string, i int) float64 {
		if i == 3 {
			return 0.4 // what the others do
		}
		return other(g, i)
	}
	for _, ev := range p.ticks(600) {
		assert.Equal(t, EventSeverity, ev.Kind, "not even at their level")
	}
	assert.True(t, p.node("-03").Straggler)
	assert.Equal(t, 2, p.cohorts())
}

// TestADegradationIsNoJob: half of a group falls and stays there.
func TestADegradationIsNoJob(t *testing.T) {
	p := twoJobs(t, 0)
	require.Empty(t, p.ticks(400))
	p.differ(0.2)
	told := p.ticks(300)
	require.Len(t, told, 1)
	assert.Equal(t, SubjectGroup, told[0].Subject)
	assert.Zero(t, p.cohorts())
}

func TestALabelledGroupIsNotSplit(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, nil)
	p.differ(0.4)
	p.ticks(200)
	assert.Empty(t, groupOf(t, p.last, "c", "j").Cohorts)
}

// TestScatteredNodesAreNoJobs: gaps that are no wider than the rest is.
func TestScatteredNodesAreNoJobs(t *testing.T) {
	p := newPlay(t, []string{""}, 20, nil)
	p.loss = func(_ string, i int) float64 { return 0.045 * float64(i/2*2) }
	p.ticks(200)
	assert.Zero(t, p.cohorts())
}

// TestThreeAlikeAreAJob: two that do less from their start are stragglers.
func TestThreeAlikeAreAJob(t *testing.T) {
	p := newPlay(t, []string{""}, 20, nil)
	p.slow(0.3, 0, 1)
	assert.Equal(t, []string{"node onset -00", "node onset -01"}, brief(p.ticks(200)))
	assert.Zero(t, p.cohorts())
	p = newPlay(t, []string{""}, 20, nil)
	p.slow(0.3, 0, 1, 2)
	assert.Empty(t, p.ticks(200))
	assert.Equal(t, 2, p.cohorts())
}

// TestThreeThatFallAreNoJob, however long they are slow.
func TestThreeThatFallAreNoJob(t *testing.T) {
	p := newPlay(t, []string{""}, 20, nil)
	require.Empty(t, p.ticks(200))
	p.slow(0.3, 0, 1, 2)
	assert.Len(t, onsets(p.ticks(1000), SubjectNode), 3)
	assert.Zero(t, p.cohorts())
}

// late keeps nodes from some number on idle until they start, one each 20 s.
func (p *play) late(from, start int) {
	p.idle = func(_ string, i int) bool { return i >= from && p.k < start+2*(i-from) }
}

// TestAJobThatJoinsIsNotAccused by the nodes of another, neither when its nodes
// come together nor when they come one by one; nor are these by a larger one.
func TestAJobThatJoinsIsNotAccused(t *testing.T) {
	for name, tc := range map[string]struct {
		nodes, from int
		at          float64
	}{
		"four join twelve":        {16, 12, 0.7},
		"four join sixty":         {64, 60, 0.7},
		"twelve join four":        {16, 4, 0.7},
		"sixteen join sixteen":    {32, 16, 0.82},
		"sixteen faster ones":     {32, 16, 1.5},
		"three, too few to judge": {24, 21, 0.5},
	} {
		for _, together := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				p := newPlay(t, []string{""}, tc.nodes, nil)
				p.late(tc.from, 100)
				if together {
					p.idle = func(_ string, i int) bool { return i >= tc.from && p.k < 100 }
				}
				loss := map[int]float64{}
				p.loss = func(_ string, i int) float64 {
					x := 1 - loss[i]
					if i >= tc.from {
						x *= tc.at
					}
					return 1 - x
				}
				require.Empty(t, p.ticks(500))
				require.Equal(t, 2, p.cohorts())
				if tc.nodes-tc.from < 4 {
					return
				}
				loss[tc.from+1] = 0.2
				assert.Equal(t, []string{"node onset " + nodeName("", tc.from+1)}, brief(p.ticks(30)))
			})
		}
	}
}

// TestOneThatJoinsSlow has five minutes for others that work as it does.
func TestOneThatJoinsSlow(t *testing.T) {
	p := newPlay(t, []string{""}, 16, nil)
	p.idle = func(_ string, i int) bool { return i == 3 && p.k < 100 }
	p.slow(0.3, 3)
	require.Empty(t, p.ticks(129))
	require.True(t, p.node("-03").Waits)
	assert.Equal(t, []string{"node onset -03"}, brief(p.ticks(10)))
	require.False(t, p.node("-03").Waits)

	p = newPlay(t, []string{"j"}, 16, nil)
	p.idle = func(_ string, i int) bool { return i == 3 && p.k < 100 }
	p.slow(0.3, 3)
	require.Empty(t, p.ticks(100))
	assert.Equal(t, []string{"node onset j-03"}, brief(p.ticks(16)), "its group is known")

	p = newPlay(t, []string{""}, 16, nil)
	p.slow(0.3, 3)
	assert.Equal(t, []string{"node onset -03"}, brief(p.ticks(16)), "all came together")
}

// TestJobsAreToldApartByAnySignal: the rates are alike, the clocks are not.
func TestJobsAreToldApartByAnySignal(t *testing.T) {
	for name, tc := range map[string]struct {
		signal  nodesignal.Signal
		lower   int
		from    float64
		cohorts int
	}{
		"clock":             {nodesignal.Compute, 12, 0.86, 2},
		"clock, four of 32": {nodesignal.Compute, 4, 0.86, 0},
		"pressure":          {nodesignal.CPU, 12, 0.6, 2},
		"little pressure":   {nodesignal.CPU, 12, 0.81, 0},
		"links":             {nodesignal.Interconnect, 12, 0.5, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, nil)
			var told []Event
			round := func(slow int) {
				for i := range 32 {
					o := Observation{Cluster: "c", Node: nodeName("", i), HasState: true}
					x, rate := 0.99, 1.0
					if i < tc.lower {
						x, rate = tc.from, 1.03
					}
					if i == slow {
						x -= 0.3
					}
					o.Values.Set(tc.signal, x)
					o.Values.Set(nodesignal.Throughput, rate)
					require.NoError(t, f.e.Observe(&o, f.now))
				}
				told = append(told, f.tick().Events...)
			}
			for range 60 {
				round(-1)
			}
			g := groupOf(t, &f.e.report, "c", peergroup.Default)
			require.Len(t, g.Cohorts, tc.cohorts)
			if tc.cohorts == 0 {
				return
			}
			assert.Equal(t, tc.signal, g.SplitBy)
			assert.InDelta(t, (0.99+tc.from)/2, g.Cohorts[1].From, 1e-6)
			require.Empty(t, told)
			if tc.signal != nodesignal.Compute {
				return
			}
			for range 30 {
				round(5)
			}
			assert.Equal(t, []string{"node onset -05"}, brief(told))
		})
	}
}

// TestEachJobIsACohort: as many as there may be; of more, the nearest share one.
func TestEachJobIsACohort(t *testing.T) {
	for jobs, cohorts := range map[int]int{3: 3, 5: 5, 8: 8, 9: 8} {
		t.Run(strconv.Itoa(jobs), func(t *testing.T) {
			p := newPlay(t, []string{""}, 6*jobs, nil)
			level := func(i int) float64 {
				x := math.Pow(0.8, float64(i/6))
				if jobs > 8 && i/6 == 4 {
					x *= 0.9 // nearer to the one below
				}
				return x
			}
			p.loss = func(_ string, i int) float64 { return 1 - level(i) }
			require.Empty(t, p.ticks(400))
			require.Equal(t, cohorts, p.cohorts())
			g := p.e.clusters["c"].groups[peergroup.Default]
			for i := range g.members {
				for j := range g.members {
					same := i/6 == j/6 || jobs > 8 && i/6+j/6 == 9 && i/6-j/6 < 2 && j/6-i/6 < 2
					assert.Equal(t, same, g.members[i].cohort == g.members[j].cohort, "%d and %d", i, j)
				}
			}
			p.loss = func(_ string, i int) float64 {
				if i == 7 {
					return 1 - 0.85*level(i)
				}
				return 1 - level(i)
			}
			assert.Equal(t, []string{"node onset -07"}, brief(p.ticks(20)))
			assert.Empty(t, p.ticks(400))
			assert.Equal(t, cohorts, p.cohorts())
		})
	}
}

// TestNodesSlowEachByItsOwnAreNoJob, unlike three that are slow alike.
func TestNodesSlowEachByItsOwnAreNoJob(t *testing.T) {
	e := New(DefaultConfig())
	for apart, cuts := range map[float64]int{0.001: 1, 0.01: 1, 0.03: 0} {
		var list []clumped
		for i := range 20 {
			x := 0.0005 * float64(i)
			if i < 5 {
				x = apart*float64(i) - 0.4
			}
			list = append(list, clumped{mean: x})
		}
		assert.Len(t, e.cut(list, nil, 0.08, 3), cuts, "%v", apart)
	}
}

// TestANewcomerInAnIncident does work of its own, though the means of the
// others stand still.
func TestANewcomerInAnIncident(t *testing.T) {
	p := twoJobs(t, 0.4)
	require.Empty(t, p.ticks(200))
	require.Equal(t, 2, p.cohorts())
	p.idle = func(_ string, i int) bool { return i == 3 }
	p.differ(0.4, 0, 1, 2, 10, 11, 12)
	p.ticks(30)
	g := groupOf(t, p.last, "c", peergroup.Default)
	require.True(t, g.Incident)
	require.True(t, g.Held)
	member := func() *member { return &p.e.clusters["c"].groups[peergroup.Default].members[3] }
	require.Equal(t, uint8(noCohort), member().cohort, "what it did before it went does not count")

	p.idle = nil
	loss := p.loss
	p.loss = func(group string, i int) float64 {
		if i == 3 {
			i = 13 // it joins the other job
		}
		return loss(group, i)
	}
	for range 40 {
		p.ticks(1)
		require.Zero(t, p.node("-03").Suspicion)
	}
	require.True(t, groupOf(t, p.last, "c", peergroup.Default).Held)
	assert.Equal(t, uint8(0), member().cohort)
}

// TestASideThatFellInPartIsNoJob: a fifth of a side may have fallen to where it is,
// more where others rose. Of all, no more than that may have fallen and a sixth be slow.
func TestASideThatFellInPartIsNoJob(t *testing.T) {
	e := New(DefaultConfig())
	cuts := func(change func(i int, c *clumped)) int {
		var list []clumped
		for i := range 20 {
			c := clumped{mean: -0.3*float64((19-i)/10) + 0.001*float64(i)}
			change(i, &c)
			list = append(list, c)
		}
		return len(e.cut(list, nil, 0.08, 3))
	}
	fallen := func(n int) int { return cuts(func(i int, c *clumped) { c.fallen = i < n }) }
	assert.Equal(t, 1, fallen(0))
	assert.Equal(t, 1, fallen(2))
	assert.Zero(t, fallen(3))
	assert.Equal(t, 1, cuts(func(i int, c *clumped) { c.fallen, c.rose = i < 3, i == 3 }))
	assert.Equal(t, 1, cuts(func(i int, c *clumped) { c.fallen = i >= 16 }))
	assert.Zero(t, cuts(func(i int, c *clumped) { c.fallen = i >= 15 }))
	assert.Equal(t, 1, cuts(func(i int, c *clumped) { c.slow = i >= 17 }))
	assert.Zero(t, cuts(func(i int, c *clumped) { c.slow = i >= 16 }))
}

// TestJobsWhoseOutermostAreClose are told apart by their middles, few nodes are not.
func TestJobsWhoseOutermostAreClose(t *testing.T) {
	e := New(DefaultConfig())
	for n, cuts := range map[int]int{30: 1, 7: 0} {
		var list []clumped
		for k := range 2 {
			for i := range n {
				list = append(list, clumped{mean: 0.12*float64(k) + 0.05*float64(i)/float64(n-1)})
			}
		}
		assert.Len(t, e.cut(list, nil, 0.08, 3), cuts, "%d nodes each", n)
	}
}
