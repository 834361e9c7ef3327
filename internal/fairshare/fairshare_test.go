// SPDX-License-Identifier: Apache-2.0

package fairshare

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestLimit(t *testing.T) {
	for _, tt := range []struct {
		share          float64
		places, others int
		want           int
	}{
		{Half, 10, 0, 5},
		{Half, 10, 5, 3},
		{Half, 10, 9, 1},
		{Half, 10, 10, 0},
		{Half, 1, 0, 1},
		{1, 10, 4, 6},
		{0.25, 100, 20, 20},
	} {
		assert.Equal(t, tt.want, Limit(tt.share, tt.places, tt.others), "%+v", tt)
	}
}

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
