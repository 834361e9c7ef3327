// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

func (r *rig) stalled(since time.Time, job string, ranks ...int64) {
	for _, i := range ranks {
		o := of(i, 2, 4)
		o.Job = job
		r.node(o.Node)
		require.NoError(r.t, r.tracker.Stalled(o, since, r.now))
	}
	r.tick()
}

func TestAStallIsOneRecord(t *testing.T) {
	for _, job := range []string{"17", ""} {
		t.Run(job, func(t *testing.T) {
			r := newRig(t, 10*time.Second)
			since := noon.Add(-time.Minute)
			r.stalled(time.Time{}, job, 0, 1, 2, 3)
			r.stalled(since, job, 0, 1, 2)
			require.Empty(t, r.events, "one still moves")
			lag := of(2, 2, 4)
			lag.Job, lag.Node = job, "10.0.0.2"
			require.NoError(t, r.tracker.Laggard(lag, "ras", r.now))
			r.stalled(since, job, 3)
			for range 20 {
				r.node("node-00")
				r.node("node-01")
				r.tick()
			}
			require.Len(t, r.events, 1)
			ev := r.events[0]
			assert.Equal(t, episode.SubjectJob, ev.Subject)
			assert.Equal(t, since, ev.Since)
			assert.EqualValues(t, 4, ev.Ranks)
			assert.Equal(t, "node-01", ev.Node)
			assert.Equal(t, of(2, 2, 4).Subject, ev.Culprit)
			r.stalled(time.Time{}, job, 1)
			require.Len(t, r.events, 2)
			assert.Equal(t, episode.CauseRecovered, r.events[1].Cause)
			assert.Equal(t, ev.ID, r.events[1].ID)
			assert.Empty(t, r.tracker.laggards, "the next stall may be of another rank")
			for i := range int64(4) {
				o := of(i, 2, 4)
				o.Job = job
				r.tracker.Gone(o)
			}
			assert.Empty(t, r.tracker.reported)
		})
	}
}

// An update names the laggards that RAS reports later. The stall of a job ends with its
// processes.
func TestALaterName(t *testing.T) {
	r := newRig(t, 10*time.Second)
	r.stalled(noon, "17", 0, 1, 2, 3)
	require.Len(t, r.events, 1)
	assert.Empty(t, r.events[0].Nodes)
	for _, i := range []int64{1, 2} {
		require.NoError(t, r.tracker.Laggard(of(i, 2, 4), "ras", r.now))
	}
	r.stalled(noon, "17", 0)
	r.stalled(noon, "17", 0)
	require.Len(t, r.events, 2)
	assert.Equal(t, episode.PhaseUpdate, r.events[1].Phase)
	assert.Equal(t, []string{"node-00", "node-01"}, r.events[1].Nodes)
	assert.Equal(t, nodesignal.Subject{}, r.events[1].Culprit, "of two none is the culprit")
	for i := range int64(4) {
		r.tracker.Gone(of(i, 2, 4))
	}
	r.tick()
	require.Len(t, r.events, 3)
	assert.Equal(t, episode.CauseIdle, r.events[2].Cause)
}

// Communicators that share a process are of one job.
func TestAJobWithoutAName(t *testing.T) {
	r := newRig(t, 10*time.Second)
	for i := range int64(4) {
		outer, inner := of(i, 2, 4), of(i, 2, 2)
		outer.Job, inner.Job, inner.ID, inner.Name, inner.Index = "", "", string(rune('a'+i/2)), "tp:0", i%2
		r.node(outer.Node)
		require.NoError(t, r.tracker.Bandwidth(outer, Class{"AllReduce", 0}, 1e9, r.now))
		require.NoError(t, r.tracker.Bandwidth(inner, Class{"AllReduce", 0}, 1e9, r.now))
		require.NoError(t, r.tracker.Stalled(inner, noon, r.now)) // its group is the inner one
	}
	r.tick()
	require.Len(t, r.events, 1)
	assert.Equal(t, outerLabel, r.events[0].Group)
}

const outerLabel = "dp:0 (0xdd281344136a3a)"

// A rank may work on alone after the others have ended. Where one has died, the others wait.
func TestTheEndOfAJobIsNoStall(t *testing.T) {
	for ended, reported := range map[int64]int{1: 1, 4: 1, 6: 0} {
		r := newRig(t, 10*time.Second)
		r.stalled(time.Time{}, "17", 0, 1, 2, 3, 4, 5, 6, 7)
		for i := range ended {
			r.tracker.Gone(of(i, 2, 4))
		}
		var rest []int64
		for i := ended; i < 8; i++ {
			rest = append(rest, i)
		}
		r.stalled(noon, "17", rest...)
		assert.Len(t, r.events, reported, ended)
		for _, i := range rest {
			r.tracker.Gone(of(i, 2, 4))
		}
		r.tick()
		assert.Empty(t, r.tracker.left)
	}
}

// A laggard that another node names must not move by its own reports.
func TestAClaimIsContradicted(t *testing.T) {
	for _, tt := range []struct {
		name, job string // of the liar's rank
		setSignal func(r *rig, of *Rank) error
		reported  int
	}{
		{"a job that moves", "17", nil, 0},
		{"a job of its own", "made up", nil, 1},
		{"a job that reports steps alone", "17", func(r *rig, of *Rank) error { return r.tracker.Steps(of, r.now) }, 0},
		{"a node whose ranks have no name", "made up", func(r *rig, of *Rank) error {
			of.Subject = nodesignal.Subject{}
			return r.tracker.OwnTime(of, 0.5, r.now)
		}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(1, 2))
			for range 20 {
				if tt.setSignal == nil {
					r.own(1, rng, func(i int64) (*Rank, float64) { return of(i, 2, 4), 0.5 })
				} else {
					for i := range int64(4) {
						r.node(of(i, 2, 4).Node)
						require.NoError(t, tt.setSignal(r, of(i, 2, 4)))
					}
					r.tick()
				}
				liar, lag := of(9, 2, 4), of(2, 2, 4)
				liar.Job, liar.ID, lag.Job, lag.ID = tt.job, "0xf", tt.job, "0xf"
				r.node(liar.Node)
				require.NoError(t, r.tracker.Stalled(liar, noon, r.now))
				require.NoError(t, r.tracker.Laggard(lag, "ras", r.now))
			}
			require.Len(t, r.events, tt.reported)
			for i := range r.events {
				assert.Empty(t, r.events[i].Nodes)
			}
		})
	}
}
