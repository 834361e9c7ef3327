// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// rank is a subject of a job of one process per GPU.
func rank(n int) nodesignal.Subject {
	return nodesignal.Subject{GPU: fmt.Sprintf("GPU-%d", n), Rank: nodesignal.OrdinalOf(int64(n)), LocalRank: nodesignal.OrdinalOf(int64(n))}
}

// steps are the step times of a node's ranks, in seconds.
func steps(seconds ...float64) (all []input) {
	for i, s := range seconds {
		all = append(all, input{StepDuration, s, rank(i)})
	}
	return all
}

// slow are n ranks with steps of a second, but one.
func slow(n, which int, by float64) []input {
	all := make([]float64, n)
	for i := range all {
		all[i] = 1
	}
	all[which] += by
	return steps(all...)
}

// Ranks without a name differ by the instances that push, and in one push of
// an instance the worst counts. Without an instance pushes between two evaluations average.
func TestTheWorstOfRanksWithoutAName(t *testing.T) {
	cfg := DefaultConfig()
	plan := NewPlan(&cfg.Measures)
	type push map[string][]float64 // by instance
	for name, tt := range map[string]struct {
		in              kind
		pushes          []push
		want            float64
		hasUnnamedRanks bool
	}{
		"one":                    {StepDuration, []push{{"": {2}}}, 1. / 2, false},
		"several times":          {StepDuration, []push{{"": {1, 4, 2}}}, 1. / 4, true},
		"several rates":          {StepRate, []push{{"": {1, 0.25, 0.5}}}, 0.25, true},
		"several pushes":         {StepDuration, []push{{"": {1, 4, 2}}, {"": {2, 1}}}, 1. / 3, true},
		"one rank, three pushes": {StepDuration, []push{{"": {1}}, {"": {2}}, {"": {6}}}, 1. / 3, false},
		"one instance, three":    {StepDuration, []push{{"a": {1}}, {"a": {2}}, {"a": {6}}}, 1. / 3, false},
		"three instances":        {StepDuration, []push{{"a": {1}}, {"b": {2}}, {"c": {6}}}, 1. / 6, true},
		"in one push":            {StepDuration, []push{{"a": {1}, "b": {2}, "c": {6}}}, 1. / 6, true},
		"several times each":     {StepDuration, []push{{"a": {1, 2, 3}, "b": {5, 3, 1}}, {"a": {1}, "b": {3, 1}}}, 1. / 4, true},
		"rates of instances":     {StepRate, []push{{"a": {1}}, {"b": {0.5}}}, 0.5, true},
	} {
		t.Run(name, func(t *testing.T) {
			node, now := NewNode(&cfg, plan), time.Unix(1_700_000_000, 0)
			for _, push := range tt.pushes {
				now = now.Add(time.Second)
				for i := range 3 { // their resources may come in any order
					for instance, values := range push {
						if i >= len(values) {
							continue
						}
						var of nodesignal.Subject
						if instance != "" {
							of.Rank = nodesignal.Unnamed(instance)
						}
						var r Reading
						add(plan, &r, input{tt.in, values[i], of})
						node.Observe(&r, now)
					}
				}
			}
			got := node.Evaluate(now, me, threshold.Received{}, false)
			assert.InDelta(t, tt.want, got.Signals.V[nodesignal.Throughput], 1e-12)
			assert.Equal(t, tt.hasUnnamedRanks, node.HasUnnamedRanks())
		})
	}
}

// TestFoldingIsTheCatalogues: how the parts of a node become one is defined once,
// with its reason.
func TestFoldingIsTheCatalogues(t *testing.T) {
	for _, tt := range []struct {
		ratio Ratio
		want  string
	}{
		{Ratio{Metric: gpusemconv.MetricAppStepDuration, Use: UseInverse}, AcrossMin},
		{Ratio{Metric: gpusemconv.MetricAppStepRate}, AcrossMin},
		{Ratio{Metric: gpusemconv.MetricAppStepDuration}, AcrossMean}, // the longest is the worst, which min is not
		{Ratio{Metric: gpusemconv.MetricGPUClock, Limit: gpusemconv.MetricGPUClockLimit}, AcrossMin},
		{Ratio{Metric: gpusemconv.MetricGPUPCIeReplays, Use: UseRate}, AcrossMin},
		{Ratio{Metric: gpusemconv.MetricPower}, AcrossSum},
		{Ratio{Metric: gpusemconv.MetricGPUMemoryUsage, Limit: gpusemconv.MetricGPUMemoryLimit, Use: UseOneMinus}, AcrossMean},
		{Ratio{Metric: gpusemconv.MetricGPUUtilization}, AcrossMean},
		{Ratio{Metric: "trainer.tokens_per_second"}, AcrossMean},
	} {
		assert.Equal(t, tt.want, folding(&tt.ratio), "%+v", tt.ratio)
	}
}

// TestValuesOfATimeFoldAsTheCatalogueSays: of a temperature the last counts, of others the mean.
func TestValuesOfATimeFoldAsTheCatalogueSays(t *testing.T) {
	for metric, want := range map[string]float64{gpusemconv.MetricTemperature: 30, gpusemconv.MetricPower: 20, "trainer.tokens": 20} {
		cfg := DefaultConfig()
		cfg.Measures[nodesignal.Throughput] = Measure{CombineFirst, []Source{{Ratio: Ratio{Metric: metric}, Across: AcrossMean}}}
		r := rigOf(t, &cfg)
		r.observe(input{kind{metric: metric}, 10, nodesignal.Subject{GPU: "g"}})
		got := r.step(nil, input{kind{metric: metric}, 30, nodesignal.Subject{GPU: "g"}})
		assert.InDelta(t, want, got.Signals.V[nodesignal.Throughput], 1e-9, metric)
	}
}

func TestRanksAreBoundedAndForgotten(t *testing.T) {
	r := newRig(t)
	var reading Reading
	for i := range MaxRanks + 10 {
		add(r.plan, &reading, input{StepDuration, 1, nodesignal.Subject{Rank: nodesignal.OrdinalOf(int64(i))}})
	}
	assert.Equal(t, 10, r.n.Observe(&reading, r.now))
	for _, i := range gpus(busy(), nil) {
		reading.Reset()
		add(r.plan, &reading, i)
		assert.Zero(t, r.n.Observe(&reading, r.now), "ranks take no GPU's row")
	}
	r.n.Evaluate(r.now, me, threshold.Received{}, false)
	r.now = r.now.Add(51 * time.Second)
	r.n.Evaluate(r.now, me, threshold.Received{}, false)
	r.now = r.now.Add(interval)
	res := r.step(nil, steps(1, 1.2)...)
	assert.Equal(t, 2, r.n.table.ranks)
	assert.Len(t, r.n.table.rows, 2)
	assert.InDelta(t, 1/1.2, res.Signals.V[nodesignal.Throughput], 1e-12)
}

// TestAMissingRank: its last reading holds for the TTL, while others report.
func TestAMissingRank(t *testing.T) {
	r := newRig(t)
	for range 5 {
		r.step(nil, slow(4, 2, 0.3)...)
	}
	for range 5 {
		res := r.step(nil, append(steps(1, 1), input{StepDuration, 1, rank(3)})...)
		require.InDelta(t, 1/1.3, res.Signals.V[nodesignal.Throughput], 1e-12)
	}
	res := r.step(nil, append(steps(1, 1), input{StepDuration, 1.2, rank(3)})...)
	assert.InDelta(t, 1/1.2, res.Signals.V[nodesignal.Throughput], 1e-12, "after the TTL only those count that report")
}

func TestARankReadsWhatItsGPUTells(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Measures[nodesignal.Throughput] = Measure{CombineFirst, []Source{
		{Ratio: Ratio{Metric: "steps"}, Times: []Ratio{{Metric: "share"}}, Across: AcrossMin},
	}}
	own, share := kind{metric: "steps"}, kind{metric: "share"}
	res := rigOf(t, &cfg).step(nil, input{own, 2, rank(0)}, input{own, 2, rank(1)}, on("GPU-0", share, 0.5), on("GPU-1", share, 1))
	assert.InDelta(t, 1, res.Signals.V[nodesignal.Throughput], 1e-12)
	assert.Equal(t, rank(0), res.Signals.Worst[nodesignal.Throughput])

	// Ranks are no GPUs: clocks, power and memory count once.
	plain := newRig(t).step(nil, gpus(busy(), nil)...)
	with := newRig(t).step(nil, append(gpus(busy(), nil), slow(8, 1, 0.1)...)...)
	for _, s := range []nodesignal.Signal{nodesignal.Compute, nodesignal.Interconnect, nodesignal.Power, nodesignal.Memory} {
		assert.InDelta(t, plain.Signals.V[s], with.Signals.V[s], 0, "%s", s)
	}
}

// TestTheSameHoweverPushed: the ranks of a node push together or apart, in any
// order, and the node is worth the same.
func TestTheSameHoweverPushed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 16).Draw(t, "ranks")
		seconds := rapid.SliceOfN(rapid.Float64Range(0.5, 2), n, n).Draw(t, "seconds")
		subjects := make([]nodesignal.Subject, n)
		kinds := rapid.IntRange(0, 3).Draw(t, "names")
		for i := range subjects {
			o := nodesignal.OrdinalOf(int64(i))
			subjects[i] = [...]nodesignal.Subject{rank(i), {Rank: o}, {LocalRank: o}, {GPU: "GPU-" + strconv.Itoa(i/2), Rank: o}}[kinds]
		}
		cfg := DefaultConfig()
		plan := NewPlan(&cfg.Measures)
		play := func(split func(round int) [][]int) Result {
			node, now := NewNode(&cfg, plan), time.Unix(1_700_000_000, 0)
			var res Result
			for round := range 6 {
				for _, push := range split(round) {
					var reading Reading
					for _, i := range push {
						require.True(t, add(plan, &reading, input{StepDuration, seconds[i], subjects[i]}))
					}
					require.Zero(t, node.Observe(&reading, now))
				}
				res = node.Evaluate(now, me, threshold.Received{}, false)
				now = now.Add(cfg.Interval)
			}
			return res
		}
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		want := play(func(int) [][]int { return [][]int{order} })
		got := play(func(int) [][]int {
			shuffled := rapid.Permutation(order).Draw(t, "order")
			var pushes [][]int
			for len(shuffled) > 0 {
				k := rapid.IntRange(1, len(shuffled)).Draw(t, "push")
				pushes, shuffled = append(pushes, shuffled[:k]), shuffled[k:]
			}
			return pushes
		})
		assert.Equal(t, want.Signals, got.Signals)
		worst := 0.0
		for _, s := range seconds {
			worst = max(worst, s)
		}
		assert.InDelta(t, 1/worst, got.Signals.V[nodesignal.Throughput], 1e-12)
	})
}
