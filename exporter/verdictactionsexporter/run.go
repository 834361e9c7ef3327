// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/driver"
	"github.com/gpu-collector/gpu-collector/internal/repair"
)

// run is the goroutine that owns the machine.
type run struct {
	*actor
	life    context.Context
	machine *repair.Machine
	results chan func() // of the worker
	working bool
	cut     context.CancelFunc // ends the worker's call
	kept    bool               // storage and Lease have the machine's state
	term    *term              // of leading; nil: another instance leads
	history string             // that the Lease has
	handed  bool               // it is that of the machine
	looked  time.Time
	failing map[string]string // a driver's error that was told
}

func (r *run) loop() {
	defer close(r.stopped)
	ticker := time.NewTicker(r.tick)
	defer ticker.Stop()
	r.failing = map[string]string{}
	_ = r.settle() // told; the next one tries again
	for {
		select {
		case <-r.life.Done():
			if r.working {
				r.cut()
				(<-r.results)()
				_ = r.settle() // told
			}
			return
		case f := <-r.requests:
			_ = f(r) // the answer has it
		case t := <-r.lead:
			r.led(t)
		case f := <-r.results:
			r.working = false
			r.cut()
			f()
			_ = r.settle() // told
		case <-ticker.C:
			if r.term != nil { // what another one decides is told by that one
				r.machine.Tick(r.now())
			}
			_ = r.settle() // told
		}
		r.work()
	}
}

// led begins a term, or ends it.
func (r *run) led(t *term) {
	if t != nil && t.ctx.Err() != nil { // it was over before it was told
		t = nil
	}
	r.term, r.handed, r.looked = t, false, time.Time{}
	r.active.Store(t != nil)
	if t == nil {
		if r.working {
			r.cut()
		}
		return
	}
	now := r.now()
	if r.history = t.history; t.history != "" {
		if err := r.machine.Inherit([]byte(t.history), now); err != nil {
			r.log.Error("The history on the Lease cannot be read. The breaker is open until `breaker::reset` is changed.", zap.String("lease", r.lease.name), zap.Error(err))
			r.machine.Trip(repair.RuleStateLost, now)
		}
	}
	r.machine.ResetBreaker(r.cfg.Breaker.Reset, "configuration", now)
	r.machine.Listen(now)
	_ = r.settle() // told
}

// settle audits what was decided, and keeps it. A kill in between has the same records
// once more, under the same ids.
func (r *run) settle() error {
	records := r.machine.Take()
	r.audit.write(r.life, records)
	r.open.Store(r.machine.Breaker().Open)
	if !r.machine.Changed() && r.kept && (r.handed || r.lease == nil || r.term == nil) {
		return nil
	}
	r.handed = false
	r.count()
	data, err := r.machine.Snapshot()
	if err == nil {
		err = r.keep.save(r.life, data)
	}
	if err == nil {
		err = r.hand()
	}
	if err != nil {
		if r.kept {
			r.log.Error("The state of repair cannot be written: nothing is done until it can.", zap.Error(err))
		}
		r.kept = false
		return fmt.Errorf("%w: %w", errNotKept, err)
	}
	r.kept = true
	return nil
}

// hand writes what the next leader has to know, before the step that it is about.
func (r *run) hand() error {
	if r.lease == nil || r.term == nil {
		return nil
	}
	history, err := r.machine.History()
	if err != nil {
		return err
	}
	if string(history) != r.history {
		if err := r.lease.write(r.life, string(history)); err != nil {
			return err
		}
	}
	r.history, r.handed = string(history), true
	return nil
}

// work gives the worker something to do, if it has nothing: a look at the systems when
// that is due, or else the next step.
func (r *run) work() {
	if r.working || r.term == nil || r.term.ctx.Err() != nil || !r.kept || r.life.Err() != nil {
		return
	}
	if r.now().Sub(r.looked) >= r.cfg.PollInterval {
		cases := r.machine.Cases()
		for i := range cases {
			cases[i].Testing = cases[i].Testing && !r.cfg.DryRun // no test was begun
		}
		r.begin(func(ctx context.Context) func() { return r.look(ctx, cases) })
		return
	}
	p, ok := r.machine.Next(r.now())
	if !ok {
		return
	}
	d := r.route[p.Step]
	if d == nil { // a rung that was on before the restart
		r.machine.Done(p.ID, &repair.Result{Outcome: repair.Refused, Rule: repair.RuleDriver, Text: "the rung is off"}, r.now())
		_ = r.settle() // told
		return
	}
	r.begin(func(ctx context.Context) func() {
		result := d.Do(ctx, &p, r.cfg.DryRun)
		return func() { r.machine.Done(p.ID, &result, r.now()) }
	})
}

// begin runs f in the worker. What f returns runs where the machine is.
func (r *run) begin(f func(ctx context.Context) func()) {
	ctx, cancel := context.WithTimeout(r.term.ctx, stepTimeout)
	r.working, r.cut = true, cancel
	go func() {
		r.acting.Lock()
		tell := f(ctx)
		r.acting.Unlock()
		r.results <- tell
	}()
}

// look asks all drivers. One that fails says nothing, and the others are heard.
func (r *run) look(ctx context.Context, cases []repair.Case) func() {
	type answer struct {
		driver.View
		name string
		err  error
	}
	var answers []answer
	for _, d := range r.drivers {
		v, err := d.Look(ctx, cases)
		answers = append(answers, answer{v, d.Name(), err})
	}
	return func() {
		// From its end: steps have their turn, however long a look takes.
		r.looked = r.now()
		for i := range answers {
			a := &answers[i]
			r.heard(a.name, a.err)
			r.take(&a.View)
		}
	}
}

func (r *run) take(v *driver.View) {
	now := r.now()
	for i := range v.Sights { // before a word ends the case
		if !r.cfg.DryRun {
			r.machine.Recall(&v.Sights[i], now)
		}
	}
	for i := range v.Words {
		r.machine.Say(&v.Words[i], now)
	}
	for i := range v.Tests {
		r.machine.Tested(&v.Tests[i], now)
	}
	for i := range v.Sights {
		s := v.Sights[i]
		if r.cfg.DryRun {
			s.Foreign = nil // nothing of ours is there
		}
		r.machine.See(&s, now)
	}
	if !r.cfg.DryRun {
		for _, a := range v.Adopted {
			r.machine.Adopt(a.Node, a.Case, a.Steps, now)
		}
	}
}

// heard tells of a driver's error once, and of its end.
func (r *run) heard(name string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch was := r.failing[name]; {
	case text != "" && was == "":
		r.log.Warn("A system cannot be looked at.", zap.String("driver", name), zap.Error(err))
	case text == "" && was != "":
		r.log.Info("The system can be looked at again.", zap.String("driver", name))
	}
	r.failing[name] = text
}

// count publishes how many nodes are in each state.
func (r *run) count() {
	n := map[repair.State]int64{}
	for _, c := range r.machine.Cases() {
		n[c.State]++
	}
	r.byState.Store(&n)
}
