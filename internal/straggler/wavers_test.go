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

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
)

// shares plays nodes that tell the share of time that they wait. What sets them apart lasts
// from tick to tick as phi says; slow, if not negative, waits 6 % less from an hour on.
func shares(t *testing.T, rng *rand.Rand, nodes int, phi float64, slow, ticks int) (*fleet, map[string]int) {
	f := newFleet(t, nil)
	apart, onsets := make([]float64, nodes), map[string]int{}
	for k := range ticks {
		for i := range nodes {
			apart[i] = phi*apart[i] + math.Sqrt(1-phi*phi)*rng.NormFloat64()
			o := Observation{Cluster: "c", Node: nodeName("j", i), Peers: []string{"j"}, HasState: true}
			x := 0.3 + 0.015*apart[i]
			if i == slow && k >= 360 {
				x -= 0.06
			}
			o.Values.Set(nodesignal.Communication, x)
			require.NoError(t, f.e.Observe(&o, f.now))
		}
		for _, e := range f.tick().Events {
			if e.Kind == EventOnset {
				onsets[e.Node]++
			}
		}
	}
	return f, onsets
}

// TestSharesWithMemoryAccuseNobody: where nobody has to wait, a node is ahead for minutes.
// That is told as the reason, whatever the size of the group.
func TestSharesWithMemoryAccuseNobody(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 1))
		nodes, phi := 4+rng.IntN(28), 0.6+0.35*rng.Float64()
		t.Run(fmt.Sprintf("%d nodes, %.2f", nodes, phi), func(t *testing.T) {
			f, onsets := shares(t, rng, nodes, phi, -1, 720)
			assert.Empty(t, onsets)
			g := groupOf(t, f.e.Tick(f.now), "c", "j")
			assert.Equal(t, nodes, g.Unjudged[unjudged.Overlap])
			assert.Zero(t, g.Detectable)
		})
	}
}

// TestSharesWithoutMemoryAccuse: the slow node, which is on one side for good, silences
// nobody, and is found.
func TestSharesWithoutMemoryAccuse(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 2))
		nodes := 4 + rng.IntN(28)
		slow := rng.IntN(nodes)
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			_, onsets := shares(t, rng, nodes, 0, slow, 420)
			assert.Equal(t, map[string]int{nodeName("j", slow): 1}, onsets)
		})
	}
}

// TestSharesAreNotTrustedAtOnce: in a job's first minutes it is not known whether its nodes
// wait for one another, and nobody is judged by it.
func TestSharesAreNotTrustedAtOnce(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 3))
		nodes, phi := 4+rng.IntN(28), 0.6+0.35*rng.Float64()
		t.Run(fmt.Sprintf("%d nodes, %.2f", nodes, phi), func(t *testing.T) {
			f, onsets := shares(t, rng, nodes, phi, -1, 30)
			assert.Empty(t, onsets)
			told := groupOf(t, f.e.Tick(f.now), "c", "j").Unjudged
			assert.Equal(t, nodes, told[unjudged.Calibrating]+told[unjudged.Overlap])
			if nodes >= 16 {
				assert.Equal(t, nodes, told[unjudged.Overlap], "known after five minutes")
			}
		})
	}
}

// TestALateRankIsAccusedInAYoungJob at whatever pace: it takes so many values of all nodes
// until it is known that they wait, and no time. The late one is late from the first.
func TestALateRankIsAccusedInAYoungJob(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 4))
		nodes, noise := 4+rng.IntN(28), 0.002+0.01*rng.Float64()
		pace := []time.Duration{200 * time.Millisecond, time.Second, 10 * time.Second, time.Minute}[rng.IntN(4)]
		late, begins := rng.IntN(nodes), 8+rng.IntN(30)
		known := WarmTicks(time.Minute, pace, false) + 8 + 4*100/(nodes-1)
		t.Run(fmt.Sprintf("%d nodes, each %s", nodes, pace), func(t *testing.T) {
			f := newFleet(t, func(c *Config) { c.TTL, c.Retention = 5*pace, time.Hour+5*pace })
			var told []Event
			for k := range max(begins, known) + 15 {
				for i := range nodes {
					o := Observation{Cluster: "c", Node: nodeName("j", i), Peers: []string{"j"}, HasState: true}
					x := 0.3 + noise*rng.NormFloat64()
					if i == late && k >= begins {
						x -= 0.08
					}
					o.Values.Set(nodesignal.Communication, x)
					require.NoError(t, f.e.Observe(&o, f.now))
				}
				told = append(told, f.e.Tick(f.now).Events...)
				f.now = f.now.Add(pace)
			}
			require.Len(t, told, 1, "within %d ticks", max(begins, known)+15)
			assert.Equal(t, nodeName("j", late), told[0].Node)
		})
	}
}

// TestALargeLossIsFoundBeforeItIsKnownThatTheyWait: ranks' files change each fifth tick, so
// that four nodes take minutes to be known to wait. A rank that is many spreads late is no
// matter of that.
func TestALargeLossIsFoundBeforeItIsKnownThatTheyWait(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 5))
		noise := 0.002 + 0.004*rng.Float64()
		pace := []time.Duration{200 * time.Millisecond, time.Second, 10 * time.Second, time.Minute}[rng.IntN(4)]
		late, begins := rng.IntN(4), WarmTicks(time.Minute, pace, false)+2
		t.Run(fmt.Sprint("each ", pace), func(t *testing.T) {
			f := newFleet(t, func(c *Config) { c.TTL, c.Retention = 5*pace, time.Hour+5*pace })
			x := make([]float64, 4)
			var told []Event
			for k := 0; k < begins+60 && len(told) == 0; k++ {
				for i := range x {
					if k%5 == 0 {
						x[i] = 0.4 + noise*rng.NormFloat64()
						if i == late && k >= begins {
							x[i] -= 0.15
						}
					}
					o := Observation{Cluster: "c", Node: nodeName("j", i), Peers: []string{"j"}, HasState: true}
					o.Values.Set(nodesignal.Communication, x[i])
					require.NoError(t, f.e.Observe(&o, f.now))
				}
				told = append(told, f.e.Tick(f.now).Events...)
				f.now = f.now.Add(pace)
			}
			require.Len(t, told, 1)
			assert.Equal(t, nodeName("j", late), told[0].Node)
			of := f.e.clusters["c"].groups[GroupKey([]string{"j"})].signals[nodesignal.Communication]
			assert.Equal(t, undecided, of.cohorts[0].wavers.state)
		})
	}
}
