// SPDX-License-Identifier: Apache-2.0

// Package contentcoding decodes compressed messages that fit into memory at once,
// which pushes do. The Collector's own decoders stream: for a node's report the
// windows, copies and finalizers of a stream cost more than the decoding.
package contentcoding // import "github.com/gpu-collector/gpu-collector/internal/contentcoding"

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// maxWhole is up to how many bytes, before and after, a message is decoded in
// one call. A larger message is decoded while somebody reads it.
const maxWhole = 1 << 20

// maxWindow is the memory that a few bytes of zstd may ask for. RFC 8878 has
// decoders take 8 MiB; the strongest level of the Collector's senders uses 32.
const maxWindow = 32 << 20

var (
	// ErrUnknown says that no decoder has the name.
	ErrUnknown = errors.New("unknown content-coding")
	// ErrTooLarge says that more comes out than the caller takes.
	ErrTooLarge = errors.New("the decoded message is too large")
)

var errLarge = errors.New("the message is larger than 1 MiB")

// codec decodes one message at a time.
type codec interface {
	// whole appends to out, and fails with errLarge above maxWhole.
	whole(in, out []byte) ([]byte, error)
	stream(r io.Reader, limit int64) (io.Reader, error)
	// forget lets go of the message that stream was given.
	forget()
}

// The names are confighttp's.
var codings = map[string]*sync.Pool{
	"zstd":            pool(func() codec { return new(zstdCodec) }),
	"gzip":            pool(func() codec { return &streamed{open: openGzip} }),
	"zlib":            pool(func() codec { return &streamed{open: openZlib} }),
	"deflate":         pool(func() codec { return &streamed{open: openZlib} }),
	"lz4":             pool(func() codec { return &streamed{open: openLZ4} }),
	"x-snappy-framed": pool(func() codec { return &streamed{open: openSnappy} }),
	"snappy":          pool(func() codec { return &snappyCodec{streamed{open: openSnappy}} }),
}

func pool(codec func() codec) *sync.Pool {
	return &sync.Pool{New: func() any { return &buffers{codec: codec()} }}
}

// Names returns what Open knows, in order.
func Names() []string {
	names := make([]string, 0, len(codings))
	for name := range codings {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// buffers are used again from message to message.
type buffers struct {
	codec   codec
	in, out []byte
	reader  wholeReader  // of in
	decoded bytes.Reader // of out
}

// Message is a decoded message. It is its own reader and is read once.
type Message struct {
	pool  *sync.Pool
	bufs  *buffers // nil after the end
	whole bool
	rest  io.Reader
	left  int64 // that may come out
}

// Open decodes r to at most limit bytes. The caller closes the message, or reads
// it to its end.
func Open(name string, r io.Reader, limit int64) (_ *Message, err error) {
	p, ok := codings[name]
	if !ok {
		return nil, fmt.Errorf("%w: %q", ErrUnknown, name)
	}
	bufs, _ := p.Get().(*buffers)
	m := &Message{pool: p, bufs: bufs, left: limit}
	defer func() {
		// A decoder that panicked is not used again.
		if what := recover(); what != nil {
			m.bufs, err = nil, fmt.Errorf("%s: %v", name, what)
		}
	}()
	m.rest, m.whole, err = bufs.open(r, limit)
	if err == nil && m.whole && int64(len(bufs.out)) > limit {
		err = ErrTooLarge
	}
	if err != nil {
		_ = m.Close()
		return nil, err
	}
	return m, nil
}

// open reads the message unless it is large.
func (b *buffers) open(r io.Reader, limit int64) (_ io.Reader, whole bool, err error) {
	if b.in, err = b.reader.read(b.in[:0], r); err != nil {
		return nil, false, err
	}
	if len(b.in) <= maxWhole {
		if b.out, err = b.codec.whole(b.in, b.out[:0]); !errors.Is(err, errLarge) {
			b.decoded.Reset(b.out)
			return &b.decoded, true, err
		}
	}
	r, err = b.codec.stream(io.MultiReader(bytes.NewReader(b.in), r), limit)
	return r, false, err
}

// Whole returns the message when all of it is there, until Close.
func (m *Message) Whole() ([]byte, bool) {
	if m.bufs == nil || !m.whole {
		return nil, false
	}
	return m.bufs.out, true
}

// Read implements io.Reader.
func (m *Message) Read(p []byte) (n int, err error) {
	if m.bufs == nil {
		return 0, io.EOF
	}
	defer func() {
		if what := recover(); what != nil {
			m.bufs, n, err = nil, 0, fmt.Errorf("the decoder failed: %v", what)
		}
	}()
	n, err = m.rest.Read(p)
	if m.left -= int64(n); m.left < 0 {
		n, err = 0, ErrTooLarge
	}
	if err != nil {
		_ = m.Close()
	}
	return n, err
}

// Close implements io.Closer. It gives the buffers to the next message.
func (m *Message) Close() error {
	if b := m.bufs; b != nil {
		b.codec.forget()
		b.decoded.Reset(nil)
		b.in, b.out = Reuse(b.in), Reuse(b.out)
		m.bufs, m.rest = nil, nil
		m.pool.Put(b)
	}
	return nil
}

// Reuse keeps the room of usual messages for the next.
func Reuse(b []byte) []byte {
	if cap(b) > 2*maxWhole {
		return nil
	}
	return b[:0]
}

type zstdCodec struct {
	one  *zstd.Decoder
	many *zstdStream
}

func (c *zstdCodec) whole(in, out []byte) (_ []byte, err error) {
	if c.one == nil {
		if c.one, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxWhole)); err != nil {
			return out, err
		}
	}
	out, err = c.one.DecodeAll(in, out)
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) {
		err = errLarge
	}
	return out, err
}

func (c *zstdCodec) stream(r io.Reader, _ int64) (io.Reader, error) {
	c.many = &zstdStream{from: r}
	return c.many, nil
}

func (c *zstdCodec) forget() {
	if c.many != nil {
		c.many.forget()
		c.many = nil
	}
}

// zstdStreams are decoders with their windows, of some megabytes.
var zstdStreams sync.Pool

// zstdStream takes a decoder once somebody reads: messages that wait have none.
type zstdStream struct {
	from    io.Reader
	decoder *zstd.Decoder
}

// Read implements io.Reader.
func (s *zstdStream) Read(p []byte) (n int, err error) {
	if s.decoder == nil {
		if d, ok := zstdStreams.Get().(*zstd.Decoder); ok {
			s.decoder, err = d, d.Reset(s.from)
		} else {
			s.decoder, err = zstd.NewReader(s.from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		}
		if err != nil {
			return 0, err
		}
	}
	return s.decoder.Read(p)
}

func (s *zstdStream) forget() {
	if s.decoder != nil {
		_ = s.decoder.Reset(nil) // no message is no error here
		zstdStreams.Put(s.decoder)
		s.decoder = nil
	}
	s.from = nil
}

// streamed is a codec whose library knows streams alone.
type streamed struct {
	decoder io.Reader // nil before the first message
	open    func(again, r io.Reader) (io.Reader, error)
	in      bytes.Reader
	out     wholeReader
}

func (c *streamed) stream(r io.Reader, _ int64) (io.Reader, error) {
	d, err := c.open(c.decoder, r)
	if err != nil {
		return nil, err
	}
	c.decoder = d
	return d, nil
}

func (c *streamed) whole(in, out []byte) ([]byte, error) {
	c.in.Reset(in)
	d, err := c.stream(&c.in, maxWhole)
	if err != nil {
		return out, err
	}
	if out, err = c.out.read(out, d); err == nil && len(out) > maxWhole {
		err = errLarge
	}
	return out, err
}

// wholeReader reads messages. It is kept from one to the next, for it would be an
// allocation of each.
type wholeReader struct{ limited io.LimitedReader }

// read appends r to b, up to what is more than a whole message.
func (w *wholeReader) read(b []byte, r io.Reader) ([]byte, error) {
	w.limited = io.LimitedReader{R: r, N: maxWhole + 1}
	buf := bytes.NewBuffer(b)
	_, err := buf.ReadFrom(&w.limited)
	w.limited.R = nil
	return buf.Bytes(), err
}

func (c *streamed) forget() {
	if c.decoder != nil {
		c.in.Reset(nil)
		_, _ = c.open(c.decoder, &c.in) // an empty message may be an error
	}
}

func openGzip(again, r io.Reader) (io.Reader, error) {
	if d, ok := again.(*gzip.Reader); ok {
		return d, d.Reset(r)
	}
	return gzip.NewReader(r)
}

func openZlib(again, r io.Reader) (io.Reader, error) {
	if d, ok := again.(zlib.Resetter); ok {
		return again, d.Reset(r, nil)
	}
	return zlib.NewReader(r)
}

func openLZ4(again, r io.Reader) (io.Reader, error) {
	if d, ok := again.(*lz4.Reader); ok {
		d.Reset(r)
		return d, nil
	}
	return lz4.NewReader(r), nil
}

func openSnappy(again, r io.Reader) (io.Reader, error) {
	if d, ok := again.(*snappy.Reader); ok {
		d.Reset(r)
		return d, nil
	}
	return snappy.NewReader(r), nil
}

// snappyCodec reads a block, and the frames that older senders call snappy too.
type snappyCodec struct{ streamed }

const (
	framed = "\xff\x06\x00\x00sNaPpY"
	// maxExpansion is of a block: three bytes copy 64 at most.
	maxExpansion = 22
)

func (c *snappyCodec) whole(in, out []byte) ([]byte, error) {
	if bytes.HasPrefix(in, []byte(framed)) {
		return c.streamed.whole(in, out)
	}
	if err := checkBlock(in, maxWhole); err != nil {
		return out, err
	}
	return snappy.Decode(out[:cap(out)], in)
}

// stream reads a block to its end: a block cannot be decoded in parts.
func (c *snappyCodec) stream(r io.Reader, limit int64) (io.Reader, error) {
	buf := bufio.NewReader(r)
	if head, _ := buf.Peek(len(framed)); string(head) == framed {
		return c.streamed.stream(buf, limit)
	}
	in, err := io.ReadAll(buf)
	if err != nil {
		return nil, err
	}
	if err := checkBlock(in, limit); errors.Is(err, errLarge) {
		return nil, ErrTooLarge
	} else if err != nil {
		return nil, err
	}
	out, err := snappy.Decode(nil, in)
	return bytes.NewReader(out), err
}

// checkBlock keeps a block from claiming a size that it cannot have.
func checkBlock(in []byte, limit int64) error {
	n, err := snappy.DecodedLen(in)
	switch {
	case err != nil:
		return err
	case n > maxExpansion*len(in):
		return snappy.ErrCorrupt
	case int64(n) > limit:
		return errLarge
	}
	return nil
}
