// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const interval = 10 * time.Second

// rig evaluates a node once per interval.
type rig struct {
	t   *testing.T
	n   *Node
	now time.Time
}

func newRig(t *testing.T) *rig {
	cfg := DefaultConfig()
	require.NoError(t, cfg.Validate(""))
	return &rig{t: t, n: NewNode(&cfg), now: start}
}

type input struct {
	in Input
	v  float64
}

func (r *rig) step(peers *threshold.Received, inputs ...input) Result {
	var reading Reading
	for _, i := range inputs {
		require.True(r.t, reading.Add(i.in, i.v))
	}
	r.n.Observe(&reading, r.now)
	require.True(r.t, r.n.Due(r.now))
	var p threshold.Received
	if peers != nil {
		p = *peers
	}
	res := r.n.Evaluate(r.now, p, peers != nil)
	assert.False(r.t, r.n.Due(r.now.Add(interval/2-1)))
	r.now = r.now.Add(interval)
	return res
}

func (r *rig) fresh(th, ref float64) *threshold.Received {
	return &threshold.Received{
		At:    r.now,
		Value: threshold.Value{Threshold: th, Median: 1, Ref: ref, QuorumMet: true, TTL: 50 * time.Second},
	}
}

func TestSlowFromTheFirstStepIsFoundByPeers(t *testing.T) {
	r := newRig(t)
	res := r.step(nil, input{StepDuration, 45})
	assert.Equal(t, straggler.StateCalibrating, res.State)
	assert.Equal(t, ModeNone, res.Mode)
	assert.False(t, res.HasScore, "a lone rate says nothing")
	assert.InDelta(t, 1.0/45, res.Signals.V[Throughput], 1e-12)

	for i := range 3 {
		res = r.step(r.fresh(0.95, 1.0/19), input{StepDuration, 45})
		assert.Equal(t, straggler.StateActive, res.State)
		assert.Equal(t, ModeFleet, res.Mode)
		assert.InDelta(t, 19.0/45, res.Score, 1e-9)
		assert.Equal(t, i == 2, res.Straggler)
	}
	for range 500 {
		res = r.step(r.fresh(0.95, 1.0/19), input{StepDuration, 45})
		require.True(t, res.Straggler, "a lasting slowdown never heals itself")
	}
	for range 3 {
		res = r.step(r.fresh(0.95, 1.0/19), input{StepDuration, 19.2})
	}
	assert.False(t, res.Straggler)
	assert.True(t, res.Changed)
}

func TestAReferenceWithoutAThresholdCalibrates(t *testing.T) {
	r := newRig(t)
	cold := r.fresh(0, 1.0/19)
	cold.QuorumMet = false
	res := r.step(cold, input{StepDuration, 38})
	assert.Equal(t, straggler.StateActive, res.State)
	assert.InDelta(t, 0.5, res.Score, 1e-9)
	assert.Equal(t, ModeNone, res.Mode)
	assert.False(t, res.Straggler)
}

func TestModesFallFromFleetToNone(t *testing.T) {
	r := newRig(t)
	var last *threshold.Received
	for range 20 {
		last = r.fresh(0.95, 1.0/19)
		require.Equal(t, ModeFleet, r.step(last, input{StepDuration, 19}).Mode)
	}
	seen := map[Mode]time.Duration{}
	for range 60 {
		at := r.now
		res := r.step(last, input{StepDuration, 19})
		if _, ok := seen[res.Mode]; !ok {
			seen[res.Mode] = at.Sub(last.At)
		}
		assert.False(t, res.Straggler)
	}
	assert.Equal(t, map[Mode]time.Duration{ModeFleet: interval, ModeCached: 60 * time.Second, ModeLocal: 310 * time.Second}, seen)

	noQuorum := r.fresh(0.95, 0)
	noQuorum.QuorumMet = false
	assert.Equal(t, ModeCached, r.step(noQuorum, input{StepDuration, 19}).Mode)
	assert.Equal(t, ModeNone, newRig(t).step(nil, input{StepDuration, 19}).Mode)
}

func TestLocalModeFindsASlowdownAndKeepsIt(t *testing.T) {
	r := newRig(t)
	for range 30 {
		assert.False(t, r.step(nil, input{StepDuration, 20}).Straggler)
	}
	var res Result
	for range 2000 {
		res = r.step(nil, input{StepDuration, 30})
	}
	assert.Equal(t, ModeLocal, res.Mode)
	assert.True(t, res.Straggler, "five hours later still")
	for range 3 {
		res = r.step(nil, input{StepDuration, 20})
	}
	assert.False(t, res.Straggler)
}

func TestASmallSlowdownDoesNotBecomeNormal(t *testing.T) {
	r := newRig(t)
	for range 30 {
		r.step(nil, input{StepRate, 1})
	}
	for range 2000 {
		require.False(t, r.step(nil, input{StepRate, 0.92}).Straggler)
	}
	var res Result
	for range 3 {
		res = r.step(nil, input{StepRate, 0.84})
	}
	assert.True(t, res.Straggler, "16 % below what it could do once")
}

func TestWhatTheFleetSuspectsIsNotLearnt(t *testing.T) {
	r := newRig(t)
	for range 30 {
		r.step(r.fresh(0.95, 1), input{StepRate, 0.98})
	}
	for range 500 {
		r.step(r.fresh(0.95, 1), input{StepRate, 0.94})
	}
	assert.InDelta(t, 0.98, r.n.rate.value, 1e-9)
	assert.InDelta(t, 0.98, r.n.score.value, 1e-9)
}

// TestAGatewayThatIsGoneHealsNobody: a node that was slow from its first step
// has no better past of its own; what its peers could do stays the measure.
func TestAGatewayThatIsGoneHealsNobody(t *testing.T) {
	r := newRig(t)
	var last *threshold.Received
	for range 10 {
		last = r.fresh(0.95, 1.0/19)
		r.step(last, input{StepDuration, 45})
	}
	var res Result
	for range 500 {
		res = r.step(last, input{StepDuration, 45})
		require.True(t, res.Straggler)
	}
	assert.Equal(t, ModeLocal, res.Mode)
	assert.InDelta(t, 0.85, res.Threshold, 1e-9)
	for range 3 {
		res = r.step(last, input{StepDuration, 19})
	}
	assert.False(t, res.Straggler, "and it may recover without a gateway too")
}

// TestAPauseAccusesNobody: between two phases of a job the GPUs do nothing and
// keep their memory.
func TestAPauseAccusesNobody(t *testing.T) {
	gpu := func(util float64) []input {
		return []input{{Utilization, util}, {SMClock, 1.9e9}, {SMClockLimit, 1.98e9}, {MemoryUsed, 79 << 30}, {MemoryLimit, 80 << 30}}
	}
	for name, peers := range map[string]func(*rig) *threshold.Received{
		"fleet": func(r *rig) *threshold.Received { return r.fresh(0.9, 0.94) },
		"local": func(*rig) *threshold.Received { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for cycle := range 10 {
				for range 15 {
					res := r.step(peers(r), gpu(0.98)...)
					require.False(t, res.Straggler, "cycle %d", cycle)
				}
				for range 4 {
					require.False(t, r.step(peers(r), gpu(0)...).Straggler, "cycle %d", cycle)
				}
			}
		})
	}
}

// TestAJobThatEndedIsNotSlow: without utilisation, as under MIG, a clock that
// falls because the job is over must not be judged.
func TestAJobThatEndedIsNotSlow(t *testing.T) {
	r := newRig(t)
	clock := func(hz float64) []input { return []input{{SMClock, hz}, {SMClockLimit, 2e9}} }
	for range 15 {
		r.step(nil, append(clock(1.95e9), input{StepRate, 2})...)
	}
	for range 60 {
		require.False(t, r.step(nil, clock(3e8)...).Straggler)
	}
	for range 15 {
		r.step(r.fresh(0.95, 4), append(clock(1.95e9), input{StepRate, 2})...)
	}
	require.True(t, r.n.verdict.Straggler)
	var res Result
	for range 14 {
		res = r.step(r.fresh(0.95, 4), clock(3e8)...)
	}
	assert.False(t, res.Straggler, "a verdict ends with the work it is about")
}

func TestAnApplicationThatFellSilentIsNotReplaced(t *testing.T) {
	r := newRig(t)
	gpu := []input{{Utilization, 0.9}, {SMClock, 1.9e9}, {SMClockLimit, 2e9}}
	r.step(nil, append(gpu, input{StepRate, 0.05})...)
	var res Result
	for range 10 {
		res = r.step(nil, gpu...)
	}
	assert.False(t, res.Signals.Known[Throughput])
}

func TestIdleNodes(t *testing.T) {
	gpu := func(util float64) []input {
		return []input{{Utilization, util}, {SMClock, 1.9e9}, {SMClockLimit, 1.98e9}, {MemoryUsed, 1 << 30}, {MemoryLimit, 80 << 30}}
	}
	r := newRig(t)
	for range 10 {
		r.step(nil, gpu(0.98)...)
	}
	for range 6 {
		res := r.step(nil, gpu(0)...)
		assert.Equal(t, straggler.StateCalibrating, res.State, "a pause is not idleness yet, and no slowness")
		assert.False(t, res.HasScore)
	}
	assert.Equal(t, straggler.StateIdle, r.step(nil, gpu(0.01)...).State)
	res := r.step(nil, gpu(0.9)...)
	assert.Equal(t, straggler.StateCalibrating, res.State, "another job, another baseline")

	r = newRig(t)
	for range 20 {
		res = r.step(r.fresh(0.5, 1), append(gpu(0), input{StepRate, 1})...)
	}
	assert.Equal(t, straggler.StateActive, res.State, "who reports steps is not idle")
}

func TestSignalsFromTheGPUs(t *testing.T) {
	var r Reading
	for range 8 {
		r.Add(Utilization, 0.9)
		r.Add(SMClock, 990e6)
		r.Add(SMClockLimit, 1980e6)
		r.Add(MemoryUsed, 60<<30)
		r.Add(MemoryLimit, 80<<30)
	}
	r.Add(CPUPressure, 0.2)
	v := r.signals(0.05, false, false)
	assert.Equal(t, [NumSignals]bool{true, true, true, true}, v.Known)
	assert.InDelta(t, 0.45, v.V[Throughput], 1e-12)
	assert.InDelta(t, 0.5, v.V[Compute], 1e-12)
	assert.InDelta(t, 0.25, v.V[Memory], 1e-12)
	assert.InDelta(t, 0.8, v.V[CPU], 1e-12)

	v = r.signals(0.05, true, true)
	assert.False(t, v.Known[Throughput], "an application that fell silent is not replaced by another unit")

	r.Add(SMClock, 990e6)
	v = r.signals(0.05, false, false)
	assert.False(t, v.Known[Compute], "nine clocks, eight limits")
}

func TestReadingRefusesNonsense(t *testing.T) {
	var r Reading
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1} {
		assert.False(t, r.Add(StepDuration, bad))
	}
	assert.True(t, r.Empty())
	assert.True(t, r.Add(StepDuration, 0))
	assert.False(t, r.signals(0.05, true, true).Known[Throughput], "no step takes no time")
}

func TestOldReadingsExpire(t *testing.T) {
	r := newRig(t)
	r.step(nil, input{CPUPressure, 0.1}, input{StepRate, 1})
	var res Result
	for range 5 {
		res = r.step(nil, input{StepRate, 1})
	}
	assert.True(t, res.Signals.Known[CPU])
	res = r.step(nil, input{StepRate, 1})
	assert.False(t, res.Signals.Known[CPU])
}

func TestScore(t *testing.T) {
	w, f := Weights{0.40, 0.25, 0.20, 0.15}, Floors{0.35, 0.35, 0.02, 0.10}
	set := func(pairs ...float64) *Values {
		var v Values
		for i, x := range pairs {
			v.Set(Signal(i), x)
		}
		return &v
	}
	for name, tc := range map[string]struct {
		v    *Values
		want float64
		ok   bool
	}{
		"all well":             {set(1, 1, 1, 1), 1, true},
		"weighted":             {set(0.5, 1, 1, 1), 0.8, true},
		"one signal only":      {set(0.42), 0.42, true},
		"nothing":              {&Values{}, 0, false},
		"half of a floor":      {set(0.175, 1, 1, 1), (0.4*0.175 + 0.6) * 0.75, true},
		"dead signal":          {set(0, 1, 1, 1), 0.3, true},
		"full memory is fine":  {set(1, 1, 0.05, 1), 0.81, true},
		"NaN is not healthy":   {set(math.NaN()), 0, true},
		"more than full is 1":  {set(1.7), 1, true},
		"infinite is clamped":  {set(math.Inf(1)), 1, true},
		"negative is clamped":  {set(-3, 1, 1, 1), 0.3, true},
		"memory alone is none": {&Values{Known: [NumSignals]bool{Memory: true, CPU: true}, V: [NumSignals]float64{0, 0, 1, 1}}, 0, false},
		"unweighted is absent": {&Values{Known: [NumSignals]bool{}, V: [NumSignals]float64{1}}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := Score(&w, &f, tc.v)
			assert.Equal(t, tc.ok, ok)
			assert.InDelta(t, tc.want, got, 1e-12)
		})
	}
}

func TestScoreStaysInTheUnitInterval(t *testing.T) {
	w, f := DefaultWeights(), DefaultFloors()
	rapid.Check(t, func(t *rapid.T) {
		var v Values
		for i := range NumSignals {
			if rapid.Bool().Draw(t, "known") {
				v.Set(i, rapid.Float64().Draw(t, "value"))
			}
		}
		s, _ := Score(&w, &f, &v)
		require.True(t, s >= 0 && s <= 1, "%v", s)
	})
}

func TestConfigSaysAllMistakesAtOnce(t *testing.T) {
	cfg := Config{Weights: Weights{-1}, Floors: Floors{0, 2}, IdleBelow: math.NaN()}
	err := cfg.Validate("")
	for _, key := range []string{"weights::throughput", "floors::compute", "push_interval", "idle_below", "idle_after", "calibration_samples", "baseline_alpha", "suspect_band", "cached_ttl", "local_fraction", "enter_ticks", "leave_ticks"} {
		require.ErrorContains(t, err, "`"+key+"`")
	}
	cfg = DefaultConfig()
	cfg.Weights = Weights{}
	assert.ErrorContains(t, cfg.Validate(""), "`weights` give nothing to throughput and compute")
}

func TestParseSignal(t *testing.T) {
	for i := range NumSignals {
		s, err := ParseSignal(i.String())
		require.NoError(t, err)
		assert.Equal(t, i, s)
	}
	_, err := ParseSignal("speed")
	assert.EqualError(t, err, `unknown signal "speed", known are throughput, compute, memory, cpu`)
}

func BenchmarkEvaluate(b *testing.B) {
	cfg := DefaultConfig()
	n := NewNode(&cfg)
	var r Reading
	r.Add(StepDuration, 19)
	peers := threshold.Received{At: start, Value: threshold.Value{Threshold: 0.95, Ref: 0.05, QuorumMet: true, TTL: time.Hour}}
	b.ReportAllocs()
	for b.Loop() {
		n.Observe(&r, start)
		n.Evaluate(start, peers, true)
	}
}
