// SPDX-License-Identifier: Apache-2.0

package hang

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/packed"
	"github.com/gpu-collector/gpu-collector/internal/packed/packedtest"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const interval = 10 * time.Second

// world is a job of eight ranks on two nodes. Their clocks are wrong, and their reports late.
type world struct {
	t     *testing.T
	rng   *rand.Rand
	book  *Book
	now   time.Time
	done  time.Time
	step  time.Duration
	stops bool // nothing ends
	gone  bool // nobody reports
	// watts of a node that works; 0 is a job with the Inspector.
	watts, draws float64
	idle         bool
}

func newJob(t *testing.T, seed uint64) *world {
	return &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), book: New(DefaultConfig(), 1<<20), now: start, done: start, step: 4 * time.Second}
}

func (j *world) run(d time.Duration) (events []Event) {
	for end := j.now.Add(d); j.now.Before(end); {
		j.now = j.now.Add(interval)
		for !j.stops && j.done.Add(j.step).Before(j.now) {
			j.done = j.done.Add(j.step)
		}
		for r := range int64(8) {
			if j.gone {
				break
			}
			skew := time.Duration(r/4) * 90 * time.Second
			late := j.now.Add(time.Duration(j.rng.IntN(4000)) * time.Millisecond)
			name := fmt.Sprint("n", r/4)
			if j.watts > 0 {
				require.NoError(j.t, j.book.Power("c", "J", name, Draw{!j.idle, true, j.draws * (1 + 0.05*j.rng.NormFloat64()), true}, late))
				continue
			}
			require.NoError(j.t, j.book.Progress("c", "J", name, Of{"0xa", r}, nodesignal.Subject{GPU: fmt.Sprint("GPU-", r), Rank: nodesignal.OrdinalOf(r)},
				j.done.Add(skew), j.now.Add(skew), late))
		}
		events = append(events, j.book.Tick(j.now.Add(5*time.Second))...)
	}
	return events
}

// pause stops the job for a while, as a checkpoint does.
func (j *world) pause(d time.Duration) []Event {
	j.stops = true
	if j.watts > 0 {
		j.draws = 0.3 * j.watts
	}
	got := j.run(d)
	j.stops, j.draws, j.done = false, j.watts, j.now
	return got
}

func TestAHangIsTold(t *testing.T) {
	for name, watts := range map[string]float64{"operations": 0, "power": 5000} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				j := newJob(t, seed)
				j.watts, j.draws = watts, watts
				longest := time.Duration(0)
				for i := range 6 {
					assert.Empty(t, j.run(15*time.Minute))
					pause := time.Duration(10+j.rng.IntN(50)) * time.Second
					if i == 0 {
						pause = time.Minute
					}
					longest = max(longest, pause)
					assert.Empty(t, j.pause(pause))
				}
				assert.Empty(t, j.run(time.Minute))
				began := j.now
				j.stops, j.draws = true, 0.3*watts
				got := j.run(4 * time.Hour)
				require.Len(t, got, 1, "one record")
				e := &got[0]
				assert.Equal(t, straggler.EventOnset, e.Kind)
				assert.Equal(t, straggler.SubjectJob, e.Subject)
				assert.Equal(t, "J", e.Job)
				assert.Equal(t, []string{"n0", "n1"}, e.Nodes)
				assert.InDelta(t, 0, e.Since.Sub(began).Seconds(), 15)
				assert.LessOrEqual(t, e.At.Sub(began), longest+2*interval+90*time.Second, "the pause is seen in ticks")
				assert.Empty(t, e.Laggards, "RAS told nobody")
				j.stops, j.draws, j.done = false, watts, j.now
				got = j.run(time.Minute)
				require.Len(t, got, 1)
				assert.Equal(t, straggler.EventEnd, got[0].Kind)
				assert.Equal(t, e.ID, got[0].ID)
				assert.Equal(t, straggler.CauseRecovered, got[0].Cause)
			}
		})
	}
}

func TestTheLaggardIsNamed(t *testing.T) {
	j := newJob(t, 1)
	j.run(2 * time.Hour)
	j.stops = true
	j.run(40 * time.Second)
	require.NoError(t, j.book.Lag("c", "J", Laggard{Of: Of{"0xa", 5}, Host: "10.0.0.1"}, j.now))
	got := j.run(time.Minute)
	require.Len(t, got, 1)
	require.Len(t, got[0].Laggards, 1)
	l := got[0].Laggards[0]
	assert.Equal(t, "n1", l.Node)
	assert.Equal(t, nodesignal.Subject{GPU: "GPU-5", Rank: nodesignal.OrdinalOf(5)}, l.Subject)
	assert.Equal(t, "10.0.0.1", l.Host)
}

// An answer of RAS that comes late is an update of the record.
func TestALateNameIsAnUpdate(t *testing.T) {
	j := newJob(t, 1)
	j.run(2 * time.Hour)
	j.stops = true
	got := j.run(5 * time.Minute)
	require.Len(t, got, 1)
	require.NoError(t, j.book.Lag("c", "J", Laggard{Of: Of{"0xa", 5}}, j.now))
	update := j.run(time.Hour)
	require.Len(t, update, 1)
	assert.Equal(t, straggler.EventUpdate, update[0].Kind)
	assert.Equal(t, got[0].ID, update[0].ID)
	assert.Len(t, update[0].Laggards, 1)
}

func TestWhatIsNoHang(t *testing.T) {
	for name, play := range map[string]func(j *world) []Event{
		"the first checkpoint of a young job": func(j *world) []Event {
			j.run(20 * time.Minute)
			return j.pause(8 * time.Minute)
		},
		"a pause as long as the one before": func(j *world) []Event {
			j.run(30 * time.Minute)
			j.pause(5 * time.Minute)
			j.run(2 * time.Hour)
			return j.pause(5*time.Minute + 20*time.Second)
		},
		"the end of the job": func(j *world) []Event {
			j.run(2 * time.Hour)
			j.gone = true
			return j.run(time.Hour)
		},
		"agents that are away": func(j *world) []Event {
			j.run(2 * time.Hour)
			j.gone = true
			got := j.run(8 * time.Minute)
			j.gone = false
			return append(got, j.run(time.Hour)...)
		},
		"idle GPUs": func(j *world) []Event {
			j.watts, j.draws = 5000, 5000
			j.run(2 * time.Hour)
			j.idle, j.draws = true, 800
			return j.run(2 * time.Hour)
		},
		"a job that always draws little": func(j *world) []Event {
			j.watts, j.draws = 1500, 1500
			return j.run(6 * time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) { assert.Empty(t, play(newJob(t, 3))) })
	}
}

// A restart of the job is no pause of it.
func TestARestartOfTheJobIsNoPause(t *testing.T) {
	j := newJob(t, 4)
	j.run(2 * time.Hour)
	j.gone = true
	j.run(8 * time.Minute)
	j.gone, j.done = false, j.now
	assert.Empty(t, j.run(2*time.Hour))
	j.stops = true
	got := j.run(2 * time.Minute)
	require.Len(t, got, 1)
	assert.Less(t, got[0].Pause, time.Minute)
}

func TestAHangEndsWithItsJob(t *testing.T) {
	j := newJob(t, 5)
	j.run(2 * time.Hour)
	j.stops = true
	require.Len(t, j.run(5*time.Minute), 1)
	j.gone = true
	got := j.run(time.Hour)
	require.Len(t, got, 1)
	assert.Equal(t, straggler.CauseIdle, got[0].Cause)
	assert.Zero(t, j.book.Jobs())
	assert.Zero(t, j.book.bytes.Taken())
}

func TestNobodyWatches(t *testing.T) {
	j := newJob(t, 6)
	j.book = New(Config{}, 1<<20)
	j.run(2 * time.Hour)
	j.stops = true
	assert.Empty(t, j.run(time.Hour))
	assert.Zero(t, j.book.Jobs())
	cfg := Config{KnownAfter: -1, FirstAfter: time.Second}
	assert.EqualError(t, cfg.Validate("hang::"), "`hang::known_after` is -1ns, must not be negative\n`hang::first_after` is 1s, must be at least 1m0s")
}

// The heap grows by no more than New's bytes.
func TestMemory(t *testing.T) {
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	long := strings.Repeat("x", 230)
	for name, add := range map[string]func(b *Book, cluster string, i int) error{
		"jobs": func(b *Book, c string, i int) error {
			return b.Progress(c, long+strconv.Itoa(i), "n", Of{"0xa", 1}, nodesignal.Subject{}, start, start, start)
		},
		"ranks": func(b *Book, c string, i int) error {
			return b.Progress(c, "J", long+strconv.Itoa(i), Of{strconv.Itoa(i) + long, 1}, nodesignal.Subject{GPU: strconv.Itoa(i) + long}, start, start, start)
		},
		"short": func(b *Book, c string, i int) error {
			return b.Progress(c, "J", "n", Of{"0xa", int64(i)}, nodesignal.Subject{GPU: "G"}, start, start, start)
		},
		"nodes": func(b *Book, c string, i int) error { return b.Power(c, "J", strconv.Itoa(i), Draw{}, start) },
		"pauses": func(b *Book, c string, i int) error {
			return errors.Join(b.Power(c, "J", "n", Draw{}, start), b.Pause(c, "J", nodesignal.Subject{GPU: strconv.Itoa(i) + long}, time.Second))
		},
		"laggards": func(b *Book, c string, i int) error {
			job := strconv.Itoa(i / maxListed)
			return errors.Join(b.Power(c, job, "n", Draw{}, start),
				b.Lag(c, job, Laggard{Of: Of{strconv.Itoa(i) + long, 1}, Host: long + strconv.Itoa(i)}, start))
		},
	} {
		t.Run(name, func(t *testing.T) {
			const bytes = 4 << 20
			before := heap()
			b := New(DefaultConfig(), bytes)
			for _, c := range []string{"a", "b", "c", "d"} {
				var err error
				for i := 0; err == nil; i++ {
					err = add(b, c, i)
				}
				require.ErrorIs(t, err, ErrTooMany)
			}
			b.Tick(start)
			grown := heap() - before
			t.Logf("%d bytes, %d counted", grown, b.bytes.Taken())
			assert.Less(t, grown, bytes)
			runtime.KeepAlive(b)
		})
	}
}

// restart saves the book, and goes on with another one after a pause.
func (j *world) restart(pause time.Duration) {
	c := packed.NewWriter(nil, "hangs", 1)
	for next := j.book.Save(c); next(1); {
	}
	r, err := packed.NewReader(c.Seal(), "hangs", 1)
	require.NoError(j.t, err)
	j.now = j.now.Add(pause)
	j.book = New(DefaultConfig(), 1<<20)
	j.book.Restore(r, j.now)
	require.NoError(j.t, r.End())
}

// TestAHangOverARestart: whatever is open goes on, and nothing is told that is not.
func TestAHangOverARestart(t *testing.T) {
	for name, watts := range map[string]float64{"operations": 0, "power": 5000} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				j := newJob(t, seed)
				j.watts, j.draws = watts, watts
				gap := func() time.Duration { return time.Duration(5+j.rng.IntN(56)) * time.Second }
				assert.Empty(t, j.run(2*time.Hour))
				for range 5 {
					j.restart(gap())
					assert.Empty(t, j.run(10*time.Minute), "it works")
				}
				assert.Empty(t, j.pause(40*time.Second))
				j.restart(gap())
				assert.Empty(t, j.run(time.Minute))
				began := j.now
				j.stops, j.draws = true, 0.3*watts
				// At times before it is told, at times after.
				told := j.run(time.Duration(10+j.rng.IntN(300)) * time.Second)
				j.restart(gap())
				again := j.run(10 * time.Minute)
				require.Len(t, slices.Concat(told, again), len(told)+1)
				want := straggler.EventOnset
				if len(told) > 0 {
					want = straggler.EventContinues
					assert.Equal(t, told[0].ID, again[0].ID)
					assert.Equal(t, told[0].Since, again[0].Since)
				}
				assert.Equal(t, want, again[0].Kind)
				assert.InDelta(t, 0, again[0].Since.Sub(began).Seconds(), 15)
				j.restart(gap())
				j.stops, j.draws, j.done = false, watts, j.now
				last := j.run(5 * time.Minute)
				require.Len(t, last, 2)
				assert.Equal(t, straggler.EventContinues, last[0].Kind)
				assert.Equal(t, straggler.EventEnd, last[1].Kind)
				assert.Equal(t, straggler.CauseRecovered, last[1].Cause)
				assert.Equal(t, again[0].ID, last[1].ID)
			}
		})
	}
}

// A job of which nobody tells anything any more ends later.
func TestAHangOfAJobThatIsGoneEnds(t *testing.T) {
	j := newJob(t, 1)
	j.run(2 * time.Hour)
	j.stops = true
	told := j.run(10 * time.Minute)
	require.Len(t, told, 1)
	j.restart(time.Minute)
	open := j.book.Open(straggler.EventContinues, "", j.now)
	require.Len(t, open, 1)
	assert.Equal(t, told[0].ID, open[0].ID)
	j.gone = true
	got := j.run(20 * time.Minute)
	require.Len(t, got, 2)
	assert.Equal(t, straggler.EventContinues, got[0].Kind)
	assert.Equal(t, straggler.EventEnd, got[1].Kind)
	assert.Zero(t, j.book.Jobs())
	assert.Zero(t, j.book.bytes.Taken())
}

// FuzzRestore reads anything, and ticks.
func FuzzRestore(f *testing.F) {
	c := packed.NewWriter(nil, "hangs", 1)
	book := New(DefaultConfig(), 1<<20)
	_ = book.Power("c", "J", "n", Draw{true, true, 100, true}, start)
	book.Save(c)(10)
	f.Add(packedtest.Body("hangs", c.Seal()))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := packed.NewReader(packedtest.Frame("hangs", 1, b), "hangs", 1)
		require.NoError(t, err)
		book := New(DefaultConfig(), 1<<16)
		book.Restore(r, start)
		book.Tick(start.Add(interval))
		_ = book.Progress("c", "J", "n", Of{"0xa", 1}, nodesignal.Subject{}, start, start, start)
		book.Tick(start.Add(time.Hour))
	})
}
