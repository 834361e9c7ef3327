// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// WhatIf is what a job's recorded operations say of its slowdown. All slowdowns are
// factors of the ideal step, 1 for none.
type WhatIf struct {
	// Step and Ideal are mean seconds of a replayed step: as it was, and with every
	// operation as long as its kind's usual one.
	Step, Ideal float64
	// S is Step / Ideal. The others are with everything else ideal: S_w by worker, by
	// data-parallel rank, by stage and by kind of operation.
	S        float64
	ByWorker map[Worker]float64
	ByDP     map[int]float64
	ByStage  map[int]float64
	ByKind   map[Kind]float64
	// WorstShare is M_W, the part of the slowdown that goes away when the worst 3 % of
	// the workers, at least one, become ideal; Worst are these workers. It is NaN where
	// nothing is slow.
	WorstShare float64
	Worst      []Worker
	// Steps were replayed. Skipped ones lack operations; Why says what the first lacks.
	Steps, Skipped int
	Why            error
}

// worstShare of the workers are the worst ones (section 4.2 of the paper).
const worstShare = 0.03

// Bounds of a recording: what a day's profile of the largest job in the paper has.
const maxWorkers = 1 << 16

// Analyse replays a job's steps. Its error says why no step could be replayed.
func Analyse(ops []Op) (*WhatIf, error) {
	if len(ops) == 0 {
		return nil, errors.New("no operations")
	}
	steps, dp, stages, err := split(ops)
	if err != nil {
		return nil, err
	}
	out := &WhatIf{ByWorker: map[Worker]float64{}, ByDP: map[int]float64{}, ByStage: map[int]float64{}, ByKind: map[Kind]float64{}}
	var graphs []*graph
	for _, list := range steps {
		g, err := newGraph(list, dp, stages)
		if err != nil {
			out.Skipped++
			if out.Why == nil {
				out.Why = err
			}
			continue
		}
		graphs = append(graphs, g)
	}
	if out.Steps = len(graphs); out.Steps == 0 {
		return nil, fmt.Errorf("no step is complete: %w", out.Why)
	}
	out.replay(graphs, dp, stages)
	return out, nil
}

// split parts the operations by step, in order, and returns how many data-parallel
// ranks and stages there are.
func split(ops []Op) (steps [][]Op, dp, stages int, err error) {
	ops = slices.Clone(ops)
	slices.SortStableFunc(ops, func(a, b Op) int { return cmp.Or(cmp.Compare(a.Step, b.Step), a.Compare(b.Worker)) })
	for i := range ops {
		o := &ops[i]
		if o.DP < 0 || o.Stage < 0 || o.DP >= maxWorkers || o.Stage >= maxWorkers || o.Kind >= kinds {
			return nil, 0, 0, fmt.Errorf("%s of step %d is of worker dp%d-pp%d, ranks are 0 to %d", o.Kind, o.Step, o.DP, o.Stage, maxWorkers-1)
		}
		if !(o.Duration >= 0) || math.IsInf(o.end(), 0) || math.IsNaN(o.Start) {
			return nil, 0, 0, fmt.Errorf("%s of worker dp%d-pp%d in step %d takes %g s from %g on, must be finite and not negative", o.Kind, o.DP, o.Stage, o.Step, o.Duration, o.Start)
		}
		dp, stages = max(dp, o.DP+1), max(stages, o.Stage+1)
		if i == 0 || o.Step != ops[i-1].Step {
			steps = append(steps, nil)
		}
		steps[len(steps)-1] = append(steps[len(steps)-1], *o)
	}
	if dp*stages > maxWorkers {
		return nil, 0, 0, fmt.Errorf("%d data-parallel ranks of %d stages are more than %d workers", dp, stages, maxWorkers)
	}
	return steps, dp, stages, nil
}

// replay fills in what the steps take as they were, and with parts of them ideal.
func (w *WhatIf) replay(graphs []*graph, dp, stages int) {
	own := make([][]float64, len(graphs))
	var byKind [kinds][]float64
	for k, g := range graphs {
		own[k] = g.transfers()
		for i := range g.ops {
			byKind[g.ops[i].Kind] = append(byKind[g.ops[i].Kind], own[k][i])
		}
	}
	var ideal [kinds]float64
	for k, list := range byKind {
		ideal[k] = usual(Kind(k), list)
	}
	// step is the mean one, with the operations that real chooses as they were.
	step := func(real func(*Op) bool) (sum float64) {
		for k, g := range graphs {
			sum += g.replay(func(i int) float64 {
				if real(&g.ops[i]) {
					return own[k][i]
				}
				return ideal[g.ops[i].Kind]
			})
		}
		return sum / float64(len(graphs))
	}
	w.fill(func(real func(Worker) bool) float64 { return step(func(o *Op) bool { return real(o.Worker) }) }, dp, stages)
	for k, list := range byKind {
		if len(list) > 0 {
			w.ByKind[Kind(k)] = step(func(o *Op) bool { return o.Kind == Kind(k) }) / w.Ideal
		}
	}
}

// fill computes the slowdowns. step is the mean step with the workers that real chooses
// as they were, and the others ideal.
func (w *WhatIf) fill(step func(real func(Worker) bool) float64, dp, stages int) {
	w.Step = step(func(Worker) bool { return true })
	w.Ideal = step(func(Worker) bool { return false })
	if w.Ideal <= 0 {
		w.Ideal, w.Step = 1, 1 // nothing takes time
	}
	w.S = w.Step / w.Ideal
	for d := range dp {
		w.ByDP[d] = step(func(at Worker) bool { return at.DP == d }) / w.Ideal
	}
	for s := range stages {
		w.ByStage[s] = step(func(at Worker) bool { return at.Stage == s }) / w.Ideal
	}
	w.workers(step, dp, stages)
}

// exactWorkers is up to how many workers each is replayed by itself. Beyond, S_w is the
// lesser of its rank's and its stage's, as in the paper: thousands of replays say no more.
const exactWorkers = 128

func (w *WhatIf) workers(step func(func(Worker) bool) float64, dp, stages int) {
	var list []Worker
	for d := range dp {
		for s := range stages {
			at := Worker{d, s}
			list = append(list, at)
			if dp*stages <= exactWorkers {
				w.ByWorker[at] = step(func(of Worker) bool { return of == at }) / w.Ideal
			} else {
				w.ByWorker[at] = min(w.ByDP[d], w.ByStage[s])
			}
		}
	}
	slices.SortStableFunc(list, func(a, b Worker) int { return cmp.Compare(w.ByWorker[b], w.ByWorker[a]) })
	w.Worst = list[:int(math.Ceil(worstShare*float64(len(list))))]
	fixed := step(func(of Worker) bool { return !slices.Contains(w.Worst, of) })
	w.WorstShare = math.NaN()
	if w.Step-w.Ideal > 1e-9*w.Ideal { // not the rounding of a sum
		w.WorstShare = (w.Step - fixed) / (w.Step - w.Ideal)
	}
}

// usual is what an operation of a kind takes when nothing is slow, 0 of none.
func usual(k Kind, list []float64) float64 {
	if k.computes() {
		return mean(list)
	}
	return median(list)
}

func mean(list []float64) (sum float64) {
	for _, x := range list {
		sum += x / float64(len(list))
	}
	return sum
}

// median sorts.
func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return (list[(len(list)-1)/2] + list[len(list)/2]) / 2
}
