// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// Detector is the name of the product with its defaults, which the limits are about. The
// families play it their clean forms too.
const Detector = "detector"

// Decider is one way of naming stragglers: the product's engine with settings.
type Decider struct {
	Name   string
	Config func() straggler.Config
}

// Deciders are compared in every family, in the order of the table.
func Deciders() []Decider {
	rule := func() straggler.Config {
		c := straggler.DefaultConfig()
		c.Decision = straggler.DecisionThreshold
		return c
	}
	return []Decider{
		{Detector, straggler.DefaultConfig},
		{"threshold", rule},
		// Ingero's agent compares with the same threshold, without a least gap. It
		// enters on one tick and leaves at threshold + 0.02.
		{"ingero-like", func() straggler.Config {
			c := rule()
			c.K, c.Alpha, c.MinGap = 2, 0.2, 0
			c.EnterTicks, c.LeaveTicks, c.ExitBand = 1, 1, 0.02
			return c
		}},
	}
}

// cluster of all the simulated nodes.
const cluster = "eval"

// usual is the interval that the engine's defaults are for.
const usual = 10 * time.Second

// epoch is when every simulation begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// driver feeds an engine as the gateway does: one observation per push, a tick
// per interval.
type driver struct {
	engine   *straggler.Engine
	interval time.Duration
	obs      []straggler.Observation
	lives    []uint32 // names that each node had before
	scale    float64  // turns a value into a score
	report   *straggler.Report
	told
}

// told is what an engine told at its last tick besides its verdicts.
type told struct {
	nodes     int
	silent    [math.MaxUint8 + 1]int // nodes without a verdict, by reason
	incidents int                    // open
	onsets    int                    // of nodes and groups, so far
}

func newDriver(cfg straggler.Config, m *Model) *driver {
	// A node is missing after as many intervals as in the product.
	cfg.TTL = cfg.TTL / usual * m.Interval
	top, peers := 0.0, []string(nil)
	for _, j := range m.Jobs {
		top = max(top, j.Level)
	}
	if m.Recording != nil {
		cfg.Quorum = stageWorkers
	}
	d := &driver{
		engine: straggler.New(cfg), interval: m.Interval, scale: 0.9 / top,
		obs: make([]straggler.Observation, m.Nodes), lives: make([]uint32, m.Nodes),
	}
	for i := range d.obs {
		if m.Recording != nil {
			peers = m.Recording.Peers[i]
		}
		d.obs[i] = straggler.Observation{
			Cluster: cluster, Node: nodeName(i, 0), Peers: peers,
			State: straggler.StateActive, HasState: true, HasScore: true,
		}
	}
	return d
}

func nodeName(i int, life uint32) string { return fmt.Sprintf("node-%05d-%d", i, life) }

// rename gives a node another name where it has begun another life.
func (d *driver) rename(lives []uint32) {
	for i, life := range lives {
		if d.lives[i] != life {
			d.lives[i], d.obs[i].Node = life, nodeName(i, life)
		}
	}
}

// nodeIndex is nodeName's inverse. It reports false for a name that its node had before.
func (d *driver) nodeIndex(name string) (int, bool) {
	node, life, _ := strings.Cut(name[len("node-"):], "-")
	i, err := strconv.Atoi(node)
	if err != nil {
		panic(err) // the name is ours
	}
	return i, life == strconv.FormatUint(uint64(d.lives[i]), 10)
}

// push tells the values of tick. NaN is no push.
func (d *driver) push(tick int, values []float64) error {
	at := epoch.Add(time.Duration(tick) * d.interval)
	step := d.interval / time.Duration(len(values)+1)
	for i, v := range values {
		at = at.Add(step)
		if math.IsNaN(v) {
			continue
		}
		if err := d.pushOne(i, v, at); err != nil {
			return err
		}
	}
	return nil
}

// pushOne tells a value as throughput, which the product compares, and as score, which
// the plain rules do.
func (d *driver) pushOne(i int, v float64, at time.Time) error {
	o := &d.obs[i]
	o.Score = min(v*d.scale, 1)
	o.Values.Set(nodesignal.Throughput, v)
	return d.engine.Observe(o, at)
}

// tick ends tick's interval and writes the verdicts to flagged.
func (d *driver) tick(tick int, flagged []bool) {
	d.report = d.engine.Tick(epoch.Add(time.Duration(tick+1) * d.interval))
	clear(flagged)
	d.nodes, d.silent = len(d.report.Nodes), [len(d.silent)]int{}
	for i := range d.report.Nodes {
		n := &d.report.Nodes[i]
		if n.Unjudged != 0 {
			d.silent[n.Unjudged]++
		}
		if n.Straggler {
			if at, alive := d.nodeIndex(n.Node); alive {
				flagged[at] = true
			}
		}
	}
	for i := range d.report.Events {
		e := &d.report.Events[i]
		group := e.Subject == straggler.SubjectGroup
		switch {
		case e.Kind == straggler.EventOnset && (group || e.Subject == straggler.SubjectNode):
			d.onsets++
			if group {
				d.incidents++
			}
		case e.Kind == straggler.EventEnd && group:
			d.incidents--
		}
	}
}

// Outcome of a family: a result per decider, by name, and that of the product in the
// clean form of the same runs.
type Outcome struct {
	Family  Family
	Results map[string]*Result
	Clean   *Result
}

// Options of an evaluation.
type Options struct {
	Seed     uint64
	Workers  int
	Deciders []Decider
	// Progress is told of each run that is done, and of how many there are; may be nil.
	Progress func(done, runs int, family string)
}

// Evaluate plays the families. The result is the same whatever the number of workers.
func Evaluate(ctx context.Context, list []Family, o Options) ([]Outcome, error) {
	type job struct {
		out      *Outcome
		deciders []Decider
		run      int
		clean    bool
	}
	outcomes := make([]Outcome, len(list))
	var jobs []job
	for i, f := range list {
		out := &outcomes[i]
		*out = Outcome{Family: f, Results: map[string]*Result{}}
		for _, d := range o.Deciders {
			out.Results[d.Name] = &Result{Runs: make([]Verdicts, f.Runs)}
			if d.Name == Detector {
				out.Clean = &Result{Runs: make([]Verdicts, f.Runs)}
				for run := range f.Runs {
					jobs = append(jobs, job{out, []Decider{d}, run, true})
				}
			}
		}
		for run := range f.Runs {
			jobs = append(jobs, job{out, o.Deciders, run, false})
		}
	}
	var (
		next atomic.Int64
		wg   sync.WaitGroup
		mu   sync.Mutex
		done int
		errs []error
	)
	for range max(o.Workers, 1) {
		wg.Go(func() {
			for k := next.Add(1) - 1; int(k) < len(jobs) && ctx.Err() == nil; k = next.Add(1) - 1 {
				j := &jobs[k]
				runs, err := play(&j.out.Family, j.deciders, o.Seed, j.run, j.clean)
				for i := range runs {
					to := j.out.Results[j.deciders[i].Name]
					if j.clean {
						to = j.out.Clean
					}
					to.Runs[j.run] = runs[i]
				}
				mu.Lock()
				errs = append(errs, err)
				if done++; o.Progress != nil {
					o.Progress(done, len(jobs), j.out.Family.Name)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return outcomes, errors.Join(append(errs, ctx.Err())...)
}

// play gives all deciders the same samples of one run.
func play(f *Family, deciders []Decider, seed uint64, run int, clean bool) ([]Verdicts, error) {
	r := f.Play(seed, run, clean)
	drivers, judges := make([]*driver, len(deciders)), make([]*judge, len(deciders))
	for i, d := range deciders {
		drivers[i], judges[i] = newDriver(d.Config(), &r.Model), newJudge(r)
	}
	for r.Next() {
		for i, d := range drivers {
			d.rename(r.Life)
			if err := d.push(r.Tick, r.Values); err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			d.tick(r.Tick, judges[i].flagged)
			judges[i].tick(&d.told)
		}
	}
	results := make([]Verdicts, len(deciders))
	for i, j := range judges {
		results[i] = j.result
	}
	return results, nil
}
