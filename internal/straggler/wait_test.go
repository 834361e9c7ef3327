// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// TestOnsetsWaitForWhatIsAboutToFall: three nodes lose much and are found first,
// three that lose less follow: one incident, no event of a node.
func TestOnsetsWaitForWhatIsAboutToFall(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, nil)
	p.ticks(60)
	p.loss = func(_ string, i int) float64 {
		return map[int]float64{0: 0.3, 1: 0.3, 2: 0.3, 3: 0.09, 4: 0.09, 5: 0.09}[i]
	}
	assert.Equal(t, []string{"group onset 6 stragglers"}, brief(p.ticks(40)))
}

// TestOnsetsDoNotWaitForever for a node with glitches, which is none.
func TestOnsetsDoNotWaitForever(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, nil)
	p.ticks(60)
	slow := false
	p.loss = func(_ string, i int) float64 {
		switch {
		case i == 3 && (p.k < 65 || p.k%2 == 0):
			return 0.4
		case i < 3 && slow:
			return 0.2
		}
		return 0
	}
	require.Empty(t, p.ticks(6))
	require.Greater(t, p.node("j-03").Suspicion, 0.5)
	slow = true
	require.Empty(t, p.ticks(9), "found after seven or eight")
	assert.Len(t, onsets(p.ticks(8), SubjectNode), 3)
}

// TestAFlappingNodeIsNotToldElsewhereEither within the hour.
func TestAFlappingNodeIsNotToldElsewhereEither(t *testing.T) {
	p := newPlay(t, []string{"j", "k"}, 8, nil)
	p.ticks(30)
	for range 3 {
		p.loss = func(g string, i int) float64 { return map[string]float64{"j-05": 0.3}[nodeName(g, i)] }
		p.ticks(8)
		p.loss = nil
		p.ticks(60)
	}
	require.EqualValues(t, 1, p.counters.Flapping)
	p.silent = func(g string, i int) bool { return nodeName(g, i) == "j-05" }
	var told []Event
	for range 45 {
		o := p.observe("j", 5)
		o.Peers = []string{"k"}
		o.Values.Set(nodesignal.Throughput, 5)
		require.NoError(t, p.e.Observe(&o, p.now))
		told = append(told, p.ticks(1)...)
	}
	assert.Equal(t, []string{"node end j-05 moved"}, brief(told))
	assert.True(t, p.node("j-05").Straggler, "the metric says so")
	assert.EqualValues(t, 2, p.counters.Flapping)
}

// TestSeverityChangesAreLimitedPerTick: above the bound they wait.
func TestSeverityChangesAreLimitedPerTick(t *testing.T) {
	p := newPlay(t, []string{"a", "b"}, 20, func(c *Config) { c.Episodes.MaxOnsets = 2 })
	p.ticks(30)
	p.slow(0.15, 0)
	require.Len(t, p.ticks(20), 2)
	p.slow(0.15, 0, 1)
	require.Len(t, p.ticks(20), 2)
	p.slow(0.4, 0, 1)
	perTick := map[time.Time]int{}
	for _, ev := range p.ticks(30) {
		require.Equal(t, EventSeverity, ev.Kind)
		perTick[ev.At]++
	}
	assert.Len(t, perTick, 2)
	for _, n := range perTick {
		assert.Equal(t, 2, n)
	}
}

// TestSeverityCountsAnewAfterAGlitch: two short ones do not add up.
func TestSeverityCountsAnewAfterAGlitch(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(30)
	p.slow(0.15, 2)
	require.Len(t, p.ticks(30), 1)
	for range 6 {
		p.slow(0.40, 2)
		require.Empty(t, p.ticks(4))
		p.slow(0.15, 2)
		require.Empty(t, p.ticks(20))
	}
}

// TestTheScoreOfANodeWithSignalsIsNotCompared: it is a mean of them.
func TestTheScoreOfANodeWithSignalsIsNotCompared(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	round := func(signals bool) (told []Event) {
		for i := range p.nodes {
			o := p.observe("j", i)
			o.Values.Known[nodesignal.Throughput] = signals
			o.Score, o.HasScore = 0.9, true
			if i == 2 {
				o.Score = 0.3
			}
			require.NoError(t, p.e.Observe(&o, p.now))
		}
		return p.tickOnce()
	}
	for range 40 {
		require.Empty(t, round(true))
		require.False(t, groupOf(t, p.last, "c", "j").Signals[nodesignal.Score].Known)
	}
	for range 6 {
		require.Empty(t, round(false))
	}
	require.True(t, groupOf(t, p.last, "c", "j").Signals[nodesignal.Score].Known, "from the tick on at which the signals are void")
	var told []Event
	for range 20 {
		told = append(told, round(false)...)
	}
	assert.Equal(t, []string{"node onset j-02"}, brief(told))
	for range 2 {
		round(true)
	}
	assert.False(t, groupOf(t, p.last, "c", "j").Signals[nodesignal.Score].Known)
}

// TestAValueThatComesNowAndThenStays: each word of it counts anew.
func TestAValueThatComesNowAndThenStays(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.slow(0.3, 0)
	require.Len(t, p.ticks(30), 1)
	for k := range 40 {
		for i := range p.nodes {
			o := p.observe("j", i)
			o.Values.Set(nodesignal.Compute, 0.9)
			o.Values.Known[nodesignal.Throughput] = i > 0 || k%4 == 0
			require.NoError(t, p.e.Observe(&o, p.now))
		}
		require.Empty(t, p.tickOnce())
	}
	assert.True(t, p.node("j-00").Straggler)
	p.idle = func(string, int) bool { return true }
	require.Equal(t, []string{"node end j-00 idle"}, brief(p.ticks(1)))
	assert.False(t, groupOf(t, p.last, "c", "j").Signals[nodesignal.Throughput].Known, "nobody is left to compare")
	assert.Zero(t, p.node("j-00").Since, "no straggler since")
}
