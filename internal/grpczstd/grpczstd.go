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
	"bytes"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc/encoding"
)

// Name is the content-coding.
const Name = "zstd"

const (
	// maxWhole is up to how many bytes, before and after, a message is decoded in
	// one call. gRPC bounds what it reads of a message; this is what may be there
	// before it reads.
	maxWhole = 1 << 20
	// windowSize is the Collector's, and bounds what an encoder holds.
	windowSize = 512 << 10
)

func init() { encoding.RegisterCompressor(compressor{}) }

type compressor struct{}

var encoders, decoders sync.Pool // of *encoder and *decoder

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

// Decompress implements encoding.Compressor.
func (compressor) Decompress(r io.Reader) (io.Reader, error) {
	d, ok := decoders.Get().(*decoder)
	if !ok {
		z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxWhole))
		if err != nil {
			return nil, err
		}
		d = &decoder{whole: z}
	}
	rest, err := d.open(r)
	if err != nil {
		d.close()
		return nil, err
	}
	return &reader{d, rest}, nil
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
	e.in, e.out = reuse(e.in), reuse(e.out)
	encoders.Put(e)
	return err
}

// decoder has what is used again from message to message.
type decoder struct {
	whole   *zstd.Decoder
	stream  *zstd.Decoder // nil before the first message that needs it
	in, out []byte
}

// open returns what a message decodes to, decoded already unless it is large.
func (d *decoder) open(r io.Reader) (io.Reader, error) {
	for d.in = d.in[:0]; len(d.in) <= maxWhole; {
		d.in = slices.Grow(d.in, bytes.MinRead)
		n, err := r.Read(d.in[len(d.in):cap(d.in)])
		d.in = d.in[:len(d.in)+n]
		if errors.Is(err, io.EOF) {
			d.out, err = d.whole.DecodeAll(d.in, d.out[:0])
			if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) {
				break
			}
			return bytes.NewReader(d.out), err
		}
		if err != nil {
			return nil, err
		}
	}
	r = io.MultiReader(bytes.NewReader(d.in), r)
	if d.stream != nil {
		return d.stream, d.stream.Reset(r)
	}
	var err error
	d.stream, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
	return d.stream, err
}

func (d *decoder) close() {
	if d.stream != nil {
		_ = d.stream.Reset(nil) // lets go of the message; none is no error here
	}
	d.in, d.out = reuse(d.in), reuse(d.out)
	decoders.Put(d)
}

// reader gives the decoder back at the end. A message that is not read to its
// end takes its decoder with it.
type reader struct {
	d    *decoder // nil after the end
	rest io.Reader
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	if r.d == nil {
		return 0, io.EOF
	}
	n, err := r.rest.Read(p)
	if err != nil {
		r.d.close()
		r.d, r.rest = nil, nil
	}
	return n, err
}

// reuse keeps the room of usual messages for the next.
func reuse(b []byte) []byte {
	if cap(b) > 2*maxWhole {
		return nil
	}
	return b[:0]
}
