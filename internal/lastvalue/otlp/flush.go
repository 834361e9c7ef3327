// SPDX-License-Identifier: Apache-2.0

package otlp // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"

import (
	"context"
	"slices"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
)

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

// nodes sends the dirty series of some nodes. Where the next hop says in an answer that it
// lost its state, it has all of the message's nodes once more, and those of earlier messages
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
	joined, several := err.(interface{ Unwrap() []error })
	if !several {
		return consumererror.IsPermanent(err)
	}
	return !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !isPermanent(err) })
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
