// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// TestALargePartThatFellIsFound, and only that, though the median is among it or
// between the sides.
func TestALargePartThatFellIsFound(t *testing.T) {
	for _, tc := range []struct{ nodes, slow int }{{3, 1}, {4, 2}, {5, 3}, {8, 4}, {16, 5}, {20, 10}, {20, 11}, {20, 15}, {64, 40}} {
		for _, loss := range []float64{0.1, 0.3} {
			p := newPlay(t, []string{"j"}, tc.nodes, nil)
			require.Empty(t, p.ticks(200))
			p.slow(loss, list(tc.slow)...)
			p.ticks(15)
			for i := range tc.nodes {
				assert.Equal(t, i < tc.slow, p.node(nodeName("j", i)).Straggler, "%d of %d lose %v: %d", tc.slow, tc.nodes, loss, i)
			}
			p.slow(0)
			p.ticks(60)
			for i := range tc.nodes {
				assert.False(t, p.node(nodeName("j", i)).Straggler, "%d of %d are well again: %d", tc.slow, tc.nodes, i)
			}
		}
	}
}

// TestAPartThatBecomesFasterIsNoFault of the others.
func TestAPartThatBecomesFasterIsNoFault(t *testing.T) {
	for _, faster := range []int{6, 10, 12, 14} {
		for _, by := range []float64{0.08, 0.2, 0.5} {
			p := newPlay(t, []string{"j"}, 20, nil)
			require.Empty(t, p.ticks(200))
			p.slow(-by, list(faster)...)
			require.Empty(t, p.ticks(300), "%d faster by %v", faster, by)
			// A fault beside it is found.
			was := p.loss
			p.loss = func(g string, i int) float64 {
				if i == 19 {
					return 0.2
				}
				return was(g, i)
			}
			assert.Equal(t, []string{"node onset j-19"}, brief(p.ticks(20)), "%d faster by %v", faster, by)
		}
	}
}

func list(n int) (of []int) {
	for i := range n {
		of = append(of, i)
	}
	return of
}

// TestAllTogetherAreNoPart: a phase of all, whatever the spread of the nodes.
func TestAllTogetherAreNoPart(t *testing.T) {
	for _, n := range []int{3, 4, 5, 8, 20} {
		p := newPlay(t, []string{"j"}, n, nil)
		p.loss = func(_ string, i int) float64 {
			if p.k%100 >= 60 {
				return 0.3
			}
			return 0.002 * float64(i)
		}
		assert.Empty(t, p.ticks(600), "%d", n)
	}
}

// TestSidesAreNoTail: two sides are told from an even spread and from a normal one, and
// from the tail of either.
func TestSidesAreNoTail(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	var b scratch
	sides := func(n int, value func(i int) float64) bool {
		x := make([]float64, n)
		for i := range x {
			x[i] = value(i)
		}
		slices.Sort(x)
		_, _, ok := b.apart(x, inTwo(x), 0.05, 0.01, 1)
		return ok
	}
	normal, even, two := 0, 0, 0
	for range 1000 {
		n := 20 + draw.IntN(50)
		count := func(to *int, value func(i int) float64) {
			if sides(n, value) {
				*to++
			}
		}
		count(&normal, func(int) float64 { return 0.05 * draw.NormFloat64() })
		count(&even, func(int) float64 { return 0.3 * draw.Float64() })
		count(&two, func(i int) float64 { return 0.02*draw.NormFloat64() - 0.15*float64(i%2) })
	}
	assert.Less(t, normal, 20)
	assert.Less(t, even, 20)
	assert.Greater(t, two, 950)
}

// TestPartsTakeTheirTimeInSeconds, whatever the interval.
func TestPartsTakeTheirTimeInSeconds(t *testing.T) {
	for _, interval := range []time.Duration{time.Second, 5 * time.Second, 15 * time.Second} {
		var b scratch
		p := parting{}
		took := time.Duration(0)
		for ; !p.on; took += interval {
			p.look(&b, []float64{0.8, 0.8, 0.8, 1, 1, 1}, 1, 0.05, 0.01, 45*time.Second, interval, 1)
			require.LessOrEqual(t, took, time.Minute)
		}
		assert.Equal(t, 45*time.Second, took)
		assert.False(t, p.lower)
		for took = 0; p.on; took += interval {
			p.look(&b, []float64{1, 1, 1, 1, 1, 1}, 1, 0.05, 0.01, 45*time.Second, interval, 1)
			require.LessOrEqual(t, took, time.Minute)
		}
		assert.Equal(t, 45*time.Second, took)
	}
}

// TestTheYardstickIsThePartThatStayed: its centre is what all are compared with.
func TestTheYardstickIsThePartThatStayed(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(100)
	p.slow(0.2, 0, 1, 2, 3)
	p.ticks(20)
	s := groupOf(t, p.last, "c", "j").Signals[nodesignal.Throughput]
	assert.InDelta(t, 10.05, s.Params.Centre, 0.1)
}
