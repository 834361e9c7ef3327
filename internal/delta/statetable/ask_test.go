// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ask pushes points that another tier sent on, at the given second, and reports
// whether that tier is asked for all of the node.
func ask(t *Table, second int, points ...Point) bool {
	_, asked := relayed(t, second, true, points...)
	return asked
}

// asks are the seconds of the reports in [from, to), one each 10 s, that ask.
func asks(t *Table, from, to int, points ...Point) (at []int) {
	for s := from; s < to; s += 10 {
		if ask(t, s, points...) {
			at = append(at, s)
		}
		t.Sweep(time.Duration(s) * time.Second)
	}
	return at
}

func TestAWholeNodeIsNotAskedFor(t *testing.T) {
	tb := repeating()
	require.False(t, ask(tb, 0, double(1, 1), sum(2, 2, 77)))
	assert.Empty(t, asks(tb, 10, 5000))
	assert.Empty(t, asks(tb, 5300, 9000, double(1, 1), sum(2, 2, 77)), "after 310 s of 640 s, and each reported since")
	assert.Zero(t, tb.Stats().Asked)
}

// Four times, in case that an answer is lost, and once in each interval of 100 s.
func TestANodeThatMayHaveBeenForgottenIsAskedFor(t *testing.T) {
	t.Run("new to a table that is older than half its ttl", func(t *testing.T) {
		assert.Equal(t, []int{640, 740, 840, 940}, asks(repeating(), 640, 2000, double(1, 1)))
	})
	t.Run("new to a new table, which its epoch tells", func(t *testing.T) {
		assert.Empty(t, asks(repeating(), 310, 2000, double(1, 1)))
	})
	t.Run("silent for half a ttl", func(t *testing.T) {
		tb := repeating()
		ask(tb, 0, double(1, 1))
		assert.Equal(t, []int{320, 420, 520, 620}, asks(tb, 320, 2000))
		assert.EqualValues(t, 4, tb.Stats().Asked)
	})
	t.Run("silent for so long that its reports passed for full ones", func(t *testing.T) {
		tb := repeating(func(s *Settings) { s.VanishedAfter = 60 * time.Second })
		ask(tb, 0, double(1, 1))
		for s := 10; s < 1400; s += 10 {
			push(tb, time.Duration(s)*time.Second, nodeA) // what the gateway says of it
		}
		in(tb, 1400*time.Second, nodeA, func(r *Report) {
			for range r.Vanished {
			}
		})
		assert.True(t, ask(tb, 1400))
	})
	t.Run("of an answer that has no room, with the next report", func(t *testing.T) {
		tb := repeating()
		for s := range 3 {
			in(tb, time.Duration(700+s)*time.Second, nodeA, func(r *Report) {
				r.Relayed()
				assert.True(t, r.Wants())
			})
		}
		assert.Zero(t, tb.Stats().Asked)
	})
	t.Run("full reports ask nobody", func(t *testing.T) {
		tb := repeating()
		in(tb, time.Hour, nodeA, func(r *Report) { assert.False(t, r.Wants()) })
	})
}

// The next hop accepted it and could not keep it, so that the tier before takes it
// for known.
func TestWhatWasLostIsAskedFor(t *testing.T) {
	for _, lost := range []bool{true, false} {
		tb := repeating()
		r := tb.Begin(0)
		r.OpenNode(nodeA)
		p := double(1, 1)
		p.Time = uint64(1_800_000_000 * time.Second)
		require.Equal(t, Forward, r.Observe(&p))
		r.Relayed()
		r.CloseNode()
		want := []int{10, 110, 210, 310}
		if lost {
			r.Miss(map[NodeKey]struct{}{nodeA: {}})
			r.Commit()
		} else {
			r.Abort()
			want = nil // its sender knows
		}
		assert.Equal(t, want, asks(tb, 10, 600))
	}
}

func TestWhatFoundNoRoomIsAskedForEachInterval(t *testing.T) {
	t.Run("a series", func(t *testing.T) {
		tb := repeating(func(s *Settings) { s.MaxSeriesPerNode = 1 })
		ask(tb, 0, double(1, 1))
		assert.Empty(t, asks(tb, 10, 200))
		assert.False(t, ask(tb, 200, double(2, 2)))
		assert.Equal(t, []int{210, 310, 410, 510}, asks(tb, 210, 800), "no answer comes, or they are lost")
		assert.Equal(t, []int{810, 910, 1010, 1110}, asks(tb, 800, 1200, double(2, 2)))
	})
	t.Run("a node", func(t *testing.T) {
		tb := repeating(func(s *Settings) { s.MaxNodes = 1 })
		push(tb, 0, nodeB, double(1, 1))
		tb.lookup(nodeB).usual = time.Hour // it does not give way
		assert.Equal(t, []int{10, 110, 210}, asks(tb, 10, 300, double(1, 1)))
	})
}

// The table asks for a series that it cannot repeat when the series does not come by itself.
func TestWhatCannotBeRepeatedIsAskedFor(t *testing.T) {
	flagged := double(2, 1)
	flagged.Origin = 99 // no start
	for name, p := range map[string]Point{
		"a hash": {Key: 1, Value: 7, Kind: KindHash}, "flags": flagged, "no name": double(200, 1),
	} {
		t.Run(name, func(t *testing.T) {
			tb := repeating()
			ask(tb, 0, p)
			at := asks(tb, 10, 1000)
			require.NotEmpty(t, at)
			assert.LessOrEqual(t, at[0], 240)
			assert.GreaterOrEqual(t, len(at), 7)
			assert.Positive(t, tb.Stats().Unrepeatable)
			assert.Zero(t, tb.Stats().Repeated)
			tb = repeating()
			for s := 0; s < 1000; s += 10 {
				if s%100 == 0 {
					require.False(t, ask(tb, s, p))
				} else {
					require.False(t, ask(tb, s), "the tier before sends it")
				}
			}
		})
	}
}

// A series that expires although nobody said that it ended may live.
func TestWhatExpiredIsAskedFor(t *testing.T) {
	tb := repeating()
	ask(tb, 0, double(1, 1))
	at := asks(tb, 10, 8*640+1000)
	require.Len(t, at, asksInDoubt)
	assert.InDelta(t, 8*640, at[0], 30)
	assert.Zero(t, tb.Stats().Series)
}

// A series whose end was told leaves after one TTL, without a question.
func TestASeriesThatEndedLeavesAfterATTL(t *testing.T) {
	tb := repeating()
	ask(tb, 0, double(1, 1), double(2, 2))
	asks(tb, 10, 1000)
	in(tb, 1000*time.Second, nodeA, func(r *Report) {
		r.Forget(1)
		r.Relayed()
	})
	assert.Empty(t, asks(tb, 1010, 1630))
	assert.EqualValues(t, 2, tb.Stats().Series, "its end may have to be told again")
	assert.Empty(t, asks(tb, 1630, 1700))
	assert.EqualValues(t, 1, tb.Stats().Series)
}
