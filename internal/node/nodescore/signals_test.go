// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

// gpus returns the same readings of eight GPUs; change may give one others.
func gpus(readings map[kind]float64, change func(gpu int, in kind, v float64) float64) (all []input) {
	for g := range 8 {
		for in, v := range readings {
			if change != nil {
				v = change(g, in, v)
			}
			if !math.IsNaN(v) {
				all = append(all, on(fmt.Sprintf("GPU-%d", g), in, v))
			}
		}
	}
	return all
}

// one changes one reading of GPU-5.
func one(in kind, v float64) func(int, kind, float64) float64 {
	return func(g int, i kind, was float64) float64 {
		if g == 5 && i == in {
			return v
		}
		return was
	}
}

func busy() map[kind]float64 {
	return map[kind]float64{
		Utilization: 0.9, SMClock: 990e6, SMClockLimit: 1980e6, Power: 600, MemoryUsed: 60 << 30, MemoryLimit: 80 << 30,
		Width: 16, WidthMax: 16, Gen: 5, LinksUp: 18,
	}
}

func TestSignalsFromTheGPUs(t *testing.T) {
	res := newRig(t).step(nil, append(gpus(busy(), nil), of(CPUPressure, 0.2))...)
	assert.InDelta(t, 0.45, res.Signals.V[nodesignal.Throughput], 1e-12)
	assert.InDelta(t, 0.5, res.Signals.V[nodesignal.Compute], 1e-12)
	assert.InDelta(t, 1, res.Signals.V[nodesignal.Interconnect], 1e-12)
	assert.InDelta(t, 0.8, res.Signals.V[nodesignal.CPU], 1e-12)
	assert.InDelta(t, 4800, res.Signals.V[nodesignal.Power], 1e-9)
	assert.InDelta(t, 0.25, res.Signals.V[nodesignal.Memory], 1e-12)
	assert.False(t, res.Signals.Known[nodesignal.Score])
}

func TestOneBadGPUIsTheNodes(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(int, kind, float64) float64
		signal nodesignal.Signal
		want   float64
	}{
		"throttled":      {one(SMClock, 495e6), nodesignal.Compute, 0.25},
		"half the lanes": {one(Width, 8), nodesignal.Interconnect, 0.5},
		"an older link":  {one(Gen, 3), nodesignal.Interconnect, 0.6},
		"links are down": {one(LinksUp, 9), nodesignal.Interconnect, 0.5},
	} {
		t.Run(name, func(t *testing.T) {
			res := newRig(t).step(nil, gpus(busy(), tc.change)...)
			assert.InDelta(t, tc.want, res.Signals.V[tc.signal], 1e-12)
			assert.Equal(t, "GPU-5", res.Signals.Worst[tc.signal].GPU)
		})
	}
	res := newRig(t).step(nil, append(gpus(busy(), nil), gpus(map[kind]float64{GenMax: 10}, nil)...)...)
	assert.InDelta(t, 0.5, res.Signals.V[nodesignal.Interconnect], 1e-12, "reported, the maximum is better than the best that was seen")
}

func TestAGPUThatRestsIsNotSlow(t *testing.T) {
	resting := func(g int, in kind, v float64) float64 {
		if g != 5 {
			return v
		}
		return map[kind]float64{Utilization: 0.1, SMClock: 345e6, SMClockLimit: 1980e6, Gen: 1, Width: 16, WidthMax: 16, Power: 70, LinksUp: 18, MemoryLimit: 1}[in]
	}
	res := newRig(t).step(nil, gpus(busy(), resting)...)
	assert.InDelta(t, 0.5, res.Signals.V[nodesignal.Compute], 1e-12)
	assert.InDelta(t, 1, res.Signals.V[nodesignal.Interconnect], 1e-12)

	idle := busy()
	idle[Utilization] = 0
	res = newRig(t).step(nil, gpus(idle, nil)...)
	for _, s := range []nodesignal.Signal{nodesignal.Throughput, nodesignal.Compute, nodesignal.Power} {
		assert.False(t, res.Signals.Known[s], "%s of an idle node", s)
	}
}

func TestPowerOfAllOrNone(t *testing.T) {
	res := newRig(t).step(nil, gpus(busy(), one(Power, math.NaN()))...)
	assert.False(t, res.Signals.Known[nodesignal.Power], "seven of eight would look like a loss")
	assert.True(t, res.Signals.Known[nodesignal.Compute])
}

func TestErrorRatesLowerTheLinks(t *testing.T) {
	for name, tc := range map[string]struct {
		in        kind
		perMinute float64
		want      float64
	}{
		"a few replays":     {Replays, 6, 1},
		"many replays":      {Replays, 80, 0.1},
		"recoveries":        {Recoveries, 5, 0.2},
		"endless ones":      {Recoveries, 600, 0.1},
		"nothing to report": {Recoveries, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			count := 1e6
			var res Result
			for range 60 {
				res = r.step(nil, append(gpus(busy(), nil), on("GPU-5", tc.in, count))...)
				count += tc.perMinute / 6
			}
			assert.InDelta(t, tc.want, res.Signals.V[nodesignal.Interconnect], 0.01)
		})
	}
	r := newRig(t)
	for _, count := range []float64{5e6, 10, 10} {
		res := r.step(nil, append(gpus(busy(), nil), on("GPU-5", Replays, count))...)
		assert.InDelta(t, 1, res.Signals.V[nodesignal.Interconnect], 0, "a count before the first, and a new start, are no errors")
	}
	res := r.step(nil, append(gpus(busy(), nil), on("GPU-5", Replays, 18))...)
	assert.InDelta(t, 1, res.Signals.V[nodesignal.Interconnect], 0, "a burst of eight is eight a minute")
	for i := range 3 {
		res = r.step(nil, append(gpus(busy(), nil), on("GPU-5", Replays, 18+100*float64(i+1)))...)
	}
	assert.Less(t, res.Signals.V[nodesignal.Interconnect], 0.3, "a new start hides nothing")
	// However many errors there were, they are over some two minutes after the last.
	for i := range 15 {
		res = r.step(nil, append(gpus(busy(), nil), on("GPU-5", Recoveries, 1e6*float64(min(i, 1))))...)
		if i == 1 {
			assert.Less(t, res.Signals.V[nodesignal.Interconnect], 0.7, "a million")
		}
	}
	assert.InDelta(t, 1, res.Signals.V[nodesignal.Interconnect], 0)
}

// A counter that two sources read is bounded by the one that allows more.
func TestOneCounterOfTwoSources(t *testing.T) {
	cfg := DefaultConfig()
	links := &cfg.Measures[nodesignal.Interconnect].Sources
	for _, allowed := range []float64{10, 1} {
		*links = append(*links, Source{Ratio: Ratio{Metric: "errors", Use: UseRate, Allowed: allowed}})
	}
	plan := NewPlan(&cfg.Measures)
	assert.InDelta(t, 10*maxRate, plan.rates[len(plan.rates)-1], 0)
}

func TestUnitsDoNotMix(t *testing.T) {
	tensor := busy()
	tensor[Tensor] = 0.4
	throughput := func(res Result) float64 {
		if !res.Signals.Known[nodesignal.Throughput] {
			return -1
		}
		return res.Signals.V[nodesignal.Throughput]
	}
	r := newRig(t)
	assert.InDelta(t, -1, throughput(r.step(nil, gpus(busy(), nil)...)), 0, "tensor activity may follow")
	assert.InDelta(t, 0.45, throughput(r.step(nil, gpus(busy(), nil)...)), 1e-12, "no tensor activity yet")
	assert.InDelta(t, 0.2, throughput(r.step(nil, gpus(tensor, nil)...)), 1e-12)
	assert.InDelta(t, 2, throughput(r.step(nil, append(gpus(tensor, nil), of(StepRate, 2))...)), 1e-12)
	for range 5 {
		assert.InDelta(t, 2, throughput(r.step(nil, gpus(tensor, nil)...)), 1e-12, "a reading holds for a while")
	}
	assert.InDelta(t, -1, throughput(r.step(nil, gpus(tensor, nil)...)), 0, "an application that stopped reporting is not replaced")

	r = newRig(t)
	r.step(nil, gpus(tensor, nil)...)
	for range 6 {
		r.step(nil, gpus(busy(), nil)...)
	}
	assert.InDelta(t, -1, throughput(r.step(nil, gpus(busy(), nil)...)), 0, "nor is tensor activity by utilisation")
}

func TestReadingRefusesNonsense(t *testing.T) {
	var r Reading
	plan := NewPlan(new(DefaultConfig().Measures))
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1} {
		assert.False(t, add(plan, &r, of(StepDuration, bad)))
	}
	assert.True(t, r.Empty())
	for _, x := range []float64{0, math.SmallestNonzeroFloat64} {
		res := newRig(t).step(nil, of(StepDuration, x))
		assert.False(t, res.Signals.Known[nodesignal.Throughput], "no step takes no time")
	}
}

func TestGPUsAreBoundedAndForgotten(t *testing.T) {
	r := newRig(t)
	var reading Reading
	for g := range 2 * MaxGPUs {
		add(r.plan, &reading, on(strconv.Itoa(g), Utilization, 0.9))
	}
	assert.Equal(t, MaxGPUs, r.n.Observe(&reading, r.now))
	r.observe(of(StepRate, 1))
	assert.Len(t, r.n.table.rows, MaxGPUs+1, "the node's own readings have a row")
	r.n.Evaluate(r.now, me, threshold.Received{}, false)
	r.now = r.now.Add(51 * time.Second)
	r.step(nil, of(StepRate, 1))
	assert.Len(t, r.n.table.rows, 1)
	assert.Less(t, cap(r.n.table.rows), MaxGPUs, "those that are gone take no memory")
}

func TestSourcesOfOnesOwn(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Measures[nodesignal.Throughput] = Measure{CombineFirst, []Source{
		{Ratio: Ratio{Metric: "tokens", Attributes: map[string]string{"phase": "train"}}},
		{Ratio: Ratio{Metric: "wait", Use: UseOneMinus}, Times: []Ratio{{Metric: "share"}}, Across: AcrossMin},
	}}
	tokens, wait, share := kind{"tokens", "phase", "train"}, kind{metric: "wait"}, kind{metric: "share"}
	r := rigOf(t, &cfg)
	res := r.step(nil, on("a", wait, 0.2), on("b", wait, 0.5), on("a", share, 0.5), on("b", share, 1))
	assert.InDelta(t, 0.4, res.Signals.V[nodesignal.Throughput], 1e-12, "the worse product of the two")
	assert.Equal(t, "a", res.Signals.Worst[nodesignal.Throughput].GPU)
	res = r.step(nil, on("a", tokens, 4000), on("a", wait, 0.2))
	assert.InDelta(t, 4000, res.Signals.V[nodesignal.Throughput], 0)
	for range 10 {
		res = r.step(nil, of(Utilization, 0), on("a", tokens, 4000))
	}
	assert.NotEqual(t, "idle", res.State.String(), "tokens are an application's own report")

	cfg.Signals[nodesignal.CPU].Direction = nodesignal.High
	cfg.Measures[nodesignal.CPU].Sources[0].Use = UseValue
	cfg.Weights[nodesignal.Throughput], cfg.Weights[nodesignal.Compute] = 0, 1
	res = rigOf(t, &cfg).step(nil, append(gpus(busy(), nil), of(CPUPressure, 0.2))...)
	assert.InDelta(t, 0.2, res.Signals.V[nodesignal.CPU], 1e-12)
	assert.InDelta(t, (0.5+0.15*0.8)/1.15, res.Score, 1e-9, "more of it is worse")
}
