// SPDX-License-Identifier: Apache-2.0

package fleethistory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawnStorage refuses, and takes its time, as it is told; it keeps all that it took.
type drawnStorage struct {
	mu       sync.Mutex // of err and takes, which the test changes meanwhile
	err      error
	takes    time.Duration
	samples  map[string][]float64 // by cluster
	episodes map[string]int64     // the newest record of each
	waited   map[string]int       // the batches of samples that each waiting episode saw go
	late     bool                 // an episode waited for more than the batch under way
	waiting  func() []string
}

func (d *drawnStorage) Append(_ context.Context, samples []Sample, episodes []Episode) error {
	if len(samples) > 0 {
		for _, id := range d.waiting() {
			d.waited[id]++
			d.late = d.late || d.waited[id] > 1
		}
	}
	for _, e := range episodes {
		d.waited[e.ID] = 0
	}
	d.mu.Lock()
	takes := d.takes
	d.mu.Unlock()
	time.Sleep(takes)
	d.mu.Lock()
	err := d.err
	d.mu.Unlock()
	if err != nil {
		return err
	}
	for _, s := range samples {
		d.samples[s.Cluster] = append(d.samples[s.Cluster], s.Value)
	}
	for _, e := range episodes {
		d.episodes[e.ID] = max(d.episodes[e.ID], e.Updated)
	}
	return nil
}

func (*drawnStorage) Maintain(context.Context) (bool, error) { return false, nil }

// TestQueueUnderPressure draws floods of two clusters, a storage that refuses or is slow,
// and a third cluster that writes little. Whatever comes: each sample is written once and in
// order, or counted; the little that the third writes is all there; of each episode that was
// taken the newest record is there; episodes go before samples; all room comes back.
func TestQueueUnderPressure(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type step struct {
			kind, cluster, n int
			pause            time.Duration
		}
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{
				kind: rapid.IntRange(0, 5).Draw(rt, "kind"), cluster: rapid.IntRange(0, 1).Draw(rt, "cluster"), n: rapid.IntRange(1, 150).Draw(rt, "n"),
				pause: time.Duration(rapid.IntRange(0, 3000).Draw(rt, "ms")) * time.Millisecond,
			}
		}), 1, 60).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			d := &drawnStorage{samples: map[string][]float64{}, episodes: map[string]int64{}, waited: map[string]int{}}
			cfg := BatchConfig{MaxSamples: 10, MaxAge: time.Second, QueueSize: 200, QueueBytes: 1 << 20, ClusterShare: 0.5}
			b := NewBatcher(cfg, d, nil)
			d.waiting = func() []string {
				b.mu.Lock()
				defer b.mu.Unlock()
				return slices.Collect(maps.Keys(b.episodes))
			}
			b.Start()
			sent, next, quiet := 0, map[string]float64{}, 0
			write := func(cluster string, n int) {
				list := make([]Sample, n)
				for i := range list {
					list[i] = Sample{Cluster: cluster, Metric: "m", Value: next[cluster]}
					next[cluster]++
				}
				sent += n
				b.Write(list)
			}
			newest := map[string]int64{}
			for i, s := range steps {
				switch s.kind {
				case 0, 1:
					write(fmt.Sprintf("loud%d", s.cluster), s.n)
				case 2:
					if b.places.Held("quiet") < cfg.QueueSize/16 { // a quarter of a quarter is always free
						write("quiet", 1)
						quiet++
					}
				case 3:
					id := fmt.Sprintf("e%d", s.n%7)
					newest[id] = int64(i + 1)
					b.WriteEpisode(Episode{Cluster: "quiet", ID: id, Updated: int64(i + 1)})
				case 4:
					var err error
					if s.n%2 == 0 {
						err = errors.New("disk full")
					}
					d.mu.Lock()
					d.err = err
					d.mu.Unlock()
				case 5:
					d.mu.Lock()
					d.takes = time.Duration(s.n) * 10 * time.Millisecond
					d.mu.Unlock()
				}
				time.Sleep(s.pause)
			}
			d.mu.Lock()
			d.err, d.takes = nil, 0
			d.mu.Unlock()
			time.Sleep(lastRetry + time.Minute)
			synctest.Wait()
			require.NoError(t, b.Shutdown(t.Context()))
			taken := 0
			for cluster, list := range d.samples {
				taken += len(list)
				for i := 1; i < len(list); i++ {
					assert.Less(t, list[i-1], list[i], cluster)
				}
			}
			assert.EqualValues(t, sent, int64(taken)+b.Dropped(), "written once, or counted")
			assert.Len(t, d.samples["quiet"], quiet)
			assert.Zero(t, b.DroppedEpisodes())
			assert.Equal(t, newest, d.episodes)
			assert.False(t, d.late, "more than one batch went before an episode that waited")
			assert.Zero(t, b.places.Taken()+b.bytes.Taken()+b.episodePlaces.Taken()+b.episodeBytes.Taken())
		})
	})
}

// A storage that does not answer any more says so, though nothing has been left out yet, and
// says something else once there is no room.
func TestStorageThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeStorage{takes: 10 * time.Minute}
		var mu sync.Mutex
		var all []error
		told := func() []error {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}
		b := NewBatcher(small, f, func(err error) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, err)
		})
		b.Start()
		b.Write(numbers(0, 10))
		time.Sleep(stuckAfter + 3*time.Second)
		synctest.Wait()
		require.ErrorIs(t, b.Err(), ErrStuck)
		assert.Equal(t, []error{ErrStuck}, told())
		assert.Zero(t, b.Dropped())
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.NoError(t, b.Err())
		assert.Equal(t, []error{ErrStuck, nil}, told())
		b.Write(numbers(10, 20))
		synctest.Wait() // in the storage's hands
		b.Write(numbers(20, 100))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.ErrorIs(t, b.Err(), ErrBehind, "told while the write goes on")
		assert.Equal(t, []error{ErrStuck, nil, ErrBehind}, told())
		require.NoError(t, b.Shutdown(t.Context()))
	})
}

// A cluster that floods with episodes takes half of the room for them, and no sample's.
func TestClustersShareTheEpisodes(t *testing.T) {
	cfg := small
	cfg.ClusterShare = 0.5
	f := &fakeStorage{}
	b := NewBatcher(cfg, f, nil)
	long := []byte(strings.Repeat("x", 1<<20))
	for i := range 100 {
		b.WriteEpisode(Episode{Cluster: "loud", ID: strconv.Itoa(i), Record: long})
	}
	require.EqualValues(t, 85, b.DroppedEpisodes(), "15 of 1 MiB fit into half of 32 MiB")
	b.WriteEpisode(Episode{Cluster: "loud", ID: "3", Updated: 7, Record: long})
	require.EqualValues(t, 85, b.DroppedEpisodes(), "in the place of one that waits")
	b.WriteEpisode(Episode{Cluster: "loud", ID: "3", Updated: 8, Record: append(long, long...)})
	require.EqualValues(t, 86, b.DroppedEpisodes())
	b.WriteEpisode(Episode{Cluster: "other", ID: "o", Record: long})
	b.Write(numbers(0, 5))
	require.NoError(t, b.Shutdown(t.Context()))
	assert.Len(t, f.episodes, 16)
	assert.Contains(t, f.episodes, Episode{Cluster: "loud", ID: "3", Updated: 7, Record: long}, "the one before stays")
	assert.Equal(t, values(5), f.all())
	assert.Zero(t, b.episodePlaces.Taken()+b.episodeBytes.Taken())
}

// hungryStorage has always more to maintain.
type hungryStorage struct {
	fakeStorage
	pieces int
}

func (h *hungryStorage) Maintain(context.Context) (bool, error) {
	h.pieces++
	return true, nil
}

// While the file is over its bound, a piece of it goes for each batch that comes.
func TestAFloodDoesNotOutrunMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hungryStorage{}
		cfg := small
		cfg.QueueSize = 1000
		b := NewBatcher(cfg, h, nil)
		b.Start()
		time.Sleep(maintainBusy + time.Millisecond)
		synctest.Wait()
		before := h.pieces
		b.Write(numbers(0, 1000))
		synctest.Wait()
		assert.GreaterOrEqual(t, h.pieces-before, len(h.batches))
		require.NoError(t, b.Shutdown(t.Context()))
	})
}
