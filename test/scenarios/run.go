// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"errors"
	"sync"
)

// Outcome of a scenario: a result per decider, by name.
type Outcome struct {
	Scenario Scenario
	Results  map[string]*Result
}

// Options of an evaluation.
type Options struct {
	// Seed of all randomness.
	Seed uint64
	// Workers is the number of runs at a time.
	Workers int
	// Deciders to compare.
	Deciders []Decider
	// Progress is told of each run that is done, and of how many there are; may be nil.
	Progress func(done, runs int, s *Scenario)
}

// Evaluate plays the scenarios. The result is the same whatever the number of
// workers.
func Evaluate(ctx context.Context, list []Scenario, o Options) ([]Outcome, error) {
	outcomes := make([]Outcome, 0, len(list))
	done := 0
	for _, s := range list {
		out := Outcome{Scenario: s, Results: map[string]*Result{}}
		for _, d := range o.Deciders {
			out.Results[d.Name] = &Result{}
		}
		outcomes = append(outcomes, out)
	}
	type job struct {
		out *Outcome
		run int
	}
	var jobs []job
	for i := range outcomes {
		for run := range outcomes[i].Scenario.Runs {
			jobs = append(jobs, job{&outcomes[i], run})
		}
	}
	err := inParallel(ctx, len(jobs), o.Workers, func(k int) (func(), error) {
		out := jobs[k].out
		results, err := play(&out.Scenario, o.Deciders, o.Seed, jobs[k].run)
		return func() {
			for name, r := range results {
				out.Results[name].add(r)
			}
			if done++; o.Progress != nil {
				o.Progress(done, len(jobs), &out.Scenario)
			}
		}, err
	})
	return outcomes, err
}

// inParallel calls play for each of n jobs, workers at a time. What play returns to be
// done is done one after the other.
func inParallel(ctx context.Context, n, workers int, play func(k int) (func(), error)) error {
	jobs := make(chan int)
	go func() {
		defer close(jobs)
		for k := range n {
			select {
			case jobs <- k:
			case <-ctx.Done():
				return
			}
		}
	}()
	var (
		mu   sync.Mutex
		errs []error
		wg   sync.WaitGroup
	)
	for range max(workers, 1) {
		wg.Go(func() {
			for k := range jobs {
				then, err := play(k)
				mu.Lock()
				errs = append(errs, err)
				then()
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// source of the samples of a run.
type source interface {
	fleet
	// next returns the values of the next tick; they are valid until the one after.
	next() []float64
	// truth says which nodes are hit by the fault.
	truth() []bool
}

// play gives all deciders the same samples of one run.
func play(s *Scenario, deciders []Decider, seed uint64, run int) (map[string]*Result, error) {
	begin, end := s.faultTicks()
	var w source
	if s.Recording != nil {
		w = s.Recording.play()
	} else {
		w = newWorld(s.Model, s.Fault, s.Nodes, begin, end, random(seed, s.ID, run))
	}
	drivers, tallies := make([]*driver, len(deciders)), make([]*tally, len(deciders))
	for i, d := range deciders {
		cfg := d.Config()
		if s.Recording != nil {
			cfg.Quorum = min(cfg.Quorum, s.Recording.Quorum)
		}
		drivers[i] = newDriver(cfg, s.Nodes, w)
		tallies[i] = newTally(w.truth(), int(s.Warmup/Interval), begin, end)
	}
	for tick := range int(s.Length / Interval) {
		values := w.next()
		for i, d := range drivers {
			if err := d.push(tick, values); err != nil {
				return nil, err
			}
			t := tallies[i]
			d.tick(tick, t.flagged)
			t.tick(tick, d.incidents)
		}
	}
	results := make(map[string]*Result, len(deciders))
	for i, d := range deciders {
		if drivers[i].incidents < 0 {
			return nil, errors.New(d.Name + ": an incident ended that had not begun")
		}
		r := &tallies[i].result
		r.NodeRecords, r.GroupRecords = drivers[i].nodeRecords, drivers[i].groupRecords
		results[d.Name] = r
	}
	return results, nil
}
