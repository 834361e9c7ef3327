// SPDX-License-Identifier: Apache-2.0

package otlp // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

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
// Where the next hop says in its answer that it lost its state, it has all of the report's
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

// Owner is the extension that keeps a table. It serves the table to Prometheus, and lends it
// to the receiver that compares pushes with it.
type Owner interface {
	// Open makes the table of the processor of a name, until release is called. The settings
	// are what the processor says of it; the owner adds the bounds. There can be one table.
	Open(processor string, set lastvalue.Settings) (e *Engine, release func(), err error)
	// Follows returns the engine of the diff that follows a receiver, or why pushes cannot
	// be compared with it.
	Follows(receiver string) (*Engine, error)
}
