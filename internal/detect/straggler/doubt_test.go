// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// TestReasonsWithoutAVerdict: each node without a verdict has a reason. The group counts
// them, and names the reason of most while none has a verdict.
func TestReasonsWithoutAVerdict(t *testing.T) {
	calibrating := func(p *play) {
		p.also = func(o *nodesignal.Observation, i int) {
			o.State = map[bool]nodesignal.State{true: nodesignal.StateCalibrating}[i == 2]
		}
	}
	// swing makes all nodes do more and less together, and each a little of its own.
	swing := func(all, own float64) func(*play) {
		return func(p *play) {
			at, x := -1, 0.0
			p.also = func(o *nodesignal.Observation, _ int) {
				if at != p.k {
					at, x = p.k, all*p.draw.NormFloat64()
				}
				o.Values = throughput(10 * math.Exp(x+own*p.draw.NormFloat64()))
			}
		}
	}
	only := func(s nodesignal.Signal, x float64) func(*play) {
		return func(p *play) {
			p.also = func(o *nodesignal.Observation, _ int) {
				o.Values = nodesignal.Values{}
				o.Values.Set(s, x)
			}
		}
	}
	// beats sends heartbeats alone for the third node, empty what an agent sends that has
	// nothing to calibrate by, and rare what pushes a signal each minute.
	third := func(change func(p *play, o *nodesignal.Observation)) func(*play) {
		return func(p *play) {
			p.also = func(o *nodesignal.Observation, i int) {
				if i == 2 {
					change(p, o)
				}
			}
		}
	}
	beats := third(func(_ *play, o *nodesignal.Observation) {
		*o = nodesignal.Observation{Cluster: o.Cluster, Node: o.Node, GroupLabels: o.GroupLabels, Heartbeat: true}
	})
	empty := third(func(_ *play, o *nodesignal.Observation) {
		o.State, o.Values = nodesignal.StateCalibrating, nodesignal.Values{}
	})
	scores := func(p *play) {
		p.fleet = newFleet(p.t, func(c *Config) { c.Signals[nodesignal.Score].Decides = false })
		p.also = func(o *nodesignal.Observation, _ int) { o.Values, o.Score, o.HasScore = nodesignal.Values{}, 1, true }
	}
	rare := third(func(p *play, o *nodesignal.Observation) { o.Values.Known[nodesignal.Throughput] = p.k%7 == 0 })
	noisy := func(p *play) { // each has better and worse quarters of an hour, but for the third
		p.loss = func(_ string, i int) float64 {
			if i == 2 {
				return 0.08
			}
			return 0.12 * math.Sin(float64(p.k)/40+2*math.Pi*float64(i)/15)
		}
	}
	late := func(p *play) { p.idle = func(_ string, i int) bool { return i == 1 && p.k < 120 } }
	gone := func(p *play) { p.missing = func(_ string, i int) bool { return i == 1 && p.k >= 4 } }
	for name, tc := range map[string]struct {
		nodes, ticks int
		do           func(*play)
		want         map[string]int
		most         string
		until        float64 // seconds from now for node 1, if known
	}{
		"compared at once":        {8, 1, nil, map[string]int{"": 8}, "", 0},
		"compared":                {8, 151, late, map[string]int{"": 8}, "", 0},
		"a newcomer":              {8, 130, late, map[string]int{"": 7, "calibrating": 1}, "", 210},
		"by its state":            {8, 10, calibrating, map[string]int{"": 7, "calibrating": 1}, "", 0},
		"idle":                    {8, 10, idle(upTo(3)...), map[string]int{"": 5, "idle": 3}, "", 0},
		"all idle":                {8, 10, idle(upTo(8)...), map[string]int{"idle": 8}, "idle", 0},
		"missing":                 {8, 10, gone, map[string]int{"": 7, "missing": 1}, "", 0},
		"two of one name":         {8, 10, clones(2), map[string]int{"": 7, "contested": 1}, "", 0},
		"it has just come":        {8, 20, beats, map[string]int{"": 7, "calibrating": 1}, "", 0},
		"heartbeats alone":        {8, 40, beats, map[string]int{"": 7, "no_signal": 1}, "", 0},
		"its agent has nothing":   {8, 40, empty, map[string]int{"": 7, "no_signal": 1}, "", 0},
		"too rarely":              {8, 365, rare, map[string]int{"": 7, "no_signal": 1}, "", 0},
		"a score does not decide": {8, 20, scores, map[string]int{"no_signal": 8}, "no_signal", 0},
		"behind under noise":      {16, 200, noisy, map[string]int{"": 13, "noise": 3}, "", 0},
		"nothing that decides":    {8, 10, only(nodesignal.Power, 300), map[string]int{"no_signal": 8}, "no_signal", 0},
		"in lockstep":             {16, 300, swing(0.02, 0.0002), map[string]int{"lockstep": 16}, "lockstep", 0},
		"lockstep not yet known":  {16, 50, swing(0.02, 0.0002), map[string]int{"": 16}, "", 0},
		"a noise of their own":    {16, 300, swing(0.2, 0.015), map[string]int{"": 16}, "", 0},
		"standing still":          {16, 300, swing(0, 0), map[string]int{"": 16}, "", 0},
		"little noise":            {16, 300, swing(0.0002, 0.0005), map[string]int{"": 16}, "", 0},
		"too few":                 {2, 10, nil, map[string]int{"too_few_peers": 2}, "too_few_peers", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(t, []string{"j"}, tc.nodes, nil)
			if tc.do != nil {
				tc.do(p)
			}
			p.ticks(tc.ticks)
			g := p.group()
			assert.Equal(t, tc.want, reasons(g))
			assert.Equal(t, tc.most, unjudged.Most(&g.Unjudged).String())
			count := map[string]int{}
			for _, n := range p.last.Nodes {
				count[n.Unjudged.String()]++
			}
			assert.Equal(t, tc.want, count)
			assert.Equal(t, tc.want[""] > 0, g.Detectable > 0)
			assert.Equal(t, strings.HasPrefix(name, "compared"), p.node("j-01").Unjudged != p.node("j-01").UnjudgedBefore)
			if n := p.node("j-01"); tc.until > 0 {
				assert.InDelta(t, 1000*tc.until, n.Until-p.last.At.UnixMilli(), 1)
			} else {
				assert.Zero(t, n.Until)
			}
		})
	}
}

// TestALatePush in a group of three changes nothing for the other two.
func TestALatePush(t *testing.T) {
	p := newPlay(t, []string{"j"}, 3, nil)
	p.ticks(30)
	for i := range 30 {
		p.missing = func(_ string, n int) bool { return i%3 == 0 && n == i/3%3 }
		require.Empty(t, p.ticks(1))
		assert.Equal(t, 3, p.group().Unjudged[unjudged.Judged], "tick %d", i)
	}
}

// TestStuckValues: the peers become faster, and one whose throughput is the very same for
// 30 ticks stays where it was: its exporter is stuck. One that falls and then never changes
// is slow, however long it takes to see that.
func TestStuckValues(t *testing.T) {
	same := func(x float64) func(*play) {
		return func(p *play) {
			p.also = func(o *nodesignal.Observation, i int) {
				if i == 0 {
					o.Values = throughput(x)
				}
			}
		}
	}
	counted := func(n int64) func(*testing.T, *play, []episode.Episode) {
		return func(t *testing.T, p *play, _ []episode.Episode) { assert.Equal(t, n, p.counters.Stuck) }
	}
	// rough lets the peers differ by 0.4 % from tick to tick, and the first node not at all.
	rough := func(x float64) func(*play) {
		return func(p *play) {
			p.noise = 0.004
			same(x)(p)
		}
	}
	faster := lose(-0.4, 1, 2, 3, 4, 5, 6, 7)
	runStories(t, map[string]story{
		"stuck": {nodes: 8, steps: []step{
			{ticks: 400},
			{do: same(10), ticks: 31},
			{do: faster, ticks: 100, check: counted(1)},
		}},
		"not for long": {nodes: 8, steps: []step{
			{ticks: 400},
			{do: same(10), ticks: 20},
			{do: faster, ticks: 30, want: []string{"node onset j-00"}, check: counted(0)},
		}},
		"constant, and not behind": {nodes: 8, steps: []step{
			{ticks: 400},
			{do: same(10.05), ticks: 100, check: counted(0)},
		}},
		"a small constant loss, as of whole numbers": {nodes: 12, steps: []step{
			{do: rough(10), ticks: 400},
			{do: rough(9.7), ticks: 5},
			{ticks: 80, want: []string{"node onset j-00"}, check: counted(0)},
		}},
		"the last value was a little lower, as values are": {nodes: 12, steps: []step{
			{do: rough(10), ticks: 400},
			{do: rough(9.9), ticks: 400},
			{do: both(rough(9.9), lose(-0.1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)), ticks: 100, check: counted(1)},
		}},
		"a constant loss": {nodes: 8, steps: []step{
			{ticks: 400},
			{do: same(8), ticks: 100, want: []string{"node onset j-00"}, check: counted(0)},
		}},
	})
}

// TestContestedNames: two nodes send values under one name. Three ticks in a row are a
// claim, three minutes without end it.
func TestContestedNames(t *testing.T) {
	contested := func(is bool) func(*testing.T, *play, []episode.Episode) {
		return func(t *testing.T, p *play, _ []episode.Episode) {
			assert.Equal(t, is, p.node("j-03").Unjudged == unjudged.Contested)
			assert.False(t, is && p.node("j-03").Straggler)
			if is {
				assert.EqualValues(t, 1, p.counters.Contested, "counted once")
			}
		}
	}
	runStories(t, map[string]story{
		"a slow node and another": {nodes: 8, steps: []step{
			{ticks: 40},
			{do: lose(0.3, 3), ticks: 20, want: []string{"node onset j-03"}},
			{do: clones(10), ticks: 2, check: contested(false)},
			{do: clones(0), ticks: 1},
			{do: clones(10), ticks: 2, check: contested(false)},
			{ticks: 1, want: []string{"node end j-03 contested"}, check: contested(true)},
			{ticks: 60, check: contested(true)},
			{do: clones(0), ticks: 10, check: contested(true)},
			{do: clones(10), ticks: 1},
			{do: clones(0), ticks: 17, check: contested(true)},
			{ticks: 1, check: contested(false)},
			{ticks: 40, want: []string{"node onset j-03"}}, // it is slow
		}},
		"a node's two reports, one a little newer": {nodes: 8, steps: []step{
			{do: clones(9.7), ticks: 30, check: contested(false)},
		}},
		"one of four is no peer": {nodes: 4, config: func(c *Config) { c.MinPeers = 4 }, steps: []step{
			{ticks: 20, check: func(t *testing.T, p *play, _ []episode.Episode) {
				assert.Equal(t, 4, p.group().Signals[nodesignal.Throughput].N)
			}},
			{do: clones(2), ticks: 4, check: func(t *testing.T, p *play, _ []episode.Episode) {
				assert.Zero(t, p.group().Signals[nodesignal.Throughput].N)
			}},
		}},
	})
}

// TestValuesThatAreNotReported: a value that its node sends no more is void after the TTL,
// or at once where its series ends. One that comes now and then stays.
func TestValuesThatAreNotReported(t *testing.T) {
	// rarely sends the throughput of node 0 each so many ticks, 0 is never.
	rarely := func(each int, gone bool) func(*play) {
		return func(p *play) {
			p.also = func(o *nodesignal.Observation, i int) {
				o.Values.Set(nodesignal.Compute, 0.9)
				if i == 0 && (each == 0 || p.k%each > 0) {
					o.Values.Known[nodesignal.Throughput], o.Gone[nodesignal.Throughput] = false, gone
				}
			}
		}
	}
	slow := func(is bool) func(*testing.T, *play, []episode.Episode) {
		return func(t *testing.T, p *play, _ []episode.Episode) { assert.Equal(t, is, p.node("j-00").Straggler) }
	}
	beat := func(p *play) {
		p.also = func(o *nodesignal.Observation, _ int) {
			*o = nodesignal.Observation{Cluster: "c", Node: o.Node, GroupLabels: o.GroupLabels, Heartbeat: true}
		}
	}
	runStories(t, map[string]story{
		"sent no more": {nodes: 8, steps: []step{
			{do: rarely(1, false), ticks: 40},
			{do: lose(0.5, 0), ticks: 10, want: []string{"node onset j-00"}},
			{do: rarely(0, false), ticks: 5, check: slow(true)},
			{ticks: 1, want: []string{"node end j-00 recovered"}, check: slow(false)},
		}},
		"gone": {nodes: 8, steps: []step{
			{do: rarely(1, false), ticks: 40},
			{do: lose(0.5, 0), ticks: 10, want: []string{"node onset j-00"}},
			{do: rarely(0, true), ticks: 1, want: []string{"node end j-00 recovered"}, check: slow(false)},
		}},
		"now and then": {nodes: 8, steps: []step{
			{do: rarely(1, false), ticks: 40},
			{do: lose(0.5, 0), ticks: 10, want: []string{"node onset j-00"}},
			{do: rarely(4, false), ticks: 60, check: slow(true)},
			{do: idle(upTo(8)...), ticks: 1, want: []string{"node end j-00 idle"}, check: func(t *testing.T, p *play, events []episode.Episode) {
				assert.Equal(t, nodesignal.Throughput.String(), events[0].Signal)
				assert.Nil(t, events[0].Value, "no peer is left")
				assert.Zero(t, p.node("j-00").Since)
			}},
		}},
		"heartbeats confirm it": {nodes: 8, steps: []step{
			{ticks: 40},
			{do: lose(0.5, 0), ticks: 1},
			{do: beat, ticks: 20, want: []string{"node onset j-00"}},
		}},
	})
}

// TestTheScoreOfANodeWithSignalsIsNotCompared: it is a mean of them.
func TestTheScoreOfANodeWithSignalsIsNotCompared(t *testing.T) {
	scores := func(signals bool) func(*play) {
		return func(p *play) {
			p.also = func(o *nodesignal.Observation, i int) {
				o.Values.Known[nodesignal.Throughput] = signals
				o.Score, o.HasScore = map[bool]float64{true: 0.3, false: 0.9}[i == 2], true
			}
		}
	}
	compared := func(n int) func(*testing.T, *play, []episode.Episode) {
		return func(t *testing.T, p *play, _ []episode.Episode) {
			assert.Equal(t, n, p.group().Signals[nodesignal.Score].N)
		}
	}
	runStories(t, map[string]story{"": {nodes: 8, steps: []step{
		{do: scores(true), ticks: 60, check: compared(0)},
		{do: scores(false), ticks: 6, check: compared(8)}, // the signals are void
		{ticks: 20, want: []string{"node onset j-02"}},
	}}})
}

// TestAClonedNodeIsContested whatever else is known of it, until the clone is gone. Ranks of one
// node may send different values: that alone is no clone.
func TestAClonedNodeIsContested(t *testing.T) {
	for state, after := range map[nodesignal.State]unjudged.Reason{nodesignal.StateIdle: unjudged.Idle, nodesignal.StateActive: unjudged.Judged} {
		f := newFleet(t, nil)
		why := map[int]unjudged.Reason{}
		for k := range 50 {
			f.observe(nodesignal.Observation{Cluster: "c", Node: "n", State: state, HasState: true, Contested: k < 6, Values: throughput(1)})
			if k > 40 {
				f.observe(nodesignal.Observation{Cluster: "c", Node: "n", Values: throughput(2)})
			}
			ranks := state == nodesignal.StateActive
			f.e.SetRankVerdict("c", "n", &RankVerdict{Judged: ranks, Slow: ranks})
			row := f.tick().Nodes[0]
			why[k] = row.Unjudged
			assert.Equal(t, ranks && why[k] == unjudged.Judged, row.Straggler)
		}
		assert.Equal(t, []unjudged.Reason{unjudged.Contested, after, after}, []unjudged.Reason{why[5], why[40], why[49]})
	}
}
