// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"fmt"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/test/scenarios/families"
)

// FamilyOutcome of a family: a result per decider, by name, and that of the product in
// the clean form of the same runs.
type FamilyOutcome struct {
	Family  families.Family
	Results map[string]*FamilyResult
	Clean   map[string]*FamilyResult
}

// FamilyOptions of an evaluation.
type FamilyOptions struct {
	Seed     uint64
	Workers  int
	Deciders []Decider
	// Progress is told of each run that is done, and of how many there are; may be nil.
	Progress func(done, runs int, family string)
}

// EvaluateFamilies plays the families. The result is the same whatever the number of
// workers.
func EvaluateFamilies(ctx context.Context, list []families.Family, o FamilyOptions) ([]FamilyOutcome, error) {
	type job struct {
		out   *FamilyOutcome
		run   int
		clean bool
	}
	outcomes := make([]FamilyOutcome, len(list))
	var jobs []job
	for i, f := range list {
		out := &outcomes[i]
		*out = FamilyOutcome{Family: f, Results: map[string]*FamilyResult{}, Clean: map[string]*FamilyResult{}}
		for _, d := range o.Deciders {
			out.Results[d.Name] = &FamilyResult{Runs: make([]FamilyRun, f.Runs)}
			if d.Engine {
				out.Clean[d.Name] = &FamilyResult{Runs: make([]FamilyRun, f.Runs)}
			}
		}
		for run := range f.Runs {
			jobs = append(jobs, job{out, run, false}, job{out, run, true})
		}
	}
	done := 0
	err := inParallel(ctx, len(jobs), o.Workers, func(k int) (func(), error) {
		j := &jobs[k]
		deciders, results := o.Deciders, j.out.Results
		if j.clean {
			deciders, results = nil, j.out.Clean
			for _, d := range o.Deciders {
				if d.Engine {
					deciders = append(deciders, d)
				}
			}
		}
		runs, err := playFamily(&j.out.Family, deciders, o.Seed, j.run, j.clean)
		return func() {
			for i, r := range runs {
				results[deciders[i].Name].Runs[j.run] = r
			}
			if done++; o.Progress != nil {
				o.Progress(done, len(jobs), j.out.Family.Name)
			}
		}, err
	})
	return outcomes, err
}

// playFamily gives all deciders the same samples of one run.
func playFamily(f *families.Family, deciders []Decider, seed uint64, run int, clean bool) ([]FamilyRun, error) {
	if len(deciders) == 0 {
		return nil, nil
	}
	r := f.Play(seed, run, clean)
	from := familyFleet{r}
	drivers, judges := make([]*driver, len(deciders)), make([]*judge, len(deciders))
	for i, d := range deciders {
		cfg := d.Config()
		if least := r.Model.Recording.LeastPeers(); least > 0 {
			cfg.Quorum = min(cfg.Quorum, least)
		}
		drivers[i] = newDriverAt(cfg, r.Model.Interval, r.Model.Nodes, from)
		drivers[i].same = r.Same
		judges[i] = newJudge(r)
	}
	for r.Next() {
		for i, d := range drivers {
			d.rename(r.Life)
			if err := d.push(r.Tick, r.Values); err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			d.tick(r.Tick, judges[i].flagged)
			judges[i].tick(d.incidents, d.lockstep)
		}
	}
	results := make([]FamilyRun, len(deciders))
	for i, j := range judges {
		results[i] = j.result
	}
	return results, nil
}

// familyFleet is a family's run to a driver.
type familyFleet struct{ run *families.Run }

func (f familyFleet) more(node int, v *nodesignal.Values) {
	for k, o := range f.run.Model.Others {
		v.Set(o.Signal, f.run.Others[k][node])
	}
}

func (f familyFleet) peers(node int) []string {
	if rec := f.run.Model.Recording; rec != nil {
		return rec.Peers[node]
	}
	return nil
}

// scoreScale makes the score of the fastest job 0.9.
func (f familyFleet) scoreScale() float64 {
	top := f.run.Model.Recording.Fastest()
	for _, j := range f.run.Model.Jobs {
		top = max(top, j.Level)
	}
	return 0.9 / top
}
