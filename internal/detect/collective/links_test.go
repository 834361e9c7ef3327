// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// links lets four ranks of each of four communicators report bandwidths for so many ticks.
func (r *rig) links(ticks int, rng *rand.Rand, factor func(link int) float64) {
	r.classes(ticks, rng, factor, Class{"AllReduce", 1 << 20})
}

// classes lets them do operations of several classes.
func (r *rig) classes(ticks int, rng *rand.Rand, factor func(link int) float64, classes ...Class) {
	for range ticks {
		for k := range 4 {
			for index := range int64(4) {
				o := of(index, 1, 4)
				o.ID, o.Name = string(rune('a'+k)), "tp:0"
				r.node(o.Node)
				for _, class := range classes {
					// Only the last rank to enter an operation sees the full bandwidth: the others wait.
					seen := 40e9 * factor(k) * (1 - 0.3*rng.Float64()*float64(index%2)) * (1 + 0.02*rng.NormFloat64())
					require.NoError(r.t, r.tracker.Bandwidth(o, class, seen, r.now))
				}
			}
		}
		r.tick()
	}
}

func same(int) float64 { return 1 }

func halfOfOne(k int) float64 {
	if k == 1 {
		return 0.5
	}
	return 1
}

func TestSlowCommunication(t *testing.T) {
	r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(3, 4))
	r.links(60, rng, same)
	require.Empty(t, r.events)
	began := r.now
	r.links(8, rng, halfOfOne)
	require.Len(t, r.events, 1)
	ev := r.events[0]
	assert.Equal(t, episode.SubjectLink, ev.Subject)
	assert.Equal(t, "tp:0", ev.Communicator)
	assert.Equal(t, began, ev.Since)
	assert.InDelta(t, 0.5, *ev.Gap, 0.06)
	assert.InDelta(t, 40e9, *ev.Median, 3e9)
	assert.Empty(t, ev.Node, "no node is named")
	r.links(30, rng, halfOfOne)
	require.Len(t, r.events, 1, "once")
	r.links(40, rng, same)
	require.Len(t, r.events, 2)
	assert.Equal(t, episode.PhaseEnd, r.events[1].Phase)
	assert.Equal(t, ev.ID, r.events[1].ID)

	// There is no episode where all communicators fall, or one was slow from the start.
	r.events = nil
	r.links(40, rng, func(int) float64 { return 0.5 })
	assert.Empty(t, r.events)
	r = newRig(t, 10*time.Second)
	r.links(80, rng, halfOfOne)
	assert.Empty(t, r.events)
	r.now = r.now.Add(time.Hour)
	r.tick()
	assert.Empty(t, r.tracker.reported)
	assert.Empty(t, r.tracker.links)
}

// The classes of a job's set-up make room for those of its work, and a slow class that
// the job no longer uses ends its episode.
func TestClassesThatAJobNoLongerUses(t *testing.T) {
	var setUp []Class
	for size := range int64(maxFlows) {
		setUp = append(setUp, Class{"Broadcast", size})
	}
	r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(3, 4))
	r.classes(3, rng, same, setUp...)
	o := of(0, 1, 4)
	o.ID = "a"
	require.ErrorIs(t, r.tracker.Bandwidth(o, Class{"AllGather", 0}, 1, r.now), ErrTooManyClasses)
	r.now = r.now.Add(r.tracker.cfg.TTL)
	r.classes(60, rng, same, Class{"AllReduce", 0}, Class{"AllGather", 0})
	r.classes(8, rng, halfOfOne, Class{"AllReduce", 0})
	require.Len(t, r.events, 1)
	r.classes(30, rng, same, Class{"AllGather", 0})
	require.Len(t, r.events, 2)
	assert.Equal(t, episode.CauseIdle, r.events[1].Cause)
}

// TestIDsOfLinksAndJobs: of each ID one onset comes first and one end last, and no time since
// when lies before an earlier end.
func TestIDsOfLinksAndJobs(t *testing.T) {
	for seed := range uint64(20) {
		r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(seed, 2))
		classes := []Class{{"AllReduce", 1 << 20}, {"AllGather", 0}}
		factor, live, stalled := [4]float64{1, 1, 1, 1}, [2]bool{true, true}, [4]bool{}
		for range 1000 {
			if rng.Float64() < 0.03 {
				factor[rng.IntN(4)] = []float64{1, 0.5, 0.7}[rng.IntN(3)]
			}
			if i := rng.IntN(200); i < 2 {
				live[i] = !live[i]
			}
			if rng.Float64() < 0.1 {
				stalled[rng.IntN(4)] = rng.IntN(4) > 0
			}
			var reported []Class
			for i, class := range classes {
				if live[i] {
					reported = append(reported, class)
				}
			}
			for i := range int64(4) {
				since := time.Time{}
				if stalled[i] {
					since = noon
				}
				require.NoError(t, r.tracker.Stalled(of(i, 1, 4), since, r.now))
			}
			r.classes(1, rng, func(k int) float64 { return factor[k] }, reported...)
		}
		open, ended, last := map[string]bool{}, map[string]bool{}, map[string]time.Time{}
		for _, e := range r.events {
			what := string(e.Subject) + e.CommunicatorID
			require.Falsef(t, ended[e.ID], "seed %d: %s after its end", seed, e.Phase)
			require.Equalf(t, e.Phase == episode.PhaseOnset, !open[e.ID], "seed %d: %s", seed, e.Phase)
			require.Falsef(t, e.Since.Before(last[what]), "seed %d: %s began before the last ended", seed, what)
			open[e.ID] = true
			if e.Phase == episode.PhaseEnd {
				ended[e.ID], last[what] = true, e.Updated
			}
		}
		require.NotEmpty(t, ended)
	}
}

// A rank without reports may come last in each operation. Of two communicators that fall
// together neither excuses the other.
func TestUnknownRanksExcuseACommunicator(t *testing.T) {
	for ranks, events := range map[int64]int{1: 0, 2: 2} {
		r := newRig(t, 10*time.Second)
		for k := range 90 {
			for i := range 2 * ranks {
				o := of(i%ranks, 1, 2)
				o.ID = string(rune('a' + i/ranks))
				bandwidth := 40e9
				if k > 60 {
					bandwidth = 20e9
				}
				r.node(o.Node)
				require.NoError(t, r.tracker.Bandwidth(o, Class{"AllReduce", 1 << 20}, bandwidth, r.now))
			}
			r.tick()
		}
		assert.Len(t, r.events, events)
	}
}

// Two communicators that become slow at once are two episodes. A short fall is none, nor is
// a small one.
func TestWhatIsNoFall(t *testing.T) {
	falls := func(by float64, ticks int, slow ...int) []episode.Episode {
		r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(3, 4))
		r.links(60, rng, same)
		r.links(ticks, rng, func(k int) float64 {
			if slices.Contains(slow, k) {
				return by
			}
			return 1
		})
		r.links(12, rng, same)
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

// The stages of a pipeline have no ranks in common but by messages and by what holds the whole
// job: each is compared by itself, however they differ.
func TestPartsOfAJob(t *testing.T) {
	r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(3, 4))
	r.shares(40, 8, 1, func(_ int, world *Rank) float64 {
		i := world.Index
		for operation, c := range map[string]Communicator{
			"AllReduce": world.Communicator,
			"AllGather": {ID: string(rune('a' + i/4)), Name: "dp", Index: i % 4, Size: 4},
			"Send":      {ID: string(rune('p' + i%4)), Name: "pp", Index: i / 4, Size: 2},
		} {
			o := *world
			o.Communicator = c
			require.NoError(t, r.tracker.Bandwidth(&o, Class{operation, 0}, 40e9*(1+0.01*rng.Float64()), r.now))
		}
		return share + 0.2*float64(i/4) + 0.002*rng.NormFloat64()
	})
	assert.Empty(t, r.events)
	assert.Len(t, r.tracker.parts.widest, 2)
}

// An episode of a communicator goes on over a restart, and so does what is usual for it. One
// whose ranks report no more ends with the TTL, and so does a job that stood still.
func TestLinksOverARestart(t *testing.T) {
	r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(3, 4))
	stalled := of(0, 1, 1)
	stalled.Job, stalled.Node = "17", "alone"
	r.links(60, rng, same)
	r.links(8, rng, halfOfOne)
	require.Len(t, r.events, 1)
	slow := r.events[0]
	r.node(stalled.Node)
	require.NoError(t, r.tracker.Stalled(stalled, r.now, r.now))
	r.tick()
	require.Len(t, r.events, 2)
	var saved bytes.Buffer
	require.NoError(t, r.tracker.Save().Write(&saved))
	restore := func() *rig {
		again := newRig(t, r.step)
		again.now = r.now
		require.NoError(t, again.tracker.Restore(bytes.NewReader(saved.Bytes()), r.now))
		again.tick()
		require.Empty(t, again.events, "their ranks have yet to report")
		return again
	}
	again := restore()
	again.links(20, rng, halfOfOne)
	require.Len(t, again.tracker.open, 1, "it is still slow by what was usual")
	assert.Equal(t, slow.ID, again.tracker.open[0].ID)
	assert.InDelta(t, 0.5, *again.tracker.open[0].Gap, 0.06)
	assert.False(t, again.tracker.open[0].Recovering)
	again.links(4, rng, same)
	assert.True(t, again.tracker.open[0].Recovering)
	again.links(36, rng, same)
	var ends []string
	for _, e := range again.events {
		require.Equal(t, episode.PhaseEnd, e.Phase)
		ends = append(ends, string(e.Subject)+" "+e.Cause)
	}
	assert.Equal(t, []string{"job idle", "communicator recovered"}, ends)

	gone := restore()
	for range 10 {
		gone.tick()
	}
	require.Len(t, gone.events, 2)
	for _, e := range gone.events {
		assert.Equal(t, episode.CauseIdle, e.Cause)
	}
}
