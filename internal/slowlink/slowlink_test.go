// SPDX-License-Identifier: Apache-2.0

package slowlink

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/packed"
	"github.com/gpu-collector/gpu-collector/internal/packed/packedtest"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

const tick = 10 * time.Second

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// job is a few communicators of 4 ranks, each on a node of its own.
type job struct {
	t     *testing.T
	book  *Book
	rng   *rand.Rand
	now   time.Time
	count int
	// factor is of a communicator's bandwidth; silent ones tell nothing.
	factor map[int]float64
	silent map[int]bool
}

func newJob(t *testing.T, count int, seed uint64) *job {
	return &job{t: t, book: New(tick, 4<<20), rng: rand.New(rand.NewPCG(seed, 1)), now: start, count: count, factor: map[int]float64{}, silent: map[int]bool{}}
}

func id(i int) string { return fmt.Sprintf("0x%x", i) }

// play lets the ranks report for so long. The third rank of four enters last.
func (j *job) play(d time.Duration) (events []Event) {
	for end := j.now.Add(d); j.now.Before(end); {
		j.now = j.now.Add(tick)
		for i := range j.count {
			factor := 1.0
			if f, ok := j.factor[i]; ok {
				factor = f
			}
			of := factor * math.Exp(0.03*j.rng.NormFloat64())
			for rank := range int64(4) {
				waits := 1.0
				if rank != 2 {
					waits = 1 + j.rng.Float64()
				}
				if j.silent[i] {
					continue
				}
				require.NoError(j.t, j.book.Add(&Point{
					Cluster: "c", Job: "llama", Node: fmt.Sprint("node-", rank), ID: id(i), Name: fmt.Sprint("dp-", i),
					Kind: Kind{"AllReduce", 1 << 20, 4, 4}, Rank: rank, Bandwidth: 40e9 * of / waits,
				}, j.now))
				j.book.Spend("c", id(i), rank, 0.2*waits)
			}
		}
		events = append(events, j.book.Tick(j.now)...)
	}
	return events
}

func TestACommunicatorThatBecomesSlow(t *testing.T) {
	for _, count := range []int{1, 2, 8} {
		t.Run(strconv.Itoa(count), func(t *testing.T) {
			j := newJob(t, count, 1)
			assert.Empty(t, j.play(time.Hour))
			j.factor[0] = 0.5
			began := j.now
			got := j.play(time.Minute)
			require.Len(t, got, 1)
			e := &got[0]
			assert.Equal(t, straggler.EventOnset, e.Kind)
			assert.Equal(t, straggler.SubjectCommunicator, e.Subject)
			assert.Equal(t, []string{id(0)}, e.Communicators)
			assert.Equal(t, "dp-0", e.Name)
			assert.Equal(t, []string{"node-0", "node-1", "node-2", "node-3"}, e.Nodes)
			assert.Equal(t, "llama", e.Job)
			assert.Equal(t, count, e.Active)
			assert.True(t, e.Before)
			assert.Equal(t, began, e.Since)
			assert.LessOrEqual(t, e.At.Sub(began), 30*time.Second)
			assert.InDelta(t, 0.5, e.Gap, 0.07)
			assert.InDelta(t, 0.1, e.Lost, 0.02, "half of what the rank spends that waits for nobody")
			assert.Empty(t, j.play(time.Hour), "told once")

			delete(j.factor, 0)
			back := j.now
			got = j.play(time.Minute)
			require.Len(t, got, 1)
			assert.Equal(t, straggler.EventEnd, got[0].Kind)
			assert.Equal(t, straggler.CauseRecovered, got[0].Cause)
			assert.Equal(t, e.ID, got[0].ID)
			assert.LessOrEqual(t, got[0].At.Sub(back), 30*time.Second)
			assert.Empty(t, j.play(time.Hour))
		})
	}
}

// All of a kind make one event.
func TestAFabricThatBecomesSlow(t *testing.T) {
	j := newJob(t, 8, 2)
	assert.Empty(t, j.play(20*time.Minute))
	for i := range 8 {
		j.factor[i] = 0.6
	}
	got := j.play(5 * time.Minute)
	require.Len(t, got, 1)
	assert.Equal(t, 8, got[0].Count)
	assert.Equal(t, 8, got[0].Active)
	assert.Len(t, got[0].Communicators, 8)
}

// A link that was slow from the first shows against its kind.
func TestACommunicatorThatWasSlowFromTheFirst(t *testing.T) {
	j := newJob(t, 8, 3)
	j.factor[5] = 0.6
	got := j.play(10 * time.Minute)
	require.Len(t, got, 1)
	assert.Equal(t, []string{id(5)}, got[0].Communicators)
	assert.False(t, got[0].Before)
	assert.InDelta(t, 0.4, got[0].Gap, 0.06)
	delete(j.factor, 5)
	got = j.play(10 * time.Minute)
	require.Len(t, got, 1)
	assert.Equal(t, straggler.EventEnd, got[0].Kind)
	assert.Equal(t, []string{id(5)}, got[0].Communicators)
}

// A job that ends, or another size of messages, is no slow link.
func TestWhatIsNoSlowLink(t *testing.T) {
	j := newJob(t, 4, 4)
	j.play(20 * time.Minute)
	j.silent[1] = true
	assert.Empty(t, j.play(20*time.Minute))
	assert.Equal(t, 3, j.book.Communicators())
	j.silent = map[int]bool{0: true, 1: true, 2: true, 3: true}
	assert.Empty(t, j.play(20*time.Minute))
	assert.Zero(t, j.book.Communicators())
}

func TestAnEpisodeOfAJobThatEnds(t *testing.T) {
	j := newJob(t, 4, 5)
	j.play(20 * time.Minute)
	j.factor[1] = 0.5
	require.Len(t, j.play(time.Minute), 1)
	j.silent = map[int]bool{0: true, 1: true, 2: true, 3: true}
	got := j.play(20 * time.Minute)
	require.Len(t, got, 1)
	assert.Equal(t, straggler.CauseIdle, got[0].Cause)
}

// TestOnsetsAreBounded: at each tick some of a cluster are told, and the others later. Who
// falls again and again is told three times an hour, also over a restart.
func TestOnsetsAreBounded(t *testing.T) {
	j := newJob(t, 0, 6)
	const count = 3*maxOnsets - 1
	play := func(d time.Duration, factor float64) (told []int) {
		for end := j.now.Add(d); j.now.Before(end); {
			j.now = j.now.Add(tick)
			for i := range count {
				require.NoError(t, j.book.Add(&Point{Cluster: "c", ID: id(i), Kind: Kind{Operation: "AllReduce", Size: int64(i)}, Bandwidth: factor * 1e9}, j.now))
			}
			onsets := 0
			for _, e := range j.book.Tick(j.now) {
				if e.Kind == straggler.EventOnset {
					onsets++
				}
			}
			if onsets > 0 {
				told = append(told, onsets)
			}
		}
		return told
	}
	assert.Empty(t, play(20*time.Minute, 1))
	assert.Equal(t, []int{maxOnsets, maxOnsets, maxOnsets - 1}, play(2*time.Minute, 0.5))
	sum := func() (n int) {
		for range 5 {
			assert.Empty(t, play(time.Minute, 1))
			for _, k := range play(2*time.Minute, 0.5) {
				n += k
			}
		}
		return n
	}
	assert.Equal(t, 2*count, sum())
	j.restart(time.Minute)
	assert.Zero(t, sum())
	play(time.Hour, 1)
	assert.Equal(t, []int{maxOnsets, maxOnsets, maxOnsets - 1}, play(2*time.Minute, 0.5))
}

func TestWhatIsRefused(t *testing.T) {
	b := New(tick, 200_000)
	require.ErrorIs(t, b.Add(&Point{Cluster: "c"}, start), ErrName)
	require.ErrorIs(t, b.Add(&Point{Cluster: "c", ID: "x", Name: strings.Repeat("x", 254)}, start), ErrName)
	var err error
	for i := 0; err == nil; i++ {
		err = b.Add(&Point{Cluster: "c", ID: id(i), Bandwidth: 1}, start)
	}
	require.ErrorIs(t, err, ErrTooManyRanks)
	require.NoError(t, b.Add(&Point{Cluster: "other", ID: "x", Bandwidth: 1}, start), "it has its share")
	b.Tick(start.Add(time.Hour))
	assert.NoError(t, b.Add(&Point{Cluster: "c", ID: "x", Bandwidth: 1}, start.Add(time.Hour)), "the others are silent")
}

// The heap grows by no more than New's bytes, whatever is told.
func TestMemory(t *testing.T) {
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	const bytes = 8 << 20
	for name, of := range map[string]func(i int) Point{
		"kinds": func(i int) Point { return Point{ID: id(i), Kind: Kind{Operation: strconv.Itoa(i)}} },
		"jobs": func(i int) Point {
			return Point{ID: id(i), Job: strings.Repeat("j", 200) + id(i), Node: strings.Repeat("n", 200) + id(i)}
		},
		"ranks": func(i int) Point {
			return Point{ID: id(i / 64), Rank: int64(i), Node: fmt.Sprintf("node-%06d.example.com", i)}
		},
		"long": func(i int) Point {
			return Point{ID: id(i / 64), Rank: int64(i), Node: strings.Repeat("n", 240) + id(i)}
		},
		"operations": func(i int) Point {
			return Point{ID: id(i / 64), Rank: int64(i), Node: "n", Kind: Kind{Operation: strings.Repeat("o", 240) + id(i)}}
		},
		"some": func(i int) Point {
			return Point{ID: id(i / 8), Rank: int64(i), Node: fmt.Sprintf("node-%06d.example.com", i/64)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := heap()
			b := New(tick, bytes)
			for round := range 3 {
				now := start.Add(time.Duration(round) * tick)
				for _, cluster := range []string{"a", "b", "c", "d"} {
					for i := range 20_000 {
						p := of(i)
						p.Cluster, p.Bandwidth = cluster, 1e9
						_ = b.Add(&p, now)
					}
				}
				b.Tick(now)
			}
			grown := heap() - before
			t.Logf("%d bytes, %d communicators, %d bytes of ranks", grown, b.Communicators(), b.bytes.Taken())
			assert.Less(t, grown, bytes)
			runtime.KeepAlive(b)
		})
	}
}

// restart saves the book, and goes on with another one after a pause.
func (j *job) restart(pause time.Duration) {
	engine := j.book.Engine().Save(nil, "links")
	var state []byte
	for more := true; more; {
		var piece []byte
		piece, more = engine.Next(1)
		state = append(state, piece...)
	}
	state = append(state, engine.End()...)
	changes, err := j.book.Engine().Changes(nil, "links", engine)
	require.NoError(j.t, err)
	c := packed.NewWriter(nil, "links", 2)
	for next := j.book.Save(c); next(1); {
	}
	r, err := packed.NewReader(c.Seal(), "links", 2)
	require.NoError(j.t, err)
	j.now = j.now.Add(pause)
	j.book = New(tick, 4<<20)
	require.NoError(j.t, j.book.Engine().Restore(&straggler.Saved{State: state, Changes: changes, Settings: "links"}, j.now))
	j.book.Restore(r, j.now)
	require.NoError(j.t, r.End())
}

// TestASlowLinkOverARestart: whatever is open goes on, one that is slow against its past,
// one against its peers. Nothing is told that is not.
func TestASlowLinkOverARestart(t *testing.T) {
	for _, peers := range []bool{false, true} {
		t.Run(fmt.Sprint("peers ", peers), func(t *testing.T) {
			for seed := range uint64(10) {
				j := newJob(t, 8, seed)
				if peers {
					j.factor[0] = 0.5 // from the first
				}
				told := j.play(30 * time.Minute)
				if !peers {
					require.Empty(t, told)
					j.restart(time.Minute)
					require.Empty(t, j.play(time.Minute))
					j.factor[0] = 0.5
					told = j.play(time.Minute)
				}
				require.Len(t, told, 1)
				since := told[0].Since
				if since.Unix() == 0 { // slow for as long as it was compared
					since = told[0].At.UTC()
				}
				for range 3 {
					j.restart(time.Duration(1+j.rng.IntN(60)) * time.Second)
					open := j.book.Open(straggler.EventContinues, "", j.now)
					require.Len(t, open, 1)
					got := j.play(10 * time.Minute)
					require.Len(t, got, 1, "told once")
					assert.Equal(t, straggler.EventContinues, got[0].Kind)
					for _, ev := range []Event{open[0], got[0]} {
						assert.Equal(t, told[0].ID, ev.ID)
						assert.Equal(t, since, ev.Since)
						assert.Equal(t, told[0].Link, ev.Link)
					}
				}
				j.restart(time.Minute)
				delete(j.factor, 0)
				got := j.play(20 * time.Minute)
				require.Len(t, got, 2)
				assert.Equal(t, straggler.EventEnd, got[1].Kind)
				assert.Equal(t, straggler.CauseRecovered, got[1].Cause)
				assert.Equal(t, told[0].ID, got[1].ID)
			}
		})
	}
}

// Communicators that nobody tells of any more are forgotten later.
func TestASlowLinkThatIsGoneEnds(t *testing.T) {
	j := newJob(t, 2, 1)
	j.play(30 * time.Minute)
	j.factor[0] = 0.5
	told := j.play(time.Minute)
	require.Len(t, told, 1)
	j.restart(time.Minute)
	j.silent[0], j.silent[1] = true, true
	got := j.play(20 * time.Minute)
	require.Len(t, got, 2)
	assert.Equal(t, straggler.EventContinues, got[0].Kind)
	assert.Equal(t, straggler.EventEnd, got[1].Kind)
	assert.Equal(t, straggler.CauseIdle, got[1].Cause)
	assert.Zero(t, j.book.Communicators())
	assert.Zero(t, j.book.count.Taken())
}

// FuzzRestore reads anything, and ticks.
func FuzzRestore(f *testing.F) {
	c := packed.NewWriter(nil, "links", 2)
	book := New(tick, 1<<20)
	for k := range 30 {
		at := start.Add(time.Duration(k) * tick)
		_ = book.Add(&Point{Cluster: "c", ID: "0xa", Kind: Kind{"AllReduce", 1, 4, 4}, Bandwidth: 1e9 / float64(1+k/20)}, at)
		book.Tick(at)
	}
	book.Save(c)(10)
	f.Add(packedtest.Body("links", c.Seal()))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := packed.NewReader(packedtest.Frame("links", 2, b), "links", 2)
		require.NoError(t, err)
		book := New(tick, 1<<16)
		book.Restore(r, start)
		book.Tick(start.Add(tick))
		_ = book.Add(&Point{Cluster: "c", ID: "0xa", Kind: Kind{"AllReduce", 1, 4, 4}, Bandwidth: 1e9}, start.Add(tick))
		book.Tick(start.Add(2 * tick))
		book.Tick(start.Add(time.Hour))
	})
}
