// SPDX-License-Identifier: Apache-2.0

package fleethistory

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type fakeStorage struct {
	mu       sync.Mutex
	err      error
	batches  [][]Sample
	episodes []Episode
	tries    int
}

func (f *fakeStorage) Append(ctx context.Context, samples []Sample, episodes []Episode) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tries++
	if err := errors.Join(f.err, ctx.Err()); err != nil {
		return err
	}
	f.batches = append(f.batches, slices.Clone(samples))
	f.episodes = append(f.episodes, episodes...)
	return nil
}

func (f *fakeStorage) Maintain(context.Context) (bool, error) { return false, nil }

func (f *fakeStorage) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fakeStorage) all() []float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []float64
	for _, b := range f.batches {
		for _, s := range b {
			out = append(out, s.Value)
		}
	}
	return out
}

func numbers(from, to int) (list []Sample) {
	for i := from; i < to; i++ {
		list = append(list, Sample{Metric: "m", Value: float64(i)})
	}
	return list
}

func values(n int) (list []float64) {
	for i := range n {
		list = append(list, float64(i))
	}
	return list
}

var small = BatchConfig{MaxSamples: 10, MaxAge: time.Second, QueueSize: 50, QueueBytes: 1 << 20}

func TestBatchesByAgeAndCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeStorage{}
		b := NewBatcher(small, f, nil)
		b.Start()
		list := numbers(0, 3)
		b.Write(list)
		list[0].Value = 99 // the caller's again
		time.Sleep(990 * time.Millisecond)
		synctest.Wait()
		assert.Empty(t, f.all(), "waits for others")
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		assert.Equal(t, values(3), f.all(), "not longer than `MaxAge`")
		b.Write(numbers(3, 25))
		synctest.Wait()
		assert.Equal(t, values(25), f.all(), "enough for a batch is written at once")
		for _, batch := range f.batches {
			assert.LessOrEqual(t, len(batch), small.MaxSamples)
		}
		b.Write(numbers(25, 30))
		b.WriteEpisode(Episode{ID: "e", Updated: 1})
		b.WriteEpisode(Episode{ID: "e", Updated: 2})
		require.NoError(t, b.Shutdown(t.Context()))
		assert.Equal(t, values(30), f.all(), "what waits is written at the end")
		assert.Equal(t, []Episode{{ID: "e", Updated: 2}}, f.episodes, "the last record alone")
		b.Write(numbers(0, 1))
		assert.EqualValues(t, 1, b.Dropped(), "after the end")
	})
}

// While the storage refuses, nothing is written twice, lost, or out of order,
// but for what there is no room for, which is counted.
func TestStorageThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeStorage{err: errors.New("disk full")}
		var reported []error
		b := NewBatcher(small, f, func(err error) { reported = append(reported, err) })
		b.Start()
		for i := 0; i < 80; i += 8 {
			b.Write(numbers(i, i+8))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		require.ErrorContains(t, b.Err(), "disk full")
		assert.EqualValues(t, 30, b.Dropped())
		assert.Less(t, f.tries, 12, "retries back off")
		f.set(nil)
		time.Sleep(lastRetry + 2*time.Second)
		synctest.Wait()
		assert.Equal(t, values(50), f.all())
		require.NoError(t, b.Err())
		require.Len(t, reported, 2, "only changes are reported")
		require.Error(t, reported[0])
		require.NoError(t, reported[1])
		b.Write(numbers(50, 100))
		require.NoError(t, b.Shutdown(t.Context()))
		assert.Equal(t, values(100), f.all(), "the room is back")
		assert.EqualValues(t, 30, b.Dropped())
	})
}

func TestShutdownWhileTheStorageRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeStorage{err: errors.New("disk full")}
		b := NewBatcher(small, f, nil)
		b.Start()
		b.Write(numbers(0, 25))
		b.WriteEpisode(Episode{ID: "e"})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.ErrorContains(t, b.Shutdown(t.Context()), "disk full")
		assert.EqualValues(t, 26, b.Dropped())
		require.NoError(t, NewBatcher(small, f, nil).Shutdown(t.Context()), "never started")
	})
}

// slowStorage takes a while for each batch.
type slowStorage struct {
	fakeStorage
	takes time.Duration
}

func (s *slowStorage) Append(ctx context.Context, samples []Sample, episodes []Episode) error {
	time.Sleep(s.takes)
	return s.fakeStorage.Append(ctx, samples, episodes)
}

// A queue that a flood filled must not hold up the end of the process.
func TestShutdownWithALongQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &slowStorage{takes: time.Second}
		cfg := small
		cfg.QueueSize = 1000
		b := NewBatcher(cfg, f, nil)
		b.Start()
		b.Write(numbers(0, 1000))
		time.Sleep(1500 * time.Millisecond)
		start := time.Now()
		require.NoError(t, b.Shutdown(t.Context()))
		assert.LessOrEqual(t, time.Since(start), shutdownTimeout+2*f.takes)
		assert.EqualValues(t, 1000, int64(len(f.all()))+b.Dropped())
		assert.Positive(t, b.Dropped())
	})
}

func TestShutdownTriesOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeStorage{err: errors.New("locked")}
		b := NewBatcher(small, f, nil)
		b.Start()
		b.Write(numbers(0, 25))
		time.Sleep(time.Second)
		synctest.Wait()
		f.set(nil)
		require.NoError(t, b.Shutdown(t.Context()))
		assert.Equal(t, values(25), f.all())
		assert.Zero(t, b.Dropped())
	})
}

// While the storage refuses, long attributes wait in no more memory than short ones.
func TestQueueIsBoundedByBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeStorage{err: errors.New("locked")}
		cfg := small
		cfg.QueueBytes = 10_000
		b := NewBatcher(cfg, f, nil)
		b.Start()
		long := numbers(0, 20)
		for i := range long {
			long[i].Attributes = strings.Repeat("a", 900)
		}
		for range 3 {
			b.Write(long)
			time.Sleep(2 * time.Second)
		}
		synctest.Wait()
		assert.EqualValues(t, 60-10, b.Dropped(), "10 samples of 997 bytes fit")
		assert.Zero(t, b.Refused())
		f.set(nil)
		time.Sleep(lastRetry + time.Second)
		synctest.Wait()
		assert.Equal(t, values(10), f.all())
		b.mu.Lock()
		assert.Zero(t, b.bytes)
		assert.Zero(t, b.waiting)
		b.mu.Unlock()
		b.Write(long[10:])
		require.NoError(t, b.Shutdown(t.Context()))
		assert.Equal(t, values(20), f.all(), "the room is back")
		assert.Zero(t, b.bytes)
	})
}

func TestNamesThatAreRefused(t *testing.T) {
	ok := Sample{Cluster: strings.Repeat("c", 255), Node: "n", GPU: "g", Metric: strings.Repeat("m", 255), Attributes: strings.Repeat("a", 1024)}
	long := strings.Repeat("x", 256)
	for name, tc := range map[string]struct {
		change  func(*Sample)
		refused bool
	}{
		"as long as may be": {func(*Sample) {}, false},
		"cluster alone":     {func(s *Sample) { *s = Sample{Metric: "m"} }, false},
		"no metric":         {func(s *Sample) { s.Metric = "" }, true},
		"long metric":       {func(s *Sample) { s.Metric = long }, true},
		"long cluster":      {func(s *Sample) { s.Cluster = long }, true},
		"long node":         {func(s *Sample) { s.Node = long }, true},
		"long GPU":          {func(s *Sample) { s.GPU = long }, true},
		"long attributes":   {func(s *Sample) { s.Attributes += "a" }, true},
		"NUL in a name":     {func(s *Sample) { s.Metric = "a\x00b" }, true},
		"NUL in attributes": {func(s *Sample) { s.Attributes = "a=\x00" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := ok
			tc.change(&s)
			f := &fakeStorage{}
			b := NewBatcher(small, f, nil)
			b.Write([]Sample{s, {Metric: "m", Value: 1}})
			require.NoError(t, b.Shutdown(t.Context()))
			want := []float64{0, 1}
			if tc.refused {
				want = want[1:]
			}
			assert.Equal(t, want, f.all(), "the next one is kept")
			assert.EqualValues(t, 2-len(want), b.Refused())
			assert.Zero(t, b.Dropped(), "no fault of the storage")
		})
	}
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
		assert.Len(t, h.batches, 1000/cfg.MaxSamples)
		assert.GreaterOrEqual(t, h.pieces-before, len(h.batches))
		require.NoError(t, b.Shutdown(t.Context()))
	})
}
