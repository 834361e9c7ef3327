// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"maps"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// repeating is a table behind another tier, with a resync each 100 s.
func repeating(edit ...func(*Settings)) *Table {
	return newTable(func(s *Settings) {
		s.TTL, s.ResyncInterval = 640*time.Second, 100*time.Second
		for _, e := range edit {
			e(s)
		}
	})
}

// relay pushes points that another tier sent on, each at the given second, and
// returns what is repeated, by attribute.
func relay(t *Table, second int, accepted bool, points ...Point) map[string]Series {
	r := t.Begin(time.Duration(second) * time.Second)
	r.OpenNode(nodeA)
	for _, p := range points {
		if p.Time == 0 {
			p.Time = unix(second)
		}
		if r.Observe(&p) == Forward && p.Key < 100 {
			named(r, p.Key)
		}
	}
	r.Relayed()
	again := map[string]Series{}
	for s := range r.Repeated(unix(second)) {
		again[s.Attrs[0].Text] = s
	}
	r.CloseNode()
	settle(r, accepted)
	return again
}

// beats sends reports without points until something is repeated.
func beats(t *Table, from, to int, accepted bool) (map[string]Series, int) {
	for s := from; s <= to; s += 10 {
		if again := relay(t, s, accepted); len(again) > 0 {
			return again, s
		}
	}
	return nil, to
}

func sum(key uint64, value float64, start uint64) Point {
	return Point{Key: key, Value: math.Float64bits(value), Kind: KindDouble, Origin: start, Start: start}
}

func TestRepeated(t *testing.T) {
	tb := repeating()
	require.Empty(t, relay(tb, 0, true, double(1, 1), double(2, 2), sum(3, 3, 77)))
	again, at := beats(tb, 10, 110, true)
	require.Len(t, again, 3)
	two, three := again["GPU-2"], again["GPU-3"]
	assert.InDelta(t, 2, math.Float64frombits(two.Value), 0)
	assert.Zero(t, two.Start)
	assert.InDelta(t, 3, math.Float64frombits(three.Value), 0)
	assert.EqualValues(t, 77, three.Start, "a sum goes on from where it began")
	assert.Equal(t, Metric{Name: "m", Unit: "1"}, two.Metric)
	assert.EqualValues(t, 3, tb.Stats().Repeated)

	again, next := beats(tb, at+10, at+90, true)
	require.Empty(t, again, "once per interval, until %d", next)
	again, next = beats(tb, at+100, at+100, true)
	require.Len(t, again, 3)
	assert.Equal(t, []Verdict{Unchanged}, push(tb, time.Duration(next+1)*time.Second, nodeA, double(1, 1)), "and is known then")
}

func TestRepeatedIsWhatTheReportLacks(t *testing.T) {
	tb := repeating()
	relay(tb, 0, true, double(1, 1), double(2, 2), double(3, 3))
	_, at := beats(tb, 10, 110, true)
	for s := at + 10; s < at+100; s += 10 {
		relay(tb, s, true)
	}
	again := relay(tb, at+100, true, double(2, 5))
	assert.Len(t, again, 2)
	assert.NotContains(t, again, "GPU-2", "it speaks for itself")
	again, _ = beats(tb, at+110, at+200, true)
	five := again["GPU-2"]
	assert.InDelta(t, 5, math.Float64frombits(five.Value), 0)
}

func TestWhatIsRefusedIsRepeatedAgain(t *testing.T) {
	tb := repeating()
	relay(tb, 0, true, double(1, 1))
	again, at := beats(tb, 10, 110, false)
	require.Len(t, again, 1)
	require.Len(t, relay(tb, at+10, false), 1)
	require.Len(t, relay(tb, at+20, true), 1)
	require.Empty(t, relay(tb, at+30, true))
	assert.EqualValues(t, 1, tb.Stats().Repeated)
}

func TestNoRepetition(t *testing.T) {
	for name, c := range map[string]func(t *testing.T, tb *Table, at int) (from int){
		"of a series that ended": func(_ *testing.T, tb *Table, at int) int {
			in(tb, time.Duration(at)*time.Second, nodeA, func(r *Report) { r.Forget(1) })
			return at
		},
		"of a node that paused, which may have reported elsewhere": func(_ *testing.T, _ *Table, at int) int { return at + 500 },
		"of a node that is not heard of for long": func(_ *testing.T, tb *Table, at int) int {
			tb.Sweep(time.Duration(at+700) * time.Second)
			return at + 700
		},
	} {
		t.Run(name, func(t *testing.T) {
			tb := repeating()
			relay(tb, 0, true, double(1, 1))
			_, at := beats(tb, 10, 110, true)
			from := c(t, tb, at)
			again, _ := beats(tb, from+10, from+90, true)
			assert.Empty(t, again)
		})
	}
	t.Run("of full reports", func(t *testing.T) {
		tb := repeating()
		for s := 0; s < 500; s += 10 {
			in(tb, time.Duration(s)*time.Second, nodeA, func(r *Report) {
				r.Observe(new(double(1, 1)))
				if s == 0 {
					r.Observe(new(double(2, 1)))
					named(r, 2)
				}
				for range r.Repeated(uint64(s)) {
					assert.Fail(t, "a sender of full reports was spoken for")
				}
			})
		}
	})
}

// A change that was overtaken by a repetition is still news.
func TestLateChangeMeetsRepetition(t *testing.T) {
	tb := repeating()
	relay(tb, 0, true, double(1, 1))
	_, at := beats(tb, 10, 110, true)
	late := double(1, 9)
	late.Time = uint64(time.Duration(1_800_000_000+at-1) * time.Second)
	relay(tb, at+10, true, late)
	assert.Zero(t, tb.Stats().Stale)
	again, _ := beats(tb, at+20, at+100, true)
	nine := again["GPU-1"]
	assert.InDelta(t, 9, math.Float64frombits(nine.Value), 0)
}

func TestOlderThanTheSeriesIsNotRepeated(t *testing.T) {
	tb := repeating()
	ahead := double(1, 1)
	ahead.Time = uint64(1_800_000_130 * time.Second)
	relay(tb, 0, true, ahead, double(2, 2))
	again, _ := beats(tb, 10, 110, true)
	assert.Len(t, again, 1)
	assert.Contains(t, again, "GPU-2", "whoever has the newer point would drop it")
}

// The table forgets a series that only the table speaks of. It keeps a series that the
// other tier speaks of now and then.
func TestSilentSeriesBehindAnotherTierExpires(t *testing.T) {
	tb := repeating()
	relay(tb, 0, true, double(1, 1), double(2, 2))
	for s := 10; s < 11_000; s += 10 {
		again := relay(tb, s, true)
		if s%3600 == 0 {
			again = relay(tb, s+1, true, double(2, 2))
		}
		tb.Sweep(time.Duration(s) * time.Second)
		if s > 8*640+20 {
			require.NotContains(t, again, "GPU-1")
		}
	}
	assert.EqualValues(t, 1, tb.Stats().Series)
}

func TestRepetitionIsBounded(t *testing.T) {
	const nodes, series = 40, 1000
	tb := repeating(func(s *Settings) { s.MaxNodes = nodes; s.MaxSeries = nodes * series })
	all := func(second int, points bool) (count int) {
		r := tb.Begin(time.Duration(second) * time.Second)
		for n := range nodes {
			r.OpenNode(NodeKey{Hi: 1, Lo: uint64(n)})
			if points {
				for key := range series {
					if r.Observe(new(double(Mix(uint64(key), 1), 1))) == Forward {
						named(r, 1)
					}
				}
			}
			r.Relayed()
			for range r.Repeated(uint64(1_800_000_000+second) * uint64(time.Second)) {
				count++
			}
			r.CloseNode()
		}
		r.Commit()
		return count
	}
	all(0, true)
	tb.Resync("", "") // the next hop restarts
	var counts []int
	for s := 1; s < 5; s++ {
		counts = append(counts, all(s, false))
	}
	assert.Equal(t, []int{17_000, 17_000, 6_000, 0}, counts)
}

func TestOpaqueSeriesAreDueMoreOften(t *testing.T) {
	assert.Equal(t, [3]int{10, 1, 10}, opaque(t, time.Hour), "a hash, a named number, one without a name")
	assert.Equal(t, [3]int{1, 1, 1}, opaque(t, 0), "never is never")
}

// opaque counts how often each of three kinds of series is forwarded in ten minutes.
func opaque(t *testing.T, resync time.Duration) [3]int {
	t.Helper()
	tb := newTable(func(s *Settings) {
		s.ResyncInterval, s.OpaqueInterval = resync, time.Minute
		s.Rand = func(n int64) int64 { return n - 1 }
	})
	hash := Point{Key: 1, Value: 7, Kind: KindHash}
	forwarded := [3]int{}
	for s := 0; s < 600; s += 10 {
		in(tb, time.Duration(s)*time.Second, nodeA, func(r *Report) {
			for i, p := range []Point{hash, double(2, 1), double(3, 1)} {
				if r.Observe(&p) == Forward {
					forwarded[i]++
					if i < 2 {
						named(r, p.Key)
					}
				}
			}
		})
	}
	assert.Zero(t, tb.Stats().Resyncs)
	return forwarded
}

// The starts that are remembered are no more than about the series, however often
// a sum begins anew, and few where no other tier reports.
func TestStartsAreBounded(t *testing.T) {
	tb := repeating()
	for s := 1; s < 500; s++ {
		relay(tb, s, true, sum(1, float64(s), uint64(s)), sum(2, 1, 1))
	}
	n := tb.lookup(nodeA)
	assert.LessOrEqual(t, len(n.starts.more), 4)
	start := func(origin uint64) uint64 {
		at, _ := n.starts.of(short(origin))
		return at
	}
	assert.EqualValues(t, 1, start(1))
	assert.EqualValues(t, 499, start(499))

	tb = repeating()
	for s := 1; s < 500; s++ {
		push(tb, time.Duration(s)*time.Second, nodeA, sum(1, float64(s), uint64(s)), sum(2, 1, 1))
	}
	n = tb.lookup(nodeA)
	assert.Len(t, n.starts.more, maxStarts)
	tb.Sweep(500 * time.Second)
	push(tb, 501*time.Second, nodeA, sum(1, 0, 7777))
	assert.EqualValues(t, 7777, start(7777), "those that no series has any more make room")
	assert.EqualValues(t, 1, start(1))
}

// The first part of a large report has no heartbeat, and a node may have reported
// in full before another tier came between.
func TestStartsOfBeforeAnotherTierAreKnown(t *testing.T) {
	for name, series := range map[string]int{"one start": 1, "as many as are remembered": maxStarts, "more": 40} {
		t.Run(name, func(t *testing.T) {
			tb := repeating(func(s *Settings) { s.MaxSeriesPerNode = 100 })
			var all []Point
			for i := range series {
				all = append(all, sum(uint64(1+i), 1, uint64(77+i)))
			}
			in(tb, 0, nodeA, func(r *Report) {
				for _, p := range all {
					p.Time = uint64(1_800_000_000 * time.Second)
					r.Observe(&p)
					named(r, p.Key)
				}
			})
			relay(tb, 1, true)
			if series > maxStarts+1 { // what was not remembered comes with the tier's resync
				relay(tb, 2, true, all...)
			}
			again := map[string]Series{}
			for s := 10; s <= 110; s += 10 {
				maps.Copy(again, relay(tb, s, true))
			}
			assert.Len(t, again, series)
			assert.EqualValues(t, 77, again["GPU-1"].Start)
		})
	}
}

// The table repeats a node that the next hop dropped, also when a repetition is under
// way meanwhile.
func TestResyncOfANodeRepeats(t *testing.T) {
	tb := repeating(func(s *Settings) { s.ResyncInterval = 0 })
	relay(tb, 0, true, double(1, 1))
	require.Empty(t, relay(tb, 10, true))
	tb.ResyncNode(nodeA)
	r := tb.Begin(20 * time.Second)
	r.OpenNode(nodeA)
	r.Relayed()
	count := 0
	for range r.Repeated(uint64(1_800_000_020 * time.Second)) {
		count++
	}
	require.Equal(t, 1, count)
	r.CloseNode()
	tb.ResyncNode(nodeA)
	r.Commit()
	require.Len(t, relay(tb, 30, true), 1)
	require.Empty(t, relay(tb, 40, true))
}

// A tier that was silent for long sends everything when it is back; what it does
// not send then is not there any more.
func TestNoRepetitionOfWhatWasBeforeALongSilence(t *testing.T) {
	for silence, want := range map[int]int{310: 2, 320: 1} { // of 640 s
		tb := repeating()
		relay(tb, 0, true, double(1, 1), double(2, 2))
		for s := 10; s <= 300; s += 10 {
			relay(tb, s, true)
		}
		// The gateway itself goes on speaking of the node.
		for s := 310; s < 300+silence; s += 10 {
			report(tb, s, true, 3)
		}
		relay(tb, 300+silence, true, double(2, 3))
		again := map[string]Series{}
		for s := 310 + silence; s < 530+silence; s += 10 {
			maps.Copy(again, relay(tb, s, true))
		}
		delete(again, "GPU-3")
		assert.Len(t, again, want, "after %d s", silence)
		assert.Contains(t, again, "GPU-2")
	}
}

// A series whose end was told leaves after one TTL.
func TestASeriesThatEndedLeavesAfterATTL(t *testing.T) {
	tb := repeating()
	relay(tb, 0, true, double(1, 1), double(2, 2))
	beat := func(from, to int) {
		for s := from; s < to; s += 10 {
			relay(tb, s, true)
			tb.Sweep(time.Duration(s) * time.Second)
		}
	}
	beat(10, 1000)
	in(tb, 1000*time.Second, nodeA, func(r *Report) {
		r.Forget(1)
		r.Relayed()
	})
	beat(1010, 1630)
	assert.EqualValues(t, 2, tb.Stats().Series, "its end may have to be told again")
	beat(1630, 1700)
	assert.EqualValues(t, 1, tb.Stats().Series)
}

// Points that cannot be made of what is known are counted, and are the tier's to send.
func TestWhatCannotBeRepeatedIsCounted(t *testing.T) {
	flagged := double(2, 1)
	flagged.Origin = 99 // no start
	for name, p := range map[string]Point{
		"a hash": {Key: 1, Value: 7, Kind: KindHash}, "flags": flagged, "no name": double(200, 1),
	} {
		t.Run(name, func(t *testing.T) {
			tb := repeating()
			relay(tb, 0, true, p)
			again, _ := beats(tb, 10, 1000, true)
			assert.Empty(t, again)
			assert.Positive(t, tb.Stats().Unrepeatable)
			assert.Zero(t, tb.Stats().Repeated)
		})
	}
}
