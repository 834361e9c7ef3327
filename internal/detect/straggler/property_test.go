// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// chaos is a fleet in which everything happens: nodes join, move, leave, flap, slow
// down, claim others' names, send a signal now and then, and send what is no number.
// Each tick's observations are in order.
func chaos(seed uint64, ticks int, each func([]nodesignal.Observation, time.Time)) {
	rng := rand.New(rand.NewPCG(seed, 11))
	at := start
	for k := range ticks {
		var all []nodesignal.Observation
		for i := range 40 {
			o := nodesignal.Observation{Cluster: fmt.Sprint("c", i%2), Node: nodeName("n", i), HasState: true}
			o.GroupLabels = [][]string{{"a"}, {"b"}, nil}[i%3]
			x := 100 * (0.9 + 0.01*rng.NormFloat64())
			if i%10 == 7 && k/40%2 == 1 {
				x *= 0.7
			}
			switch {
			case i == 3:
				o.GroupLabels = []string{fmt.Sprint("moving", k)}
			case i == 4 && k%30 > 15, i > 30 && k > 100 && k < 130:
				continue
			case i == 5:
				x = math.NaN()
			case i == 6 && k%7 == 0:
				o.State = nodesignal.StateIdle
			case i == 17 && k%45 < 4: // a pause, such as a checkpoint
				o.State = nodesignal.StateCalibrating
			case i == 8:
				clone := o
				clone.Values = throughput(x * 0.4)
				all = append(all, clone)
			case i == 9:
				x = 90
			case i%3 == 2 && k > 200 && k/20%5 == i%5: // work that changes hands
				x *= 0.5
			}
			o.Values = throughput(x)
			if i%4 == 1 && k%100 < 60 {
				o.Values.Set(nodesignal.Compute, 0.9+0.01*rng.NormFloat64())
			}
			all = append(all, o)
		}
		each(all, at)
		at = at.Add(tick)
	}
}

func TestTheOrderOfObservationsDoesNotMatter(t *testing.T) {
	for seed := range uint64(3) {
		one, other := New(DefaultConfig()), New(DefaultConfig())
		rng := rand.New(rand.NewPCG(seed, 1))
		episodes := 0
		chaos(seed, 250, func(all []nodesignal.Observation, at time.Time) {
			for i := range all {
				_ = one.Observe(&all[i], at)
			}
			// The two that claim one name are in their order: the last one counts.
			for _, i := range rng.Perm(len(all)) {
				if all[i].Node != "n-08" {
					_ = other.Observe(&all[i], at)
				}
			}
			for i := range all {
				if all[i].Node == "n-08" {
					_ = other.Observe(&all[i], at)
				}
			}
			a, b := one.Tick(at.Add(tick)), other.Tick(at.Add(tick))
			require.Equal(t, a, b)
			episodes += len(a.Events)
		})
		assert.Positive(t, episodes)
	}
}

// TestEpisodesAreWellFormed: an onset before an end, one open per node and subject, an
// end for each, and nothing left of a fleet that is gone.
func TestEpisodesAreWellFormed(t *testing.T) {
	for seed := range uint64(6) {
		e := New(DefaultConfig())
		open, byNode, total := map[string]bool{}, map[string]string{}, Counters{}
		over, ended := map[string]bool{}, map[string]time.Time{}
		check := func(r *Report) {
			for _, ev := range r.Events {
				node := fmt.Sprint(ev.Subject, ev.Cluster, ev.Group, ev.Node)
				if ev.Phase == episode.PhaseOnset {
					require.False(t, open[ev.ID] || over[ev.ID], "%+v", ev)
					if ev.Node != "" {
						require.Empty(t, byNode[node], "%+v", ev)
						byNode[node] = ev.ID
					}
					require.False(t, ev.Since.Before(ended[node]), "%+v", ev)
					open[ev.ID] = true
				}
				require.True(t, open[ev.ID], "%+v", ev)
				if ev.Phase == episode.PhaseEnd {
					require.NotEmpty(t, ev.Cause)
					delete(open, ev.ID)
					delete(byNode, node)
					over[ev.ID], ended[node] = true, ev.Ended
				}
				require.False(t, ev.Since.After(ev.Updated), "%+v", ev)
				require.True(t, ev.Confidence == nil || *ev.Confidence >= 0 && *ev.Confidence <= 1 && *ev.Gap-*ev.Gap == 0, "%+v", ev)
			}
			for i := range r.Nodes {
				n := &r.Nodes[i]
				require.True(t, n.Suspicion >= 0 && n.Suspicion <= 2 && n.Gap-n.Gap == 0, "%+v", n)
				require.False(t, n.Straggler && n.Node == "n-05", "what is no number is no straggler")
			}
			for _, g := range r.Groups {
				require.True(t, g.Detectable >= 0 && g.Detectable < 1, "%+v", g)
			}
			total.add(&r.Counters)
		}
		var last time.Time
		chaos(seed, 400, func(all []nodesignal.Observation, at time.Time) {
			for i := range all {
				_ = e.Observe(&all[i], at)
			}
			last = at.Add(tick)
			r := e.Tick(last)
			check(r)
			require.LessOrEqual(t, len(r.Groups), 12, "a group lives as long as its nodes")
		})
		assert.Positive(t, total.GroupChanges)
		assert.Positive(t, total.Contested)
		last = last.Add(2 * time.Hour)
		check(e.Tick(last))
		check(e.Tick(last.Add(tick)))
		assert.Empty(t, open)
		assert.Zero(t, e.Nodes())
		assert.Empty(t, e.Tick(last.Add(2*tick)).Groups)
	}
}

// TestAllAtOnceChangesNoVerdict: what happens to all nodes alike accuses none, nor
// does the unit of the rates, nor do too few peers.
func TestAllAtOnceChangesNoVerdict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		factor := rapid.Float64Range(1e-3, 1e6).Draw(t, "factor")
		seed := rapid.Uint64().Draw(t, "seed")
		verdicts := func(factor float64) (all [][]string) {
			p := newPlay(t, []string{"j"}, 12, nil)
			p.noise, p.draw = 0.01, rand.New(rand.NewPCG(seed, 3))
			p.loss = func(_ string, i int) float64 {
				x := factor
				if i == 3 && p.k > 20 {
					x *= 0.8
				}
				return 1 - x
			}
			for range 100 {
				p.ticks(1)
				all = append(all, stragglers(p.last))
			}
			return all
		}
		want := verdicts(1)
		require.Equal(t, want, verdicts(factor))

		p := newPlay(t, []string{"j"}, rapid.IntRange(1, 2).Draw(t, "nodes"), nil)
		p.loss = func(string, int) float64 { return rapid.Float64Range(0, 1).Draw(t, "loss") }
		require.Empty(t, p.ticks(20))
	})
}
