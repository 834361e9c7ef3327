// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc/mem"
)

// sender carries requests to the other end.
type sender interface {
	// send pushes one request over one of the connections and takes over its
	// buffer.
	send(ctx context.Context, connection int, h Headers, body *[]byte) result
	close() error
}

// result is how a push ended.
type result struct {
	Answer
	// code names the refusal or failure, empty for a push that was accepted.
	code string
	err  error
	// wait is how long the other end asks to be left alone.
	wait time.Duration
	// rejected are points of an accepted push that were not taken.
	rejected int64
}

// buffers are those of requests.
type buffers struct{ pool sync.Pool }

var _ mem.BufferPool = (*buffers)(nil)

// Get implements mem.BufferPool.
func (b *buffers) Get(length int) *[]byte {
	buf, ok := b.pool.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	if cap(*buf) < length {
		*buf = make([]byte, length)
	}
	*buf = (*buf)[:length]
	return buf
}

// Put implements mem.BufferPool.
func (b *buffers) Put(buf *[]byte) { b.pool.Put(buf) }

// rejected reads the answer to an accepted push.
func rejected(response []byte) int64 {
	if len(response) == 0 {
		return 0
	}
	r := pmetricotlp.NewExportResponse()
	if r.UnmarshalProto(response) != nil {
		return 0
	}
	return r.PartialSuccess().RejectedDataPoints()
}
