// SPDX-License-Identifier: Apache-2.0

// Package nesting finds out how deep a protobuf message is nested before
// anybody decodes it. A value of OTLP may be a list of values, and pdata decodes
// such by recursion: 16 MB of lists in lists take more stack than the Go runtime
// allows, which ends the process and cannot be recovered from.
package nesting // import "github.com/gpu-collector/gpu-collector/internal/nesting"

import (
	"errors"
	"fmt"
	"io"
	"math"
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

// Checker looks at a message that comes in parts. It knows no schema: whatever
// has a length may be a message. So text counts too where it looks like one, but
// as each level has to fit into the one around it, no text of anybody's looks
// like a hundred. The zero value is ready; a byte is looked at once.
type Checker struct {
	pos   int64
	depth int
	ends  [MaxDepth]int64 // of the open messages, the innermost last
	state state
	acc   uint64 // of a varint
	shift uint
	left  int // of a fixed number
}

type state uint8

const (
	inTag state = iota
	inVarint
	inLength
	inFixed
	inRest // what cannot be read: nobody decodes it further
)

// Write implements io.Writer. It takes the next part and fails with ErrTooDeep.
func (c *Checker) Write(p []byte) (int, error) {
	for i := 0; i < len(p); {
		for c.depth > 0 && c.pos == c.ends[c.depth-1] {
			c.depth--
			c.begin(inTag)
		}
		// What of this part is in the innermost message.
		in := p[i:]
		if c.depth > 0 && c.ends[c.depth-1]-c.pos < int64(len(in)) {
			in = in[:c.ends[c.depth-1]-c.pos]
		}
		n, ok := c.inside(in)
		i, c.pos = i+n, c.pos+int64(n)
		if !ok {
			return i, ErrTooDeep
		}
	}
	return len(p), nil
}

// inside takes a part of the innermost message, up to where another begins, and
// returns false when that is too deep.
func (c *Checker) inside(p []byte) (int, bool) {
	for i := 0; i < len(p); {
		switch c.state {
		case inRest:
			return len(p), true
		case inFixed:
			n := min(c.left, len(p)-i)
			i += n
			if c.left -= n; c.left == 0 {
				c.begin(inTag)
			}
			continue
		case inVarint: // whose value does not matter
			if p[i] < 0x80 && c.shift == 0 {
				c.state = inTag
				i++
				continue
			}
		}
		b := p[i]
		i++
		// A varint has ten bytes at most; the last bits of the tenth are lost.
		c.acc |= uint64(b&0x7f) << c.shift
		if c.shift += 7; b >= 0x80 {
			if c.shift >= 70 {
				c.begin(inRest)
			}
			continue
		}
		if depth := c.depth; !c.number(c.pos + int64(i)) {
			return i, false
		} else if c.depth > depth {
			return i, true
		}
	}
	return len(p), true
}

func (c *Checker) begin(s state) { c.state, c.acc, c.shift = s, 0, 0 }

// number takes a varint that ends before pos, and returns false when it is the
// length of a message that is too deep.
func (c *Checker) number(pos int64) bool {
	n, was := c.acc, c.state
	c.begin(inTag)
	switch was {
	case inTag:
		switch n & 7 {
		case 0:
			c.begin(inVarint)
		case 1:
			c.begin(inFixed)
			c.left = 8
		case 2:
			c.begin(inLength)
		case 3, 4: // what is in a group is looked at as if it were not
		case 5:
			c.begin(inFixed)
			c.left = 4
		default:
			c.begin(inRest)
		}
	case inLength:
		end := int64(math.MaxInt64)
		if c.depth > 0 {
			end = c.ends[c.depth-1]
		}
		switch {
		case n > uint64(end-pos):
			c.begin(inRest)
		case n == 0:
		case c.depth == MaxDepth:
			return false
		default:
			c.ends[c.depth] = pos + int64(n)
			c.depth++
		}
	}
	return true
}

// Reader checks what is read through it.
type Reader struct {
	io.ReadCloser
	checker Checker
	failed  bool
}

// NewReader returns a reader of the same bytes that fails with ErrTooDeep before
// it hands on any that are too deep.
func NewReader(r io.ReadCloser) *Reader { return &Reader{ReadCloser: r} }

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	if r.failed {
		return 0, ErrTooDeep
	}
	n, err := r.ReadCloser.Read(p)
	if _, deep := r.checker.Write(p[:n]); errors.Is(deep, ErrTooDeep) {
		r.failed = true
		return 0, ErrTooDeep
	}
	return n, err
}
