// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/episode"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// TestSeverity: another one is told when six ticks in a row agree on it, and a lesser one
// below four fifths of its bound. On the way to the end it is no news.
func TestSeverity(t *testing.T) {
	after := func(least, most int) func(*testing.T, *play, []episode.Event) {
		return func(t *testing.T, p *play, told []episode.Event) {
			ago := int(p.last.At.Sub(told[0].At) / tick)
			assert.True(t, 60-ago >= least && 60-ago <= most, "told after %d ticks", 60-ago)
		}
	}
	tell(t, map[string]story{
		"up and down": {nodes: 8, steps: []step{
			{ticks: 400},
			{do: lose(0.07, 2), ticks: 60, told: []string{"node onset j-02"}},
			{do: lose(0.15, 2), ticks: 60, told: []string{"node severity j-02 major"}, check: after(6, 18)},
			{do: lose(0.4, 2), ticks: 60, told: []string{"node severity j-02 critical"}, check: after(6, 18)},
			{do: lose(0.22, 2), ticks: 60}, // more than four fifths of 25 %
			{do: lose(0.15, 2), ticks: 60, told: []string{"node severity j-02 major"}},
			{do: lose(0), ticks: 80, told: []string{"node end j-02 recovered"}},
		}},
		"from critical to well": {nodes: 8, steps: []step{
			{ticks: 400},
			{do: lose(0.4, 2), ticks: 60, told: []string{"node onset j-02"}},
			{do: lose(0), ticks: 100, told: []string{"node end j-02 recovered"}, check: func(t *testing.T, _ *play, told []episode.Event) {
				assert.Equal(t, episode.SeverityCritical, told[0].Severity)
				assert.Greater(t, told[0].Confidence, 0.7, "the greatest there was")
				assert.InDelta(t, 10, told[0].Value, 0.2)
				assert.True(t, told[0].Compared)
			}},
		}},
		"two glitches do not add up": {nodes: 8, steps: []step{
			{ticks: 400},
			{do: lose(0.15, 2), ticks: 60, told: []string{"node onset j-02"}},
			{do: lose(0.4, 2), ticks: 4},
			{do: lose(0.15, 2), ticks: 20},
			{do: lose(0.4, 2), ticks: 4},
			{do: lose(0.15, 2), ticks: 60},
		}},
	})
	for gap, want := range map[float64]episode.Severity{0.05: episode.SeverityMinor, 0.0999: episode.SeverityMinor, 0.1: episode.SeverityMajor, 0.2499: episode.SeverityMajor, 0.25: episode.SeverityCritical} {
		assert.Equal(t, want, episode.SeverityOf(gap), gap)
	}
}

// TestFlapping: the third episode within an hour stays open until the node has been well
// for one. A node that moves or is forgotten is held for nobody.
func TestFlapping(t *testing.T) {
	began, over := []string{"node onset j-05"}, []string{"node onset j-05", "node end j-05 recovered"}
	up, down := lose(0.3, 5), lose(0)
	flap := func(n int) (steps []step) {
		steps = []step{{ticks: 400}}
		for i := range n {
			steps = append(steps, step{do: up, ticks: 8, told: began}, step{do: down, ticks: 60, told: over[1:]})
			if i == 2 {
				steps[len(steps)-1].told = nil
			}
			if i > 2 {
				steps[len(steps)-2].told, steps[len(steps)-1].told = nil, nil
			}
		}
		return steps
	}
	counted := func(n int64) func(*testing.T, *play, []episode.Event) {
		return func(t *testing.T, p *play, _ []episode.Event) { assert.Equal(t, n, p.counters.Flapping) }
	}
	tell(t, map[string]story{
		"twice is not": {nodes: 8, steps: append(flap(2), step{check: counted(0)})},
		"six times, and well for an hour": {nodes: 8, steps: append(flap(6),
			step{ticks: 360, told: over[1:], check: counted(1)},
			step{do: up, ticks: 8, told: began},
			step{do: down, ticks: 60, told: over[1:], check: counted(1)})},
		"it moves": {nodes: 8, steps: append(flap(3),
			step{do: moves(5, "other"), ticks: 1, told: []string{"node end j-05 moved"}, check: counted(1)})},
		"it is forgotten": {nodes: 8, config: func(c *Config) { c.Retention = 30 * time.Minute }, steps: append(flap(3),
			step{do: silent(5), ticks: 200, told: []string{"missing onset j-05", "node end j-05 forgotten", "missing end j-05 forgotten"}})},
	})
}

// TestEndsOfEpisodes: each says why, under the id and in the group of its beginning.
func TestEndsOfEpisodes(t *testing.T) {
	slow := []step{{ticks: 400}, {do: lose(0.2, 5), ticks: 30, told: []string{"node onset j-05"}}}
	with := func(steps ...step) story { return story{nodes: 8, steps: append(slow[:2:2], steps...)} }
	var since time.Time
	stays := func(t *testing.T, p *play, _ []episode.Event) {
		if n := p.node("j-05"); assert.True(t, n.Straggler) && !since.IsZero() {
			assert.Equal(t, since, n.Since)
		}
		since = p.node("j-05").Since
	}
	tell(t, map[string]story{
		"of two nobody can tell": with(
			step{do: idle(0, 1, 2, 3, 4), ticks: 10}, // of three one can
			step{do: idle(0, 1, 2, 3, 4, 6), ticks: 7, told: []string{"node end j-05 idle"}},
			step{ticks: 60},
			step{do: idle(), ticks: 60, told: []string{"node onset j-05"}}),
		"another that is not as slow": with(
			step{do: loseEach(map[int]float64{5: 0.4, 3: 0.08}), ticks: 30, told: []string{"node onset j-03", "node severity j-05 critical"}, check: func(t *testing.T, _ *play, told []episode.Event) {
				assert.Equal(t, []int{2, 8}, []int{told[0].Rank, told[0].Active}, "the second worst")
				assert.Equal(t, []string{"j"}, told[0].Peers)
			}}),
		"relieved for a while": with(
			step{ticks: 1, check: stays},
			step{do: lose(0), ticks: 16, check: stays},
			step{do: lose(0.2, 5), ticks: 30, check: stays}),
		"recovered": with(step{do: lose(0), ticks: 80, told: []string{"node end j-05 recovered"}}),
		"idle":      with(step{do: idle(5), ticks: 1, told: []string{"node end j-05 idle"}}),
		"moved": with(step{do: moves(5, "other"), ticks: 1, told: []string{"node end j-05 moved"}, check: func(t *testing.T, p *play, told []episode.Event) {
			assert.Equal(t, "j", told[0].Group)
			assert.EqualValues(t, 1, p.counters.GroupChanges)
		}}),
		"missing and then forgotten": with(
			step{do: silent(5), ticks: 10, told: []string{"node end j-05 missing", "missing onset j-05"}, check: func(t *testing.T, p *play, told []episode.Event) {
				assert.Equal(t, p.now.Add(-11*tick), told[1].Since, "when it was heard of last")
				assert.Equal(t, episode.SeverityMajor, told[1].Severity)
			}},
			step{ticks: 360, told: []string{"missing end j-05 forgotten"}, check: func(t *testing.T, p *play, _ []episode.Event) { assert.Equal(t, 7, p.e.Nodes()) }}),
	})
}

// TestEventsAreLimited per cluster and tick: the rest is told at the next tick. So are
// severities.
func TestEventsAreLimited(t *testing.T) {
	groups := []string{"a", "b", "d", "e", "f"}
	p := newPlay(t, groups, 20, nil)
	// told plays some ticks and returns what each tells that does.
	told := func(loss map[string]float64, n int) (perTick [][]episode.Event) {
		p.loss = func(group string, i int) float64 { return map[bool]float64{true: loss[group]}[i < 3] }
		for range n {
			if events := p.ticks(1); len(events) > 0 {
				perTick = append(perTick, events)
			}
		}
		return perTick
	}
	require.Empty(t, told(nil, 400))
	perTick := told(map[string]float64{"a": 0.14, "b": 0.14, "d": 0.14, "e": 0.13, "f": 0.14}, 60)
	require.Len(t, perTick, 2)
	require.Len(t, perTick[0], 10)
	require.Len(t, perTick[1], 5)
	for _, ev := range slices.Concat(perTick...) {
		assert.Equal(t, "node onset", ev.Subject.String()+" "+ev.Kind.String())
	}
	assert.Zero(t, p.counters.Folded)

	perTick = told(map[string]float64{"a": 0.4, "b": 0.4, "d": 0.4, "e": 0.4, "f": 0.4}, 60)
	for k, events := range perTick {
		assert.LessOrEqual(t, len(events), 10, "%d", k)
	}
	assert.Len(t, slices.Concat(perTick...), 15)
	require.Empty(t, told(map[string]float64{"a": 0.4, "b": 0.4, "d": 0.4, "e": 0.4, "f": 0.4}, 60))
	assert.Len(t, slices.Concat(told(nil, 100)...), 15, "an end for each")
}

// TestWhoIsAboutToBeWell when an incident ends is not named alone.
func TestWhoIsAboutToBeWell(t *testing.T) {
	for last := 40; last < 80; last += 2 {
		p := newPlay(t, []string{"j"}, 20, nil)
		p.ticks(400)
		lose(0.3, 0, 1, 2, 3)(p)
		require.Equal(t, []string{"group onset 4 stragglers"}, brief(p.ticks(12)))
		lose(0.3, 2, 3)(p)
		p.ticks(last)
		lose(0)(p)
		p.ticks(3)
		for _, ev := range p.ticks(100) {
			require.Equal(t, episode.EventEnd, ev.Kind, "after %d ticks", last)
		}
	}
}

// TestIncidents: more stragglers than two and than 15 % of the group are one incident.
func TestIncidents(t *testing.T) {
	incident := func(is bool) func(*testing.T, *play, []episode.Event) {
		return func(t *testing.T, p *play, _ []episode.Event) { assert.Equal(t, is, p.group().Incident) }
	}
	each := func(losses ...float64) func(*play) {
		loss := map[int]float64{}
		for i, x := range losses {
			loss[i] = x
		}
		return loseEach(loss)
	}
	five := upTo(5)
	tell(t, map[string]story{
		"three of twenty are 15 %, not more": {steps: []step{
			{ticks: 400},
			{do: lose(0.2, 0, 1, 2), ticks: 60, told: []string{"node onset j-00", "node onset j-01", "node onset j-02"}, check: incident(false)},
		}},
		"one, then five at once": {steps: []step{
			{ticks: 400},
			{do: lose(0.2, 0), ticks: 30, told: []string{"node onset j-00"}},
			{do: lose(0.2, upTo(6)...), ticks: 60, told: []string{"group onset 6 stragglers"}, check: func(t *testing.T, p *play, told []episode.Event) {
				in := told[0]
				assert.Equal(t, []string{"j-00", "j-01", "j-02", "j-03", "j-04", "j-05"}, in.Nodes)
				assert.Equal(t, nodesignal.Throughput, in.Signal)
				assert.Equal(t, episode.SeverityMajor, in.Severity)
				assert.InDelta(t, 0.2, in.Gap, 0.02)
				assert.InDelta(t, 8.04, in.Value, 0.1)
				assert.InDelta(t, 10.05, in.Median, 0.1)
				assert.Equal(t, 20, in.Active)
				assert.LessOrEqual(t, in.Since.Sub(p.now.Add(-90*tick)).Abs(), 2*tick, "when the first of them began")
				assert.EqualValues(t, 5, p.counters.Folded)
				assert.Equal(t, 6, p.group().Stragglers)
				assert.True(t, p.group().Incident)
			}},
			{do: lose(0.2, 3), ticks: 100, told: []string{"node end j-00 recovered", "group end 6 recovered", "node onset j-03"}, check: incident(false)},
			{do: lose(0), ticks: 60, told: []string{"node end j-03 recovered"}},
		}},
		"worse, and better": {steps: []step{
			{ticks: 400},
			{do: lose(0.15, five...), ticks: 60, told: []string{"group onset 5 stragglers"}},
			{do: lose(0.4, five...), ticks: 60, told: []string{"group severity 5 stragglers critical"}},
			{do: lose(0.22, five...), ticks: 60},
			{do: lose(0.15, five...), ticks: 60, told: []string{"group severity 5 stragglers major"}},
			{do: lose(0), ticks: 100, told: []string{"group end 5 recovered"}, check: func(t *testing.T, _ *play, told []episode.Event) {
				assert.Equal(t, episode.SeverityMajor, told[0].Severity)
			}},
		}},
		"others later, told each ten minutes": {steps: []step{
			{ticks: 400},
			{do: each(0.2, 0.2, 0.2, 0.2), ticks: 60, told: []string{"group onset 4 stragglers"}},
			{do: each(0.2, 0.2, 0.2, 0.2, 0.2), ticks: 20, told: []string{"group update 5 stragglers"}},
			{do: each(0.2, 0.2, 0.2, 0.2, 0.2, 0.2), ticks: 20},
			{do: each(0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2), ticks: 60, told: []string{"group update 7 stragglers"}},
			{ticks: 300},
			{do: each(0.2, 0.2, 0.2, 0.2, 0.2, 0.2), ticks: 60},
			{do: each(0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2), ticks: 200}, // its name has been told
		}},
		"others that are far worse": {nodes: 16, steps: []step{
			{ticks: 400},
			{do: each(0.12, 0.12, 0.12), ticks: 60, told: []string{"group onset 3 stragglers"}},
			{do: loseEach(map[int]float64{0: 0.12, 1: 0.12, 2: 0.12, 7: 0.5}), ticks: 40, told: []string{"group update 4 stragglers", "node onset j-07"}, check: func(t *testing.T, _ *play, told []episode.Event) {
				assert.Equal(t, episode.SeverityCritical, told[1].Severity)
			}},
		}},
		"one of it that gets far worse": {nodes: 16, steps: []step{
			{ticks: 400},
			{do: each(0.12, 0.12, 0.12, 0.12), ticks: 60, told: []string{"group onset 4 stragglers"}},
			{do: each(0.12, 0.29, 0.12, 0.12), ticks: 60}, // critical, but not clearly
			{do: each(0.12, 0.4, 0.12, 0.12), ticks: 60, told: []string{"node onset j-01"}},
			{do: each(0.12, 0.12, 0.12, 0.12), ticks: 100, told: []string{"node severity j-01 major"}},
		}},
		"one that is hardly worse": {nodes: 16, steps: []step{
			{ticks: 400},
			{do: each(0.23, 0.23, 0.23, 0.23), ticks: 60, told: []string{"group onset 4 stragglers"}},
			{do: each(0.23, 0.335, 0.23, 0.23), ticks: 60},
		}},
		"it lasts": {nodes: 16, steps: []step{
			{ticks: 400},
			{do: each(0.12, 0.12, 0.12, 0.12), ticks: 60, told: []string{"group onset 4 stragglers"}},
			{ticks: 7 * 360, check: incident(true)},
		}},
		"the job ends": {nodes: 8, steps: []step{
			{ticks: 400},
			{do: lose(0.2, 0, 1, 2), ticks: 60, told: []string{"group onset 3 stragglers"}},
			{do: idle(upTo(8)...), ticks: 1, told: []string{"group end 3 idle"}},
		}},
		"its nodes go to another": {nodes: 8, steps: []step{
			{ticks: 400},
			{do: lose(0.2, 0, 1, 2), ticks: 60, told: []string{"group onset 3 stragglers"}},
			{do: func(p *play) { p.also = func(o *Observation, _ int) { o.Peers = []string{"k"} } }, ticks: 1, told: []string{"group end 3 idle"}},
		}},
		"some lose much, and some less and later": {steps: []step{ // nodes about to fall are waited for
			{ticks: 400},
			{do: each(0.2, 0.2, 0.2, 0.09, 0.09, 0.09), ticks: 60, told: []string{"group onset 6 stragglers"}},
		}},
	})
}

// TestMissingNodes: silence of 50 s is told after two ticks for others that may follow.
// Many at once are one event, of their group or of the cluster.
func TestMissingNodes(t *testing.T) {
	many := func(p *play) { p.silent = func(g string, i int) bool { return g == "a" && i < 5 } }
	one := func(p *play) { p.silent = func(g string, i int) bool { return g == "a" && i < 1 } }
	tell(t, map[string]story{
		"one": {nodes: 8, steps: []step{
			{ticks: 10},
			{do: silent(0), ticks: 6, check: func(t *testing.T, p *play, _ []episode.Event) {
				assert.Equal(t, nodesignal.StateMissing, p.node("j-00").State)
			}},
			{ticks: 1, told: []string{"missing onset j-00"}, check: func(t *testing.T, p *play, told []episode.Event) {
				assert.Equal(t, p.now.Add(-8*tick), told[0].Since)
				assert.Equal(t, "j", told[0].Group)
				assert.Equal(t, episode.SeverityMajor, told[0].Severity)
			}},
			{ticks: 30},
			{do: silent(), ticks: 1, told: []string{"missing end j-00 recovered"}},
		}},
		"one for a minute": {nodes: 8, steps: []step{
			{ticks: 10},
			{do: silent(0), ticks: 6},
			{do: silent(), ticks: 20},
		}},
		"two": {nodes: 12, steps: []step{
			{ticks: 10},
			{do: silent(0, 1), ticks: 20, told: []string{"missing onset j-00", "missing onset j-01"}},
		}},
		"two, and two more within an interval": {nodes: 12, steps: []step{
			{ticks: 10},
			{do: silent(0, 1), ticks: 1},
			{do: silent(0, 1, 2, 3), ticks: 20, told: []string{"missing onset 4"}},
		}},
		"many of a group, then of the cluster": {groups: []string{"a", "b"}, nodes: 12, steps: []step{
			{ticks: 10},
			{do: many, ticks: 20, told: []string{"missing onset 5"}, check: func(t *testing.T, p *play, told []episode.Event) {
				assert.Equal(t, "a", told[0].Group)
				assert.Equal(t, episode.SeverityCritical, told[0].Severity)
				assert.Equal(t, p.now.Add(-21*tick), told[0].Since)
				assert.Equal(t, []string{"a-00", "a-01", "a-02", "a-03", "a-04"}, told[0].Nodes)
			}},
			{do: one, ticks: 20},
			{do: silent(), ticks: 1, told: []string{"missing end 5 recovered"}},
			{do: silent(0, 1), ticks: 20, told: []string{"missing onset 4"}, check: func(t *testing.T, _ *play, told []episode.Event) { assert.Empty(t, told[0].Group) }},
		}},
		"more than are listed": {nodes: 120, steps: []step{
			{ticks: 10},
			{do: silent(upTo(110)...), ticks: 10, told: []string{"missing onset 110"}, check: func(t *testing.T, _ *play, told []episode.Event) { assert.Len(t, told[0].Nodes, 100) }},
		}},
		"forgotten": {nodes: 8, steps: []step{
			{ticks: 10},
			{do: silent(0, 1, 2, 3), ticks: 20, told: []string{"missing onset 4"}},
			{ticks: 360, told: []string{"missing end 4 forgotten"}, check: func(t *testing.T, p *play, _ []episode.Event) { assert.Equal(t, 4, p.e.Nodes()) }},
		}},
		"forgotten before it is told": {nodes: 8, config: func(c *Config) { c.Retention = time.Minute }, steps: []step{
			{ticks: 10},
			{do: silent(7), ticks: 20, check: func(t *testing.T, p *play, _ []episode.Event) { assert.Equal(t, 7, p.e.Nodes()) }},
		}},
		"heard of elsewhere": {nodes: 8, steps: []step{
			{ticks: 10},
			{do: silent(5), ticks: 10, told: []string{"missing onset j-05"}},
			{do: moves(5, "other"), ticks: 1, told: []string{"missing end j-05 moved"}},
		}},
	})

	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(10)
	told := 0
	for range 5 {
		silent(0)(p)
		told += len(p.ticks(10))
		silent()(p)
		told += len(p.ticks(10))
	}
	assert.Equal(t, 6, told, "one that flaps is told three times within an hour")
	assert.EqualValues(t, 2, p.counters.Flapping)
}

// TestADeafGateway, one that no tick came to for long, misses nobody and forgets nothing,
// though a signal that does not change is said once and heartbeats confirm it.
func TestADeafGateway(t *testing.T) {
	for _, late := range []time.Duration{4 * tick, 10 * tick} {
		p := newPlay(t, []string{"j"}, 8, nil)
		p.ticks(10)
		p.also = func(o *Observation, _ int) {
			*o = Observation{Cluster: "c", Node: o.Node, Peers: o.Peers, Heartbeat: true}
		}
		p.ticks(3)
		p.now = p.now.Add(late)
		require.Empty(t, p.tickOnce())
		require.Empty(t, p.ticks(10))
		assert.Equal(t, 8, p.group().Counts[nodesignal.StateActive])
		assert.Equal(t, map[string]int{"": 8}, reasons(p.group()))
	}
}

// TestEpisodesOfTwoLives: of a node that was slow from the first, each engine's episode
// has its own id.
func TestEpisodesOfTwoLives(t *testing.T) {
	var ids []string
	for life := range 2 {
		p := newPlay(t, []string{"j"}, 8, nil)
		p.now = start.Add(time.Duration(life) * time.Hour)
		lose(0.4, 3)(p)
		ids = append(ids, p.ticks(100)[0].ID)
	}
	assert.NotEqual(t, ids[0], ids[1])
}
