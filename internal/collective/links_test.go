// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/episode"
)

// links lets four ranks of each of four communicators tell bandwidths for so many ticks.
func (r *rig) links(ticks int, rng *rand.Rand, factor func(link int) float64) {
	for range ticks {
		for k := range 4 {
			for place := range int64(4) {
				o := of(place, 1, 4)
				o.ID, o.Name = string(rune('a'+k)), "tp:0"
				r.node(o.Node)
				// Only the last rank to enter an operation sees the full bandwidth: the others wait.
				seen := 40e9 * factor(k) * (1 - 0.3*rng.Float64()*float64(place%2)) * (1 + 0.02*rng.NormFloat64())
				require.NoError(r.t, r.book.Bandwidth(o, Class{"AllReduce", 1 << 20}, seen, r.now))
			}
		}
		r.tick()
	}
}

func TestSlowCommunication(t *testing.T) {
	same := func(int) float64 { return 1 }
	half := func(k int) float64 {
		if k == 1 {
			return 0.5
		}
		return 1
	}
	r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(3, 4))
	r.links(60, rng, same)
	require.Empty(t, r.events)
	began := r.now
	r.links(8, rng, half)
	require.Len(t, r.events, 1)
	ev := r.events[0]
	assert.Equal(t, episode.SubjectLink, ev.Subject)
	assert.Equal(t, "tp:0 (b)", ev.Detail)
	assert.Equal(t, began, ev.Since)
	assert.InDelta(t, 0.5, ev.Gap, 0.06)
	assert.InDelta(t, 40e9, ev.Median, 3e9)
	assert.Empty(t, ev.Node, "nobody is named")
	r.links(30, rng, half)
	require.Len(t, r.events, 1, "once")
	r.links(40, rng, same)
	require.Len(t, r.events, 2)
	assert.Equal(t, episode.EventEnd, r.events[1].Kind)
	assert.Equal(t, ev.ID, r.events[1].ID)

	// Nobody is told of where all communicators fall, or one was slow from the start.
	r.events = nil
	r.links(40, rng, func(int) float64 { return 0.5 })
	assert.Empty(t, r.events)
	r = newRig(t, 10*time.Second)
	r.links(80, rng, half)
	assert.Empty(t, r.events)
	r.now = r.now.Add(time.Hour)
	r.tick()
	assert.Empty(t, r.book.held)
	assert.Empty(t, r.book.links)
}

// A rank that nobody reports may come last in each operation.
func TestUnknownRanksExcuseACommunicator(t *testing.T) {
	r := newRig(t, 10*time.Second)
	for k := range 90 {
		o := of(0, 1, 4)
		bandwidth := 40e9
		if k > 60 {
			bandwidth = 20e9
		}
		r.node(o.Node)
		require.NoError(t, r.book.Bandwidth(o, Class{"AllReduce", 1 << 20}, bandwidth, r.now))
		r.tick()
	}
	assert.Empty(t, r.events)
}

// Two communicators that become slow at once are two episodes. A short fall is none, nor is
// a small one.
func TestWhatIsNoFall(t *testing.T) {
	falls := func(by float64, ticks int, slow ...int) []episode.Event {
		r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(3, 4))
		r.links(60, rng, func(int) float64 { return 1 })
		r.links(ticks, rng, func(k int) float64 {
			if slices.Contains(slow, k) {
				return by
			}
			return 1
		})
		r.links(12, rng, func(int) float64 { return 1 })
		return r.events
	}
	both := falls(0.5, 12, 0, 1)
	require.Len(t, both, 2, "they are slow until they are not for three minutes")
	assert.NotEqual(t, both[0].ID, both[1].ID)
	assert.Empty(t, falls(0.9, 30, 1), "10 %")
	assert.Empty(t, falls(0.5, 4, 1), "40 s")
}

// A communicator whose bandwidth always varies by 30 % is not slow at -30 %.
func TestAnUnsteadyCommunicator(t *testing.T) {
	r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(3, 4))
	for range 60 {
		r.links(6, rng, func(int) float64 { return 0.7 + 0.6*rng.Float64() })
	}
	assert.Empty(t, r.events)
}

// The stages of a pipeline have nobody in common but by messages and by what holds the whole
// job: each is compared by itself, however they differ.
func TestPartsOfAJob(t *testing.T) {
	r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(3, 4))
	for range 40 {
		for i := range int64(8) {
			world := of(i, 1, 8)
			r.node(world.Node)
			for id, c := range map[string]Communicator{
				"AllReduce": world.Communicator,
				"AllGather": {ID: string(rune('a' + i/4)), Name: "dp", Place: i % 4, Size: 4},
				"Send":      {ID: string(rune('p' + i%4)), Name: "pp", Place: i / 4, Size: 2},
			} {
				o := *world
				o.Communicator = c
				require.NoError(t, r.book.Bandwidth(&o, Class{id, 0}, 40e9*(1+0.01*rng.Float64()), r.now))
			}
			require.NoError(t, r.book.Share(world, share+0.2*float64(i/4)+0.002*rng.NormFloat64(), r.now))
		}
		r.tick()
	}
	assert.Empty(t, r.events)
	assert.Len(t, r.book.parts.widest, 2)
}
