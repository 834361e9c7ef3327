// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/jobcost"
	"github.com/gpu-collector/gpu-collector/sim/ranks"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/whatif"
)

// costSteps are played of a job.
const costSteps = 20

// SimulatedCost is a job with a slow GPU or host beside the same job without it.
type SimulatedCost struct {
	// Truth is how many times as long its steps take. S is what the replay of its
	// operations says, Worker what it says of the slowest worker alone, Times what its step
	// times say, and Live what the lowest share of time in collectives does.
	Truth, S, Worker, Times, Live float64
}

// SimulateCosts plays jobs of the cases of collectives, each with and without its fault.
func SimulateCosts(seed uint64, jobs int) (all []SimulatedCost, err error) {
	for i := range jobs {
		h := fnv.New64a()
		_, _ = fmt.Fprintf(h, "cost %d", i) // never fails
		rng := rand.New(rand.NewPCG(seed, h.Sum64()))
		c := CollectiveCase{job: func(r *rand.Rand, m *collectiveModel) { m.job.Overlap = r.IntN(3) == 0 }}
		job := c.draw(rng).job
		job.Backward = 2
		job.Compute /= 1 + job.Backward
		slower := make([]float64, job.Ranks())
		loss, rank := 0.05+0.35*rng.Float64(), rng.IntN(job.Ranks())
		slower[rank] = loss
		if host := i%2 == 1; host {
			for g := range job.GPUs {
				slower[rank/job.GPUs*job.GPUs+g] = loss
			}
		}
		play := rng.Uint64()
		well, _, _ := record(&job, play, &ranks.Faults{})
		took, ops, shares := record(&job, play, &ranks.Faults{Slower: slower})
		one, err := whatif.Analyse(ops)
		if err != nil {
			return nil, err
		}
		if one.Skipped > 0 {
			return nil, fmt.Errorf("the replay of a simulated job leaves steps out: %w", one.Why)
		}
		estimate, err := whatif.Estimate(stepTimes(ops, took))
		if err != nil {
			return nil, err
		}
		out := SimulatedCost{Truth: took / well, S: one.S, Times: estimate.S, Live: jobcost.Slowdown(worstGap(&job, shares))}
		for r, loss := range slower {
			if loss > 0 {
				out.Worker = max(out.Worker, one.ByWorker[workerOf(&job, r)])
			}
		}
		all = append(all, out)
	}
	return all, nil
}

func workerOf(j *ranks.Job, rank int) whatif.Worker {
	stage := j.TP * j.DP
	return whatif.Worker{DP: rank % stage / j.TP, Stage: rank / stage}
}

// worstGap is by how much the lowest share of a stage is below the middle of its ranks.
func worstGap(j *ranks.Job, shares []float64) (most float64) {
	for stage := range slices.Chunk(shares, j.TP*j.DP) {
		all := slices.Sorted(slices.Values(stage))
		most = max(most, all[len(all)/2]-all[0])
	}
	return most
}

// record plays a job, and returns its mean step, what a profile has of it, and the ranks'
// shares of time in collectives. A profile's worker is the first rank of a tensor-parallel
// group.
func record(j *ranks.Job, seed uint64, f *ranks.Faults) (took float64, ops []whatif.Op, shares []float64) {
	type done struct {
		whatif.Worker
		micro int
		back  bool
	}
	play, step, ended := ranks.New(*j, rand.New(rand.NewPCG(seed, 1))), 0, map[done]float64{}
	last := map[whatif.Worker]float64{} // compute
	reduced := map[whatif.Worker]int{}  // where its reduce-scatter is
	play.Watch(func(o *ranks.Operation) {
		w := workerOf(j, o.Rank)
		add := func(k whatif.Kind, w whatif.Worker, began, ended float64) {
			ops = append(ops, whatif.Op{Worker: w, Step: step, Kind: k, Seq: o.Micro, Start: began, Duration: max(0, ended-began)})
		}
		first := o.Rank%j.TP == 0
		switch {
		case o.Kind == ranks.Compute && first:
			k := whatif.ForwardCompute
			if o.Back {
				k = whatif.BackwardCompute
			}
			add(k, w, o.Began, o.Ended)
			ended[done{w, o.Micro, o.Back}], last[w] = o.Ended, o.Ended
		case o.Kind == ranks.Pipe && first:
			send, recv := whatif.ForwardSend, whatif.ForwardRecv
			if o.Back {
				send, recv = whatif.BackwardSend, whatif.BackwardRecv
			}
			from := whatif.Worker{DP: w.DP, Stage: o.Peer}
			add(send, from, ended[done{from, o.Micro, o.Back}], o.Ended)
			add(recv, w, o.Began, o.Ended)
		case o.Kind == ranks.Data:
			// Of an operation beside compute the part that is left when that has ended.
			at, known := reduced[w]
			if !known {
				at, reduced[w] = len(ops), len(ops)
				add(whatif.GradsReduceScatter, w, max(o.Began, last[w]), 0)
			}
			ops[at].Duration = max(ops[at].Duration, o.Ended-ops[at].Start)
		}
	})
	for step = range costSteps {
		clear(reduced)
		play.Step(f)
	}
	return play.Now() / costSteps, ops, play.Shares(play.Now(), nil)
}

// stepTimes are what a training loop tells of the same steps.
func stepTimes(ops []whatif.Op, wall float64) (list []whatif.StepTime) {
	type key struct {
		whatif.Worker
		step int
	}
	at := map[key]int{}
	for i := range ops {
		o := &ops[i]
		if o.Kind != whatif.ForwardCompute && o.Kind != whatif.BackwardCompute {
			continue
		}
		k := key{o.Worker, o.Step}
		if _, known := at[k]; !known {
			at[k] = len(list)
			list = append(list, whatif.StepTime{Worker: o.Worker, Step: o.Step, Wall: wall})
		}
		list[at[k]].Compute += o.Duration
	}
	return list
}

// SimulatedCostFigures writes by how much the cost of simulated jobs is off. The ideal of
// the analysis is a mean that the fault is in, so that S is too low in jobs of few workers.
func SimulatedCostFigures(w io.Writer, all []SimulatedCost) {
	tell := func(name string, limit float64, of func(*SimulatedCost) float64) {
		var list []float64
		for i := range all {
			list = append(list, off(of(&all[i]), all[i].Truth))
		}
		slices.Sort(list)
		figure.FprintOnly(w, name+"_error_p50", list[(len(list)-1)/2], "%")
		figure.Fprint(w, name+"_error_p95", list[(len(list)*95-1)/100], "%", limit, true)
		figure.Fprint(w, name+"_error_worst", list[len(list)-1], "%", limit, true)
	}
	tell("jobcost_simulated_S", 5, func(c *SimulatedCost) float64 { return c.S })
	tell("jobcost_simulated_worker", 5, func(c *SimulatedCost) float64 { return c.Worker })
	tell("jobcost_simulated_steptimes_S", 15, func(c *SimulatedCost) float64 { return c.Times })
	tell("jobcost_simulated_live_S", 15, func(c *SimulatedCost) float64 { return c.Live })
}
