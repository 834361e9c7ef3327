// SPDX-License-Identifier: Apache-2.0

package fairshare

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// fill takes slots one by one, and returns how many the owner got.
func fill(l *Ledger[string], owner string) (n int) {
	for l.TakeAll(owner, 1) {
		n++
	}
	return n
}

func TestLedgerForgetsWhoHoldsNothing(t *testing.T) {
	l := New[string](10, Half)
	assert.Equal(t, 5, fill(l, "a"))
	assert.Equal(t, 3, fill(l, "b"), "half of what a leaves")
	assert.False(t, l.Full())
	l.Give("a", 5)
	assert.Zero(t, l.Held("a"))
	assert.Len(t, l.held, 1)
	assert.Equal(t, 2, fill(l, "b"), "half of all")
	assert.Equal(t, 5, l.Taken())
	assert.Equal(t, 10, fill(New[string](10, 0), "a"), "no share, no bound")
}

func TestLedgerHoldsWhatWasThereBefore(t *testing.T) {
	l := New[string](10, Half)
	l.Hold("a", 8)
	assert.Zero(t, fill(l, "a"), "it has more than its share")
	assert.Equal(t, 1, fill(l, "b"), "half of what a leaves")
	l.Hold("a", 5)
	assert.True(t, l.Full())
	assert.Zero(t, fill(l, "b"))
	l.Give("a", 13)
	assert.Equal(t, 4, fill(l, "b"))
}

func TestSlotsBindUnderPressure(t *testing.T) {
	l := NewSlots[string](100, Half)
	assert.Equal(t, 75, fill(l, "a"))
	assert.Equal(t, 13, fill(l, "b"), "half of what a leaves")
	assert.Equal(t, 6, fill(l, "c"))
	l.Give("a", 30)
	assert.Equal(t, 11, fill(l, "a"), "up to three quarters of all")
}

func TestTakeAllOrNone(t *testing.T) {
	l := New[string](10, Half)
	assert.Equal(t, 5, l.Room("a"))
	assert.False(t, l.TakeAll("a", 6))
	assert.Zero(t, l.Taken())
	assert.True(t, l.TakeAll("a", 4))
	assert.Equal(t, 1, l.Room("a"))
	assert.Equal(t, 3, l.Room("b"))
	l.Hold("a", 5)
	assert.Negative(t, l.Room("a"))
	assert.True(t, l.TakeAll("a", 0), "nothing always fits")
	l.Give("a", 9)
	assert.True(t, l.TakeAll("c", 0))
	assert.Empty(t, l.held, "an owner without slots is not remembered")
}

// TestLendingProperties drives a ledger that lends beside a model: plain maps of what each
// owner holds, and until when it wants.
func TestLendingProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 100).Draw(t, "slots")
		share := rapid.SampledFrom([]float64{0.1, Half, 0.9, 1}).Draw(t, "share")
		now := time.Unix(0, 0)
		l := NewLending[int](slots, share, func() time.Time { return now })
		held, wants, sum, forced := map[int]int{}, map[int]time.Time{}, 0, 0
		bound := func(id int) bool {
			for other, until := range wants {
				if other != id && now.Before(until) {
					return true
				}
			}
			return false
		}
		limit := func(id int) int { return Limit(share, slots, sum-held[id]) }
		room := func(id int) int {
			if bound(id) {
				return limit(id) - held[id]
			}
			return slots - sum
		}
		move := func(id, n int) { held[id], sum = held[id]+n, sum+n }
		tried := func(id int, refused bool) {
			// Two that want more hold s/(1+s) of all each.
			if now.Before(wants[id]) || refused && float64(held[id])*(1+share) < share*float64(slots) {
				wants[id] = now.Add(wantFor)
			}
		}
		owner := rapid.IntRange(1, 4)
		t.Repeat(map[string]func(*rapid.T){
			"take all": func(t *rapid.T) {
				id, want := owner.Draw(t, "who"), rapid.IntRange(1, slots+1).Draw(t, "want")
				fits := want <= room(id)
				tried(id, !fits)
				assert.Equal(t, fits, l.TakeAll(id, want))
				if fits {
					move(id, want)
				}
			},
			"want": func(t *rapid.T) {
				id := owner.Draw(t, "who")
				l.Want(id)
				wants[id] = now.Add(wantFor)
			},
			"give": func(t *rapid.T) {
				id := owner.Draw(t, "who")
				n := rapid.IntRange(0, held[id]).Draw(t, "n")
				l.Give(id, n)
				move(id, -n)
			},
			"hold": func(t *rapid.T) {
				id := owner.Draw(t, "who")
				l.Hold(id, 1)
				move(id, 1)
				forced++
			},
			"wait": func(t *rapid.T) {
				now = now.Add(rapid.SampledFrom([]time.Duration{time.Second, wantFor / 2, wantFor}).Draw(t, "for"))
			},
			"": func(t *rapid.T) {
				assert.Equal(t, sum, l.Taken())
				assert.LessOrEqual(t, sum, slots+forced)
				for id := range 5 {
					assert.Equal(t, room(id), l.Room(id), "%d", id)
				}
			},
		})
	})
}

// TestSoManyWantThatAllAreBound: the memory of wanting owners is bounded.
func TestSoManyWantThatAllAreBound(t *testing.T) {
	l := NewLending[int](10, Half, time.Now)
	l.Hold(-1, 10)
	for i := range 2 * maxWanting {
		assert.False(t, l.TakeAll(i, 1))
	}
	assert.Len(t, l.wants, maxWanting)
	l.Give(-1, 10)
	assert.False(t, l.TakeAll(-1, 6))
}

// TestNobodyWants: a ledger that lends asks no clock then, and takes no memory.
func TestNobodyWants(t *testing.T) {
	l := NewLending[string](10, Half, nil)
	l.now = func() time.Time { panic("asked the clock") }
	l.TakeAll("a", 1)
	assert.Zero(t, testing.AllocsPerRun(10, func() { l.TakeAll("a", 9); l.Give("a", 9) }))
}

func TestDue(t *testing.T) {
	const hour = time.Hour
	for name, tt := range map[string]struct {
		taken                 int
		lived, missing, after time.Duration
		want                  bool
	}{
		"room is left":                {75, time.Second, hour, hour, false},
		"expired":                     {0, 9 * hour, hour + 1, hour, true},
		"made up, under pressure":     {76, time.Second, time.Minute, hour, true},
		"established, under pressure": {76, hour, hour, hour, false},
	} {
		l := New[string](100, Half)
		l.Hold("a", tt.taken)
		assert.Equal(t, tt.want, l.Due(tt.lived, tt.missing, tt.after), name)
	}
}
