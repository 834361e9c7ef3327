// SPDX-License-Identifier: Apache-2.0

package otlp // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// Engine is one table with its clock.
type Engine struct {
	Table *lastvalue.Table
	// Now is the clock, and the table's time counts from Epoch. Neither changes once
	// there are reports.
	Now   func() time.Time
	Epoch time.Time

	collect   bool
	watch     bool
	observers sync.Pool
	scanners  sync.Pool
	reduced   atomic.Int64 // points that Reduce dropped since the last Consume
}

// Message is what goes on of a push, or of the table.
type Message struct {
	Metrics pmetric.Metrics
	lastvalue.Counts
	// Points are all of the message.
	Points int64
}

// Send hands a message to the next hop.
type Send func(context.Context, Message) error

// NewEngine returns an engine with an empty table.
func NewEngine(set lastvalue.Settings) *Engine {
	e := &Engine{Table: lastvalue.New(set), Now: new(reading.Clock).Now, Epoch: time.Now(), collect: set.Collect || set.Watch, watch: set.Watch}
	e.observers.New = func() any { return new(observer) }
	e.scanners.New = func() any { return new(scanner) }
	return e
}

// Time is the table's.
func (e *Engine) Time() time.Duration { return e.Now().Sub(e.Epoch) }

// Consume takes a report into the table and sends what of it the next hop does not have.
// With Collect most of that waits for Flush. Reports of different nodes run side by side.
//
// Where the next hop's answer shows that it lost its state, it gets all of the report's
// nodes in another message at once.
func (e *Engine) Consume(ctx context.Context, md pmetric.Metrics, send Send) (Counts, error) {
	o := e.observers.Get().(*observer)
	o.watch = e.watch
	now := e.Now()
	report, epoch := e.Table.Begin(now.Sub(e.Epoch)), e.Table.Epoch()
	o.observe(md, report, now)
	counts := o.counts
	counts.Received += e.reduced.Swap(0)
	o.reset()
	e.observers.Put(o)
	f := flusher{Engine: e, maxBytes: unbounded, send: send, epoch: epoch}
	err := f.deliver(ctx, report, md, false)
	if !e.collect {
		// What is refused of it stays dirty, and comes with the next reports.
		_ = f.nodes(ctx, f.again)
	}
	return counts, err
}

// Flushed is what became of a Flush.
type Flushed struct {
	// Failed is the error that ended it, GaveUp the first one of what was refused for good.
	Failed, GaveUp error
	// Points are those that were given up.
	Points int64
}

// Flush sends what waits in the table, in messages of about maxBytes of OTLP each. It ends
// with the first failure, or once enough, unless nil, returns true between two messages: the
// rest waits for the next Flush. A message that the next hop refuses for good is sent once
// more node by node. What it refuses then is given up, see lastvalue.Report.GaveUp.
func (e *Engine) Flush(ctx context.Context, maxBytes int, enough func() bool, send Send) Flushed {
	f := flusher{Engine: e, maxBytes: maxBytes, enough: enough, send: send, epoch: e.Table.Epoch(), flush: true}
	f.Failed = f.nodes(ctx, e.Table.Pending())
	return f.Flushed
}

// maxAlone is how many nodes of a message that is refused for good are sent alone in vain,
// before all that is left of it is given up: then nothing at all is taken.
const maxAlone = 8

// flusher sends nodes from the table.
type flusher struct {
	*Engine
	maxBytes int
	enough   func() bool
	send     Send
	flush    bool // what is refused for good is given up
	Flushed
	epoch    uint64              // of the next hop when it began
	again    []lastvalue.NodeKey // those of the message during which it changed
	repeated bool
	from     int // where the first node of the next message goes on
}

// nodes sends the dirty series of some nodes. Where an answer shows that the next hop
// lost its state, it gets all of the message's nodes once more, and those of earlier messages
// with their next reports.
func (f *flusher) nodes(ctx context.Context, nodes []lastvalue.NodeKey) error {
	for first := true; len(nodes) > 0 && (first || f.enough == nil || !f.enough()); first = false {
		start := f.from
		report, md, rest := f.message(nodes)
		several := md.ResourceMetrics().Len() > 1
		err := f.deliver(ctx, report, md, f.flush && !several)
		if isPermanent(err) && several && f.flush {
			f.from = start
			err = f.alone(ctx, nodes[:len(nodes)-len(rest)])
		}
		if err != nil {
			return err
		}
		if nodes = rest; len(f.again) > 0 {
			nodes, f.again, f.from = slices.Concat(f.again, rest), nil, 0
		}
	}
	return nil
}

// alone sends nodes one by one, whose common message was refused for good.
func (f *flusher) alone(ctx context.Context, nodes []lastvalue.NodeKey) error {
	for taken, tried := false, 0; len(nodes) > 0; tried++ {
		report, md, rest := f.message(nodes[:1])
		nodes = nodes[1-len(rest):]
		if !taken && tried >= maxAlone {
			f.Points += int64(md.DataPointCount())
			report.GaveUp()
			continue
		}
		given := f.Points
		if err := f.deliver(ctx, report, md, true); err != nil {
			return err
		}
		taken = taken || given == f.Points
	}
	return nil
}

// deliver sends a message and settles its report. The last try of a message that is refused
// for good is no error.
func (f *flusher) deliver(ctx context.Context, report *lastvalue.Report, md pmetric.Metrics, last bool) (err error) {
	settle := report.Refused
	defer func() { settle() }() // also when the next consumer panics: a message that never ends would keep its nodes
	points := md.DataPointCount()
	if points > 0 || f.watch {
		err = f.send(ctx, Message{Metrics: md, Counts: report.Counts, Points: int64(points)})
	}
	if !f.repeated && f.Table.Epoch() != f.epoch {
		f.repeated, f.again = true, report.Nodes()
	}
	switch {
	case err == nil:
		settle = report.Accepted
	case last && isPermanent(err):
		if f.GaveUp == nil {
			f.GaveUp = err
		}
		f.Points += int64(points)
		settle, err = report.GaveUp, nil
	}
	return err
}

// isPermanent reports whether an error is for good: of several exporters' errors, all are.
func isPermanent(err error) bool {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(several.Unwrap(), func(err error) bool { return !isPermanent(err) })
	}
	inner := errors.Unwrap(err) // of a permanent error it is the cause, which need not be one
	return consumererror.IsPermanent(err) && (!consumererror.IsPermanent(inner) || isPermanent(inner))
}

// message makes a message of the first nodes, and returns those that it has not all of.
func (f *flusher) message(nodes []lastvalue.NodeKey) (report *lastvalue.Report, md pmetric.Metrics, rest []lastvalue.NodeKey) {
	report, md = f.Table.Begin(f.Time()), pmetric.NewMetrics()
	for bytes := 0; len(nodes) > 0 && bytes < f.maxBytes; nodes = nodes[1:] {
		from := f.from
		f.from = 0
		attrs, ok := report.OpenPending(nodes[0])
		if !ok {
			continue
		}
		rm := md.ResourceMetrics().AppendEmpty()
		putAttributes(rm.Resource().Attributes(), attrs)
		var size int
		size, f.from = emit(report, rm, from, f.maxBytes-bytes)
		bytes += size + overhead*len(attrs)
		if report.Done(); f.from > 0 {
			break
		}
	}
	md.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool { return rm.ScopeMetrics().Len() == 0 })
	return report, md, nodes
}

// Owner is the extension that keeps a table. It serves the table to Prometheus, and lends it
// to the receiver that compares pushes with it.
type Owner interface {
	// Open makes the table of the processor of a name, until release is called. The settings
	// are the processor's; the owner adds the bounds. There can be one table.
	Open(processor string, set lastvalue.Settings) (e *Engine, release func(), err error)
	// Follows returns the engine of the diff that follows a receiver, or why pushes cannot
	// be compared with it.
	Follows(receiver string) (*Engine, error)
}
