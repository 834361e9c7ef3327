// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// TestFlapping: an episode that flaps is not held for a node that moves or is forgotten.
func TestFlapping(t *testing.T) {
	began, over := []string{"node onset j-05"}, []string{"node onset j-05", "node end j-05 recovered"}
	up, down := lose(0.3, 5), lose(0)
	flap := func(n int) (steps []step) {
		steps = []step{{ticks: 400}}
		for i := range n {
			steps = append(steps, step{do: up, ticks: 8, want: began}, step{do: down, ticks: 60, want: over[1:]})
			if i == 2 {
				steps[len(steps)-1].want = nil
			}
			if i > 2 {
				steps[len(steps)-2].want, steps[len(steps)-1].want = nil, nil
			}
		}
		return steps
	}
	counted := func(n int64) func(*testing.T, *play, []episode.Episode) {
		return func(t *testing.T, p *play, _ []episode.Episode) { assert.Equal(t, n, p.counters.Flapping) }
	}
	runStories(t, map[string]story{
		"it moves": {nodes: 8, steps: append(flap(3),
			step{do: moves(5, "other"), ticks: 1, want: []string{"node end j-05 moved"}, check: counted(1)})},
		"it is forgotten": {nodes: 8, config: func(c *Config) { c.Retention = 30 * time.Minute }, steps: append(flap(3),
			step{do: missing(5), ticks: 200, want: []string{"missing onset j-05", "node end j-05 forgotten", "missing end j-05 forgotten"}})},
	})
}

// TestEndsOfEpisodes: each has its cause, under the id and in the group of its beginning.
func TestEndsOfEpisodes(t *testing.T) {
	slow := []step{{ticks: 400}, {do: lose(0.2, 5), ticks: 30, want: []string{"node onset j-05"}}}
	with := func(steps ...step) story { return story{nodes: 8, steps: append(slow[:2:2], steps...)} }
	var since time.Time
	stays := func(t *testing.T, p *play, _ []episode.Episode) {
		if n := p.node("j-05"); assert.True(t, n.Straggler) && !since.IsZero() {
			assert.Equal(t, since, n.Since)
		}
		since = p.node("j-05").Since
	}
	runStories(t, map[string]story{
		"of two either may be slow": with(
			step{do: idle(0, 1, 2, 3, 4), ticks: 10}, // of three one can
			step{do: idle(0, 1, 2, 3, 4, 6), ticks: 7, want: []string{"node end j-05 idle"}},
			step{ticks: 60},
			step{do: idle(), ticks: 60, want: []string{"node onset j-05"}}),
		"another that is not as slow": with(
			step{do: loseEach(map[int]float64{5: 0.4, 3: 0.08}), ticks: 30, want: []string{"node onset j-03", "node severity j-05 critical"}, check: func(t *testing.T, _ *play, events []episode.Episode) {
				assert.Equal(t, []int64{2, 8}, []int64{*events[0].Rank, *events[0].Active}, "the second worst")
				assert.Equal(t, []string{"j"}, events[0].GroupLabels)
			}}),
		"relieved for a while": with(
			step{ticks: 1, check: stays},
			step{do: lose(0), ticks: 16, check: stays},
			step{do: lose(0.2, 5), ticks: 30, check: stays}),
		"a pause": with(
			step{do: func(p *play) {
				p.also = func(o *nodesignal.Observation, i int) {
					if i == 5 {
						*o = nodesignal.Observation{Cluster: o.Cluster, Node: o.Node, GroupLabels: o.GroupLabels, HasState: true, State: nodesignal.StateCalibrating, Heartbeat: true}
					}
				}
			}, ticks: 6, want: []string{"node end j-05 idle"}},
			step{do: func(p *play) { p.also = nil }, ticks: 30, want: []string{"node onset j-05"}, check: func(t *testing.T, p *play, events []episode.Episode) {
				assert.False(t, events[0].Since.Before(p.now.Add(-36*tick)), "not before the end")
				assert.Equal(t, events[0].Since, p.node("j-05").Since)
			}}),
		"recovered": with(step{do: lose(0), ticks: 80, want: []string{"node end j-05 recovered"}}),
		"idle":      with(step{do: idle(5), ticks: 1, want: []string{"node end j-05 idle"}}),
		"moved": with(step{do: moves(5, "other"), ticks: 1, want: []string{"node end j-05 moved"}, check: func(t *testing.T, p *play, events []episode.Episode) {
			assert.Equal(t, "j", events[0].Group)
			assert.EqualValues(t, 1, p.counters.GroupChanges)
		}}),
		"missing and then forgotten": with(
			step{do: missing(5), ticks: 10, want: []string{"node end j-05 missing", "missing onset j-05"}, check: func(t *testing.T, p *play, events []episode.Episode) {
				assert.Equal(t, p.now.Add(-11*tick), events[1].Since, "its last report")
				assert.Equal(t, episode.SeverityMajor, events[1].Severity)
			}},
			step{ticks: 360, want: []string{"missing end j-05 forgotten"}, check: func(t *testing.T, p *play, _ []episode.Episode) { assert.Equal(t, 7, p.e.Nodes()) }}),
	})
}

// TestIncidents: more stragglers than two and than 15 % of the group are one incident.
func TestIncidents(t *testing.T) {
	incident := func(is bool) func(*testing.T, *play, []episode.Episode) {
		return func(t *testing.T, p *play, _ []episode.Episode) { assert.Equal(t, is, p.group().Incident) }
	}
	runStories(t, map[string]story{
		"one, then five at once": {steps: []step{
			{ticks: 400},
			{do: lose(0.2, 0), ticks: 30, want: []string{"node onset j-00"}},
			{do: lose(0.2, upTo(6)...), ticks: 60, want: []string{"group onset 6 stragglers"}, check: func(t *testing.T, p *play, events []episode.Episode) {
				assert.InDelta(t, 0.2, *events[0].Gap, 0.02)
				assert.InDelta(t, 8.04, *events[0].Value, 0.1)
				assert.LessOrEqual(t, events[0].Since.Sub(p.now.Add(-90*tick)).Abs(), 2*tick, "when the first of them began")
				assert.EqualValues(t, 5, p.counters.Folded)
				assert.Equal(t, 6, p.group().Stragglers)
				assert.True(t, p.group().Incident)
			}},
			{do: lose(0.2, 3), ticks: 100, want: []string{"node end j-00 recovered", "group end 6 recovered", "node onset j-03"}, check: incident(false)},
			{do: lose(0), ticks: 60, want: []string{"node end j-03 recovered"}},
		}},
		"it lasts": {nodes: 16, steps: []step{
			{ticks: 400},
			{do: lose(0.12, 0, 1, 2, 3), ticks: 60, want: []string{"group onset 4 stragglers"}},
			{ticks: 7 * 360, check: incident(true)},
		}},
		"the job ends": {nodes: 8, steps: []step{
			{ticks: 400},
			{do: lose(0.2, 0, 1, 2), ticks: 60, want: []string{"group onset 3 stragglers"}},
			{do: idle(upTo(8)...), ticks: 1, want: []string{"group end 3 idle"}},
		}},
		"its nodes go to another": {nodes: 8, steps: []step{
			{ticks: 400},
			{do: lose(0.2, 0, 1, 2), ticks: 60, want: []string{"group onset 3 stragglers"}},
			{do: func(p *play) { p.also = func(o *nodesignal.Observation, _ int) { o.GroupLabels = []string{"k"} } }, ticks: 1, want: []string{"group end 3 idle"}},
		}},
	})
}

// TestMissingNodes: 50 s without a report make an event, after two ticks for others that may follow.
// Many at once are one event, of their group or of the cluster.
func TestMissingNodes(t *testing.T) {
	many := func(p *play) { p.missing = func(g string, i int) bool { return g == "a" && i < 5 } }
	one := func(p *play) { p.missing = func(g string, i int) bool { return g == "a" && i < 1 } }
	runStories(t, map[string]story{
		"one": {nodes: 8, steps: []step{
			{ticks: 10},
			{do: missing(0), ticks: 6, check: func(t *testing.T, p *play, _ []episode.Episode) {
				assert.Equal(t, nodesignal.StateMissing, p.node("j-00").State)
			}},
			{ticks: 1, want: []string{"missing onset j-00"}, check: func(t *testing.T, p *play, events []episode.Episode) {
				assert.Equal(t, p.now.Add(-8*tick), events[0].Since)
				assert.Equal(t, "j", events[0].Group)
				assert.Equal(t, episode.SeverityMajor, events[0].Severity)
			}},
			{ticks: 30},
			{do: missing(), ticks: 1, want: []string{"missing end j-00 recovered"}},
		}},
		"one for a minute": {nodes: 8, steps: []step{
			{ticks: 10},
			{do: missing(0), ticks: 6},
			{do: missing(), ticks: 20},
		}},
		"two": {nodes: 12, steps: []step{
			{ticks: 10},
			{do: missing(0, 1), ticks: 20, want: []string{"missing onset j-00", "missing onset j-01"}},
		}},
		"two, and two more within an interval": {nodes: 12, steps: []step{
			{ticks: 10},
			{do: missing(0, 1), ticks: 1},
			{do: missing(0, 1, 2, 3), ticks: 20, want: []string{"missing onset 4"}},
		}},
		"many of a group, then of the cluster": {groups: []string{"a", "b"}, nodes: 12, steps: []step{
			{ticks: 10},
			{do: many, ticks: 20, want: []string{"missing onset 5"}, check: func(t *testing.T, p *play, events []episode.Episode) {
				assert.Equal(t, "a", events[0].Group)
				assert.Equal(t, episode.SeverityCritical, events[0].Severity)
				assert.Equal(t, p.now.Add(-21*tick), events[0].Since)
				assert.Equal(t, []string{"a-00", "a-01", "a-02", "a-03", "a-04"}, events[0].Nodes)
			}},
			{do: one, ticks: 20},
			{do: missing(), ticks: 1, want: []string{"missing end 5 recovered"}},
			{do: missing(0, 1), ticks: 20, want: []string{"missing onset 4"}, check: func(t *testing.T, _ *play, events []episode.Episode) { assert.Empty(t, events[0].Group) }},
		}},
		"more than are listed": {nodes: 120, steps: []step{
			{ticks: 10},
			{do: missing(upTo(110)...), ticks: 10, want: []string{"missing onset 110"}, check: func(t *testing.T, _ *play, events []episode.Episode) { assert.Len(t, events[0].Nodes, 100) }},
		}},
		"forgotten": {nodes: 8, steps: []step{
			{ticks: 10},
			{do: missing(0, 1, 2, 3), ticks: 20, want: []string{"missing onset 4"}},
			{ticks: 360, want: []string{"missing end 4 forgotten"}, check: func(t *testing.T, p *play, _ []episode.Episode) { assert.Equal(t, 4, p.e.Nodes()) }},
		}},
		"forgotten before its onset": {nodes: 8, config: func(c *Config) { c.Retention = time.Minute }, steps: []step{
			{ticks: 10},
			{do: missing(7), ticks: 20, check: func(t *testing.T, p *play, _ []episode.Episode) { assert.Equal(t, 7, p.e.Nodes()) }},
		}},
		"it reports elsewhere": {nodes: 8, steps: []step{
			{ticks: 10},
			{do: missing(5), ticks: 10, want: []string{"missing onset j-05"}},
			{do: moves(5, "other"), ticks: 1, want: []string{"missing end j-05 moved"}},
		}},
	})

	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(10)
	count := 0
	for range 5 {
		missing(0)(p)
		count += len(p.ticks(10))
		missing()(p)
		count += len(p.ticks(10))
	}
	assert.Equal(t, 6, count, "one that flaps has three episodes within an hour")
	assert.EqualValues(t, 2, p.counters.Flapping)
}

// TestALateTick makes no node missing and forgets nothing, though a signal that does not
// change is sent once and heartbeats confirm it.
func TestALateTick(t *testing.T) {
	for _, late := range []time.Duration{4 * tick, 10 * tick} {
		p := newPlay(t, []string{"j"}, 8, nil)
		p.ticks(10)
		p.also = func(o *nodesignal.Observation, _ int) {
			*o = nodesignal.Observation{Cluster: "c", Node: o.Node, GroupLabels: o.GroupLabels, Heartbeat: true}
		}
		p.ticks(3)
		p.now = p.now.Add(late)
		require.Empty(t, p.tickOnce())
		require.Empty(t, p.ticks(10))
		assert.Equal(t, 8, p.group().Counts[nodesignal.StateActive])
		assert.Equal(t, map[string]int{"": 8}, reasons(p.group()))
	}
}
