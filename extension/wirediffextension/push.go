// SPDX-License-Identifier: Apache-2.0

package wirediffextension // import "github.com/gpu-collector/gpu-collector/extension/wirediffextension"

import (
	"context"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpu-collector/gpu-collector/internal/delta"
	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
)

// keepBytes is how large a buffer may be to be used again: the largest reports
// of a node, and not the odd message of many megabytes.
const keepBytes = 1 << 20

// How a push was read, see metadata.yaml.
var (
	readBytes     = readOption("bytes")
	readDecoded   = readOption("decoded")
	readJSON      = readOption("json")
	readMalformed = readOption("malformed")
)

func readOption(how string) metric.AddOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("read", how)))
}

// push is one request under way:
//
//	shrink or observe  once the sender is known
//	end                when the receiver has answered
//
// A push whose end is called without the others has touched nothing.
type push struct {
	ext     *wireDiff
	wire    *delta.Wire
	decoded delta.Filter
	report  *statetable.Report // nil when there is nothing to settle
	judge   *delta.Judge
	at      time.Duration // since the extension's epoch
	waits   bool          // for the pipeline to have room

	in, out []byte
}

func newPush(cfg *Config) *push {
	// Not in parallel with itself, so the two share a cache.
	bands, wholeNodes := deadband.NewCache(cfg.Deadbands), cfg.Granularity == GranularityNode
	p := &push{wire: delta.NewWire(bands, wholeNodes)}
	p.decoded.Bands, p.decoded.WholeNodes = bands, wholeNodes
	return p
}

func (e *wireDiff) begin() *push {
	p := e.pushes.Get().(*push)
	p.ext = e
	return p
}

// shrink returns what of msg the receiver is to decode: all of it where msg
// says nothing, or cannot be read. The result is good until end.
func (p *push) shrink(ctx context.Context, msg []byte) []byte {
	now := p.ext.clock.Now()
	if p.wire.Read(msg, now) {
		p.count(ctx, readBytes)
		if p.wire.Points() == 0 {
			return msg // answered without the pipeline
		}
		p.compare(ctx, &p.wire.Judge, now)
		p.out = p.wire.Filter(p.out[:0])
		return p.passed(ctx, p.out)
	}
	req := pmetricotlp.NewExportRequest()
	if req.UnmarshalProto(msg) != nil {
		p.count(ctx, readMalformed)
		return msg
	}
	p.count(ctx, readDecoded)
	if req.Metrics().DataPointCount() == 0 {
		return msg
	}
	p.compare(ctx, &p.decoded.Judge, now)
	p.decoded.Filter(req.Metrics())
	out, err := req.MarshalProto()
	if err != nil {
		// It was just decoded; pdata has no way to fail here.
		p.settle((*statetable.Report).Abort)
		return msg
	}
	return p.passed(ctx, out)
}

// passed is the message, or nothing while the pipeline has no room for nodes that are
// new to it, as these are. The receiver then answers without the pipeline. Deltas do
// not wait, there or here.
func (p *push) passed(ctx context.Context, msg []byte) []byte {
	if !p.ext.room.isLacking(p.report.Cluster(), p.at) || !p.report.IsNew() || p.judge.Passed {
		return msg
	}
	p.waits = true
	p.ext.telemetry.ExtensionWireDiffWaitingPoints.Add(ctx, p.judge.Forwarded)
	return msg[:0]
}

// observe takes note that all that a JSON message holds is on its way, and
// returns it, written anew where a time in it was not believed. The result is
// good until end.
func (p *push) observe(ctx context.Context, msg []byte) []byte {
	req := pmetricotlp.NewExportRequest()
	if req.UnmarshalJSON(msg) != nil {
		p.count(ctx, readMalformed)
		return msg
	}
	p.count(ctx, readJSON)
	p.compare(ctx, &p.decoded.Judge, p.ext.clock.Now())
	if !p.decoded.Note(req.Metrics()) {
		return msg
	}
	out, err := req.MarshalJSON()
	if err != nil {
		// It was just decoded; pdata has no way to fail here.
		p.settle((*statetable.Report).Abort)
		return msg
	}
	return out
}

func (p *push) count(ctx context.Context, how metric.AddOption) {
	p.ext.telemetry.ExtensionWireDiffPushes.Add(ctx, 1, how)
}

func (p *push) compare(ctx context.Context, j *delta.Judge, now time.Time) {
	at := now.Sub(p.ext.epoch)
	j.Now, j.Answer, p.at = now, resync.AnswerOf(ctx), at
	j.Report = p.ext.table.Begin(at)
	p.report, p.judge = j.Report, j
}

func (p *push) settle(how func(*statetable.Report)) {
	if p.report != nil {
		how(p.report)
		p.report = nil
	}
}

// end settles the push and gives it back; it must not be used any more. What the
// pipeline could not keep, the nodes' next pushes bring again.
func (p *push) end(ctx context.Context, accepted bool) {
	e := p.ext
	settle := (*statetable.Report).Abort
	if accepted {
		settle = (*statetable.Report).Commit
	}
	if p.report != nil {
		e.telemetry.ExtensionWireDiffReceivedPoints.Add(ctx, p.judge.Received)
		if p.judge.Ahead > 0 {
			e.telemetry.ExtensionWireDiffAheadPoints.Add(ctx, p.judge.Ahead)
		}
		answer := resync.AnswerOf(ctx)
		switch {
		case !accepted:
		case p.waits:
			settle = (*statetable.Report).Lose
		case answer != nil && answer.Lost():
			settle = (*statetable.Report).Lose
			e.room.lacks(p.report.Cluster(), e.clock.Now().Sub(e.epoch))
		default:
			e.telemetry.ExtensionWireDiffForwardedPoints.Add(ctx, p.judge.Forwarded)
			e.telemetry.ExtensionWireDiffHeartbeats.Add(ctx, p.judge.Heartbeats)
			e.telemetry.ExtensionWireDiffVanishedSeries.Add(ctx, p.judge.Vanished)
		}
	}
	p.settle(settle)
	p.wire.Reset()
	p.decoded.Reset()
	p.ext, p.judge, p.waits = nil, nil, false
	if cap(p.in) > keepBytes {
		p.in = nil
	}
	if cap(p.out) > keepBytes {
		p.out = nil
	}
	e.pushes.Put(p)
}
