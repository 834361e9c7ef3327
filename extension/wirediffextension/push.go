// SPDX-License-Identifier: Apache-2.0

package wirediffextension // import "github.com/gpu-collector/gpu-collector/extension/wirediffextension"

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpu-collector/gpu-collector/internal/delta"
)

// keepBytes is how large a buffer may be to be used again: the largest reports
// of a node, and not the odd message of many megabytes.
const keepBytes = 1 << 20

// How a push was read, see metadata.yaml.
var (
	readBytes = readOption("bytes")
	readWhole = readOption("whole")
)

func readOption(how string) metric.AddOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("read", how)))
}

// buffers hold what came in and what the receiver is to decode.
type buffers struct{ in, out []byte }

// free gives the buffers back for the next push.
func (e *wireDiff) free(b *buffers) {
	if cap(b.in) > keepBytes {
		b.in = nil
	}
	if cap(b.out) > keepBytes {
		b.out = nil
	}
	e.buffers.Put(b)
}

// push is a request under way: judge, and end when the receiver has answered.
type push struct {
	ext    *wireDiff
	judged *delta.Push // nil where the diff processor sees the whole
}

// judge returns what of msg the receiver is to decode, and the context to do it in.
// The message is good until end, in msg or out.
func (e *wireDiff) judge(ctx context.Context, msg []byte, out *[]byte) (push, context.Context, []byte) {
	a := e.attached.Load()
	if a == nil {
		return push{ext: e}, ctx, msg
	}
	judged, reduced := a.engine.Judge(ctx, msg, (*out)[:0])
	*out = reduced
	if judged == nil {
		e.telemetry.ExtensionWireDiffPushes.Add(ctx, 1, readWhole)
		return push{ext: e}, ctx, msg
	}
	e.telemetry.ExtensionWireDiffPushes.Add(ctx, 1, readBytes)
	return push{e, judged}, judged, reduced
}

// end settles the push as the receiver has answered.
func (p push) end(ctx context.Context, accepted bool) {
	if p.judged == nil || p.judged.End(accepted) {
		return
	}
	p.ext.telemetry.ExtensionWireDiffUnclaimedPushes.Add(ctx, 1)
	p.ext.lost.Do(func() {
		p.ext.logger.Warn("wire_diff: the pipeline behind this receiver does not reach `diff` in the same call, or not as it came; " +
			"remove the batch processor or queue between them and what changes resources or drops points, or remove `middlewares: wire_diff`")
	})
}
