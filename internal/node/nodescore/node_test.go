// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const (
	interval = 10 * time.Second
	me       = "me"
)

// rig evaluates a node once per interval.
type rig struct {
	t    *testing.T
	cfg  *Config
	plan *Plan
	n    *Node
	now  time.Time
}

func newRig(t *testing.T) *rig {
	cfg := DefaultConfig()
	return rigOf(t, &cfg)
}

func rigOf(t *testing.T, cfg *Config) *rig {
	require.NoError(t, cfg.Validate(""))
	plan := NewPlan(&cfg.Measures)
	return &rig{t: t, cfg: cfg, plan: plan, n: NewNode(cfg, plan), now: start}
}

// kind is a metric and the attribute of its points.
type kind struct{ metric, key, value string }

var (
	StepDuration = kind{metric: "gpu.app.step.duration"}
	StepRate     = kind{metric: "gpu.app.step.rate"}
	Utilization  = kind{"hw.gpu.utilization", "hw.gpu.task", "general"}
	Tensor       = kind{"hw.gpu.activity", "unit", "tensor"}
	SMClock      = kind{"hw.gpu.clock.frequency", "clock", "sm"}
	SMClockLimit = kind{"hw.gpu.clock.frequency.limit", "clock", "sm"}
	MemoryUsed   = kind{"hw.gpu.memory.usage", "gpu.memory.state", "used"}
	MemoryLimit  = kind{metric: "hw.gpu.memory.limit"}
	CPUPressure  = kind{metric: "gpu.node.cpu.pressure"}
	PowerLimit   = kind{"hw.gpu.power.limit", "limit", "enforced"}
	Power        = kind{"hw.power", "hw.type", "gpu"}
	Width        = kind{"hw.gpu.pcie.link.width", "kind", "current"}
	WidthMax     = kind{"hw.gpu.pcie.link.width", "kind", "max"}
	Gen          = kind{"hw.gpu.pcie.link.generation", "kind", "current"}
	GenMax       = kind{"hw.gpu.pcie.link.generation", "kind", "max"}
	LinksUp      = kind{"hw.gpu.nvlink.links", "state", "up"}
	Replays      = kind{"hw.gpu.pcie.replays", "kind", "replay"}
	Recoveries   = kind{"hw.gpu.nvlink.errors", "error.type", "recovery"}
)

// input is a reading of the node, or of a GPU.
type input struct {
	in kind
	v  float64
	of nodesignal.Subject
}

func on(gpu string, in kind, v float64) input { return input{in, v, nodesignal.Subject{GPU: gpu}} }

func of(in kind, v float64) input { return input{in: in, v: v} }

func add(p *Plan, r *Reading, i input) bool {
	inputs := p.Inputs(i.in.metric)
	for j := range inputs {
		if attrs := inputs[j].Attributes; len(attrs) == 0 || attrs[0] == (Attribute{i.in.key, i.in.value}) {
			return r.Add(&inputs[j], i.of, i.v)
		}
	}
	panic("no input for " + i.in.metric)
}

func (r *rig) observe(inputs ...input) {
	var reading Reading
	for _, i := range inputs {
		require.True(r.t, add(r.plan, &reading, i))
	}
	r.n.Observe(&reading, r.now)
}

func (r *rig) step(peers *threshold.Received, inputs ...input) Result {
	r.observe(inputs...)
	require.True(r.t, r.n.Due(r.now))
	var p threshold.Received
	if peers != nil {
		p = *peers
	}
	res := r.n.Evaluate(r.now, me, p, peers != nil)
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
	res := r.step(nil, of(StepDuration, 45))
	assert.Equal(t, nodesignal.StateActive, res.State, "the gateway compares the rate itself")
	assert.Equal(t, ModeNone, res.Mode)
	assert.False(t, res.HasScore, "a lone rate is no score")
	assert.InDelta(t, 1.0/45, res.Signals.V[nodesignal.Throughput], 1e-12)

	for i := range 3 {
		res = r.step(r.fresh(0.95, 1.0/19), of(StepDuration, 45))
		assert.Equal(t, nodesignal.StateActive, res.State)
		assert.Equal(t, ModeFleet, res.Mode)
		assert.InDelta(t, 19.0/45, res.Score, 1e-9)
		assert.Equal(t, i == 2, res.Straggler)
	}
	for range 500 {
		res = r.step(r.fresh(0.95, 1.0/19), of(StepDuration, 45))
		require.True(t, res.Straggler, "a lasting slowdown never heals itself")
	}
	for range 3 {
		res = r.step(r.fresh(0.95, 1.0/19), of(StepDuration, 19.2))
	}
	assert.False(t, res.Straggler)
	assert.True(t, res.Changed)
}

// judged is the answer of a gateway with verdicts on these nodes of the group.
func (r *rig) judged(stragglers ...threshold.Verdict) *threshold.Received {
	v := r.fresh(0.9, 20)
	v.All, v.Verdicts = true, threshold.NewVerdicts("g", 1, stragglers)
	return v
}

var mine = threshold.Verdict{Node: me, Since: start.Add(-time.Hour), Loss: 0.06, Signal: nodesignal.CPU}

func TestTheGatewaysVerdictIsTheNodes(t *testing.T) {
	r := newRig(t)
	for i := range 3 {
		res := r.step(r.judged(threshold.Verdict{Node: "another"}, mine), of(StepRate, 20))
		assert.Equal(t, ModeFleet, res.Mode)
		assert.True(t, res.Straggler, "whatever its own score is")
		assert.Equal(t, i == 0, res.Changed)
		assert.Equal(t, mine, res.Verdict)
		assert.Equal(t, mine.Since, res.Since)
	}
	assert.Zero(t, r.n.score.n, "what is slow is not learnt")
	for range 5 {
		res := r.step(r.judged(), of(StepRate, 10))
		assert.False(t, res.Straggler, "in good standing, whatever its score is")
		assert.Zero(t, res.Verdict)
	}
	assert.Zero(t, r.n.score.n, "nor what is slow by the threshold")

	few := r.judged(mine)
	few.QuorumMet, few.Threshold = false, 0
	res := r.step(few, of(StepRate, 20))
	assert.True(t, res.Straggler, "verdicts need no threshold")
	assert.Equal(t, ModeFleet, res.Mode)

	for name, change := range map[string]func(*threshold.Received){
		"not all fit":        func(v *threshold.Received) { v.All = false },
		"about another node": func(v *threshold.Received) { v.About = "another" },
		"no verdicts known":  func(v *threshold.Received) { v.All, v.Verdicts = false, nil },
	} {
		r := newRig(t)
		for i := range 4 {
			v := r.judged()
			change(v)
			assert.Equal(t, i >= 2, r.step(v, of(StepRate, 10)).Straggler, "%s: its score decides", name)
		}
	}

	idle := []input{of(Utilization, 0), of(SMClock, 1.9e9), of(SMClockLimit, 1.98e9)}
	r = newRig(t)
	for range 10 {
		res = r.step(r.judged(mine), idle...)
	}
	assert.Equal(t, nodesignal.StateIdle, res.State)
	assert.False(t, res.Straggler)
}

// TestAVerdictEndsWithWhatItCameWith: the node carries it on by its own score.
func TestAVerdictEndsWithWhatItCameWith(t *testing.T) {
	for _, tc := range []struct {
		rate float64
		want map[Mode]bool
	}{
		{20, map[Mode]bool{ModeFleet: true, ModeCached: false, ModeLocal: false}},
		{10, map[Mode]bool{ModeFleet: true, ModeCached: true, ModeLocal: true}},
	} {
		r := newRig(t)
		var last *threshold.Received
		for range 12 {
			last = r.judged(mine)
			require.True(t, r.step(last, of(StepRate, tc.rate)).Straggler)
		}
		modes := map[Mode]bool{}
		for i := range 60 {
			res := r.step(last, of(StepRate, tc.rate))
			modes[res.Mode] = res.Straggler
			assert.Equal(t, i < 5, res.Verdict == mine)
		}
		assert.Equal(t, tc.want, modes, "at a rate of %v", tc.rate)
	}
}

func TestAReferenceWithoutAThresholdCalibrates(t *testing.T) {
	r := newRig(t)
	cold := r.fresh(0, 1.0/19)
	cold.QuorumMet = false
	res := r.step(cold, of(StepDuration, 38))
	assert.Equal(t, nodesignal.StateActive, res.State)
	assert.InDelta(t, 0.5, res.Score, 1e-9)
	assert.Equal(t, ModeNone, res.Mode)
	assert.False(t, res.Straggler)
}

func TestModesFallFromFleetToNone(t *testing.T) {
	r := newRig(t)
	var last *threshold.Received
	for range 20 {
		last = r.fresh(0.95, 1.0/19)
		require.Equal(t, ModeFleet, r.step(last, of(StepDuration, 19)).Mode)
	}
	seen := map[Mode]time.Duration{}
	for range 60 {
		at := r.now
		res := r.step(last, of(StepDuration, 19))
		if _, ok := seen[res.Mode]; !ok {
			seen[res.Mode] = at.Sub(last.At)
		}
		assert.False(t, res.Straggler)
	}
	assert.Equal(t, map[Mode]time.Duration{ModeFleet: interval, ModeCached: 60 * time.Second, ModeLocal: 310 * time.Second}, seen)

	noQuorum := r.fresh(0.95, 0)
	noQuorum.QuorumMet = false
	assert.Equal(t, ModeCached, r.step(noQuorum, of(StepDuration, 19)).Mode)
	assert.Equal(t, ModeNone, newRig(t).step(nil, of(StepDuration, 19)).Mode)
}

func TestLocalModeFindsASlowdownAndKeepsIt(t *testing.T) {
	r := newRig(t)
	steps := func(n int, rate float64) (res Result) {
		for range n {
			res = r.step(nil, of(StepRate, rate))
		}
		return res
	}
	assert.False(t, steps(30, 1).Straggler)
	assert.False(t, steps(2000, 0.92).Straggler, "a small slowdown")
	assert.True(t, steps(3, 0.84).Straggler, "16 % below what it could do once")
	res := steps(2000, 0.67)
	assert.Equal(t, ModeLocal, res.Mode)
	assert.True(t, res.Straggler, "five hours later still")
	assert.False(t, steps(3, 1).Straggler)
}

func TestWhatTheFleetSuspectsIsNotLearnt(t *testing.T) {
	r := newRig(t)
	for range 30 {
		r.step(r.fresh(0.95, 1), of(StepRate, 0.98))
	}
	for range 500 {
		r.step(r.fresh(0.95, 1), of(StepRate, 0.94))
	}
	assert.InDelta(t, 0.98, r.n.rate.value, 1e-9)
	assert.InDelta(t, 0.98, r.n.score.value, 1e-9)
}

// TestAGatewayThatIsGone: a node that was slow from its first step has no better past of its
// own. What its peers could do stays the measure.
func TestAGatewayThatIsGone(t *testing.T) {
	r := newRig(t)
	var last *threshold.Received
	for range 10 {
		last = r.fresh(0.95, 1.0/19)
		r.step(last, of(StepDuration, 45))
	}
	var res Result
	for range 500 {
		res = r.step(last, of(StepDuration, 45))
		require.True(t, res.Straggler)
	}
	assert.Equal(t, ModeLocal, res.Mode)
	assert.InDelta(t, 0.85, res.Threshold, 1e-9)
	for range 3 {
		res = r.step(last, of(StepDuration, 19))
	}
	assert.False(t, res.Straggler, "and it may recover without a gateway too")
}

// TestAPauseIsNoSlowness: between two phases of a job the GPUs do nothing and
// keep their memory.
func TestAPauseIsNoSlowness(t *testing.T) {
	gpu := func(util float64) []input {
		return []input{of(Utilization, util), of(SMClock, 1.9e9), of(SMClockLimit, 1.98e9), of(MemoryUsed, 79<<30), of(MemoryLimit, 80<<30)}
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
	clock := func(hz float64) []input { return []input{of(SMClock, hz), of(SMClockLimit, 2e9)} }
	for range 15 {
		r.step(nil, append(clock(1.95e9), of(StepRate, 2))...)
	}
	for range 60 {
		require.False(t, r.step(nil, clock(3e8)...).Straggler)
	}
	for range 15 {
		r.step(r.fresh(0.95, 4), append(clock(1.95e9), of(StepRate, 2))...)
	}
	require.True(t, r.n.verdict.Straggler)
	var res Result
	for range 14 {
		res = r.step(r.fresh(0.95, 4), clock(3e8)...)
	}
	assert.False(t, res.Straggler, "a verdict ends with the work it is about")
}

func TestIdleNodes(t *testing.T) {
	gpu := func(util float64) []input {
		return []input{of(Utilization, util), of(SMClock, 1.9e9), of(SMClockLimit, 1.98e9), of(MemoryUsed, 1<<30), of(MemoryLimit, 80<<30)}
	}
	r := newRig(t)
	for range 20 {
		r.step(nil, gpu(0.98)...)
	}
	for range 6 {
		res := r.step(nil, gpu(0)...)
		assert.Equal(t, nodesignal.StateCalibrating, res.State, "a pause is not idleness yet, and no slowness")
		assert.False(t, res.HasScore)
	}
	assert.Equal(t, nodesignal.StateIdle, r.step(nil, gpu(0.01)...).State)
	res := r.step(nil, gpu(0.9)...)
	assert.False(t, res.HasScore, "another job, another baseline")
	assert.Equal(t, ModeNone, res.Mode)
	assert.NotEqual(t, nodesignal.StateIdle, r.step(nil, gpu(0)...).State, "it has to last again")

	r = newRig(t)
	for range 20 {
		res = r.step(r.fresh(0.5, 1), append(gpu(0), of(StepRate, 1))...)
	}
	assert.Equal(t, nodesignal.StateActive, res.State, "a node that reports steps is not idle")

	for watts, idle := range map[float64]bool{650: false, 120: true} {
		r = newRig(t)
		for range 20 {
			res = r.step(nil, append(gpu(0), of(Power, watts), of(PowerLimit, 700))...)
		}
		assert.Equal(t, idle, res.State == nodesignal.StateIdle, "a GPU at rest does not draw %v W", watts)
		assert.False(t, res.Signals.Known[nodesignal.Throughput], "it is not measured")
	}
	r = newRig(t)
	for range 2 {
		res = r.step(nil, append(gpu(0.9), of(Power, 650), of(PowerLimit, 700))...)
	}
	assert.True(t, res.Signals.Known[nodesignal.Throughput], "a busy GPU draws as much")
}

// A node's first report has its clocks and its job's rate. The rate of its GPUs follows in
// the second report.
func TestTheFirstReportCanBeCompared(t *testing.T) {
	gpu := []input{of(Utilization, 0.9), of(SMClock, 1.4e9), of(SMClockLimit, 2e9)}
	r := newRig(t)
	res := r.step(nil, gpu...)
	assert.Equal(t, nodesignal.StateActive, res.State)
	assert.InDelta(t, 0.7, res.Signals.V[nodesignal.Compute], 1e-12)
	assert.False(t, res.Signals.Known[nodesignal.Throughput], "it may have another unit at the next")
	assert.False(t, res.HasScore, "half a score")
	assert.True(t, r.step(nil, append(gpu, of(Tensor, 0.4))...).Signals.Known[nodesignal.Throughput])

	res = newRig(t).step(nil, append(gpu, of(StepRate, 2))...)
	assert.InDelta(t, 2, res.Signals.V[nodesignal.Throughput], 0)
	assert.False(t, res.HasScore, "before the first reference")
}

func TestABetterSourceHasItsOwnBaseline(t *testing.T) {
	r := newRig(t)
	gpu := []input{of(Utilization, 0.9), of(SMClock, 1.9e9), of(SMClockLimit, 2e9)}
	for i := range 40 {
		inputs := gpu
		if i >= 20 {
			inputs = slices.Concat(gpu, []input{of(StepRate, 0.05)})
		}
		assert.False(t, r.step(nil, inputs...).Straggler, "a twentieth of a step is another unit")
	}
}

func TestScore(t *testing.T) {
	w := Weights{nodesignal.Throughput: 0.40, nodesignal.Compute: 0.25, nodesignal.Memory: 0.20, nodesignal.CPU: 0.15}
	f := Floors{nodesignal.Throughput: 0.35, nodesignal.Compute: 0.35, nodesignal.Memory: 0.02, nodesignal.CPU: 0.10}
	set := func(values ...float64) *nodesignal.Values {
		var v nodesignal.Values
		for i, x := range values {
			v.Set([]nodesignal.Signal{nodesignal.Throughput, nodesignal.Compute, nodesignal.Memory, nodesignal.CPU}[i], x)
		}
		return &v
	}
	only := func(signals ...nodesignal.Signal) *nodesignal.Values {
		var v nodesignal.Values
		for _, s := range signals {
			v.Set(s, 1)
		}
		return &v
	}
	for name, tc := range map[string]struct {
		v    *nodesignal.Values
		want float64
		ok   bool
	}{
		"all well":             {set(1, 1, 1, 1), 1, true},
		"weighted":             {set(0.5, 1, 1, 1), 0.8, true},
		"one signal only":      {set(0.42), 0.42, true},
		"nothing":              {&nodesignal.Values{}, 0, false},
		"half of a floor":      {set(0.175, 1, 1, 1), (0.4*0.175 + 0.6) * 0.75, true},
		"dead signal":          {set(0, 1, 1, 1), 0.3, true},
		"full memory is fine":  {set(1, 1, 0.05, 1), 0.81, true},
		"NaN is not healthy":   {set(math.NaN()), 0, true},
		"more than full is 1":  {set(1.7), 1, true},
		"infinite is clamped":  {set(math.Inf(1)), 1, true},
		"negative is clamped":  {set(-3, 1, 1, 1), 0.3, true},
		"memory alone is none": {only(nodesignal.Memory, nodesignal.CPU), 0, false},
		"links alone are none": {only(nodesignal.Interconnect, nodesignal.Power), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := Score(&w, &f, tc.v)
			assert.Equal(t, tc.ok, ok)
			assert.InDelta(t, tc.want, got, 1e-12)
		})
	}
}

func TestConfigReportsAllMistakes(t *testing.T) {
	cfg := Config{IdleBelow: math.NaN(), LoadAbove: 2}
	cfg.Weights[nodesignal.Throughput], cfg.Floors[nodesignal.Compute] = -1, 2
	cfg.Measures[nodesignal.CPU] = Measure{"any", make([]Source, maxSources+1)}
	cfg.Measures[nodesignal.Memory].Sources = []Source{{Ratio: Ratio{Metric: "x"}, Times: make([]Ratio, maxTimes+1)}}
	cfg.Measures[nodesignal.Score].Sources = []Source{{Ratio: Ratio{Metric: "x"}}}
	err := cfg.Validate("")
	for _, key := range []string{
		"signals::throughput::weight", "signals::compute::floor", "signals::cpu::combine", "signals::cpu::sources", "signals::cpu::sources::16::metric",
		"signals::memory::sources::0::times", "signals::score::sources", "push_interval", "idle_below", "idle_after", "load_above",
		"calibration_samples", "baseline_alpha", "suspect_band", "cached_ttl", "local_fraction", "enter_ticks", "leave_ticks",
	} {
		require.ErrorContains(t, err, "`"+key+"`")
	}
	cfg = DefaultConfig()
	cfg.Weights = Weights{}
	require.ErrorContains(t, cfg.Validate(""), "`signals` give no `weight` to throughput and compute")
	cfg = DefaultConfig()
	cfg.Weights[nodesignal.Power] = 0.1
	assert.ErrorContains(t, cfg.Validate(""), "`signals::power::weight` is 0.1, must be 0")
}

func BenchmarkEvaluate(b *testing.B) {
	cfg := DefaultConfig()
	plan := NewPlan(&cfg.Measures)
	n := NewNode(&cfg, plan)
	var r Reading
	add(plan, &r, of(StepDuration, 19))
	for i := range 8 {
		for _, in := range []kind{Utilization, SMClock, SMClockLimit, Power, Width, WidthMax, Gen, LinksUp, Replays, Recoveries, MemoryUsed, MemoryLimit} {
			add(plan, &r, on(string(rune('a'+i)), in, 1))
		}
	}
	now := start
	peers := threshold.Received{At: now, Value: threshold.Value{Threshold: 0.95, Ref: 0.05, QuorumMet: true, TTL: time.Hour}}
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(interval)
		peers.At = now
		n.Observe(&r, now)
		n.Evaluate(now, me, peers, true)
	}
}
