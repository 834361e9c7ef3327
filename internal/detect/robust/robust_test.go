// SPDX-License-Identifier: Apache-2.0

package robust

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// TestMiddle: median, level and MAD are those of the sorted values.
func TestMiddle(t *testing.T) {
	middle := func(x []float64) float64 {
		x = slices.Sorted(slices.Values(x))
		return (x[len(x)/2] + x[(len(x)-1)/2]) / 2
	}
	var b Sample
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(rapid.Float64Range(0, 1), rapid.SampledFrom([]float64{0, 0.5, 1}))
		x := rapid.SliceOfN(number, 1, 60).Draw(t, "x")
		before, want := slices.Clone(x), middle(x)
		assert.InDelta(t, want, b.Median(x), 1e-15)
		shift := rapid.Float64Range(-30, 30).Draw(t, "shift")
		level, away := make([]float64, len(x)), make([]float64, len(x))
		for i, v := range x {
			level[i], away[i] = v+shift, math.Abs(v-want)
		}
		assert.InDelta(t, want+shift, b.Level(level), 1e-12)
		assert.InDelta(t, middle(away), b.MAD(x, want), 1e-15)
		assert.Equal(t, before, x, "they stay in their order")
	})
}

// TestSmallSample: with its factor the MAD of a few normal values is their deviation.
func TestSmallSample(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	var b Sample
	for _, n := range []int{3, 4, 5, 9, 10, 40} {
		sum := 0.0
		const rounds = 20_000
		x := make([]float64, n)
		for range rounds {
			for i := range x {
				x[i] = 100 + draw.NormFloat64()
			}
			sum += MADToSigma * SmallSample(n) * b.MAD(x, b.Median(x))
		}
		assert.InDelta(t, 1, sum/rounds, 0.03, "%d", n)
	}
}

// TestGaps: a value alone between two kinds belongs to the nearer.
func TestGaps(t *testing.T) {
	for _, tt := range []struct {
		alone float64
		want  []int
	}{{0.66, []int{6}}, {0.3, []int{7}}} {
		sorted := []float64{0, 0, 0, 0, 0, 0, tt.alone, 0.95, 0.951, 0.952, 0.953, 0.954, 0.955}
		assert.Equal(t, tt.want, new(Sample).Gaps(sorted, 0.08, 4, 3), "%v", tt.alone)
	}
}
