// SPDX-License-Identifier: Apache-2.0

package straggler

import (
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

// TestJobsWithoutLabels are told apart by their levels, and each finds its straggler.
func TestJobsWithoutLabels(t *testing.T) {
	two := jobs([2]float64{10, 1}, [2]float64{10, 0.6})
	five := jobs([2]float64{6, 1}, [2]float64{6, 0.8}, [2]float64{6, 0.6}, [2]float64{6, 0.45}, [2]float64{6, 0.3})
	near := jobs([2]float64{10, 1}, [2]float64{10, 0.97})
	few := jobs([2]float64{3, 0.7}, [2]float64{17, 1})
	tell(t, map[string]story{
		"two": {groups: []string{""}, steps: []step{
			{do: two(nil), ticks: 400},
			{do: two(map[int]float64{3: 0.2}), ticks: 60, told: []string{"node onset -03"}, check: func(t *testing.T, _ *play, told []episode.Episode) {
				assert.InDelta(t, 0.2, *told[0].Gap, 0.02)
				assert.InDelta(t, 10, *told[0].Median, 0.1)
			}},
			{do: two(map[int]float64{3: 0.2, 15: 0.2}), ticks: 60, told: []string{"node onset -15"}, check: func(t *testing.T, _ *play, told []episode.Episode) { assert.InDelta(t, 6, *told[0].Median, 0.1) }},
			{do: two(map[int]float64{3: 0.4, 15: 0.2}), ticks: 360, told: []string{"node severity -03 critical"}}, // no one of the slower job's
			{do: two(nil), ticks: 100, told: []string{"node end -03 recovered", "node end -15 recovered"}},
		}},
		"two in their first hour, which may be turns": {groups: []string{""}, steps: []step{
			{do: two(nil), ticks: 100},
			{do: two(map[int]float64{3: 0.2}), ticks: 60, check: func(t *testing.T, p *play, _ []episode.Episode) {
				assert.Equal(t, map[string]int{"other_levels": 20}, reasons(p.group()))
			}},
		}},
		"five": {groups: []string{""}, nodes: 30, steps: []step{
			{do: five(nil), ticks: 400},
			{do: five(map[int]float64{7: 0.15}), ticks: 60, told: []string{"node onset -07"}},
			{do: five(map[int]float64{7: 0.15, 29: 0.15}), ticks: 400, told: []string{"node onset -29"}},
		}},
		"two that are near are one": {groups: []string{""}, steps: []step{
			{do: near(nil), ticks: 120},
		}},
		"three that were alike from the start": {groups: []string{""}, steps: []step{
			{do: few(nil), ticks: 420},
			{do: few(map[int]float64{1: 0.3}), ticks: 60, told: []string{"node onset -01"}},
		}},
		"three of nine are no job": {groups: []string{""}, nodes: 9, steps: []step{
			{do: jobs([2]float64{3, 0.7}, [2]float64{6, 1})(nil), ticks: 400, told: []string{"group onset 3 stragglers"}},
		}},
		"two are no job": {groups: []string{""}, steps: []step{
			{do: lose(0.3, 0, 1), ticks: 200, told: []string{"node onset -00", "node onset -01"}},
		}},
		"three that fall are no job": {groups: []string{""}, steps: []step{
			{ticks: 200},
			{do: lose(0.3, 0, 1, 2), ticks: 1000, told: []string{"node onset -00", "node onset -01", "node onset -02"}},
		}},
		"half that falls is no job": {groups: []string{""}, steps: []step{
			{ticks: 400},
			{do: lose(0.2, upTo(10)...), ticks: 400, told: []string{"group onset 10 stragglers"}},
		}},
		"an incident of one of them": {groups: []string{""}, steps: []step{
			{do: two(nil), ticks: 400},
			{do: two(map[int]float64{10: 0.2, 11: 0.2, 12: 0.2, 13: 0.2}), ticks: 100, told: []string{"group onset 4 stragglers"}, check: func(t *testing.T, _ *play, told []episode.Episode) {
				assert.InDelta(t, 4.8, *told[0].Value, 0.1)
				assert.InDelta(t, 6, *told[0].Median, 0.1)
				assert.InDelta(t, 0.2, *told[0].Gap, 0.02)
			}},
		}},
		"a group with a label is one": {steps: []step{
			{do: jobs([2]float64{3, 0.6}, [2]float64{17, 1})(nil), ticks: 100, told: []string{"node onset j-00", "node onset j-01", "node onset j-02"}},
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
// tells nothing. The reason says so, and nobody is accused of it any more.
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
