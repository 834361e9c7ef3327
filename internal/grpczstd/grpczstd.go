// SPDX-License-Identifier: Apache-2.0

// Package grpczstd is gRPC's zstd for messages that fit into memory at once,
// which pushes do: each is decoded, and encoded, in one call. The Collector's own
// (go.opentelemetry.io/collector/internal/grpccompression/zstd) streams: it
// decodes into a window, copies out of it, and sets a finalizer for each message,
// which takes twice as long for a node's report.
//
// To import it is to use it, in the whole process: of several compressors of a
// name gRPC takes the one registered last, and the Collector registers none where
// there is one.
package grpczstd // import "github.com/gpu-collector/gpu-collector/internal/grpczstd"

import (
	"io"
	"math"
	"sync"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc/encoding"

	"github.com/gpu-collector/gpu-collector/internal/contentcoding"
)

// Name is the content-coding.
const Name = "zstd"

// windowSize is the Collector's, and bounds what an encoder holds.
const windowSize = 512 << 10

func init() { encoding.RegisterCompressor(compressor{}) }

type compressor struct{}

var encoders sync.Pool // of *encoder

// Name implements encoding.Compressor.
func (compressor) Name() string { return Name }

// Compress implements encoding.Compressor.
func (compressor) Compress(w io.Writer) (io.WriteCloser, error) {
	e, ok := encoders.Get().(*encoder)
	if !ok {
		z, err := zstd.NewWriter(nil, zstd.WithWindowSize(windowSize), zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
		if err != nil {
			return nil, err
		}
		e = &encoder{zstd: z}
	}
	return &writer{e, w}, nil
}

// Decompress implements encoding.Compressor. gRPC bounds what it reads.
func (compressor) Decompress(r io.Reader) (io.Reader, error) {
	return contentcoding.Open(Name, r, math.MaxInt64)
}

// encoder has what is used again from message to message.
type encoder struct {
	zstd    *zstd.Encoder
	in, out []byte
}

// writer collects a message and writes it compressed when it is closed.
type writer struct {
	e  *encoder // nil once closed
	to io.Writer
}

// Write implements io.Writer.
func (w *writer) Write(p []byte) (int, error) {
	if w.e == nil {
		return 0, io.ErrClosedPipe
	}
	w.e.in = append(w.e.in, p...)
	return len(p), nil
}

// Close implements io.Closer.
func (w *writer) Close() error {
	if w.e == nil {
		return io.ErrClosedPipe
	}
	e := w.e
	w.e = nil
	e.out = e.zstd.EncodeAll(e.in, e.out[:0])
	_, err := w.to.Write(e.out)
	e.in, e.out = contentcoding.Reuse(e.in), contentcoding.Reuse(e.out)
	encoders.Put(e)
	return err
}
