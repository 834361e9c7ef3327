// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

func TestSpreadIsWhatTheFormulaSays(t *testing.T) {
	cfg := DefaultConfig().Estimator
	spread := func(x ...float64) float64 {
		return cfg.spread(&scratch{places: x}, 0.9)
	}
	assert.InDelta(t, MADToSigma*0.02*1.206, spread(0.9, 0.92, 0.88, 0.99, 0.80), 1e-12)
	assert.InDelta(t, 1.2533*0.05/5, spread(0.9, 0.9, 0.9, 0.9, 0.4), 1e-12, "most are tied, and one is bounded")
	assert.InDelta(t, MADToSigma*0.1*20/19.2, spread(
		1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8), 1e-12)
}

// TestTheCentreIsThatOfTheNodesWithoutTheirBiases: who is silent does not move it.
func TestTheCentreIsThatOfTheNodesWithoutTheirBiases(t *testing.T) {
	b := &scratch{}
	p := &Params{Relative: true}
	y, bias := []float64{}, []float64{}
	for _, off := range []float64{-0.1, -0.05, 0, 0.05, 0.1} {
		y, bias = append(y, p.level(20*math.Exp(off))), append(bias, off)
	}
	assert.InDelta(t, 20, p.value(b.centre(peers{y: y, bias: bias})), 1e-9)
	assert.InDelta(t, 20, p.value(b.centre(peers{y: y[:3], bias: bias[:3]})), 1e-9)
}

func TestQuantumIsTheSmallestStep(t *testing.T) {
	b := &scratch{}
	for _, tt := range []struct {
		x           []float64
		limit, want float64
		known       bool
		why         string
	}{
		{[]float64{0.35, 0.1, 0.15, 0.1, 0.35, 0.15}, 1, 0.05, true, ""},
		{[]float64{0.35, 0.1, 0.15, 0.1, 0.35, 0.15}, 0.02, 0.02, true, "bounded"},
		{[]float64{0.35, 0.1, 0.15, 0.2}, 1, 0, true, "four different values of four are no steps"},
		{[]float64{0.1, 0.1}, 1, 0, false, "all alike"},
		{[]float64{0.1, 0.1, 0.1, 0.3}, 1, 0, false, "one that differs is no step"},
	} {
		q, known := quantum(b, tt.x, tt.limit)
		assert.InDelta(t, tt.want, q, 1e-12, tt.why)
		assert.Equal(t, tt.known, known, tt.why)
	}
}

// TestTheSpreadIsFollowed: at first it is a plain mean, then one over half an hour,
// that a tick moves by no more than four times what it is. The tick's own spread
// counts at once, less what it varies by with so few peers.
func TestTheSpreadIsFollowed(t *testing.T) {
	cfg := DefaultConfig()
	spec := cfg.Signals[nodesignal.Compute]
	update := func(e *estimator, off float64) {
		x := []float64{0.9, 0.9 + off, 0.9 - off, 0.9 + off, 0.9 - off}
		require.True(t, e.update(&cfg, &spec, &scratch{}, 5, peers{x, x, make([]float64, 5)}, 1, tick))
	}
	var wide, narrow, e estimator
	update(&wide, 0.1)
	update(&narrow, 0.05)
	update(&e, 0.1)
	update(&e, 0.05)
	assert.InDelta(t, (wide.scale+narrow.scale)/2, e.scale, 1e-12)

	e = estimator{ticks: 1000, scale: wide.scale}
	update(&e, 0.05)
	assert.InDelta(t, wide.scale+(narrow.scale-wide.scale)/180, e.scale, 1e-12)
	assert.False(t, e.params.Burst)
	e = estimator{ticks: 1000, scale: narrow.scale / 10}
	update(&e, 0.1)
	assert.InDelta(t, narrow.scale/10*(1+3.0/180), e.scale, 1e-12, "bounded")
	assert.InDelta(t, wide.scale/(1+1.5/math.Sqrt(5)), e.params.Scale, 1e-12)
	assert.True(t, e.params.Burst)
}

// TestTheUsualLevelIsThatOfTheSameNodes: with a third more or fewer it is another.
func TestTheUsualLevelIsThatOfTheSameNodes(t *testing.T) {
	cfg := DefaultConfig()
	spec := cfg.Signals[nodesignal.Throughput]
	for n, low := range map[int]int{8: 1, 7: 1, 6: 1, 5: 0, 10: 1, 11: 0} {
		e := estimator{n: 8}
		for range 100 {
			e.learn(&cfg, &spec, 10, 1, tick)
			assert.InDelta(t, 10, e.usual, 1e-9)
		}
		e.n = n
		e.learn(&cfg, &spec, 7, 2, tick)
		assert.Equal(t, low, e.low, "%d nodes", n)
		if low > 0 {
			assert.InDelta(t, 10, e.usual, 1e-9, "stands still")
			assert.InDelta(t, 0.3, e.fall, 1e-9)
			assert.EqualValues(t, 2, e.lowSince)
		} else {
			assert.InDelta(t, 7, e.usual, 1e-9)
		}
	}
	e := estimator{n: 8}
	for range 100 {
		e.learn(&cfg, &spec, 10, 1, tick)
	}
	e.learn(&cfg, &spec, 7, 2, tick)
	e.n = 5
	e.learn(&cfg, &spec, 7, 3, tick)
	assert.Equal(t, 2, e.low, "some left while it was low")

	e = estimator{n: 8}
	for _, x := range []float64{0.98, 0.87, 0.87} {
		e.learn(&cfg, &cfg.Signals[nodesignal.CPU], x, 1, tick)
	}
	assert.Zero(t, e.low, "less than is worth an alert")

	e = estimator{n: 8}
	for range 1000 {
		e.learn(&cfg, &spec, 10, 1, tick)
	}
	e.learn(&cfg, &spec, 9.5, 1, time.Hour/10)
	assert.InDelta(t, 9.95, e.usual, 1e-9, "a tenth of the window")
}

func TestTrackerLearnsLittleAtOnce(t *testing.T) {
	p, tr := params(), Tracker{}
	p.Scale, p.MaxBias = 0.005, 0.5
	feed(&tr, &p, 1.4, 0, 1)
	assert.InDelta(t, 0.02, tr.bias, 1e-6, "four times the spread")
}

func TestTrackerTellsTheGapOfAWellNode(t *testing.T) {
	p, tr := params(), Tracker{}
	feed(&tr, &p, 0.89, 0, 60)
	assert.InDelta(t, 0.01, tr.Gap(), 1e-4)
}

func TestWorse(t *testing.T) {
	a, b := NodeReport{Suspicion: 2, Gap: 0.1}, NodeReport{Suspicion: 2, Gap: 0.3}
	assert.True(t, worse(&b, &a), "of two full sums the greater loss")
	assert.False(t, worse(&a, &b))
	b.Suspicion = 1
	assert.True(t, worse(&a, &b))
}
