// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

func TestSeverityOf(t *testing.T) {
	for gap, want := range map[float64]Severity{
		0.05: SeverityMinor, 0.0999: SeverityMinor, 0.10: SeverityMajor, 0.2499: SeverityMajor, 0.25: SeverityCritical, 1: SeverityCritical,
	} {
		assert.Equal(t, want, SeverityOf(gap), gap)
	}
}

// TestSeveritySteps: a severity is told when six ticks in a row agree on it, and
// a lesser one only below four fifths of its bound.
func TestSeveritySteps(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(30)
	step := func(loss float64) []Event {
		p.slow(loss, 2)
		return p.ticks(60)
	}
	told := step(0.07)
	require.Equal(t, []string{"node onset j-02"}, brief(told))
	onset := told[0]
	assert.Equal(t, SeverityMinor, onset.Severity)
	assert.InDelta(t, 0.07, onset.Gap, 0.01)
	assert.InDelta(t, 0.93*10.05, onset.Value, 0.06)
	assert.InDelta(t, 10.05, onset.Median, 0.06)
	assert.Equal(t, 1, onset.Rank)
	assert.Equal(t, 8, onset.Active)
	assert.Greater(t, onset.Confidence, 0.6)
	assert.Less(t, onset.Confidence, 1.0)

	told = step(0.15)
	require.Equal(t, []string{"node severity j-02"}, brief(told))
	assert.Equal(t, SeverityMajor, told[0].Severity)
	assert.Equal(t, onset.ID, told[0].ID)
	assert.Equal(t, onset.Since, told[0].Since)
	began := p.now.Add(-59 * tick)
	assert.GreaterOrEqual(t, told[0].At.Sub(began), 5*tick, "six ticks agree")
	assert.LessOrEqual(t, told[0].At.Sub(began), 11*tick, "the gap is a mean over six")

	p.slow(0.40, 2)
	require.Empty(t, p.ticks(4), "too short to be news")
	assert.Empty(t, step(0.15))

	told = step(0.40)
	require.Equal(t, []string{"node severity j-02"}, brief(told))
	assert.Equal(t, SeverityCritical, told[0].Severity)
	assert.Empty(t, step(0.22), "more than four fifths of 25 %")
	assert.Equal(t, []string{"node severity j-02"}, brief(step(0.18)))
	assert.Equal(t, []string{"node end j-02 recovered"}, brief(step(0)))
}

// TestFlappingIsHeld: the third episode within an hour stays open until the node
// has been well for one.
func TestFlappingIsHeld(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(30)
	flap := func() []Event {
		p.slow(0.3, 5)
		told := p.ticks(8)
		p.slow(0, 5)
		return append(told, p.ticks(60)...)
	}
	for range 2 {
		require.Equal(t, []string{"node onset j-05", "node end j-05 recovered"}, brief(flap()))
	}
	require.Zero(t, p.counters.Flapping)
	require.Equal(t, []string{"node onset j-05"}, brief(flap()), "held")
	assert.EqualValues(t, 1, p.counters.Flapping)
	for range 5 {
		require.Empty(t, flap(), "not told again")
	}
	assert.EqualValues(t, 1, p.counters.Flapping, "counted once")
	// The last verdict ended at most 60 ticks ago: an hour from then.
	told := p.ticks(360)
	require.Equal(t, []string{"node end j-05 recovered"}, brief(told))
	left := p.now.Sub(told[0].At)
	assert.Less(t, left, 60*tick)
	require.Equal(t, []string{"node onset j-05", "node end j-05 recovered"}, brief(flap()), "a new hour")
	assert.EqualValues(t, 1, p.counters.Flapping)
}

// TestAFlappingNodeThatMovesOrIsForgottenEnds: it is held for nobody then.
func TestAFlappingNodeThatMovesOrIsForgottenEnds(t *testing.T) {
	for cause, leave := range map[string]func(p *play) []Event{
		CauseMoved: func(p *play) []Event {
			o := p.observe("j", 5)
			o.Peers = []string{"other"}
			require.NoError(p.t, p.e.Observe(&o, p.now))
			p.silent = func(_ string, i int) bool { return i == 5 }
			return p.ticks(1)
		},
		CauseForgotten: func(p *play) []Event {
			p.silent = func(_ string, i int) bool { return i == 5 }
			return onlySubject(p.ticks(182), SubjectNode)
		},
	} {
		t.Run(cause, func(t *testing.T) {
			p := newPlay(t, []string{"j"}, 8, func(c *Config) { c.Retention = 30 * time.Minute })
			p.ticks(30)
			for range 3 {
				p.slow(0.3, 5)
				p.ticks(8)
				p.slow(0, 5)
				p.ticks(40)
			}
			require.EqualValues(t, 1, p.counters.Flapping)
			assert.Equal(t, []string{"node end j-05 " + cause}, brief(leave(p)))
		})
	}
}

func onlySubject(all []Event, s Subject) (of []Event) {
	for _, ev := range all {
		if ev.Subject == s {
			of = append(of, ev)
		}
	}
	return of
}

// TestAMoveEndsTheEpisode: what a node was compared with says nothing of it now.
func TestAMoveEndsTheEpisode(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.slow(0.3, 5)
	told := p.ticks(30)
	require.Equal(t, []string{"node onset j-05"}, brief(told))
	id := told[0].ID
	o := p.observe("j", 5)
	o.Peers = []string{"other"}
	require.NoError(t, p.e.Observe(&o, p.now))
	p.silent = func(_ string, i int) bool { return i == 5 }
	told = p.ticks(1)
	require.Equal(t, []string{"node end j-05 moved"}, brief(told))
	assert.Equal(t, id, told[0].ID)
	assert.Equal(t, "j", told[0].Group)
	assert.EqualValues(t, 1, p.counters.GroupChanges)
}

func TestASilentNodeThatMovesIsHeardOf(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(10)
	p.silent = func(_ string, i int) bool { return i == 5 }
	require.Equal(t, []string{"missing onset j-05"}, brief(p.ticks(10)))
	o := p.observe("j", 5)
	o.Peers = []string{"other"}
	require.NoError(t, p.e.Observe(&o, p.now))
	assert.Equal(t, []string{"missing end j-05 moved"}, brief(p.ticks(1)))
}

// TestASlowNodeThatFallsSilentAndIsForgotten has two episodes, one after the other.
func TestASlowNodeThatFallsSilentAndIsForgotten(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.slow(0.3, 5)
	require.Equal(t, []string{"node onset j-05"}, brief(p.ticks(30)))
	p.silent = func(_ string, i int) bool { return i == 5 }
	seen := p.now.Add(-tick)
	told := p.ticks(10)
	require.Equal(t, []string{"node end j-05 missing", "missing onset j-05"}, brief(told))
	assert.Equal(t, seen, told[1].Since)
	assert.Equal(t, SeverityMajor, told[1].Severity)
	told = p.ticks(360)
	require.Equal(t, []string{"missing end j-05 forgotten"}, brief(told))
	assert.Greater(t, told[0].At.Sub(seen), time.Hour)
	assert.LessOrEqual(t, told[0].At.Sub(seen), time.Hour+tick)
	assert.Equal(t, 7, p.e.Nodes())
}

// TestOnsetsAreLimitedPerCluster: three slow nodes in each of five groups are
// ten events, and one more event counts the rest.
func TestOnsetsAreLimitedPerCluster(t *testing.T) {
	p := newPlay(t, []string{"a", "b", "d", "e", "f"}, 20, nil)
	p.ticks(30)
	p.loss = func(group string, i int) float64 {
		if i >= 3 {
			return 0
		}
		return map[string]float64{"a": 0.30, "b": 0.29, "d": 0.28, "e": 0.4, "f": 0.3}[group]
	}
	told := p.ticks(20)
	require.Len(t, told, 11)
	assert.Len(t, onsets(told, SubjectNode), 10)
	rest := onsets(told, SubjectCluster)
	require.Len(t, rest, 1)
	assert.Equal(t, 5, rest[0].NodeCount)
	require.Len(t, rest[0].Nodes, 5)
	assert.IsIncreasing(t, rest[0].Nodes)
	assert.Empty(t, rest[0].Group)
	assert.Equal(t, SeverityCritical, rest[0].Severity)
	assert.EqualValues(t, 5, p.counters.Folded)
	for _, ev := range onsets(told, SubjectNode) {
		assert.NotContains(t, rest[0].Nodes, ev.Node)
	}

	// All of them but one of the rest are well again: the rest lasts.
	bad := rest[0].Nodes[2]
	loss := p.loss
	p.loss = func(group string, i int) float64 {
		if nodeName(group, i) == bad {
			return loss(group, i)
		}
		return 0
	}
	told = p.ticks(60)
	assert.Len(t, told, 10)
	assert.Empty(t, onlySubject(told, SubjectCluster))
	p.loss = nil
	told = p.ticks(60)
	require.Equal(t, []string{"cluster end 5 recovered"}, brief(told))
	assert.Equal(t, rest[0].ID, told[0].ID)
}

// TestRanks: the worst of each cluster, ten at most, whether or not one is slow.
func TestRanks(t *testing.T) {
	p := newPlay(t, []string{"a", "b"}, 12, nil)
	other := func() {
		for i := range 5 {
			o := p.observe("a", i)
			o.Cluster = "d"
			require.NoError(t, p.e.Observe(&o, p.now))
		}
	}
	for range 12 {
		other()
		require.Empty(t, p.ticks(1))
	}
	count := func() map[string]int {
		n := map[string]int{}
		for i, r := range p.last.Ranks {
			n[r.Cluster]++
			require.Equal(t, n[r.Cluster], r.Rank)
			if r.Rank > 1 {
				require.LessOrEqual(t, r.Suspicion, p.last.Ranks[i-1].Suspicion)
			}
		}
		return n
	}
	assert.Equal(t, map[string]int{"c": 10, "d": 5}, count())

	p.loss = func(group string, i int) float64 {
		return map[string]float64{"b-07": 0.06, "a-03": 0.3, "b-01": 0.03}[nodeName(group, i)]
	}
	p.idle = func(_ string, i int) bool { return i == 0 }
	for range 3 {
		other()
		p.ticks(1)
	}
	count()
	var names []string
	for _, r := range p.last.Ranks[:3] {
		names = append(names, r.Node)
	}
	assert.Equal(t, []string{"a-03", "b-07", "b-01"}, names, "by suspicion, across groups")
	for _, r := range p.last.Ranks {
		assert.Equal(t, StateActive, r.State, "who has no work is not ranked")
	}
}

// TestRankOfAnEvent counts those that are worse in the same group.
func TestRankOfAnEvent(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, nil)
	p.ticks(30)
	p.slow(0.4, 3)
	require.Equal(t, []string{"node onset j-03"}, brief(p.ticks(20)))
	p.loss = func(_ string, i int) float64 { return map[int]float64{3: 0.4, 9: 0.08}[i] }
	told := p.ticks(20)
	require.Equal(t, []string{"node onset j-09"}, brief(told))
	assert.Equal(t, 2, told[0].Rank)
	assert.Equal(t, 20, told[0].Active)
	assert.Equal(t, nodesignal.Throughput, told[0].Signal)
	assert.Equal(t, fmt.Sprint([]string{"j"}), fmt.Sprint(told[0].Peers))
}

// TestAMedianIsOfItsSignal: when nobody works any more there is no median of the
// throughput, and that of the scores is none.
func TestAMedianIsOfItsSignal(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	score := func() {
		for i := range p.nodes {
			o := Observation{Cluster: "c", Node: nodeName("j", i), Peers: []string{"j"}, Score: 0.98, HasScore: true}
			require.NoError(t, p.e.Observe(&o, p.now))
		}
	}
	for range 30 {
		score()
		p.ticks(1)
	}
	p.slow(0.3, 5)
	var told []Event
	for range 10 {
		score()
		told = append(told, p.ticks(1)...)
	}
	require.Equal(t, []string{"node onset j-05"}, brief(told))
	assert.True(t, told[0].Compared)
	p.idle = func(string, int) bool { return true }
	score()
	told = p.ticks(1)
	require.Equal(t, []string{"node end j-05 idle"}, brief(told))
	assert.Equal(t, nodesignal.Throughput, told[0].Signal)
	assert.False(t, told[0].Compared)
	assert.Zero(t, told[0].Value)
	assert.Zero(t, told[0].Median)
}
