// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// params of a group of fractions with a spread of 2 %.
func params() Params {
	return Params{Centre: 0.9, Level: 1, Scale: 0.02, Kappa: 1.5, Limit: 8, MaxBias: 0.02, Phi: 0.8}
}

// feed steps t n times with x, one second apart, and returns the step at which
// the verdict changed, -1 if it did not.
func feed(t *Tracker, p *Params, x float64, from, n int) int {
	c := DefaultCUSUM()
	for i := range n {
		if t.Step(&c, p, x, int64(from+i+1)*1000) {
			return i
		}
	}
	return -1
}

func TestTrackerEntersAndLeaves(t *testing.T) {
	p, tr := params(), Tracker{}
	require.Equal(t, -1, feed(&tr, &p, 0.9, 0, 10))
	assert.Equal(t, int64(10), tr.Since().Unix(), "the newest tick without suspicion")

	// z = 5 leaves 3.5 per tick: 3.5, 7, 10.5.
	require.Equal(t, 2, feed(&tr, &p, 0.8, 10, 10))
	assert.True(t, tr.Straggler())
	assert.Equal(t, int64(10), tr.Since().Unix())
	assert.InDelta(t, 10.5/8, tr.Suspicion(), 0.15)
	assert.InDelta(t, 0.1, tr.Gap(), 1e-6)

	require.Equal(t, -1, feed(&tr, &p, 0.8, 13, 1000), "one verdict, however long it lasts")
	assert.InDelta(t, 2, tr.Suspicion(), 1e-9, "the sum is bounded")

	// 16/1.5 ticks or less empty the sum, 18 show that it stays so.
	assert.InDelta(t, 9+18-1, feed(&tr, &p, 0.9, 1013, 100), 2)
	assert.False(t, tr.Straggler())
}

func TestTrackerNeedsThreeTicks(t *testing.T) {
	p, tr := params(), Tracker{}
	for i := range 100 {
		require.Equal(t, -1, feed(&tr, &p, 0.1, 7*i, 2), "two glitches fill the sum, but are two")
		require.Equal(t, -1, feed(&tr, &p, 0.9, 7*i+2, 5))
	}
	assert.Greater(t, tr.Suspicion(), 0.5)
	assert.GreaterOrEqual(t, feed(&tr, &p, 0.1, 1000, 3), 1)
}

func TestTrackerWhereMoreIsWorse(t *testing.T) {
	p, tr := params(), Tracker{}
	p.Level = -1
	assert.Equal(t, -1, feed(&tr, &p, 0.1, 0, 100))
	tr.Reset()
	assert.Equal(t, 2, feed(&tr, &p, 1, 0, 100))
}

func TestTrackerLearnsABiasOnlyWhileCalm(t *testing.T) {
	p, tr := params(), Tracker{}
	feed(&tr, &p, 0.885, 0, 2000)
	assert.InDelta(t, 0.015, tr.bias, 1e-4)
	learnt := tr.bias
	feed(&tr, &p, 0.7, 2000, 2000)
	assert.InDelta(t, learnt, tr.bias, 1e-3, "frozen while suspect")

	tr = Tracker{}
	p.Scale = 0.2 // wide enough for no suspicion at all
	feed(&tr, &p, 0.7, 0, 5000)
	assert.InDelta(t, 0.02, tr.bias, 0, "bounded")
}

func TestTrackerIsBounded(t *testing.T) {
	c := DefaultCUSUM()
	odd := []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, 0, math.SmallestNonzeroFloat64}
	number := rapid.OneOf(rapid.SampledFrom(odd), rapid.Float64Range(0, 2))
	rapid.Check(t, func(t *rapid.T) {
		var tr Tracker
		for i := range rapid.IntRange(1, 60).Draw(t, "ticks") {
			p := Params{
				Centre: number.Draw(t, "centre"), Level: rapid.SampledFrom([]float64{1, -1, 0, 250, math.NaN(), 1e-300}).Draw(t, "level"),
				Scale: number.Draw(t, "scale"), Kappa: number.Draw(t, "kappa"), Limit: number.Draw(t, "limit"), MaxBias: number.Draw(t, "bias"), Phi: number.Draw(t, "phi"),
			}
			x, before := number.Draw(t, "x"), tr
			tr.Step(&c, &p, x, int64(i))
			if x-x != 0 || !p.Valid() {
				require.Equal(t, before, tr)
				continue
			}
			require.True(t, tr.sum >= 0 && tr.sum <= 2*float64(tr.limit) && tr.Suspicion() <= 2, "sum %v of %+v", tr.sum, p)
			require.LessOrEqual(t, math.Abs(tr.bias), p.MaxBias)
			require.LessOrEqual(t, math.Abs(tr.Gap()), float64(maxGap))
		}
	})
}

// TestWhatIsPublishedIsWhatIsSteppedBy: nothing of it gets lost on the way.
func TestWhatIsPublishedIsWhatIsSteppedBy(t *testing.T) {
	p := twoJobs(t, 0.1)
	check := func(s *[nodesignal.Count]SignalReport) (known int) {
		for i := range s {
			if s[i].Known {
				rounded := s[i].Params
				rounded.Round()
				assert.Equal(t, rounded, s[i].Params)
				known++
			}
		}
		return known
	}
	known := 0
	for range 200 {
		p.ticks(1)
		g := groupOf(t, p.last, "c", DefaultGroup)
		known += check(&g.Signals)
		for i := range g.Cohorts {
			known += check(&g.Cohorts[i].Signals)
			from := g.Cohorts[i].From
			assert.InDelta(t, float64(float32(from)), from, 0)
		}
	}
	assert.Equal(t, 2, p.cohorts())
	assert.Greater(t, known, 200)
}

// TestThreshold: on one side of it the sum of a node grows, on the other not.
func TestThreshold(t *testing.T) {
	c := DefaultCUSUM()
	for _, level := range []float64{50, -50} {
		p := Params{Centre: 60, Level: level, Scale: 0.02, Kappa: 1.5, Limit: 8, Phi: 0.5}
		for _, tt := range []struct {
			off  float64
			want bool
		}{{0.001, true}, {-0.001, false}} {
			var tr Tracker
			tr.Step(&c, &p, p.Threshold()-tt.off*level, 1)
			assert.Equal(t, tt.want, tr.Suspicion() > 0)
		}
	}
}
