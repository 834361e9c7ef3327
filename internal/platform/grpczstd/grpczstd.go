// SPDX-License-Identifier: Apache-2.0

// Package grpczstd bounds the memory of gRPC's zstd. The Collector's own makes room for a
// window of up to 512 MiB, and a message of 14 bytes may ask for it: a few of them at once
// end a process of 2 GiB. It is not faster: the Collector's own takes 12.7 µs for a
// report and this one 11.9, of some 190 for the whole push.
//
// Of several compressors of a name gRPC takes the one registered last, in the whole process:
// the mains call Register.
package grpczstd // import "github.com/gpu-collector/gpu-collector/internal/platform/grpczstd"

import (
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
	_ "go.opentelemetry.io/collector/config/configgrpc" // registers the Collector's own, before init
	"google.golang.org/grpc/encoding"
)

// Name is the content-coding.
const Name = "zstd"

// maxWindow is what decoders should have room for, and encoders should not go beyond
// (RFC 8878, 3.1.1.1.2). The Collector's senders use 512 KiB.
const maxWindow = 8 << 20

// Register replaces the Collector's own zstd. A main calls it before anything is
// served.
func Register() {
	encoding.RegisterCompressor(&compressor{Compressor: encoding.GetCompressor(Name)})
}

// compressor encodes like the Collector's own.
type compressor struct {
	encoding.Compressor
	decoders sync.Pool // of *zstd.Decoder
}

// Decompress implements encoding.Compressor. gRPC bounds what it reads.
func (c *compressor) Decompress(r io.Reader) (io.Reader, error) {
	d, ok := c.decoders.Get().(*zstd.Decoder)
	if !ok {
		var err error
		if d, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow)); err != nil {
			return nil, err
		}
	}
	return &message{c, d}, d.Reset(r)
}

// message is decoded while it is read. At its end the decoder goes to another.
type message struct {
	from    *compressor
	decoder *zstd.Decoder // nil after the end
}

// Read implements io.Reader.
func (m *message) Read(p []byte) (int, error) {
	if m.decoder == nil {
		return 0, io.EOF
	}
	n, err := m.decoder.Read(p)
	if err != nil {
		_ = m.decoder.Reset(nil) // no message is no error here
		m.from.decoders.Put(m.decoder)
		m.decoder = nil
	}
	return n, err
}
