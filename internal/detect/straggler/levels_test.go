// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// jobs gives nodes i to each[i] the i-th level of work in turn: {6, 1}, {6, 0.6} are six
// nodes at 1 and six at 0.6. What a node loses comes on top.
func jobs(each ...[2]float64) func(loss map[int]float64) func(*play) {
	return func(loss map[int]float64) func(*play) {
		return func(p *play) {
			p.loss = func(_ string, i int) float64 {
				at := float64(i)
				for _, j := range each {
					if at -= j[0]; at < 0 {
						return 1 - j[1]*(1-loss[i])
					}
				}
				return loss[i]
			}
		}
	}
}

// TestJobsWithoutLabels have levels of their own, and each finds its straggler.
func TestJobsWithoutLabels(t *testing.T) {
	two := jobs([2]float64{10, 1}, [2]float64{10, 0.6})
	five := jobs([2]float64{6, 1}, [2]float64{6, 0.8}, [2]float64{6, 0.6}, [2]float64{6, 0.45}, [2]float64{6, 0.3})
	near := jobs([2]float64{10, 1}, [2]float64{10, 0.97})
	few := jobs([2]float64{3, 0.7}, [2]float64{17, 1})
	runStories(t, map[string]story{
		"two": {groups: []string{""}, steps: []step{
			{do: two(nil), ticks: 400},
			{do: two(map[int]float64{3: 0.2}), ticks: 60, want: []string{"node onset -03"}, check: func(t *testing.T, _ *play, events []episode.Episode) {
				assert.InDelta(t, 0.2, *events[0].Gap, 0.02)
				assert.InDelta(t, 10, *events[0].Median, 0.1)
			}},
			{do: two(map[int]float64{3: 0.2, 15: 0.2}), ticks: 60, want: []string{"node onset -15"}, check: func(t *testing.T, _ *play, events []episode.Episode) { assert.InDelta(t, 6, *events[0].Median, 0.1) }},
			{do: two(map[int]float64{3: 0.4, 15: 0.2}), ticks: 360, want: []string{"node severity -03 critical"}}, // no one of the slower job's
			{do: two(nil), ticks: 100, want: []string{"node end -03 recovered", "node end -15 recovered"}},
		}},
		"two in their first hour, which may be turns": {groups: []string{""}, steps: []step{
			{do: two(nil), ticks: 100},
			{do: two(map[int]float64{3: 0.2}), ticks: 60, check: func(t *testing.T, p *play, _ []episode.Episode) {
				assert.Equal(t, map[string]int{"other_levels": 20}, reasons(p.group()))
			}},
		}},
		"five": {groups: []string{""}, nodes: 30, steps: []step{
			{do: five(nil), ticks: 400},
			{do: five(map[int]float64{7: 0.15}), ticks: 60, want: []string{"node onset -07"}},
			{do: five(map[int]float64{7: 0.15, 29: 0.15}), ticks: 400, want: []string{"node onset -29"}},
		}},
		"two that are near are one": {groups: []string{""}, steps: []step{
			{do: near(nil), ticks: 120},
		}},
		"three that were alike from the start": {groups: []string{""}, steps: []step{
			{do: few(nil), ticks: 420},
			{do: few(map[int]float64{1: 0.3}), ticks: 60, want: []string{"node onset -01"}},
		}},
		"three of nine are no job": {groups: []string{""}, nodes: 9, steps: []step{
			{do: jobs([2]float64{3, 0.7}, [2]float64{6, 1})(nil), ticks: 400, want: []string{"group onset 3 stragglers"}},
		}},
		"two are no job": {groups: []string{""}, steps: []step{
			{do: lose(0.3, 0, 1), ticks: 200, want: []string{"node onset -00", "node onset -01"}},
		}},
		"three that fall are no job": {groups: []string{""}, steps: []step{
			{ticks: 200},
			{do: lose(0.3, 0, 1, 2), ticks: 1000, want: []string{"node onset -00", "node onset -01", "node onset -02"}},
		}},
		"half that falls is no job": {groups: []string{""}, steps: []step{
			{ticks: 400},
			{do: lose(0.2, upTo(10)...), ticks: 400, want: []string{"group onset 10 stragglers"}},
		}},
		"an incident of one of them": {groups: []string{""}, steps: []step{
			{do: two(nil), ticks: 400},
			{do: two(map[int]float64{10: 0.2, 11: 0.2, 12: 0.2, 13: 0.2}), ticks: 100, want: []string{"group onset 4 stragglers"}, check: func(t *testing.T, _ *play, events []episode.Episode) {
				assert.InDelta(t, 4.8, *events[0].Value, 0.1)
				assert.InDelta(t, 6, *events[0].Median, 0.1)
				assert.InDelta(t, 0.2, *events[0].Gap, 0.02)
			}},
		}},
		"a group with a label is one": {steps: []step{
			{do: jobs([2]float64{3, 0.6}, [2]float64{17, 1})(nil), ticks: 100, want: []string{"node onset j-00", "node onset j-01", "node onset j-02"}},
		}},
	})
}

// TestAJobThatJoins without labels is not accused by the nodes of another, nor are these
// by a larger one. It finds its straggler.
func TestAJobThatJoins(t *testing.T) {
	for name, tc := range map[string]struct {
		nodes, from int
		at          float64
		each        int // ticks after the one before
	}{
		"four join twelve":           {16, 12, 0.7, 0},
		"four join sixty":            {64, 60, 0.7, 0},
		"sixteen join sixteen":       {32, 16, 0.82, 0},
		"faster ones":                {32, 16, 1.5, 0},
		"faster ones, one after one": {32, 16, 1.5, 2},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(t, []string{""}, tc.nodes, nil)
			of := jobs([2]float64{float64(tc.from), 1}, [2]float64{64, tc.at})
			begin := 120
			p.idle = func(_ string, i int) bool { return i >= tc.from && p.k < begin+tc.each*(i-tc.from) }
			of(nil)(p)
			require.Empty(t, p.ticks(400))
			of(map[int]float64{tc.from + 1: 0.2})(p)
			assert.Equal(t, []string{"node onset " + nodeName("", tc.from+1)}, brief(p.ticks(60)))
			for begin = 121; begin < 150; begin += 2 { // before and after a look for levels
				p := newPlay(t, []string{""}, tc.nodes, nil)
				p.idle = func(_ string, i int) bool { return i >= tc.from && p.k < begin+tc.each*(i-tc.from) }
				of(nil)(p)
				require.Empty(t, p.ticks(220), "from tick %d", begin)
			}
		})
	}
}

// TestWorkThatChangesHands: where nodes without labels take turns at jobs, a lower level
// is no loss. The reason is that, and no node is accused any more.
func TestWorkThatChangesHands(t *testing.T) {
	p := newPlay(t, []string{""}, 24, nil)
	at := func(i int) float64 { return map[bool]float64{true: 1, false: 0.6}[(i+p.k/100*5)%24 < 12] }
	p.loss = func(_ string, i int) float64 { return 1 - at(i) }
	p.ticks(360)
	lose := p.loss
	p.loss = func(g string, i int) float64 {
		return map[bool]float64{true: 0.9, false: lose(g, i)}[i == 3 && p.k > 500]
	}
	p.ticks(100)
	require.Empty(t, p.ticks(360))
	g := p.group()
	assert.Equal(t, map[string]int{"other_levels": 24}, reasons(g))
	assert.Zero(t, g.Detectable)
	assert.Zero(t, g.Signals[nodesignal.Throughput].N)
	assert.Empty(t, stragglers(p.last))

	// With labels it is no turn but a fall and a rise.
	q := newPlay(t, []string{"j"}, 24, nil)
	q.loss = func(_ string, i int) float64 { return map[bool]float64{true: 0.4}[i == q.k/60%24] }
	q.ticks(360)
	assert.Equal(t, map[string]int{"": 24}, reasons(q.group()))
}

// TestALargePartThatFell is found by the rest, is one incident, and recovers.
func TestALargePartThatFell(t *testing.T) {
	for _, tc := range []struct {
		nodes, slow int
		loss        float64
	}{
		{20, 6, 0.2}, {20, 9, 0.2}, {20, 10, 0.2}, {8, 4, 0.3}, {64, 20, 0.12}, {64, 32, 0.15},
	} {
		t.Run(fmt.Sprintf("%d of %d lose %v", tc.slow, tc.nodes, tc.loss), func(t *testing.T) {
			p := newPlay(t, []string{"j"}, tc.nodes, nil)
			p.noise = 0.005
			require.Empty(t, p.ticks(200))
			began := p.now
			lose(tc.loss, upTo(tc.slow)...)(p)
			events := p.ticks(90)
			require.Equal(t, []string{fmt.Sprintf("group onset %d stragglers", tc.slow)}, brief(events))
			assert.InDelta(t, tc.loss, *events[0].Gap, 0.04)
			assert.InDelta(t, 10, *events[0].Median, 0.1)
			assert.InDelta(t, 10*(1-tc.loss), *events[0].Value, 0.2)
			assert.LessOrEqual(t, events[0].Updated.Sub(began).Minutes(), 4.0)
			assert.LessOrEqual(t, events[0].Since.Sub(began).Abs().Seconds(), 120.0)
			for i := range tc.nodes {
				assert.Equal(t, i < tc.slow, p.node(nodeName("j", i)).Straggler, "%d", i)
			}
			require.Empty(t, p.ticks(360), "it lasts")
			assert.Equal(t, tc.slow, p.group().Stragglers)
			lose(0)(p)
			require.Equal(t, []string{fmt.Sprintf("group end %d recovered", tc.slow)}, brief(p.ticks(120)))
			assert.Empty(t, stragglers(p.last))
		})
	}
}

// TestFall is known once there is a usual level.
func TestFall(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	for range 60 {
		p.ticks(1)
		s := p.group().Signals[nodesignal.Throughput]
		assert.InDelta(t, 0, s.Fall, 0.01)
	}
	assert.True(t, p.group().Signals[nodesignal.Throughput].FallKnown)
	lose(0.4, upTo(8)...)(p)
	p.ticks(3)
	assert.InDelta(t, 0.4, p.group().Signals[nodesignal.Throughput].Fall, 0.02)
}

// TestPartsThatAreNoFault: a part that becomes faster, all together however they differ,
// parts that do so one after the other, and a fall that too few others were left behind by.
func TestPartsThatAreNoFault(t *testing.T) {
	for name, loss := range map[string]func(k, i int) float64{
		"a third is faster":     func(_, i int) float64 { return map[bool]float64{true: -0.3}[i < 7] },
		"nearly half is faster": func(_, i int) float64 { return map[bool]float64{true: -0.3}[i < 9] },
		"all fall":              func(_, _ int) float64 { return 0.4 },
		"all fall again and again": func(k, i int) float64 {
			return map[bool]float64{true: 0.3, false: 0.002 * float64(i)}[k%100 >= 60]
		},
		"all fall and rise within a minute of each other": func(k, i int) float64 { return map[bool]float64{true: 0.3}[(k+i/6)%90 >= 60] },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(t, []string{"j"}, 20, nil)
			require.Empty(t, p.ticks(300))
			p.loss = func(_ string, i int) float64 { return loss(p.k, i) }
			require.Empty(t, p.ticks(600))
		})
	}
}

// TestAFaultBesideAPart: a node that falls among those that became faster is found.
func TestAFaultBesideAPart(t *testing.T) {
	runStories(t, map[string]story{
		"a third is faster": {steps: []step{
			{ticks: 200},
			{do: lose(-0.3, upTo(7)...), ticks: 200},
			{do: loseEach(map[int]float64{0: -0.3, 1: -0.3, 2: -0.3, 3: -0.3, 4: -0.3, 5: -0.3, 6: -0.3, 9: 0.2}), ticks: 60, want: []string{"node onset j-09"}},
		}},
		"nodes vanish while others fall": {steps: []step{
			{ticks: 200},
			{do: both(missing(upTo(6)...), lose(0.2, 6, 7, 8, 9, 10, 11, 12)), ticks: 60, want: []string{"missing onset 6", "group onset 7 stragglers"}},
		}},
		"all that are left fall": {steps: []step{
			{ticks: 200},
			{do: both(missing(upTo(6)...), lose(0.2, upTo(20)...)), ticks: 60, want: []string{"missing onset 6"}},
		}},
	})
}
