// SPDX-License-Identifier: Apache-2.0

package delta // import "github.com/gpu-collector/gpu-collector/internal/delta"

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// Engine is one table with the rules and the clock that its reports are judged by.
// Decoded reports come in by Consume, and the bytes of pushes by Judge.
type Engine struct {
	Table *statetable.Table
	// Now is the clock, and the table's time counts from Epoch. Neither changes once
	// there are reports.
	Now   func() time.Time
	Epoch time.Time

	to Downstream

	filters, wires, idents sync.Pool
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

// FrontDoor compares pushes before they are decoded, with the table of the one Engine
// that is attached.
type FrontDoor interface {
	// Attach has the engine judge the pushes from now on, until detach is called. The
	// name is whose engine that is. It fails where another one is attached.
	Attach(name string, e *Engine) (detach func(), err error)
}

// Exposition serves tables to Prometheus.
type Exposition interface {
	// Register has the engine's table served until cancel is called.
	Register(e *Engine) (cancel func())
}

// NewEngine returns an engine with an empty table.
func NewEngine(set statetable.Settings, deadbands []deadband.Rule, to Downstream) *Engine {
	e := &Engine{Table: statetable.New(set), Now: new(reading.Clock).Now, Epoch: time.Now(), to: to}
	bands := deadband.NewCache(deadbands)
	e.filters.New = func() any {
		f := new(Filter)
		f.Bands, f.WholeNodes = bands, set.WholeNodes
		return f
	}
	e.wires.New = func() any { return NewWire(bands, set.WholeNodes) }
	e.idents.New = func() any { return new(identity) }
	return e
}

// Time is the table's.
func (e *Engine) Time() time.Duration { return e.Now().Sub(e.Epoch) }

// begin sets a report up that came now.
func (e *Engine) begin(ctx context.Context, j *Judge, now time.Time) {
	j.Now, j.Answer = now, resync.AnswerOf(ctx)
	j.losses = e.Table.Losses()
	j.Report = e.Table.Begin(now.Sub(e.Epoch))
}

// Consume forwards what of md the next hop does not have, and takes note of it only
// when that is accepted. Reports of different nodes run side by side. Where two
// reports of one node overlap, nobody knows their order at the next hop: the report
// after them forwards again what both did.
//
// A push that Judge has judged goes on as it is.
func (e *Engine) Consume(ctx context.Context, md pmetric.Metrics) error {
	if p := pushOf(ctx); p != nil && p.engine == e {
		if counts, ok := p.claim(md); ok {
			missed, err := e.to.Deliver(ctx, md, counts)
			p.delivered(missed, err == nil)
			return err
		}
	}
	return e.reduce(ctx, md)
}

func (e *Engine) reduce(ctx context.Context, md pmetric.Metrics) (err error) {
	f := e.filters.Get().(*Filter)
	e.begin(ctx, &f.Judge, e.Now())
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
	unclaimed outcome = iota // it did not go on
	refused                  // some of it may have been taken
	accepted
)

// settle ends a report. The judge must be reset after it.
func (e *Engine) settle(ctx context.Context, j *Judge, what outcome, missed Missed) {
	switch what {
	case unclaimed:
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

// Push is a push that was judged before it was decoded. Its context takes it to the
// engine, which claims it, and End settles it when the receiver has answered. Nothing
// changes in the table before.
type Push struct {
	context.Context
	engine *Engine

	mu      sync.Mutex
	wire    *Wire // nil at its end
	state   outcome
	claimed bool
	missed  Missed
}

type pushKey struct{}

// Value implements context.Context.
func (p *Push) Value(key any) any {
	if key == (pushKey{}) {
		return p
	}
	return p.Context.Value(key)
}

func pushOf(ctx context.Context) *Push {
	p, _ := ctx.Value(pushKey{}).(*Push)
	return p
}

// Judge compares the bytes of a push with the table and appends to out what the
// receiver is to decode. The push is its context from then on, and End must follow. It
// is nil for what is left to Consume whole: a push without points, of an irregular form,
// or malformed.
func (e *Engine) Judge(ctx context.Context, msg, out []byte) (*Push, []byte) {
	w := e.wires.Get().(*Wire)
	now := e.Now()
	if !w.Read(msg, now) || w.Points() == 0 {
		w.Reset()
		e.wires.Put(w)
		return nil, out
	}
	e.begin(ctx, &w.Judge, now)
	before := len(out)
	out = w.Filter(out)
	w.Bytes = len(out) - before
	return &Push{Context: ctx, engine: e, wire: w}, out
}

// claim makes the push the caller's to deliver, once, and removes from md what was only
// there for the pipeline to see. It fails where the push has ended, and where md is not what
// was judged because a processor has changed its resources or its points: md is then
// judged as any report.
func (p *Push) claim(md pmetric.Metrics) (Counts, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wire == nil || p.claimed || !p.holds(md) {
		return Counts{}, false
	}
	p.claimed, p.state = true, refused
	if p.wire.probes > 0 || p.wire.empty {
		removeProbes(md)
	}
	return p.wire.Counts, true
}

// holds reports whether md is what was judged.
func (p *Push) holds(md pmetric.Metrics) bool {
	j := &p.wire.Judge
	id := p.engine.idents.Get().(*identity)
	defer p.engine.idents.Put(id)
	nodes, points := j.Nodes, j.Forwarded+j.Heartbeats+j.Vanished+j.probes
	for _, rm := range md.ResourceMetrics().All() {
		n := resourcePoints(rm)
		if n == 0 {
			continue
		}
		if len(nodes) == 0 || id.node(rm.Resource().Attributes()) != nodes[0] {
			return false
		}
		nodes, points = nodes[1:], points-int64(n)
	}
	return len(nodes) == 0 && points == 0
}

// delivered notes what became of the push that was claimed.
func (p *Push) delivered(missed Missed, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.missed = missed; ok {
		p.state = accepted
	}
}

// End settles the push: the receiver has answered, and that it is accepted or not. It
// reports whether an accepted push came to the engine as it was judged. One that did
// not was refused or is on another way, and its report changes nothing.
func (p *Push) End(answered bool) (reached bool) {
	p.mu.Lock()
	w, state, missed := p.wire, p.state, p.missed
	p.wire = nil
	p.mu.Unlock()
	if state == accepted && !answered {
		state = refused
	}
	p.engine.settle(p.Context, &w.Judge, state, missed)
	w.Reset()
	p.engine.wires.Put(w)
	return p.claimed || !answered
}
