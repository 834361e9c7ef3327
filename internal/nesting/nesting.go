// SPDX-License-Identifier: Apache-2.0

// Package nesting finds out what a message of OTLP becomes when it is decoded,
// before anybody decodes it. Two bytes of an empty span are 200 of a struct, and
// lists in lists take more stack than the Go runtime allows, which ends the
// process and cannot be recovered from.
package nesting // import "github.com/gpu-collector/gpu-collector/internal/nesting"

import (
	"errors"
	"fmt"
	"math"
)

const (
	// MaxDepth of messages in messages: the limit that protobuf's C++ and Java
	// parsers have by default. OTLP needs 7 for a point's attribute, and 2 or 3
	// more for each list or map in it.
	MaxDepth = 100
	// Harmless is the size up to which a message need not be looked at where there
	// is memory for Worst: it has fewer than 16,384 levels, which take 7 MB of stack.
	Harmless = 64 << 10
	// Worst is how many bytes one byte of a message may become: half a Span.
	Worst = (sizeSpan + slot) / 2
)

// ErrTooDeep says that a message is nested deeper than MaxDepth.
var ErrTooDeep = fmt.Errorf("the message is nested deeper than %d levels", MaxDepth)

// ErrTooLarge says that a message takes more memory than it may.
var ErrTooLarge = errors.New("the message is too large once it is decoded")

// ErrNoJSON says that a message that should be JSON is none.
var ErrNoJSON = errors.New("the message is not well-formed JSON")

// ErrAttributes says that something in a message has more attributes than it may.
var ErrAttributes = errors.New("the message has too many attributes, or too long ones")

// Limits of a message.
type Limits struct {
	// Bytes that it takes once it is decoded.
	Bytes int64
	// Attributes are those of one resource, scope, log record, span, event or link.
	Attributes Attributes
	// PointAttributes are those of one point or exemplar, or the metadata of a metric.
	PointAttributes Attributes
}

// Attributes bounds those that one thing has: their number, and their bytes as they
// are in the message. Zero is no bound.
type Attributes struct{ Count, Bytes int }

// Check returns how many bytes a whole message of protobuf takes once it is
// decoded: never fewer, and rarely twice as many. It looks at each byte once at
// most, and ends at a byte that no decoder can read.
func Check(message []byte, as *Kind, limits *Limits) (int64, error) {
	c := limits.count(limits.Bytes)
	c.message(message, as, 0)
	return c.result(limits.Bytes)
}

// CheckAttributes is Check for the attributes alone. It looks into nothing that is too
// small to have too many, and takes an eighth of the time.
func CheckAttributes(message []byte, as *Kind, limits *Limits) error {
	c := limits.count(math.MaxInt64)
	c.light = true
	least := c.most[anybody]
	// An attribute has two bytes at least.
	c.skip = min(2*uint64(least.Count), uint64(least.Bytes))
	c.message(message, as, 0)
	_, err := c.result(math.MaxInt64)
	return err
}

// count is of a message under way.
type count struct {
	left int64 // of the limit; the rest is not looked at
	deep bool
	// broken says that it is no JSON.
	broken bool
	over   owner // who has too many attributes
	most   [owners]Attributes
	// tally is of the owner that is being read.
	tally Attributes
	// light leaves out all but attributes, and what has skip bytes at most.
	light bool
	skip  uint64
}

func (l *Limits) count(left int64) count {
	bound := func(n int) int {
		if n == 0 {
			return math.MaxInt
		}
		return n
	}
	r, p := Attributes{bound(l.Attributes.Count), bound(l.Attributes.Bytes)}, Attributes{bound(l.PointAttributes.Count), bound(l.PointAttributes.Bytes)}
	return count{left: left, most: [owners]Attributes{records: r, points: p, anybody: {min(r.Count, p.Count), min(r.Bytes, p.Bytes)}}}
}

func (c *count) result(limit int64) (int64, error) {
	switch size := limit - c.left; {
	case c.deep:
		return size, ErrTooDeep
	case c.broken:
		return size, ErrNoJSON
	case c.over != nobody:
		name := [owners]string{records: "resource, scope, record or span", points: "point", anybody: "point or resource"}[c.over]
		return size, fmt.Errorf("%w: a %s has more than %d, or more than %d bytes of them", ErrAttributes, name, c.most[c.over].Count, c.most[c.over].Bytes)
	case c.left < 0:
		return size, fmt.Errorf("%w: it takes more than %d bytes", ErrTooLarge, limit)
	default:
		return size, nil
	}
}

// within reports whether an owner has no more than it may.
func (c *count) within(has Attributes, of owner) bool {
	if has.Count > c.most[of].Count || has.Bytes > c.most[of].Bytes {
		c.over = of
		return false
	}
	return true
}

// message reports whether to go on behind the message.
func (c *count) message(m []byte, as *Kind, depth int) bool {
	for at := 0; at < len(m); {
		tag, n := uint64(m[at]), 1
		if tag >= 0x80 {
			if tag, n = varint(m[at:]); n == 0 {
				return true
			}
		}
		at += n
		switch tag & 7 {
		case 0:
			if _, n = varint(m[at:]); n == 0 {
				return true
			}
			at += n
		case 1:
			at += 8
		case 2:
			if at == len(m) {
				return true
			}
			length, n := uint64(m[at]), 1
			if length >= 0x80 {
				length, n = varint(m[at:])
			}
			if at += n; n == 0 || length > uint64(len(m)-at) {
				return true
			}
			end := at + int(length)
			if f := as.field(uint32(tag >> 3)); f != nil {
				if c.left -= int64(f.each) + int64(f.bytes)*int64(length); c.left < 0 {
					return false
				}
				if f.owner != nobody {
					c.tally.Count++
					if c.tally.Bytes += int(length); !c.within(c.tally, f.owner) {
						return false
					}
				}
				if f.of != nil && length > 0 && (!c.light || f.carries && (f.each == 0 || length > c.skip)) {
					if depth == MaxDepth {
						c.deep = true
						return false
					}
					outer := c.tally
					if f.each > 0 {
						c.tally = Attributes{}
					}
					if !c.message(m[at:end], f.of, depth+1) {
						return false
					}
					if f.each > 0 {
						c.tally = outer
					}
				}
			}
			at = end
		case 3, 4: // the fields of a group are looked at as if they were in none
		case 5:
			at += 4
		default:
			return true
		}
	}
	return true
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
