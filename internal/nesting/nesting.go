// SPDX-License-Identifier: Apache-2.0

// Package nesting finds out how deep a protobuf message is nested before
// anybody decodes it. A value of OTLP may be a list of values, and pdata decodes
// such by recursion: 16 MB of lists in lists take more stack than the Go runtime
// allows, which ends the process and cannot be recovered from.
package nesting // import "github.com/gpu-collector/gpu-collector/internal/nesting"

import (
	"bytes"
	"fmt"
	"io"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

const (
	// MaxDepth of messages in messages: the limit that protobuf's C++ and Java
	// parsers have by default. OTLP needs 7 for a point's attribute, and 2 or 3
	// more for each list or map in it.
	MaxDepth = 100
	// Harmless is the size up to which a message need not be looked at: it has
	// fewer than 16,384 levels, which take 7 MB of stack.
	Harmless = 64 << 10
)

// ErrTooDeep says that a message is nested deeper than MaxDepth.
var ErrTooDeep = fmt.Errorf("the message is nested deeper than %d levels", MaxDepth)

// Check looks at a whole message. Check knows no schema: whatever has a length
// may be a message. So text counts too where it looks like one, but as each level
// has to fit into the one around it, no text of anybody's looks like a hundred.
func Check(message []byte) error {
	if len(message) > Harmless && tooDeep(message, 0) {
		return ErrTooDeep
	}
	return nil
}

// tooDeep looks at each byte once, and ends at a byte that no decoder can read.
func tooDeep(m []byte, depth int) bool {
	for len(m) > 0 {
		tag, n := varint(m)
		if n == 0 {
			return false
		}
		m = m[n:]
		switch tag & 7 {
		case 0:
			_, n = varint(m)
		case 1:
			n = 8
		case 2:
			var length uint64
			if length, n = varint(m); n == 0 || length > uint64(len(m)-n) {
				return false
			}
			end := n + int(length)
			if length > 0 && (depth == MaxDepth || tooDeep(m[n:end], depth+1)) {
				return true
			}
			n = end
		case 3, 4: // the fields of a group are looked at as if they were in none
			continue
		case 5:
			n = 4
		default:
			return false
		}
		if n == 0 || n > len(m) {
			return false
		}
		m = m[n:]
	}
	return false
}

// varint returns a number and its size, which is 0 for no number. A number has ten
// bytes at most. Decoders lose the last bits of the tenth, where protowire fails.
func varint(m []byte) (v uint64, n int) {
	for i, b := range m[:min(len(m), 10)] {
		v |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			return v, i + 1
		}
	}
	return 0, 0
}

// Codec decodes no message that is too deep.
type Codec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	if err := Check(whole.ReadOnlyData()); err != nil {
		return err
	}
	return c.CodecV2.Unmarshal(mem.BufferSlice{whole}, v)
}

// reader keeps the message that it has read.
type reader struct {
	io.ReadCloser
	message *bytes.Reader
	err     error
}

// NewReader returns a reader of the same bytes that hands on none of a message
// that is too deep. The first Read reads all of r, which has to be bounded.
func NewReader(r io.ReadCloser) io.ReadCloser { return &reader{ReadCloser: r} }

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	if r.message == nil {
		message, err := io.ReadAll(r.ReadCloser)
		if err == nil {
			err = Check(message)
		}
		r.message, r.err = bytes.NewReader(message), err
	}
	if r.err != nil {
		return 0, r.err
	}
	return r.message.Read(p)
}
