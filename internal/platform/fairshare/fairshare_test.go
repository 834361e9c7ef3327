// SPDX-License-Identifier: Apache-2.0

package fairshare

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestLedgerForgetsWhoHoldsNothing(t *testing.T) {
	l := New[string](10, Half)
	assert.Equal(t, 5, l.Take("a", 7))
	assert.Zero(t, l.Take("a", 1))
	assert.Equal(t, 3, l.Take("b", 7), "half of what a leaves")
	assert.False(t, l.Full())
	l.Give("a", 5)
	assert.Zero(t, l.Held("a"))
	assert.Len(t, l.held, 1)
	assert.Equal(t, 2, l.Take("b", 7), "half of all")
	assert.Equal(t, 5, l.Taken())
	assert.Equal(t, 10, New[string](10, 0).Take("a", 99), "no share bounds nobody")
}

func TestLedgerHoldsWhatWasThereBefore(t *testing.T) {
	l := New[string](10, Half)
	l.Hold("a", 8)
	assert.Zero(t, l.Take("a", 1), "it has more than its share")
	assert.Zero(t, l.Excess("a"), "nothing was lent")
	assert.Equal(t, 1, l.Take("b", 7), "half of what a leaves")
	l.Hold("a", 5)
	assert.True(t, l.Full())
	assert.Zero(t, l.Take("b", 1))
	l.Give("a", 13)
	assert.Equal(t, 4, l.Take("b", 7))
	assert.Equal(t, 5, l.Taken())
}

func TestTakeAllOrNone(t *testing.T) {
	l := New[string](10, Half)
	assert.Equal(t, 5, l.Room("a"))
	assert.False(t, l.TakeAll("a", 6))
	assert.Zero(t, l.Taken())
	assert.True(t, l.TakeAll("a", 4))
	assert.Equal(t, 1, l.Room("a"))
	assert.Equal(t, 3, l.Room("b"))
	assert.False(t, l.TakeAll("a", 2))
	l.Hold("a", 5)
	assert.Negative(t, l.Room("a"))
	assert.True(t, l.TakeAll("a", 0), "nothing always fits")
	assert.Equal(t, 9, l.Held("a"))
	l.Give("a", 9)
	assert.True(t, l.TakeAll("c", 0))
	assert.Empty(t, l.held, "nobody who holds nothing is remembered")
}

// TestTheLastToComeFindsRoom: whatever some owners took, the places never
// overflow. An owner that holds nothing finds the places that the theory leaves.
func TestTheLastToComeFindsRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		places := rapid.IntRange(1, 10_000).Draw(t, "places")
		owners := rapid.IntRange(0, 6).Draw(t, "owners")
		l := New[int](places, Half)
		held := map[int]int{}
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			if owners == 0 {
				break
			}
			who := rapid.IntRange(1, owners).Draw(t, "who")
			if rapid.Bool().Draw(t, "give") {
				n := rapid.IntRange(0, held[who]).Draw(t, "n")
				l.Give(who, n)
				held[who] -= n
			} else {
				held[who] += l.Take(who, rapid.IntRange(0, places).Draw(t, "want"))
			}
			sum := 0
			for _, n := range held {
				sum += n
			}
			if sum != l.Taken() || sum > places {
				t.Fatalf("%v held, %d taken of %d", held, l.Taken(), places)
			}
		}
		left := places - l.Taken()
		if got := l.Take(0, places); got != (left+1)/2 {
			t.Fatalf("got %d of %d left", got, left)
		}
		if least := int(float64(places) * math.Pow(2, -float64(owners))); left < least-owners {
			t.Fatalf("%d owners left %d of %d", owners, left, places)
		}
	})
}

// TestLendingProperties drives a ledger that lends beside a model: plain maps of what each
// owner holds, and until when it wants.
func TestLendingProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		places := rapid.IntRange(1, 100).Draw(t, "places")
		share := rapid.SampledFrom([]float64{0.1, Half, 0.9, 1}).Draw(t, "share")
		now := time.Unix(0, 0)
		l := NewLending[int](places, share, func() time.Time { return now })
		held, wants, sum, forced := map[int]int{}, map[int]time.Time{}, 0, 0
		bound := func(who int) bool {
			for other, until := range wants {
				if other != who && now.Before(until) {
					return true
				}
			}
			return false
		}
		limit := func(who int) int { return Limit(share, places, sum-held[who]) }
		room := func(who int) int {
			if bound(who) {
				return limit(who) - held[who]
			}
			return places - sum
		}
		move := func(who, n int) { held[who], sum = held[who]+n, sum+n }
		tried := func(who int, refused bool) {
			// Two that want more hold s/(1+s) of all each.
			if now.Before(wants[who]) || refused && float64(held[who])*(1+share) < share*float64(places) {
				wants[who] = now.Add(wantFor)
			}
		}
		owner := rapid.IntRange(1, 4)
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				who, want := owner.Draw(t, "who"), rapid.IntRange(0, places).Draw(t, "want")
				n := max(min(want, room(who)), 0)
				if want > 0 {
					tried(who, n == 0)
				}
				assert.Equal(t, n, l.Take(who, want))
				move(who, n)
			},
			"take all": func(t *rapid.T) {
				who, want := owner.Draw(t, "who"), rapid.IntRange(1, places+1).Draw(t, "want")
				fits := want <= room(who)
				tried(who, !fits)
				assert.Equal(t, fits, l.TakeAll(who, want))
				if fits {
					move(who, want)
				}
			},
			"want": func(t *rapid.T) {
				who := owner.Draw(t, "who")
				l.Want(who)
				wants[who] = now.Add(wantFor)
			},
			"give": func(t *rapid.T) {
				who := owner.Draw(t, "who")
				n := rapid.IntRange(0, held[who]).Draw(t, "n")
				l.Give(who, n)
				move(who, -n)
			},
			"hold": func(t *rapid.T) {
				who := owner.Draw(t, "who")
				l.Hold(who, 1)
				move(who, 1)
				forced++
			},
			"wait": func(t *rapid.T) {
				now = now.Add(rapid.SampledFrom([]time.Duration{time.Second, wantFor / 2, wantFor}).Draw(t, "for"))
			},
			"": func(t *rapid.T) {
				assert.Equal(t, sum, l.Taken())
				assert.LessOrEqual(t, sum, places+forced)
				for who := range 5 {
					assert.Equal(t, room(who), l.Room(who), "%d", who)
					excess := 0
					if bound(who) {
						excess = max(held[who]-limit(who), 0)
					}
					assert.Equal(t, excess, l.Excess(who), "%d", who)
				}
			},
		})
	})
}

// TestSoManyWantThatAllAreBound: the memory of who wants is bounded.
func TestSoManyWantThatAllAreBound(t *testing.T) {
	l := NewLending[int](10, Half, time.Now)
	l.Hold(-1, 10)
	for i := range 2 * maxWanting {
		assert.Zero(t, l.Take(i, 1))
	}
	assert.Len(t, l.wants, maxWanting)
	l.Give(-1, 10)
	assert.Equal(t, 5, l.Take(-1, 10))
}

// TestNobodyWants: a ledger that lends asks no clock then, and takes no memory.
func TestNobodyWants(t *testing.T) {
	l := NewLending[string](10, Half, nil)
	l.now = func() time.Time { panic("asked the clock") }
	l.Take("a", 1)
	assert.Zero(t, testing.AllocsPerRun(10, func() { l.Give("a", l.Take("a", 9)) }))
}
