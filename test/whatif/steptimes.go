// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// StepTime is what one worker computed in one step, in seconds. Wall is how long the
// step took, 0 where that is not known.
type StepTime struct {
	Worker
	Step          int
	Compute, Wall float64
}

// Estimate says what Analyse says, from step times alone. A step takes as long as its
// slowest worker, and then what of the wall time is no compute. While a pipeline fills
// and drains that is the compute of the other workers, so it changes with theirs. The
// ideal compute is the mean, as of operations. A step that lacks a worker is skipped.
// ByKind stays empty.
func Estimate(times []StepTime) (*WhatIf, error) {
	if len(times) == 0 {
		return nil, errors.New("no step times")
	}
	times = slices.Clone(times)
	slices.SortStableFunc(times, func(a, b StepTime) int { return cmp.Or(cmp.Compare(a.Step, b.Step), a.Compare(b.Worker)) })
	dp, stages := 0, 0
	for i := range times {
		t := &times[i]
		if t.DP < 0 || t.Stage < 0 || t.DP >= maxWorkers || t.Stage >= maxWorkers {
			return nil, fmt.Errorf("step %d is of worker dp%d-pp%d, ranks are 0 to %d", t.Step, t.DP, t.Stage, maxWorkers-1)
		}
		if !(t.Compute > 0 && t.Wall >= 0) || math.IsInf(t.Compute, 1) || math.IsInf(t.Wall, 1) {
			return nil, fmt.Errorf("step %d of worker dp%d-pp%d takes %g s of compute and %g s in all, must be finite and positive", t.Step, t.DP, t.Stage, t.Compute, t.Wall)
		}
		if i > 0 && t.Step == times[i-1].Step && t.Worker == times[i-1].Worker {
			return nil, fmt.Errorf("step %d has worker dp%d-pp%d twice", t.Step, t.DP, t.Stage)
		}
		dp, stages = max(dp, t.DP+1), max(stages, t.Stage+1)
	}
	if dp*stages > maxWorkers {
		return nil, fmt.Errorf("%d data-parallel ranks of %d stages are more than %d workers", dp, stages, maxWorkers)
	}
	w := &WhatIf{ByWorker: map[Worker]float64{}, ByDP: map[int]float64{}, ByStage: map[int]float64{}, ByKind: map[Kind]float64{}}
	var steps [][]StepTime
	for from := 0; from < len(times); {
		to := from
		for to < len(times) && times[to].Step == times[from].Step {
			to++
		}
		if to-from == dp*stages {
			steps = append(steps, times[from:to])
		} else {
			w.Skipped++
			w.Why = cmp.Or(w.Why, fmt.Errorf("step %d has %d of %d workers", times[from].Step, to-from, dp*stages))
		}
		from = to
	}
	if w.Steps = len(steps); w.Steps == 0 {
		return nil, fmt.Errorf("no step is complete: %w", w.Why)
	}
	w.estimate(steps, dp, stages)
	return w, nil
}

func (w *WhatIf) estimate(steps [][]StepTime, dp, stages int) {
	rest := make([]float64, len(steps)) // of each step that is no compute
	var all []float64
	for k, list := range steps {
		slowest := 0.0
		for i := range list {
			all = append(all, list[i].Compute)
			slowest = max(slowest, list[i].Compute)
		}
		rest[k] = max(0, list[0].Wall-slowest)
	}
	ideal := mean(all)
	more := ideal/median(all) - 1
	step := func(real func(Worker) bool) (sum float64) {
		for k, list := range steps {
			slowest, others := 0.0, 0
			for i := range list {
				if real(list[i].Worker) {
					slowest = max(slowest, list[i].Compute)
				} else {
					others++
				}
			}
			if others > 0 {
				slowest = max(slowest, ideal)
			}
			sum += slowest + rest[k]*(1+more*float64(others)/float64(len(list)))
		}
		return sum / float64(len(steps))
	}
	w.fill(step, dp, stages)
}
