// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// Detector is the name of the product with its defaults, which the limits are about. The
// families play it their clean forms too.
const Detector = "detector"

// Decider is one way of naming stragglers: the product's engine, or a plain rule.
type Decider struct {
	Name string
	// Rule is nil for the engine, with its defaults.
	Rule *Rule
}

// watcher judges the nodes of a run: it takes their values of each tick, NaN where there is
// no push, and then writes its verdicts to flagged.
type watcher interface {
	push(tick int, values []float64, lives []uint32) error
	tick(tick int, flagged []bool) tally
}

func (d *Decider) watch(r *Run) watcher {
	if d.Rule != nil {
		return d.Rule.watch(&r.Model)
	}
	driver := newDriver(straggler.DefaultConfig(), &r.Model)
	driver.clocks = r.Clocks
	return driver
}

// Deciders are compared in every family, in the order of the table.
func Deciders() []Decider {
	c := straggler.DefaultConfig().Config
	plain := Rule{Config: c, enter: 3, leave: 3}
	// Ingero's agent compares with the same threshold, without a least gap. It
	// enters on one tick and leaves at threshold + 0.02.
	c.K, c.Alpha, c.MinGap = 2, 0.2, 0
	return []Decider{{Name: Detector}, {"threshold", &plain}, {"ingero-like", &Rule{Config: c, enter: 1, leave: 1, exitBand: 0.02}}}
}

const cluster = "eval"

// usual is the interval that the engine's defaults are for.
const usual = 10 * time.Second

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// driver feeds an engine as the gateway does: one observation per push, a tick
// per interval.
type driver struct {
	cfg    straggler.Config
	model  *Model
	engine *straggler.Engine
	obs    []nodesignal.Observation
	lives  []uint32       // names that each node had before
	nodes  map[string]int // by the name that it has
	report *straggler.Report
	clocks []float64 // of this tick, nil for none
	open   map[string]bool
	tally
}

// tally is what an engine reported at its last tick besides its verdicts.
type tally struct {
	known     int            // nodes
	unjudged  map[string]int // those without a verdict, by reason
	incidents int            // open
	onsets    []int          // nodes with an onset of their own
	again     int            // onsets of nodes that had an open one
}

func newDriver(cfg straggler.Config, m *Model) *driver {
	// A node is missing after as many intervals as in the product.
	cfg.TTL = cfg.TTL / usual * m.Interval
	d := &driver{
		cfg: cfg, model: m, engine: straggler.New(cfg), open: map[string]bool{},
		obs: make([]nodesignal.Observation, m.Nodes), lives: make([]uint32, m.Nodes), nodes: map[string]int{},
	}
	for i := range d.obs {
		d.obs[i] = nodesignal.Observation{Cluster: cluster, HasState: true}
		if m.Recording != nil {
			d.obs[i].GroupLabels = m.Recording.Peers[i]
		}
		d.rename(i, 0)
	}
	return d
}

// rename gives a node the name of a life.
func (d *driver) rename(i int, life uint32) {
	o := &d.obs[i]
	delete(d.nodes, o.Node)
	d.lives[i], o.Node = life, fmt.Sprintf("node-%05d-%d", i, life)
	d.nodes[o.Node] = i
}

func (d *driver) push(tick int, values []float64, lives []uint32) error {
	at := epoch.Add(time.Duration(tick) * d.model.Interval)
	step := d.model.Interval / time.Duration(len(values)+1)
	for i, v := range values {
		at = at.Add(step)
		if d.lives[i] != lives[i] {
			d.rename(i, lives[i])
		}
		if math.IsNaN(v) {
			continue
		}
		if err := d.pushOne(i, v, at); err != nil {
			return err
		}
	}
	return nil
}

func (d *driver) pushOne(i int, v float64, at time.Time) error {
	o := &d.obs[i]
	o.Values.Set(d.model.Signal, v)
	if d.clocks != nil {
		o.Values.Set(nodesignal.Compute, d.clocks[i])
	}
	return d.engine.Observe(o, at)
}

// tick implements watcher: it ends tick's interval.
func (d *driver) tick(tick int, flagged []bool) tally {
	now := epoch.Add(time.Duration(tick+1) * d.model.Interval)
	if every := int(d.model.Reboot / d.model.Interval); every > 0 && tick%every == every-1 {
		d.restart(now)
	}
	d.report = d.engine.Tick(now)
	clear(flagged)
	d.onsets, d.again = d.onsets[:0], 0
	d.known, d.unjudged = len(d.report.Nodes), make(map[string]int)
	for i := range d.report.Nodes {
		n := &d.report.Nodes[i]
		if n.Unjudged != 0 {
			d.unjudged[n.Unjudged.String()]++
		}
		// A name that its node had before is of no node.
		if n.Straggler {
			if at, alive := d.nodes[n.Node]; alive {
				flagged[at] = true
			}
		}
	}
	for _, e := range d.report.Events {
		switch {
		case e.Subject == episode.SubjectNode && e.Phase == episode.PhaseOnset:
			if at, alive := d.nodes[e.Node]; alive {
				d.onsets = append(d.onsets, at)
			}
			if d.open[e.Node] {
				d.again++
			}
			d.open[e.Node] = true
		case e.Subject == episode.SubjectNode && e.Phase == episode.PhaseEnd:
			delete(d.open, e.Node)
		case e.Subject != episode.SubjectGroup:
		case e.Phase == episode.PhaseOnset:
			d.incidents++
		case e.Phase == episode.PhaseEnd:
			d.incidents--
		}
	}
	return d.tally
}

// restart makes a new engine of what the old one saved, as a gateway does.
func (d *driver) restart(now time.Time) {
	var file bytes.Buffer
	err := d.engine.Save().Write(&file)
	d.engine = straggler.New(d.cfg)
	if err = errors.Join(err, d.engine.Restore(&file, now)); err != nil {
		panic(err)
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
	// Progress is called for each run that is done; may be nil.
	Progress func(done, runs int, family string)
}

// Evaluate plays the families. The result is the same whatever the number of workers.
func Evaluate(ctx context.Context, list []Family, o Options) ([]Outcome, error) {
	type job struct {
		family   *Family
		deciders []Decider
		results  []*Result // of each
		run      int
		clean    bool
	}
	outcomes := make([]Outcome, len(list))
	var jobs []job
	for i, f := range list {
		out := &outcomes[i]
		*out = Outcome{Family: f, Results: map[string]*Result{}}
		var results []*Result
		for k, d := range o.Deciders {
			results = append(results, &Result{Runs: make([]Verdicts, f.Runs)})
			if out.Results[d.Name] = results[k]; d.Name == Detector {
				out.Clean = &Result{Runs: make([]Verdicts, f.Runs)}
				for run := range f.Runs {
					jobs = append(jobs, job{&out.Family, []Decider{d}, []*Result{out.Clean}, run, true})
				}
			}
		}
		for run := range f.Runs {
			jobs = append(jobs, job{&out.Family, o.Deciders, results, run, false})
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
				runs, err := play(j.family, j.deciders, o.Seed, j.run, j.clean)
				for i := range runs {
					j.results[i].Runs[j.run] = runs[i]
				}
				mu.Lock()
				errs = append(errs, err)
				if done++; o.Progress != nil {
					o.Progress(done, len(jobs), j.family.Name)
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
	watchers, judges := make([]watcher, len(deciders)), make([]*judge, len(deciders))
	for i := range deciders {
		watchers[i], judges[i] = deciders[i].watch(r), newJudge(r)
	}
	for r.Next() {
		for i, w := range watchers {
			if err := w.push(r.Tick, r.Values, r.Life); err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			tally := w.tick(r.Tick, judges[i].flagged)
			judges[i].tick(&tally)
		}
	}
	var results []Verdicts
	for _, j := range judges {
		results = append(results, j.result)
	}
	return results, nil
}
