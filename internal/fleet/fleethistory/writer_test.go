// SPDX-License-Identifier: Apache-2.0

package fleethistory

import (
	"context"
	"errors"
	"iter"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

func TestColumns(t *testing.T) {
	assert.Contains(t, Columns.Node, Column{"gpu.node.health_score", map[string]string{}, false})
	assert.Contains(t, Columns.Node, Column{"gpu.node.signal", map[string]string{"gpu.signal": "power"}, false})
	assert.Contains(t, Columns.Node, Column{"gpu.straggler.rank.value", map[string]string{"gpu.signal": "communication"}, true})
	assert.Contains(t, Columns.GPU, Column{"hw.temperature", map[string]string{"hw.sensor_location": "gpu"}, false})
	assert.Contains(t, Columns.Group, Column{"gpu.straggler.median", map[string]string{}, true})
	assert.Contains(t, Columns.Group, Column{"gpu.straggler.signal.scale", map[string]string{"gpu.signal": "power"}, true})
}

// report puts a node with one GPU into the views.
func report(state *fleetstate.Store, node string, at time.Time, up float64) {
	u, _ := state.Begin(fleetstate.Key{Cluster: "c", Node: node}, at)
	u.SetGroup("g")
	u.Set(reading.NodeHealthScore, .9)
	u.SetSignal(nodesignal.Power, 5000)
	gpu := u.GPU("GPU-" + node)
	u.SetUp(gpu, up, "ok")
	u.SetGPU(gpu, reading.Temperature, 60)
	u.Commit(at)
}

// known are the samples of a subject, by the name of their metric.
func known(columns []Column, s *Subject) map[string]float64 {
	out := map[string]float64{}
	for i, v := range s.Values {
		if !math.IsNaN(v) {
			out[columns[i].Metric] = v
		}
	}
	return out
}

func TestRows(t *testing.T) {
	now := time.Now()
	state := fleetstate.New(fleetstate.DefaultConfig())
	report(state, "missing", now.Add(-time.Hour), 1)
	report(state, "n", now, 1)
	report(state, "lost", now, 0)
	state.UpdateGroup(fleetstate.GroupKey{Cluster: "c", Group: "g"}, now, func(u *fleetstate.GroupUpdate) {
		u.Set(reading.GroupMedian, .8)
		u.SetScale(nodesignal.Power, .1)
	})
	rows := slices.Collect(Rows(state, now))
	require.Len(t, rows, 3, "a missing node has none")
	group, lost, node := rows[0], rows[1], rows[2]
	assert.Equal(t, []string{"c", "", "g"}, []string{group.Cluster, group.Node, group.Group})
	assert.Equal(t, map[string]float64{"gpu.straggler.median": .8, "gpu.straggler.signal.scale": .1}, known(Columns.Group, &group.Subjects[0]))
	assert.Equal(t, []string{"c", "n", "g"}, []string{node.Cluster, node.Node, node.Group})
	require.Len(t, node.Subjects, 2)
	assert.Equal(t, map[string]float64{"gpu.node.health_score": .9, "gpu.node.signal": 5000}, known(Columns.Node, &node.Subjects[0]))
	assert.Equal(t, "GPU-n", node.Subjects[1].GPU)
	assert.Equal(t, map[string]float64{"hw.gpu.up": 1, "hw.temperature": 60}, known(Columns.GPU, &node.Subjects[1]))
	assert.Equal(t, map[string]float64{"hw.gpu.up": 0}, known(Columns.GPU, &lost.Subjects[1]), "no readings of a time before")
	assert.Equal(t, 4, node.Count())
	for range Rows(state, now) {
		break // it may end early
	}
}

// fakeStorage keeps what it is told, or refuses.
type fakeStorage struct {
	err      error
	takes    time.Duration
	calls    []string
	episodes map[episode.Key]*episode.Episode
	samples  int
}

func (f *fakeStorage) WriteEpisodes(_ context.Context, changed []*episode.Episode, gone []episode.Key, anew bool) error {
	f.calls = append(f.calls, "episodes")
	if f.err != nil {
		return f.err
	}
	if anew {
		clear(f.episodes)
	}
	for _, e := range changed {
		f.episodes[e.Key()] = e
	}
	for _, key := range gone {
		delete(f.episodes, key)
	}
	return nil
}

func (f *fakeStorage) WriteRound(ctx context.Context, _ time.Time, rows iter.Seq[*Row]) error {
	f.calls = append(f.calls, "round")
	select {
	case <-time.After(f.takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	if f.err != nil {
		return f.err
	}
	for r := range rows {
		f.samples += r.Count()
	}
	return nil
}

const interval = 30 * time.Second

func TestWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := fleetstate.New(fleetstate.DefaultConfig())
		put := func(id string, ended time.Time) {
			state.PutEpisode(&episode.Episode{ID: id, Cluster: "c", Subject: episode.SubjectNode, Node: id, Since: time.Now(), Updated: time.Now(), Ended: ended})
		}
		f := &fakeStorage{episodes: map[episode.Key]*episode.Episode{}}
		var reported []error
		w := NewWriter(f, state, interval, func(err error) { reported = append(reported, err) })
		round := func() []string {
			report(state, "n", time.Now(), 1)
			f.calls = nil
			w.report(w.round(t.Context()))
			return f.calls
		}
		stale := &episode.Episode{ID: "stale", Cluster: "c"}
		f.episodes[stale.Key()] = stale
		w.Start(false)
		put("a", time.Time{})
		time.Sleep(time.Second)
		put("a", time.Now())
		put("b", time.Time{})
		assert.Equal(t, []string{"episodes", "round"}, round(), "the episodes first")
		assert.Len(t, f.episodes, 2, "as many as the views have")
		assert.False(t, f.episodes[episode.Key{Cluster: "c", ID: "a"}].Open())
		assert.Equal(t, []string{"round"}, round(), "no episode has changed")

		f.err = errors.New("disk full")
		samples := f.samples
		put("b", time.Now())
		assert.Equal(t, []string{"episodes"}, round())
		round()
		require.EqualError(t, w.Err(), "disk full")
		assert.EqualValues(t, 8, w.Dropped(), "two rounds")
		f.err = nil
		clear(f.episodes) // the storage began anew, or has what left the views meanwhile
		f.episodes[stale.Key()] = stale
		round()
		require.NoError(t, w.Err())
		assert.Len(t, f.episodes, 2, "all are written again")
		assert.Equal(t, samples+4, f.samples)
		assert.EqualValues(t, 8, w.Dropped())
		require.Len(t, reported, 2, "only changes are reported")
		require.NoError(t, reported[1])

		require.NoError(t, w.Shutdown(t.Context()))
		assert.Equal(t, samples+8, f.samples, "a last round")
	})
}

// TestSlowStorage: it holds up neither the views nor the end of the process.
func TestSlowStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := fleetstate.New(fleetstate.DefaultConfig())
		f := &fakeStorage{takes: 4 * interval}
		w := NewWriter(f, state, interval, func(error) {})
		w.Start(false)
		time.Sleep(10*interval + time.Second)
		synctest.Wait()
		report(state, "n", time.Now(), 1)
		assert.Equal(t, []string{"episodes", "round", "round", "round"}, f.calls, "a round waits for the one before")
		start := time.Now()
		require.ErrorIs(t, w.Shutdown(t.Context()), context.DeadlineExceeded)
		assert.LessOrEqual(t, time.Since(start), shutdownTimeout)
		assert.EqualValues(t, 4, w.Dropped())
		require.NoError(t, NewWriter(f, state, interval, nil).Shutdown(t.Context()), "never started")
	})
}
