// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/detect/robust"
)

var defaults = Config{K: 2, MinGap: 0.05, Alpha: 0.2, Quorum: 5, PanicFraction: 0.4, PanicExitTicks: 3}

// threshold is one that takes scores.
type threshold struct {
	Threshold
	cfg Config
	b   robust.Sample
}

func (t *threshold) take(scores ...float64) { t.Update(&t.cfg, &t.b, scores, nil) }

func TestThresholdFollowsTheFormula(t *testing.T) {
	th := threshold{cfg: defaults}
	th.take(1, 1, 1, 1)
	assert.False(t, th.Valid, "four of five are too few")

	th.take(0.90, 0.94, 0.80, 1.00, 0.92)
	// median 0.92, deviations 0.02 0.02 0.12 0.08 0 -> MAD 0.02
	assert.True(t, th.Valid && th.Quorum)
	assert.InDelta(t, 0.92, th.Median, 1e-12)
	assert.InDelta(t, 0.02, th.MAD, 1e-12)
	first := 0.92 - 2*1.4826*0.02
	assert.InDelta(t, first, th.Value, 1e-12)

	th.take(1, 1, 1, 1, 1)
	next := 0.2*0.95 + 0.8*first
	assert.InDelta(t, next, th.Value, 1e-12, "MAD 0 leaves min_gap, smoothed")
	th.take(1, 1)
	assert.True(t, th.Valid && !th.Quorum)
	assert.InDelta(t, next, th.Value, 1e-12, "without a quorum it is held")
	th.Update(&th.cfg, &th.b, nil, []float64{5, 1, 2, 4, 3})
	assert.InDelta(t, 3, th.Ref, 0)
	th.Update(&th.cfg, &th.b, nil, []float64{1, 2, 3, 4})
	assert.Zero(t, th.Ref)
}

// TestADipOfAllAccusesNobody, nor is it a panic.
func TestADipOfAllAccusesNobody(t *testing.T) {
	th := threshold{cfg: defaults}
	rng := rand.New(rand.NewPCG(1, 2))
	scores := make([]float64, 64)
	for i := range 400 {
		for j := range scores {
			scores[j] = 0.95 + 0.005*(rng.Float64()-0.5)
			if i%40 < 6 {
				scores[j] -= 0.4
			}
		}
		th.take(scores...)
		require.Less(t, th.Value, slices.Min(scores), "tick %d", i)
		require.False(t, th.Panic, "tick %d", i)
	}
}

func TestPanicHoldsTheThresholdAndEnds(t *testing.T) {
	th := threshold{cfg: defaults}
	well := slices.Repeat([]float64{1}, 20)
	sick := slices.Concat(slices.Repeat([]float64{0.3}, 9), well[:11])
	th.take(well...)
	th.take(slices.Concat(slices.Repeat([]float64{0.3}, 8), well[:12])...)
	assert.False(t, th.Panic, "8 of 20 are 0.4, and no more")
	before := th.Value
	for range 6 {
		th.take(sick...)
		assert.True(t, th.Panic, "9 of 20 are more than 0.4")
		assert.InDelta(t, before, th.Value, 0)
	}
	th.take(well...)
	th.take(well...)
	th.take(sick...) // and anew
	for range 2 {
		th.take(well...)
		assert.True(t, th.Panic)
	}
	th.take(well...)
	assert.False(t, th.Panic)
}

// TestThresholdKeepsItsDistance is the guarantee of the published threshold: in [0,1],
// and never closer to the median than min_gap unless the median is.
func TestThresholdKeepsItsDistance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		th := threshold{cfg: defaults}
		th.cfg.K = rapid.Float64Range(0.1, 4).Draw(t, "k")
		th.cfg.Alpha = rapid.Float64Range(0.01, 1).Draw(t, "alpha")
		th.cfg.MinGap = rapid.Float64Range(0, 0.3).Draw(t, "min_gap")
		for range 6 {
			th.take(rapid.SliceOfN(rapid.Float64Range(0, 1), 5, 12).Draw(t, "scores")...)
			if th.Panic {
				continue
			}
			require.GreaterOrEqual(t, th.Value, 0.0)
			require.LessOrEqual(t, th.Value, max(th.Median-th.cfg.MinGap, 0))
		}
	})
}

// TestVerdict: so many scores in a row below the threshold begin it, as of the first, so
// many above end it.
func TestVerdict(t *testing.T) {
	at := time.Unix(1_000_000, 0)
	var v Verdict
	for i, step := range []struct {
		score         float64
		changed, slow bool
	}{
		{0.4, false, false},
		{0.4, false, false},
		{0.6, false, false}, // a dip is none
		{0.4, false, false},
		{0.4, false, false},
		{0.4, true, true},
		{0.4, false, true},
		{0.5, false, true}, // at the threshold
		{0.4, false, true},
		{0.5, false, true},
		{0.5, true, false},
	} {
		changed := v.Step(step.score, 0.5, at.Add(time.Duration(i)*time.Second), 3, 2)
		require.Equal(t, step.changed, changed, "%d", i)
		require.Equal(t, step.slow, v.Straggler, "%d", i)
	}
	assert.Equal(t, at.Add(3*time.Second), v.Since)
}
