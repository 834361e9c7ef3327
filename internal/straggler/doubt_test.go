// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// TestAStuckValueIsNotAccused: the peers become faster, and the one whose value
// nobody measures stays where it was.
func TestAStuckValueIsNotAccused(t *testing.T) {
	for name, tc := range map[string]struct {
		same  int // pushes with the very same value
		stuck bool
	}{
		"for as long as is taken for stuck": {31, true},
		"one tick less":                     {30, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(t, []string{"j"}, 8, nil)
			p.ticks(41)
			require.NotEqual(t, 10.0, p.e.clusters["c"].groups["j"].signals[nodesignal.Throughput].x[0])
			faster := false
			round := func() []Event {
				for i := range p.nodes {
					o := p.observe("j", i)
					switch {
					case i == 0:
						o.Values.Set(nodesignal.Throughput, 10)
					case faster:
						o.Values.Set(nodesignal.Throughput, 1.4*p.work(i))
					}
					require.NoError(t, p.e.Observe(&o, p.now))
				}
				return p.tickOnce()
			}
			// The next push, the peers' first as faster ones, is the last of them.
			for range tc.same - 1 {
				require.Empty(t, round())
			}
			g := p.e.clusters["c"].groups["j"]
			before := g.signals[nodesignal.Throughput].tracks[g.cluster.nodes["j-00"].slot].Tracker
			require.NotZero(t, before.bias)
			faster = true
			var told []Event
			for range 60 {
				told = append(told, round()...)
			}
			if tc.stuck {
				assert.Empty(t, told)
				assert.Zero(t, p.node("j-00").Suspicion)
				assert.EqualValues(t, 1, p.counters.Stuck, "said once")
				after := g.signals[nodesignal.Throughput].tracks[g.cluster.nodes["j-00"].slot].Tracker
				before.at.set(markKnown, false) // what comes next is no change from the last
				assert.Equal(t, before, after, "what is known of it stands still")
				return
			}
			assert.Equal(t, []string{"node onset j-00"}, brief(told), "its sum began before")
			assert.Zero(t, p.counters.Stuck)
		})
	}
}

// TestAConstantValueIsNotStuck while nothing speaks against its node.
func TestAConstantValueIsNotStuck(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	for range 100 {
		for i := range p.nodes {
			o := p.observe("j", i)
			if i == 0 {
				o.Values.Set(nodesignal.Throughput, 10.05)
			}
			require.NoError(t, p.e.Observe(&o, p.now))
		}
		require.Empty(t, p.tickOnce())
	}
	assert.Zero(t, p.counters.Stuck)
}

// TestAConstantLossIsNotStuck: a node that falls to a value that never changes
// again was accused before it was the same for long, and stays accused.
func TestAConstantLossIsNotStuck(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(20)
	var told []Event
	for range 100 {
		for i := range p.nodes {
			o := p.observe("j", i)
			if i == 0 {
				o.Values.Set(nodesignal.Throughput, 8)
			}
			require.NoError(t, p.e.Observe(&o, p.now))
		}
		told = append(told, p.tickOnce()...)
	}
	assert.Equal(t, []string{"node onset j-00"}, brief(told))
	assert.True(t, p.node("j-00").Straggler)
	assert.Zero(t, p.counters.Stuck)
}

// twin lets a second machine push under the name of node 3.
func (p *play) twin(x float64) {
	o := p.observe("j", 3)
	o.Values.Set(nodesignal.Throughput, x)
	require.NoError(p.t, p.e.Observe(&o, p.now))
}

func TestContestedNames(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.slow(0.3, 3)
	require.Equal(t, []string{"node onset j-03"}, brief(p.ticks(30)))
	require.Equal(t, SeverityCritical, SeverityOf(p.node("j-03").Gap))

	for range 2 {
		p.twin(p.work(3))
		require.Empty(t, p.ticks(1))
	}
	require.Empty(t, p.ticks(1), "two ticks in a row are no claim yet")
	require.True(t, p.node("j-03").Straggler)
	for range 2 {
		p.twin(p.work(3))
		require.Empty(t, p.ticks(1))
		require.False(t, p.node("j-03").Contested)
	}
	p.twin(p.work(3))
	assert.Equal(t, []string{"node end j-03 contested"}, brief(p.ticks(1)))
	assert.True(t, p.node("j-03").Contested)
	assert.False(t, p.node("j-03").Straggler)
	assert.EqualValues(t, 1, p.counters.Contested)
	for range 60 {
		p.twin(p.work(3))
		require.Empty(t, p.ticks(1), "nobody knows whose values they are")
	}
	assert.EqualValues(t, 1, p.counters.Contested, "counted once")

	require.Empty(t, p.ticks(10))
	p.twin(p.work(3))
	require.Empty(t, p.ticks(18), "one more claim, and it begins anew")
	assert.True(t, p.node("j-03").Contested)
	require.Empty(t, p.ticks(1))
	assert.False(t, p.node("j-03").Contested)
	assert.Equal(t, []string{"node onset j-03"}, brief(p.ticks(40)), "the remaining node is slow")
}

// TestSmallDifferencesAreNoClaim: a node's two reports, one a little newer.
func TestSmallDifferencesAreNoClaim(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	for range 30 {
		p.twin(0.96 * p.work(3))
		require.Empty(t, p.ticks(1))
		require.False(t, p.node("j-03").Contested)
	}
	for range 3 {
		p.twin(1.06 * p.work(3))
		p.ticks(1)
	}
	assert.True(t, p.node("j-03").Contested, "more than `min_gap`, whichever comes first")
}

func TestAContestedNodeIsNoPeer(t *testing.T) {
	p := newPlay(t, []string{"j"}, 4, func(c *Config) { c.MinPeers = 4 })
	p.ticks(20)
	require.True(t, groupOf(t, p.last, "c", "j").Signals[nodesignal.Throughput].Known)
	for range 4 {
		p.twin(2)
		p.ticks(1)
	}
	assert.False(t, groupOf(t, p.last, "c", "j").Signals[nodesignal.Throughput].Known, "three are left")
}

func TestWarmUp(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.silent = func(_ string, i int) bool { return i == 7 }
	p.ticks(30)
	p.silent = nil
	p.slow(0.5, 7) // compiles, fills its caches
	for range LeastWarmTicks - 1 {
		require.Empty(t, p.ticks(1))
		require.Zero(t, p.node("j-07").Suspicion, "not warm yet")
	}
	p.ticks(1)
	assert.Positive(t, p.node("j-07").Suspicion)
	assert.Equal(t, []string{"node onset j-07"}, brief(p.ticks(10)))

	p.idle = func(_ string, i int) bool { return i == 7 }
	require.Equal(t, []string{"node end j-07 idle"}, brief(p.ticks(1)))
	p.idle = nil
	p.ticks(LeastWarmTicks - 1)
	assert.Zero(t, p.node("j-07").Suspicion, "a new job is warmed up anew")
	p.ticks(1)
	assert.Positive(t, p.node("j-07").Suspicion)
}

func TestMinimumPeers(t *testing.T) {
	p := newPlay(t, []string{"j"}, 5, nil)
	p.slow(0.4, 0)
	require.Equal(t, []string{"node onset j-00"}, brief(p.ticks(30)))
	p.idle = func(_ string, i int) bool { return i > 2 }
	require.Empty(t, p.ticks(10), "three are enough")
	require.True(t, p.node("j-00").Straggler)
	p.idle = func(_ string, i int) bool { return i > 1 }
	assert.Equal(t, []string{"node end j-00 idle"}, brief(p.ticks(1)), "of two nobody can tell")
	assert.False(t, p.node("j-00").Straggler)
	assert.Empty(t, p.ticks(60))
	p.idle = nil
	require.Equal(t, []string{"node onset j-00"}, brief(p.ticks(60)))
	p.slow(0)
	assert.Equal(t, []string{"node end j-00 recovered"}, brief(p.ticks(60)))
}

// TestAValueThatIsToldNoMoreIsForgotten: the node goes on to tell another one.
func TestAValueThatIsToldNoMoreIsForgotten(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	told := func(throughput bool) []Event {
		for i := range p.nodes {
			o := p.observe("j", i)
			if i == 0 {
				o.Values.Set(nodesignal.Throughput, 5)
				o.Values.Known[nodesignal.Throughput] = throughput
			}
			o.Values.Set(nodesignal.Compute, 0.9)
			require.NoError(t, p.e.Observe(&o, p.now))
		}
		return p.tickOnce()
	}
	var all []Event
	for range 30 {
		all = append(all, told(true)...)
	}
	require.Equal(t, []string{"node onset j-00"}, brief(all))
	for range 5 {
		require.Empty(t, told(false), "it may have been lost on the way")
		require.True(t, p.node("j-00").Straggler)
	}
	assert.Equal(t, []string{"node end j-00 recovered"}, brief(told(false)), "50 s without a word of it")
	assert.False(t, p.node("j-00").Straggler)
	assert.Equal(t, 7, groupOf(t, p.last, "c", "j").Signals[nodesignal.Throughput].N)
}
