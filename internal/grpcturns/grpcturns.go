// SPDX-License-Identifier: Apache-2.0

// Package grpcturns has the large compressed messages of gRPC decompressed a few at a time.
// gRPC decompresses a message before any interceptor could say that there is no memory for
// it: some kilobytes each, sent at once, became 16 MiB each, at once.
package grpcturns // import "github.com/gpu-collector/gpu-collector/internal/grpcturns"

import (
	"io"
	"runtime"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
)

// atOnce is how many messages are decompressed at a time. A core does one in some tens of
// milliseconds, and more at once would be done no sooner.
const atOnce = 4

// small is what a message may become without a turn: those that wait for one hold no more.
const small = 1 << 20

// turns are those of the process, as gRPC's compressors are.
var turns = make(chan struct{}, atOnce)

// Install wraps the compressors of these names, where there are such. It is called before
// anything serves or dials.
func Install(names ...string) {
	for _, name := range names {
		c := encoding.GetCompressor(name)
		if _, wrapped := c.(compressor); c != nil && !wrapped {
			encoding.RegisterCompressor(compressor{c})
		}
	}
}

type compressor struct{ encoding.Compressor }

// Decompress implements encoding.Compressor.
func (c compressor) Decompress(r io.Reader) (io.Reader, error) {
	from, err := c.Compressor.Decompress(r)
	if err != nil {
		return nil, err
	}
	d := &reader{from: from, free: small}
	if m, ok := from.(interface{ Whole() ([]byte, bool) }); ok {
		// It has decompressed what is small. For the rest it takes a large window.
		if _, whole := m.Whole(); whole {
			return from, nil
		}
		d.free = 0
	}
	return d, nil
}

// reader waits for its turn before it hands on more than a small message.
type reader struct {
	from io.Reader
	free int64 // of what comes out, before its turn
	turn *turn // nil before
}

// turn ends once.
type turn struct{ over atomic.Bool }

func (t *turn) end() {
	if t.over.CompareAndSwap(false, true) {
		<-turns
	}
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	if r.turn == nil && r.free <= 0 {
		turns <- struct{}{}
		r.turn = &turn{}
		// For who stops to read, and tells nobody.
		runtime.AddCleanup(r, (*turn).end, r.turn)
	}
	n, err := r.from.Read(p)
	r.free -= int64(n)
	// gRPC reads up to its limit and no further. Then the last piece fills what it has cut
	// its buffer to.
	if r.turn != nil && (err != nil || n == len(p) && len(p) < cap(p)) {
		r.turn.end()
	}
	return n, err
}
