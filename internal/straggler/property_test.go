// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// chaos is a fleet in which everything happens: nodes join, move, leave, flap,
// slow down, claim others' names and tell what is no number. Each tick's
// observations are in order.
func chaos(seed uint64, ticks int, each func([]Observation, time.Time)) {
	rng := rand.New(rand.NewPCG(seed, 11))
	at := start
	for tick := range ticks {
		var all []Observation
		for i := range 40 {
			o := Observation{Cluster: fmt.Sprint("c", i%2), Node: fmt.Sprintf("n%02d", i), State: StateActive, HasState: true}
			o.Peers = [][]string{{"a"}, {"b"}, nil}[i%3]
			x := 100 * (0.9 + 0.01*rng.NormFloat64())
			if i%10 == 7 && tick/40%2 == 1 {
				x *= 0.7
			}
			switch {
			case i == 3:
				o.Peers = []string{fmt.Sprint("moving", tick)}
			case i == 4 && tick%30 > 15, i > 30 && tick > 100 && tick < 130:
				continue
			case i == 5:
				x = math.NaN()
			case i == 6 && tick%7 == 0:
				o.State = StateIdle
			case i == 8:
				twin := o
				twin.Values = throughput(x * 0.4)
				all = append(all, twin)
			case i == 9:
				x = 90
			}
			o.Values = throughput(x)
			all = append(all, o)
		}
		each(all, at)
		at = at.Add(10 * time.Second)
	}
}

func TestTheOrderOfObservationsDoesNotMatter(t *testing.T) {
	for seed := range uint64(3) {
		one, other := New(DefaultConfig()), New(DefaultConfig())
		rng := rand.New(rand.NewPCG(seed, 1))
		episodes := 0
		chaos(seed, 200, func(all []Observation, at time.Time) {
			for i := range all {
				_ = one.Observe(&all[i], at)
			}
			// The two that claim one name are in their order: the last one counts.
			for _, i := range rng.Perm(len(all)) {
				if all[i].Node != "n08" {
					_ = other.Observe(&all[i], at)
				}
			}
			for i := range all {
				if all[i].Node == "n08" {
					_ = other.Observe(&all[i], at)
				}
			}
			a, b := one.Tick(at.Add(tick)), other.Tick(at.Add(tick))
			require.Equal(t, a.Nodes, b.Nodes)
			require.Equal(t, a.Groups, b.Groups)
			require.Equal(t, a.Events, b.Events)
			require.Equal(t, a.Ranks, b.Ranks)
			require.Equal(t, a.Counters, b.Counters)
			episodes += len(a.Events)
		})
		assert.Positive(t, episodes)
	}
}

// TestEpisodesAreWellFormed: an onset before an end, one open per node and
// subject, an end for each, and nothing left of a fleet that is gone.
func TestEpisodesAreWellFormed(t *testing.T) {
	for seed := range uint64(5) {
		e := New(DefaultConfig())
		open := map[string]Event{}
		byNode := map[string]string{}
		total := Counters{}
		check := func(r *Report) {
			for _, ev := range r.Events {
				node := fmt.Sprint(ev.Subject, ev.Cluster, ev.Group, ev.Node)
				switch ev.Kind {
				case EventOnset:
					require.NotContains(t, open, ev.ID)
					if ev.Node != "" {
						require.Empty(t, byNode[node], "%+v", ev)
						byNode[node] = ev.ID
					}
					open[ev.ID] = ev
					require.False(t, ev.Since.After(ev.At))
				case EventSeverity:
					require.Contains(t, open, ev.ID)
				case EventEnd:
					require.Contains(t, open, ev.ID, "%+v", ev)
					require.NotEmpty(t, ev.Cause)
					delete(open, ev.ID)
					delete(byNode, node)
				}
				require.True(t, ev.Confidence >= 0 && ev.Confidence <= 1 && ev.Gap-ev.Gap == 0, "%+v", ev)
			}
			for i := range r.Nodes {
				n := &r.Nodes[i]
				require.True(t, n.Suspicion >= 0 && n.Suspicion <= 2 && n.Gap-n.Gap == 0, "%+v", n)
				require.NotEqual(t, "n05", map[bool]string{true: n.Node}[n.Straggler], "what is no number is no straggler")
			}
			total.GroupChanges += r.Counters.GroupChanges
			total.Contested += r.Counters.Contested
		}
		var last time.Time
		chaos(seed, 300, func(all []Observation, at time.Time) {
			for i := range all {
				_ = e.Observe(&all[i], at)
			}
			last = at.Add(tick)
			check(e.Tick(last))
			require.LessOrEqual(t, e.groups, 10, "a group lives as long as its nodes")
		})
		assert.Positive(t, total.GroupChanges)
		assert.Positive(t, total.Contested)
		last = last.Add(2 * time.Hour)
		check(e.Tick(last))
		check(e.Tick(last.Add(tick)))
		assert.Empty(t, open)
		assert.Zero(t, e.Nodes())
		assert.Zero(t, e.groups)
		assert.Empty(t, e.order)
	}
}

func TestTooFewPeersAccuseNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, DefaultConfig().MinPeers-1).Draw(t, "nodes")
		f := newFleet(t, nil)
		for range 40 {
			for i := range n {
				o := Observation{Cluster: "c", Node: strconv.Itoa(i), Peers: []string{"j"}, State: StateActive, HasState: true}
				o.Values = throughput(rapid.Float64Range(0, 100).Draw(t, "x"))
				require.NoError(t, f.e.Observe(&o, f.now))
			}
			r := f.tick()
			require.Empty(t, stragglers(r))
			require.Empty(t, r.Events)
		}
	})
}

// TestAllAtOnceChangesNoVerdict: what happens to all nodes alike says nothing of one.
func TestAllAtOnceChangesNoVerdict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		factor := rapid.Float64Range(0.95, 1.6).Draw(t, "factor")
		seed := rapid.Uint64().Draw(t, "seed")
		verdicts := func(factor float64) (all [][]string) {
			f := newFleet(t, nil)
			rng := rand.New(rand.NewPCG(seed, 3))
			for k := range 60 {
				for i := range 12 {
					x := 100 * (1 + 0.01*rng.NormFloat64())
					if i == 3 && k > 20 {
						x *= 0.8
					}
					o := Observation{Cluster: "c", Node: fmt.Sprintf("%02d", i), Peers: []string{"j"}, State: StateActive, HasState: true}
					o.Values = throughput(x * factor)
					require.NoError(t, f.e.Observe(&o, f.now))
				}
				all = append(all, stragglers(f.tick()))
			}
			return all
		}
		want := verdicts(1)
		require.NotEmpty(t, want[59])
		require.Equal(t, want, verdicts(factor))
	})
}
