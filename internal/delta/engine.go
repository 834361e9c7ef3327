// SPDX-License-Identifier: Apache-2.0

package delta // import "github.com/gpu-collector/gpu-collector/internal/delta"

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// Engine is one table with the rules and the clock that its reports are judged by.
// Decoded reports come in by Consume, and the bytes of pushes by Compare.
type Engine struct {
	Table *statetable.Table
	// Now is the clock, and the table's time counts from Epoch. Neither changes once
	// there are reports.
	Now   func() time.Time
	Epoch time.Time

	to Downstream

	filters, wires sync.Pool
}

// Downstream takes what an Engine lets on.
type Downstream interface {
	// Deliver passes on what a report was reduced to. The nodes that it returns found
	// no room, and come in full with their next reports.
	Deliver(ctx context.Context, md pmetric.Metrics, counts Counts) (missed Missed, err error)
	// Outdated is called for the nodes of a report that was accepted, if the next hop
	// said meanwhile that it lacks state.
	Outdated(ctx context.Context, nodes []statetable.NodeKey)
}

// Missed are the nodes of a report whose points did not all find room.
type Missed = map[statetable.NodeKey]struct{}

// Exposition keeps the tables of diff processors: it serves them to Prometheus, and a
// receiver compares pushes with the one that its pipeline has.
type Exposition interface {
	// Register adds the engine of the processor of a name, until cancel is called.
	Register(processor string, e *Engine) (cancel func())
	// Follows returns the engine of the one diff that follows a receiver, or why pushes
	// cannot be compared with it.
	Follows(receiver string) (*Engine, error)
}

// NewEngine returns an engine with an empty table.
func NewEngine(set statetable.Settings, deadbands []deadband.Rule, to Downstream) *Engine {
	e := &Engine{Table: statetable.New(set), Now: new(reading.Clock).Now, Epoch: time.Now(), to: to}
	bands := deadband.NewCache(deadbands)
	e.filters.New = func() any {
		f := new(Filter)
		f.Bands = bands
		return f
	}
	e.wires.New = func() any { return NewWire(bands) }
	return e
}

// Time is the table's.
func (e *Engine) Time() time.Duration { return e.Now().Sub(e.Epoch) }

// begin sets a report up that came now.
func (e *Engine) begin(j *Judge, now time.Time) {
	j.Now = now
	j.losses = e.Table.Losses()
	j.Report = e.Table.Begin(now.Sub(e.Epoch))
}

// Consume forwards what of md the next hop does not have, and takes note of it only
// when that is accepted. Reports of different nodes run side by side. Where two
// reports of one node overlap, nobody knows their order at the next hop: the report
// after them forwards again what both did.
//
// What is left of a push that Compare has seen goes on as it is.
func (e *Engine) Consume(ctx context.Context, md pmetric.Metrics) error {
	if p, ok := ctx.Value(pushKey{}).(*Push); ok && p.engine == e {
		return p.deliver(ctx, md)
	}
	return e.reduce(ctx, md)
}

func (e *Engine) reduce(ctx context.Context, md pmetric.Metrics) (err error) {
	f := e.filters.Get().(*Filter)
	e.begin(&f.Judge, e.Now())
	var missed Missed
	outcome := refused
	defer func() { // also when the next consumer panics: a report that never ends would keep its nodes
		e.settle(ctx, &f.Judge, outcome, missed)
		f.Reset()
		e.filters.Put(f)
	}()
	f.Filter(md)
	if missed, err = e.to.Deliver(ctx, md, f.Counts); err == nil {
		outcome = accepted
	}
	return err
}

// outcome is what became of a report.
type outcome int

const (
	unreached outcome = iota // it did not come to the engine
	refused                  // some of it may have been taken
	accepted
)

// settle ends a report. The judge must be reset after it.
func (e *Engine) settle(ctx context.Context, j *Judge, what outcome, missed Missed) {
	switch what {
	case unreached:
		j.Report.Discard()
	case refused:
		j.Report.Abort()
	case accepted:
		if len(missed) > 0 {
			j.Report.Miss(missed)
		}
		j.Report.Commit()
		if e.Table.Losses() != j.losses {
			e.to.Outdated(ctx, slices.Clone(j.Nodes))
		}
	}
}

// Push is a push that Compare has compared with the table. Nothing changes in the table
// before Consume.
type Push struct {
	engine *Engine
	wire   *Wire
	state  outcome
	missed Missed
}

type pushKey struct{}

// Compare compares the bytes of a push with the table and appends to out what is left to
// decode. Consume or Discard must follow. The push is nil where the whole message is to be
// decoded and consumed: one without points, of an irregular form, malformed, or with a
// resource that is not the client's own.
func (e *Engine) Compare(client clientidentity.Identity, msg, out []byte) (*Push, []byte) {
	w := e.wires.Get().(*Wire)
	now := e.Now()
	w.Client = client
	if !w.Read(msg, now) || w.Points() == 0 {
		w.Reset()
		e.wires.Put(w)
		return nil, out
	}
	e.begin(&w.Judge, now)
	before := len(out)
	out = w.Filter(out)
	w.Bytes = len(out) - before
	return &Push{engine: e, wire: w}, out
}

// Points is how many points are left of the push.
func (p *Push) Points() int64 {
	return p.wire.Forwarded + p.wire.Heartbeats + p.wire.Vanished
}

// Consume hands what is left of the push to next, whose pipeline ends at the engine, and
// settles the push by the outcome. Of an unchanged push nothing is left for a pipeline.
func (p *Push) Consume(ctx context.Context, md pmetric.Metrics, next func(context.Context, pmetric.Metrics) error) error {
	ctx = context.WithValue(ctx, pushKey{}, p)
	defer p.settle(ctx) // also when the next consumer panics: a report that never ends would keep its nodes
	if p.Points() == 0 {
		return p.deliver(ctx, md)
	}
	err := next(ctx, md)
	if err != nil && p.state == accepted {
		p.state = refused
	}
	return err
}

// Discard ends a push that is not consumed.
func (p *Push) Discard() { p.settle(context.Background()) }

func (p *Push) deliver(ctx context.Context, md pmetric.Metrics) (err error) {
	p.state = refused
	if p.missed, err = p.engine.to.Deliver(ctx, md, p.wire.Counts); err == nil {
		p.state = accepted
	}
	return err
}

func (p *Push) settle(ctx context.Context) {
	p.engine.settle(ctx, &p.wire.Judge, p.state, p.missed)
	p.wire.Reset()
	p.engine.wires.Put(p.wire)
	p.wire = nil
}
