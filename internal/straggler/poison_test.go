// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestPoisonedScoresMoveTheThresholdWithinABound: up to 30 % of the nodes of a
// group say whatever they like, together and anew with each tick.
//
// Median and MAD break down at half of the values (Rousseeuw and Croux, 1993,
// section 1), below which order statistics bound both. When b of n nodes lie, the
// median is between the honest values of rank ⌈n/2⌉-b and ⌊n/2⌋+1. More than half
// are honest, so the MAD is at most the greatest distance of an honest value from
// that median. That distance is at most the range R of the honest values. So for
// the threshold T = median - max(k·1.4826·MAD, min_gap), however it is smoothed,
//
//	h(⌈n/2⌉-b) - max(k·1.4826·R, min_gap) ≤ T ≤ h(⌊n/2⌋+1) - min_gap
//
// The truth of the same fleet without liars is in there too. Where the honest
// values differ by less than min_gap, none of them is below T. A node below the
// lower end is found.
func TestPoisonedScoresMoveTheThresholdWithinABound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(10, 60).Draw(t, "nodes")
		bad := rapid.IntRange(0, n*3/10).Draw(t, "bad")
		level := rapid.Float64Range(0.5, 0.95).Draw(t, "level")
		spread := rapid.Float64Range(0, 0.049).Draw(t, "range")
		cfg := DefaultConfig()
		cfg.Decision = DecisionThreshold
		cfg.K = rapid.Float64Range(0.5, 3).Draw(t, "k")

		honest := make([]float64, n-bad)
		for i := range honest {
			honest[i] = level + spread*rapid.Float64Range(0, 1).Draw(t, "honest")
		}
		sorted := slices.Sorted(slices.Values(honest))
		width := sorted[len(sorted)-1] - sorted[0]
		low := sorted[(n+1)/2-bad-1] - max(cfg.K*MADToSigma*width, cfg.MinGap)
		high := sorted[min(n/2, len(sorted)-1)] - cfg.MinGap
		strategy := rapid.SampledFrom([]string{"zero", "one", "below", "nan", "turns", "together", "any"}).Draw(t, "strategy")

		e, now := New(cfg), time.Unix(1_000_000, 0)
		threshold := math.NaN()
		for tick := range 40 {
			for i, x := range honest {
				if err := e.Observe(&Observation{Cluster: "c", Node: fmt.Sprint("honest", i), Score: x, HasScore: true}, now); err != nil {
					t.Fatal(err)
				}
			}
			for i := range bad {
				x := rapid.Float64Range(0, 1).Draw(t, "bad")
				switch strategy {
				case "zero":
					x = 0
				case "one":
					x = 1
				case "below":
					x = max(threshold-1e-9, 0)
				case "nan":
					x = math.NaN()
				case "turns":
					x = float64((tick + i) % 2)
				case "together":
					x = level - spread
				}
				_ = e.Observe(&Observation{Cluster: "c", Node: fmt.Sprint("bad", i), Score: x, HasScore: true}, now) // NaN is refused
			}
			r := e.Tick(now)
			now = now.Add(10 * time.Second)
			for _, g := range r.Groups {
				if !g.Valid {
					continue
				}
				threshold = g.Threshold
				if strategy != "nan" && (threshold < low-1e-9 || threshold > high+1e-9) {
					t.Fatalf("tick %d: the threshold is %v, outside of [%v,%v]", tick, threshold, low, high)
				}
			}
			for _, node := range r.Nodes {
				if node.Straggler && node.Node[0] == 'h' {
					t.Fatalf("%s is called a straggler", node.Node)
				}
			}
		}
		if math.IsNaN(threshold) {
			t.Fatal("no threshold")
		}
		// One of the honest becomes slow: with it, one more than bad is not where the
		// honest are.
		if bad+1 > n*3/10 || low-0.02 < 0 {
			return
		}
		rest := slices.Sorted(slices.Values(honest[1:]))
		slow := rest[(n+1)/2-bad-2] - max(cfg.K*MADToSigma*(rest[len(rest)-1]-rest[0]), cfg.MinGap) - 0.01
		if slow < 0 {
			return
		}
		found := false
		for range 40 {
			honest[0] = slow
			for i, x := range honest {
				if err := e.Observe(&Observation{Cluster: "c", Node: fmt.Sprint("honest", i), Score: x, HasScore: true}, now); err != nil {
					t.Fatal(err)
				}
			}
			for i := range bad {
				x := 0.0
				if strategy == "one" || strategy == "together" {
					x = 1
				}
				_ = e.Observe(&Observation{Cluster: "c", Node: fmt.Sprint("bad", i), Score: x, HasScore: true}, now)
			}
			for _, node := range e.Tick(now).Nodes {
				found = found || node.Straggler && node.Node == "honest0"
			}
			now = now.Add(10 * time.Second)
		}
		if !found {
			t.Fatalf("honest0 at %v is not found below the threshold", slow)
		}
	})
}
