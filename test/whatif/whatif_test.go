// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pipeline is a run of 1F1B with DP ranks, stages and microbatches. It plays the
// schedule by its own clock: an operation begins when its stream is free and its input
// is there. slow is how much longer a worker's compute takes.
type pipeline struct {
	dp, stages, micro, steps int
	forward, transfer, sync  float64
	slow                     func(w Worker, step int) float64
}

// play returns the operations, and the mean step.
func (p *pipeline) play() (ops []Op, took float64) {
	for step := range p.steps {
		list, end := p.step(step)
		ops, took = append(ops, list...), took+end/float64(p.steps)
	}
	return ops, took
}

// schedule of a stage: warm-up forwards, then one forward and one backward, then the rest.
func (p *pipeline) schedule(stage int) (list []Kind) {
	warm := min(p.stages-stage-1, p.micro)
	for range warm {
		list = append(list, ForwardCompute)
	}
	for range p.micro - warm {
		list = append(list, ForwardCompute, BackwardCompute)
	}
	for range warm {
		list = append(list, BackwardCompute)
	}
	return list
}

func (p *pipeline) step(step int) (ops []Op, end float64) {
	add := func(w Worker, k Kind, seq int, start, end float64) {
		ops = append(ops, Op{Worker: w, Step: step, Kind: k, Seq: seq, Start: start + 100*float64(step), Duration: end - start})
	}
	for d := range p.dp {
		free := make([]float64, p.stages)
		next := make([]int, p.stages)
		done := map[Kind][][]float64{ForwardCompute: make([][]float64, p.stages), BackwardCompute: make([][]float64, p.stages)}
		for s := range p.stages {
			add(Worker{d, s}, ParamsAllGather, 0, 0, p.sync)
			free[s] = p.sync
		}
		for left := p.stages * 2 * p.micro; left > 0; {
			for s := range p.stages {
				w, plan := Worker{d, s}, p.schedule(s)
				if next[s] == len(plan) {
					continue
				}
				k := plan[next[s]]
				mb := len(done[k][s])
				from, recv, send, cost := s-1, ForwardRecv, ForwardSend, p.forward
				if k == BackwardCompute {
					from, recv, send, cost = s+1, BackwardRecv, BackwardSend, 2*p.forward
				}
				start := free[s]
				if from >= 0 && from < p.stages {
					if len(done[k][from]) <= mb {
						continue // not computed yet
					}
					sent := done[k][from][mb]
					// The receive was posted when the compute before it ended.
					posted := free[s]
					add(Worker{d, from}, send, mb, sent, max(sent, posted)+p.transfer)
					add(w, recv, mb, posted, max(sent, posted)+p.transfer)
					start = max(sent, posted) + p.transfer
				}
				free[s] = start + cost*(1+p.slow(w, step))
				add(w, k, mb, start, free[s])
				done[k][s] = append(done[k][s], free[s])
				next[s]++
				left--
			}
		}
		for s := range p.stages {
			end = max(end, free[s])
			add(Worker{d, s}, GC, 0, free[s], free[s])
			add(Worker{d, s}, LayernormGradsAllReduce, 0, free[s], free[s])
		}
	}
	for d := range p.dp {
		for s := range p.stages {
			w := Worker{d, s}
			if s == 0 || s == p.stages-1 {
				add(w, EmbeddingGradsAllReduce, 0, end, end+p.sync)
			}
			at := end + p.sync
			add(w, GradsReduceScatter, 0, at, at+p.sync)
			add(w, OptimizerClip, 0, at+p.sync, at+1.1*p.sync)
			add(w, Optimizer, 0, at+1.1*p.sync, at+1.2*p.sync)
		}
	}
	return ops, end + 2.2*p.sync
}

// run draws a job. A share of the workers' compute times differs at random.
func run(r *rand.Rand) *pipeline {
	noise := 0.02 * r.Float64()
	stages := 1 + r.IntN(4)
	p := &pipeline{
		// Microbatches by GPipe's rule (NeurIPS '19): four times the stages keep the bubble small.
		dp: 1 + r.IntN(6), stages: stages, micro: 4*stages + r.IntN(12), steps: 3,
		forward: 0.05 + r.Float64(), transfer: 0.002, sync: 0.1,
	}
	p.slow = func(w Worker, step int) float64 {
		return noise * rand.New(rand.NewPCG(uint64(step), uint64(w.DP*64+w.Stage))).Float64()
	}
	return p
}

// times are the step times of the operations.
func times(ops []Op, wall float64) (list []StepTime) {
	at := map[[3]int]int{}
	for i := range ops {
		o := &ops[i]
		if o.Kind != ForwardCompute && o.Kind != BackwardCompute {
			continue
		}
		k := [3]int{o.Step, o.DP, o.Stage}
		if _, known := at[k]; !known {
			at[k] = len(list)
			list = append(list, StepTime{Worker: o.Worker, Step: o.Step, Wall: wall})
		}
		list[at[k]].Compute += o.Duration
	}
	return list
}

// The replay of what was recorded takes as long as the step did, and S is what the job
// loses against the same job without the fault, but for the mean that the fault is in.
func TestReplayFindsTheTruth(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 40 {
		p := run(r)
		_, healthy := p.play()
		culprit, extra := Worker{r.IntN(p.dp), r.IntN(p.stages)}, 0.1+r.Float64()
		usual := p.slow
		p.slow = func(w Worker, step int) float64 {
			if w == culprit {
				return usual(w, step) + extra
			}
			return usual(w, step)
		}
		ops, took := p.play()
		w, err := Analyse(ops)
		require.NoError(t, err)
		require.Zero(t, w.Skipped, w.Why)
		assert.InEpsilon(t, took, w.Step, 0.03, "%+v", p)

		workers := float64(p.dp * p.stages)
		if workers == 1 {
			assert.InDelta(t, 1, w.S, 0.02, "nobody to compare with")
			continue
		}
		ideal := healthy * (1 + extra/workers) // every worker takes its part of the fault
		assert.InEpsilon(t, took/ideal, w.S, 0.05, "%+v", p)
		assert.Equal(t, culprit, w.Worst[0])
		assert.Greater(t, w.WorstShare, 0.8, "more than all of it where the others are below the mean")
		for at, s := range w.ByWorker {
			if at != culprit {
				assert.Less(t, s, 1.03, at)
			}
		}
		assert.InEpsilon(t, w.S, w.ByDP[culprit.DP], 0.03)

		e, err := Estimate(times(ops, took))
		require.NoError(t, err)
		assert.InEpsilon(t, w.S, e.S, 0.15, "from step times alone: %+v", p)
		assert.Equal(t, culprit, e.Worst[0])
	}
}

// A rare stall of communication is no part of the ideal, and its kind has the blame.
func TestAStallIsNotUsual(t *testing.T) {
	p := &pipeline{dp: 2, stages: 2, micro: 8, steps: 8, forward: 0.1, transfer: 0.002, sync: 0.1, slow: func(Worker, int) float64 { return 0 }}
	ops, took := p.play()
	healthy, err := Analyse(ops)
	require.NoError(t, err)
	for i := range ops {
		if o := &ops[i]; o.Step == 3 && o.Kind == OptimizerClip {
			o.Duration += 50 * p.sync
		}
	}
	w, err := Analyse(ops)
	require.NoError(t, err)
	assert.InEpsilon(t, healthy.Ideal, w.Ideal, 1e-9)
	assert.InEpsilon(t, (took+50*p.sync/8)/took, w.S, 0.02)
	assert.InEpsilon(t, w.S, w.ByKind[OptimizerClip], 1e-9)
	assert.InDelta(t, 1, w.ByKind[ForwardCompute], 1e-9)
}

func TestHealthyJobLosesNothing(t *testing.T) {
	p := run(rand.New(rand.NewPCG(7, 7)))
	p.slow = func(Worker, int) float64 { return 0 }
	ops, took := p.play()
	w, err := Analyse(ops)
	require.NoError(t, err)
	assert.InDelta(t, 1, w.S, 1e-9)
	assert.InEpsilon(t, took, w.Ideal, 0.03)
	e, err := Estimate(times(ops, took))
	require.NoError(t, err)
	assert.InDelta(t, 1, e.S, 1e-9)
	assert.True(t, math.IsNaN(e.WorstShare), "no part of nothing")
}

// A step of which the recording lacks something is left out, and the error says what.
func TestIncompleteSteps(t *testing.T) {
	p := run(rand.New(rand.NewPCG(3, 3)))
	p.dp, p.stages = 2, 3
	ops, _ := p.play()
	whole, err := Analyse(ops)
	require.NoError(t, err)
	for _, kind := range []Kind{ForwardSend, BackwardRecv, GradsReduceScatter, OptimizerClip, EmbeddingGradsAllReduce} {
		at := slices.IndexFunc(ops, func(o Op) bool { return o.Kind == kind && o.Step == 1 })
		w, err := Analyse(slices.Delete(slices.Clone(ops), at, at+1))
		require.NoError(t, err)
		assert.Equal(t, 2, w.Steps)
		assert.Equal(t, 1, w.Skipped)
		require.ErrorContains(t, w.Why, "step 1: ", kind)
		assert.InEpsilon(t, whole.S, w.S, 0.01)
	}
	w, err := Analyse(append(slices.Clone(ops), ops[0]))
	require.NoError(t, err)
	require.ErrorContains(t, w.Why, "twice")
	_, err = Analyse(ops[:3])
	require.ErrorContains(t, err, "no step is complete")
	_, err = Analyse(nil)
	require.Error(t, err)
	for _, bad := range []Op{{Worker: Worker{-1, 0}}, {Worker: Worker{0, maxWorkers}}, {Worker: Worker{1 << 15, 1 << 15}}, {Duration: math.NaN()}, {Duration: -1}, {Start: math.Inf(1)}, {Kind: kinds}} {
		_, err := Analyse([]Op{bad})
		require.Error(t, err, bad)
	}
}

func TestEstimateRejects(t *testing.T) {
	good := []StepTime{{Worker{0, 0}, 1, 1, 2}, {Worker{0, 1}, 1, 1, 2}, {Worker{0, 0}, 2, 1, 2}}
	w, err := Estimate(good)
	require.NoError(t, err)
	assert.Equal(t, 1, w.Skipped)
	require.ErrorContains(t, w.Why, "step 2 has 1 of 2 workers")
	for _, bad := range []StepTime{{Worker{0, 0}, 1, 1, 2}, {Worker{-1, 0}, 1, 1, 2}, {Worker{0, 2}, 1, 0, 2}, {Worker{0, 2}, 1, math.NaN(), 2}, {Worker{0, 2}, 1, 1, -1}, {Worker{0, 2}, 1, math.Inf(1), 0}} {
		_, err := Estimate(append(slices.Clone(good), bad))
		require.Error(t, err, bad)
	}
	_, err = Estimate(nil)
	require.Error(t, err)
}

// A trace is read as it was written.
func TestReadTrace(t *testing.T) {
	p := run(rand.New(rand.NewPCG(5, 5)))
	ops, _ := p.play()
	ops = slices.DeleteFunc(ops, func(o Op) bool { return o.Step > 0 })
	got, foreign, err := ReadTrace(strings.NewReader(trace(t, ops)))
	require.NoError(t, err)
	assert.Empty(t, foreign)
	require.Len(t, got, len(ops))
	for i := range ops {
		assert.InDelta(t, ops[i].Start, got[i].Start, 1e-9)
		assert.InDelta(t, ops[i].Duration, got[i].Duration, 1e-9)
		got[i].Start, got[i].Duration = ops[i].Start, ops[i].Duration
	}
	assert.Equal(t, ops, got)

	got, foreign, err = ReadTrace(strings.NewReader(`[{"ph":"X","name":"tea-break"},{"ph":"X","name":"tea-break"}]`))
	require.NoError(t, err)
	assert.Empty(t, got)
	assert.Equal(t, []string{"tea-break"}, foreign)

	for what, text := range map[string]string{
		"begins with":    `{}`,
		"trace event":    `[{"ph":"X","name":3}]`,
		"no `step`":      `[{"ph":"X","name":"gc","args":{}}]`,
		"model chunk":    `[{"ph":"X","name":"gc","args":{"step":1,"seq_id":1,"model_chunk":1}}]`,
		"no thread name": `[{"ph":"X","name":"gc","args":{"step":1,"seq_id":1}}]`,
	} {
		_, _, err := ReadTrace(strings.NewReader(text))
		require.ErrorContains(t, err, what)
	}
}

func trace(t *testing.T, ops []Op) string {
	var events []map[string]any
	for _, o := range ops {
		tid := o.Stage * 5
		events = append(events,
			map[string]any{"ph": "M", "name": "process_name", "pid": o.DP, "args": map[string]any{"name": "DP rank [" + string(rune('0'+o.DP)) + "]"}},
			map[string]any{"ph": "M", "name": "thread_name", "pid": o.DP, "tid": tid, "args": map[string]any{"name": "PP rank " + string(rune('0'+o.Stage)) + ", TP rank 0, compute"}},
			map[string]any{"ph": "X", "name": o.Kind.String(), "pid": o.DP, "tid": tid, "ts": o.Start * 1e6, "dur": o.Duration * 1e6, "args": map[string]any{"step": o.Step, "seq_id": o.Seq, "model_chunk": 0}})
	}
	text, err := json.Marshal(events)
	require.NoError(t, err)
	return string(text)
}

func FuzzReadTrace(f *testing.F) {
	f.Add([]byte(`[{"ph":"M","name":"process_name","pid":0,"args":{"name":"DP rank [0]"}},{"ph":"M","name":"thread_name","pid":0,"tid":0,"args":{"name":"PP rank 0, TP rank 0, compute"}},{"ph":"X","name":"forward-compute","pid":0,"tid":0,"ts":1,"dur":2,"args":{"step":1,"seq_id":0}},{"ph":"X","name":"backward-compute","pid":0,"tid":0,"ts":4,"dur":2,"args":{"step":1,"seq_id":0}}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		ops, _, err := ReadTrace(strings.NewReader(string(text)))
		if err != nil {
			return
		}
		w, err := Analyse(ops)
		if err == nil {
			assert.False(t, math.IsNaN(w.S))
		}
	})
}
