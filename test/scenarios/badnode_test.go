// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// badly plays the family base with one bad node for two hours.
func badly(t *testing.T, does []behaviour) []BadResult {
	t.Helper()
	f := family(t, "base", 1).Short(badNodes, 2*time.Hour)
	results, err := playBadNodes(f.Play(5, 0, false), does, rand.New(rand.NewPCG(5, 5)))
	require.NoError(t, err)
	require.Len(t, results, len(does))
	return results
}

// redrawn is no misbehaviour: a node's noise is another one.
var redrawn = behaviour{name: "redrawn", value: func(b *badNode, _ int, v float64) float64 {
	return v * math.Exp(0.01*b.rng.NormFloat64())
}}

// TestBadNode: one node among 64 that pushes what it should not, or under names that are
// not its own, changes no verdict on a healthy node, no recall and no delay. It moves no
// limit by more than a tenth. Nodes that are out to do so, and all the other families,
// are for `make eval`.
func TestBadNode(t *testing.T) {
	honest := map[string]bool{"redrawn": true, "late": true, "flapping": true, "no_numbers": true, "other_name": true, "other_groups": true}
	for _, r := range badly(t, append([]behaviour{redrawn}, behaviours...)) {
		assert.Zero(t, r.Changed, r.Behaviour)
		assert.GreaterOrEqual(t, r.Recall(), 1-badShare, r.Behaviour)
		if honest[r.Behaviour] {
			assert.LessOrEqual(t, r.Delay(), 1+badShare, r.Behaviour)
			assert.LessOrEqual(t, r.Limit, 1+badShare, r.Behaviour)
			assert.LessOrEqual(t, r.Loss, 1+badShare, r.Behaviour)
		}
		if r.Behaviour == redrawn.name {
			// No figure is the accident of one node's noise.
			assert.InDelta(t, 1, r.Limit, badShare/2)
			assert.LessOrEqual(t, r.MaxLimit, 1+badShare)
		}
		assert.False(t, math.IsNaN(r.Limit) || r.MaxLimit < r.Limit-1e-9, r.Behaviour)
	}
}

// TestBadNodeIsSeen: a node that could speak for all others would be.
func TestBadNodeIsSeen(t *testing.T) {
	for _, r := range badly(t, []behaviour{
		{name: "for all", value: own, push: func(b *badNode, tick int, _ float64) error {
			for i := range b.obs {
				o := b.obs[i]
				o.Values.Set(nodesignal.Throughput, 0.1)
				if err := b.engine.Observe(&o, b.at(tick)); err != nil {
					return err
				}
			}
			return nil
		}},
		{name: "slows another", value: func(b *badNode, tick int, v float64) float64 {
			if tick > 400 {
				b.values[b.victim] /= 2
			}
			return v
		}},
	}) {
		if r.Behaviour == "for all" {
			assert.Zero(t, r.Recall())
		} else {
			assert.Equal(t, 1, r.Changed)
		}
	}
}

// TestBadFactors: a family's figure is that of its worst behaviour.
func TestBadFactors(t *testing.T) {
	assert.InDelta(t, 1, factor(0, 0), 0)
	assert.True(t, math.IsInf(factor(1, 0), 1))
	assert.InDelta(t, 0.5, factor(2, 4), 0)
	var figures strings.Builder
	results := []BadResult{
		{Family: "a", Behaviour: "x", Found: 2, HonestFound: 2, Took: 40, HonestTook: 40, Limit: 0.8, Loss: 1, MaxLimit: 1},
		{Family: "a", Behaviour: "y", Found: 1, HonestFound: 2, Took: 20, HonestTook: 20, Limit: 1.3, Loss: 1.1, MaxLimit: 2},
		{Family: "b", Behaviour: "x", Limit: 1, Loss: 1, MaxLimit: 1},
	}
	results[0].add(&BadResult{Changed: 1, Found: 2, HonestFound: 2, Took: 44, HonestTook: 40, Limit: 0.9, Loss: 1, MaxLimit: 1})
	BadFigures(&figures, results)
	for _, line := range []string{
		"eval_a_bad_verdicts 1 nodes limit 0 short", "eval_a_bad_recall 0.5 x limit 0.9 short", "eval_a_bad_delay 1.05 x limit 1.1 pass",
		"eval_a_bad_limit 1.3 x limit 1.1 short", "eval_a_bad_detectable 1.1 x limit 1.1 pass", "eval_b_bad_limit_most 1 x limit 1.1 pass",
	} {
		assert.Contains(t, figures.String(), "figure "+line+"\n")
	}
	assert.Regexp(t, `(?m)^a +1 +x +0.50 +y +1.05 +x +1.30 +y `, BadText(results))
}

// TestLimitsOf: means over the nodes of groups and of their cohorts, without the whole
// cluster's.
func TestLimitsOf(t *testing.T) {
	signals := func(n int, limit float64) (s [nodesignal.Count]straggler.SignalReport) {
		s[nodesignal.Throughput] = straggler.SignalReport{Known: true, N: n, Params: straggler.Params{MinGap: 0.05, Scale: 0.01, Limits: [...]float64{1e6, limit, 1e6}}}
		return s
	}
	r := &straggler.Report{Groups: []straggler.GroupReport{
		{Signals: signals(100, 1000)},
		{Group: "a", Signals: signals(1, 10)},
		{Group: "b", Cohorts: []straggler.CohortReport{{Signals: signals(2, 20)}, {}}},
	}}
	got := limitsOf(r, 10)
	assert.InDelta(t, 50.0/3, got.sums[1], 1e-12)
	assert.InDelta(t, 0.025+(0.01+2*0.02)/3, got.loss, 1e-6, "half of the least gap is taken off")
	assert.Nil(t, limitsOf(&straggler.Report{}, 1).sums)
}
