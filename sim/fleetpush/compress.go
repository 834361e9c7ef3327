// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"io"
	"sync"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
)

// Compressions of requests.
const (
	CompressionNone   = "none"
	CompressionGzip   = gzip.Name
	CompressionZstd   = "zstd"
	CompressionSnappy = "snappy"
)

// Compressions returns all of them.
func Compressions() []string {
	return []string{CompressionNone, CompressionGzip, CompressionZstd, CompressionSnappy}
}

// The Collector's own are internal to it; where it is in the same binary, they
// are registered.
func init() {
	for _, c := range [...]*compressor{
		{name: CompressionZstd, open: func(w io.Writer) writer {
			// As the Collector's: one goroutine, and a window that small messages need.
			z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(512<<10))
			if err != nil {
				panic(err) // the options are constant
			}
			return z
		}},
		{name: CompressionSnappy, open: func(w io.Writer) writer { return snappy.NewBufferedWriter(w) }},
	} {
		if encoding.GetCompressor(c.name) == nil {
			encoding.RegisterCompressor(c)
		}
	}
}

type writer interface {
	io.WriteCloser
	Reset(w io.Writer)
}

// compressor makes a gRPC compressor of a writer that can be used again.
type compressor struct {
	name string
	open func(io.Writer) writer
	pool sync.Pool
}

func (c *compressor) Name() string { return c.name }

func (c *compressor) Compress(w io.Writer) (io.WriteCloser, error) {
	z, ok := c.pool.Get().(*pooledWriter)
	if !ok {
		return &pooledWriter{c.open(w), &c.pool}, nil
	}
	z.Reset(w)
	return z, nil
}

// Decompress is for answers, of which no server compresses those of OTLP's few
// bytes otherwise than it was asked.
func (c *compressor) Decompress(r io.Reader) (io.Reader, error) {
	if c.name == CompressionSnappy {
		return snappy.NewReader(r), nil
	}
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<20))
	if err != nil {
		return nil, err
	}
	return z.IOReadCloser(), nil
}

type pooledWriter struct {
	writer
	pool *sync.Pool
}

func (p *pooledWriter) Close() error {
	err := p.writer.Close()
	p.pool.Put(p)
	return err
}
