// SPDX-License-Identifier: Apache-2.0

// Package packed writes a state as bytes and reads it again. One description of a state
// does both: each call writes a value, or reads it, as the Coder is a writer or a reader.
// So the two cannot differ. Values of many things of one kind go as columns, by the bytes
// of each number: bytes that are alike stand together, which is what a compressor needs.
//
// A reader trusts nothing. A count is never more than the bytes that are left, a text
// never longer than its bound, and a number is finite. The first mistake stays, and
// every call after it reads zeros. Pure.
package packed // import "github.com/gpu-collector/gpu-collector/internal/packed"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"time"
	"unsafe"
)

// Errors of a reader.
var (
	ErrShort    = errors.New("the state ends too soon")
	ErrLong     = errors.New("the state has more bytes than it tells of")
	ErrRange    = errors.New("the state has a value that cannot be")
	ErrChecksum = errors.New("the checksum of the state is wrong")
	ErrForeign  = errors.New("the bytes are no state of this kind")
)

// NewerError says that a newer version wrote a state.
type NewerError struct{ Version, Known int }

func (e *NewerError) Error() string {
	return fmt.Sprintf("the state has version %d, must be at most %d: a newer release wrote it", e.Version, e.Known)
}

// Coder writes a state or reads one.
type Coder struct {
	b     []byte // what is written, or what is left to read
	reads bool
	err   error
	sum   uint32 // of what Flush gave away
	// Version is that of the state that is read; of one that is written, the newest.
	Version int
}

var table = crc32.MakeTable(crc32.Castagnoli)

const sumBytes = 4

// NewWriter begins a state of a kind, a word of a few letters, in the room of buf.
func NewWriter(buf []byte, kind string, version int) *Coder {
	c := &Coder{b: append(buf[:0], kind...), Version: version}
	c.b = append(c.b, 0)
	v := uint(version)
	Uint(c, &v)
	return c
}

// NewReader opens a state that is whole, of a kind and at most of a version.
func NewReader(b []byte, kind string, version int) (*Coder, error) {
	head := len(kind) + 1
	if len(b) < head+sumBytes || string(b[:len(kind)]) != kind || b[len(kind)] != 0 {
		return nil, ErrForeign
	}
	body := b[:len(b)-sumBytes]
	if crc32.Checksum(body, table) != binary.LittleEndian.Uint32(b[len(body):]) {
		return nil, ErrChecksum
	}
	c := &Coder{b: body[head:], reads: true}
	var v uint
	Uint(c, &v)
	if c.err == nil && v > uint(version) {
		return nil, &NewerError{int(min(v, math.MaxInt32)), version}
	}
	c.Version = int(v)
	return c, c.err
}

// Flush returns what was written since the Flush before. It is good until the next write.
func (c *Coder) Flush() []byte {
	b := c.b
	c.sum, c.b = crc32.Update(c.sum, table, b), b[:0]
	return b
}

// Seal ends a state that is written, and returns what was written since the last Flush.
func (c *Coder) Seal() []byte {
	c.b = binary.LittleEndian.AppendUint32(c.b, crc32.Update(c.sum, table, c.b))
	return c.b
}

// End returns the first mistake of a state that is read to its end.
func (c *Coder) End() error {
	if c.err == nil && len(c.b) > 0 {
		c.err = ErrLong
	}
	return c.err
}

// Len is the number of bytes that are written so far, or left to read.
func (c *Coder) Len() int { return len(c.b) }

// Reads reports whether the Coder reads.
func (c *Coder) Reads() bool { return c.reads }

// Err is the first mistake.
func (c *Coder) Err() error { return c.err }

// Check notes a mistake of what was read where a condition does not hold.
func (c *Coder) Check(holds bool) {
	if !holds {
		c.fail(ErrRange)
	}
}

func (c *Coder) fail(err error) {
	if c.err == nil {
		c.err = err
		c.b = nil
	}
}

func (c *Coder) take(n int) []byte {
	if c.err != nil || n > len(c.b) {
		c.fail(ErrShort)
		return nil
	}
	b := c.b[:n]
	c.b = c.b[n:]
	return b
}

type (
	// Unsigned are the integers without a sign.
	Unsigned interface {
		~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
	}
	// Signed are the integers with a sign.
	Signed interface {
		~int | ~int8 | ~int16 | ~int32 | ~int64
	}
)

// Uint is for a number that is small most of the time.
func Uint[T Unsigned](c *Coder, x *T) {
	if !c.reads {
		c.b = binary.AppendUvarint(c.b, uint64(*x))
		return
	}
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.fail(ErrShort)
		*x = 0
		return
	}
	c.b = c.b[n:]
	*x = T(v)
	c.Check(uint64(*x) == v)
}

// Int is for a number that is near zero most of the time.
func Int[T Signed](c *Coder, x *T) {
	if !c.reads {
		c.b = binary.AppendVarint(c.b, int64(*x))
		return
	}
	v, n := binary.Varint(c.b)
	if n <= 0 {
		c.fail(ErrShort)
		*x = 0
		return
	}
	c.b = c.b[n:]
	*x = T(v)
	c.Check(int64(*x) == v)
}

// Count is for a number that is not negative.
func Count[T Signed](c *Coder, x *T) {
	Int(c, x)
	c.Check(*x >= 0)
}

// Below is for one of so many.
func Below[T Unsigned](c *Coder, x *T, n T) {
	Uint(c, x)
	if c.reads && *x >= n {
		c.fail(ErrRange)
		*x = 0
	}
}

// Size is for the length of a list; of a reader it is at most the bytes that are left.
func (c *Coder) Size(n int) int {
	v := uint64(n)
	Uint(c, &v)
	if !c.reads {
		return n
	}
	if v > uint64(len(c.b)) {
		c.fail(ErrShort)
	}
	if c.err != nil {
		return 0
	}
	return int(v)
}

// Bool is for one bit.
func (c *Coder) Bool(x *bool) {
	v := uint8(0)
	if *x {
		v = 1
	}
	Below(c, &v, 2)
	*x = v == 1
}

// Float is for a finite number.
func (c *Coder) Float(x *float64) {
	if !c.reads {
		c.b = binary.LittleEndian.AppendUint64(c.b, math.Float64bits(*x))
		return
	}
	*x = 0
	if b := c.take(8); b != nil {
		*x = math.Float64frombits(binary.LittleEndian.Uint64(b))
	}
	if *x-*x != 0 {
		c.fail(ErrRange)
		*x = 0
	}
}

// Text is for a string of at most so many bytes.
func (c *Coder) Text(s *string, most int) {
	n := c.Size(len(*s))
	if !c.reads {
		c.b = append(c.b, *s...)
		return
	}
	c.Check(n <= most)
	*s = string(c.take(n))
}

// Bytes is for bytes that are not bounded but by the state itself. Those that are read are
// a part of it.
func (c *Coder) Bytes(b *[]byte) {
	n := c.Size(len(*b))
	if !c.reads {
		c.b = append(c.b, *b...)
		return
	}
	if *b = c.take(n); *b == nil {
		*b = []byte{}
	}
}

// Texts is for a list of them.
func (c *Coder) Texts(list *[]string, most int) {
	n := c.Size(len(*list))
	if c.reads {
		*list = nil
		if n > 0 {
			*list = make([]string, n)
		}
	}
	for i := range *list {
		c.Text(&(*list)[i], most)
	}
}

// Time is for a time, in nanoseconds and UTC; the zero time stays what it is.
func (c *Coder) Time(t *time.Time) {
	ns := int64(math.MinInt64)
	if !c.reads && !t.IsZero() {
		ns = t.UnixNano()
	}
	Int(c, &ns)
	if c.reads {
		*t = time.Time{}
		if ns != math.MinInt64 && c.err == nil {
			*t = time.Unix(0, ns).UTC()
		}
	}
}

// Number is what a column is made of.
type Number interface {
	~uint8 | ~int8 | ~uint16 | ~uint32 | ~int64 | ~float32 | ~float64
}

// Column is for one number of each of n things: first the lowest byte of each, at last
// the highest.
func Column[T Number](c *Coder, n int, at func(i int) *T) {
	var x T
	width := int(unsafe.Sizeof(x))
	if !c.reads {
		from := len(c.b)
		c.b = slices.Grow(c.b, n*width)[:from+n*width]
		to := c.b[from:]
		for i := range n {
			bits := bitsOf(*at(i))
			for k := range width {
				to[k*n+i] = byte(bits >> (8 * k))
			}
		}
		return
	}
	from := c.take(n * width)
	for i := range n {
		bits := uint64(0)
		if from != nil {
			for k := range width {
				bits |= uint64(from[k*n+i]) << (8 * k)
			}
		}
		*at(i) = numberOf[T](c, bits)
	}
}

// fractional reports whether T is a floating-point type.
func fractional[T Number]() bool { return T(1)/T(2) != 0 }

func bitsOf[T Number](x T) uint64 {
	switch {
	case !fractional[T]():
		return uint64(x)
	case unsafe.Sizeof(x) == 4:
		return uint64(math.Float32bits(float32(x)))
	}
	return math.Float64bits(float64(x))
}

func numberOf[T Number](c *Coder, bits uint64) (x T) {
	switch {
	case !fractional[T]():
		return T(bits)
	case unsafe.Sizeof(x) == 4:
		x = T(math.Float32frombits(uint32(bits)))
	default:
		x = T(math.Float64frombits(bits))
	}
	if f := float64(x); math.IsNaN(f) || math.IsInf(f, 0) {
		c.fail(ErrRange)
		return 0
	}
	return x
}

// Names is for a text of each of n things. Names in order have much in common: each says
// how much it has of the one before.
func (c *Coder) Names(n, most int, at func(i int) *string) {
	before := ""
	for i := range n {
		s := at(i)
		same := 0
		for !c.reads && same < min(len(before), len(*s)) && before[same] == (*s)[same] {
			same++
		}
		Int(c, &same)
		if c.reads && (same < 0 || same > len(before)) {
			c.fail(ErrRange)
			same = 0
		}
		rest := ""
		if !c.reads {
			rest = (*s)[same:]
		}
		c.Text(&rest, most-same)
		if c.reads {
			*s = before[:same] + rest
		}
		before = *s
	}
}
