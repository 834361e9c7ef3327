// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/peergroup"
)

// params of a group of fractions with a spread of 2 %, told every 10 s.
func params() Params {
	return Params{
		Centre: 0.9, MinGap: 0.05, Scale: 0.02, MaxBias: 0.025,
		Limits: [numSums]float64{12, 9, 15}, Elapsed: 10 * time.Second,
	}
}

// feed steps t n times with x, ten seconds apart, and returns the step at which
// the verdict changed, -1 if it did not.
func feed(t *Tracker, p *Params, x float64, from, n int) int {
	c := DefaultCUSUM()
	for i := range n {
		if t.Step(&c, p, x, int64(from+i+1)*10_000) {
			return i
		}
	}
	return -1
}

func TestTrackerEntersAndLeaves(t *testing.T) {
	p, tr := params(), Tracker{}
	require.Equal(t, -1, feed(&tr, &p, 0.9, 0, 100))
	assert.Zero(t, tr.Since(), "nothing ever spoke against it")
	assert.InDelta(t, 0.86, (&steps{p: &p, allowances: allowances{kappa: [numSums]float32{mid: 2}}}).threshold(), 1e-12)

	// z = 5 leaves 3.75 per tick in the mid sum: 3.75, 7.5, 11.25.
	require.Equal(t, 2, feed(&tr, &p, 0.8, 100, 10))
	assert.True(t, tr.Straggler())
	assert.Equal(t, int64(1000), tr.Since().Unix(), "when that sum left zero")
	assert.InDelta(t, 11.25/9, tr.Suspicion(), 0.01)
	assert.InDelta(t, 0.1, tr.Gap(), 1e-6)

	require.Equal(t, -1, feed(&tr, &p, 0.8, 103, 1000), "one verdict, however long it lasts")
	assert.InDelta(t, maxFull, tr.Suspicion(), 1e-6, "the sums are bounded")

	// The mean of two minutes is well after one of its windows, then three minutes pass.
	assert.InDelta(t, 12*math.Log(3)+18-1, feed(&tr, &p, 0.9, 1103, 100), 2)
	assert.False(t, tr.Straggler())
	assert.Zero(t, tr.Suspicion(), "nothing is left of it")
}

func TestTrackerNeedsThreeTicks(t *testing.T) {
	p, tr := params(), Tracker{}
	for i := range 100 {
		require.Equal(t, -1, feed(&tr, &p, 0.1, 50*i, 2), "two glitches are two")
		require.Equal(t, -1, feed(&tr, &p, 0.9, 50*i+2, 48))
	}
	assert.GreaterOrEqual(t, feed(&tr, &p, 0.1, 5000, 3), 1)
}

func TestTrackerWhereMoreIsWorse(t *testing.T) {
	p, tr := params(), Tracker{}
	p.High = true
	assert.Equal(t, -1, feed(&tr, &p, 0.1, 0, 100))
	tr.Reset()
	assert.Positive(t, feed(&tr, &p, 1, 0, 100))
}

// TestRelativeLosses are shares of the level: the same whatever that is.
func TestRelativeLosses(t *testing.T) {
	for _, centre := range []float64{1e-3, 1, 1e6} {
		p, tr := params(), Tracker{}
		p.Relative, p.Centre = true, centre
		require.Equal(t, -1, feed(&tr, &p, centre, 0, 100))
		assert.Equal(t, 2, feed(&tr, &p, 0.9*centre, 100, 100))
		assert.InDelta(t, 0.1, tr.Gap(), 1e-6)
	}
}

// TestASumThatAccusesNobodyYet is bounded all the same.
func TestASumThatAccusesNobodyYet(t *testing.T) {
	p := params()
	p.Scale = 0.01 // a loss of 2 % is below what the mid sum takes off
	var tr Tracker
	require.Equal(t, -1, feed(&tr, &p, 0.9, 0, 2000))
	p.Limits[low] = -15
	require.Equal(t, -1, feed(&tr, &p, 0.88, 2000, 100))
	assert.InDelta(t, maxFull*15, tr.sum[low], 1e-4)
	assert.Zero(t, tr.Suspicion())
	p.Limits[low] = 15
	assert.Zero(t, feed(&tr, &p, 0.88, 2100, 100))
}

func TestTrackerLearnsABiasOnlyWhileCalm(t *testing.T) {
	p, tr := params(), Tracker{}
	feed(&tr, &p, 0.885, 0, 2000)
	assert.InDelta(t, -0.015, tr.bias, 1e-3)
	learnt := tr.bias
	feed(&tr, &p, 0.7, 2000, 2000)
	assert.InDelta(t, learnt, tr.bias, 1e-3, "frozen while suspect")

	tr = Tracker{}
	p.Scale = 0.5 // wide enough for no suspicion at all
	feed(&tr, &p, 0.7, 0, 100)
	assert.InDelta(t, -0.025, tr.bias, 1e-6, "bounded")
	assert.InDelta(t, -0.2, tr.raw, 1e-5, "but not what is known of it")
	p.Offset = -0.1
	feed(&tr, &p, 0.7, 100, 100)
	assert.InDelta(t, -0.125, tr.bias, 1e-6, "from where the middle is")
}

// TestANodeSlowFromItsStart is seen when its mean can be trusted: the bias hides it
// from the sums when healthy nodes differ as much.
func TestANodeSlowFromItsStart(t *testing.T) {
	p, tr := params(), Tracker{}
	p.Scale = 0.2
	assert.InDelta(t, 180, feed(&tr, &p, 0.8, 0, 1000), 1)
	assert.Zero(t, tr.Since())
	tr = Tracker{}
	p.MaxBias = 0.2
	assert.Equal(t, -1, feed(&tr, &p, 0.8, 0, 1000))
}

// TestRestKeepsTheBias: a node that was silent has to be accused anew.
func TestRestKeepsTheBias(t *testing.T) {
	p, tr := params(), Tracker{}
	require.Equal(t, -1, feed(&tr, &p, 0.885, 0, 2000))
	learnt := tr.bias
	require.Equal(t, 2, feed(&tr, &p, 0.7, 2000, 100))
	assert.True(t, tr.Rest())
	assert.InDelta(t, learnt, tr.bias, 1e-3)
	assert.Zero(t, tr.Suspicion())
	assert.False(t, tr.Rest())
}

func TestTrackerIsBounded(t *testing.T) {
	c := DefaultCUSUM()
	odd := []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, 0, math.SmallestNonzeroFloat64}
	number := rapid.OneOf(rapid.SampledFrom(odd), rapid.Float64Range(0, 2))
	rapid.Check(t, func(t *rapid.T) {
		var tr Tracker
		for i := range rapid.IntRange(1, 60).Draw(t, "ticks") {
			p := Params{
				Centre: number.Draw(t, "centre"), Relative: rapid.Bool().Draw(t, "relative"), High: rapid.Bool().Draw(t, "high"),
				MinGap: number.Draw(t, "gap"), Scale: number.Draw(t, "scale"), Burst: rapid.Bool().Draw(t, "burst"),
				Wander: number.Draw(t, "wander"), Step: number.Draw(t, "step"), Offset: number.Draw(t, "offset"), MaxBias: number.Draw(t, "bias"),
				Limits:  [numSums]float64{number.Draw(t, "loud"), number.Draw(t, "mid"), -number.Draw(t, "low")},
				Elapsed: time.Duration(rapid.IntRange(-1, 1e9).Draw(t, "elapsed")) * time.Microsecond,
			}
			x, before := number.Draw(t, "x"), tr
			tr.Step(&c, &p, x, int64(i))
			assert.Equal(t, p.Check() == nil, p.Valid(), "%+v", p)
			if x-x != 0 || !p.Valid() {
				require.Equal(t, before, tr)
				continue
			}
			for j := range numSums {
				require.True(t, tr.sum[j] >= 0 && float64(tr.sum[j]) <= maxFull*math.Abs(p.Limits[j])*(1+1e-6), "sum %v of %+v", tr.sum, p)
			}
			require.True(t, tr.Suspicion() >= 0 && tr.Suspicion() <= maxFull*(1+1e-6))
			require.LessOrEqual(t, math.Abs(float64(tr.bias)-p.Offset), p.MaxBias*(1+1e-6)+math.Abs(p.Offset)*1e-6)
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
		g := groupOf(t, p.last, "c", peergroup.Default)
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

// TestThreshold: on one side of it the sum for the smallest loss worth an alert grows,
// on the other not.
func TestThreshold(t *testing.T) {
	c := DefaultCUSUM()
	for _, high := range []bool{false, true} {
		for _, relative := range []bool{false, true} {
			p := params()
			p.High, p.Relative, p.Centre = high, relative, 60
			s := p.steps(&c, 0)
			for _, off := range []float64{0.001, -0.001} {
				var tr Tracker
				x := s.threshold() - off
				if high {
					x = s.threshold() + off
				}
				tr.Step(&c, &p, x, 1)
				assert.Equal(t, off > 0, tr.sum[mid] > 0)
			}
		}
	}
}
