// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/packed/packedtest"
)

// things has one of each kind of value.
type things struct {
	U      uint32
	I      int16
	N      int
	Small  uint8
	B      bool
	F      float64
	S      string
	List   []string
	At     time.Time
	Names  []string
	Column []float32
}

func (x *things) pack(c *Coder) {
	Uint(c, &x.U)
	Int(c, &x.I)
	Count(c, &x.N)
	Below(c, &x.Small, 7)
	c.Bool(&x.B)
	c.Float(&x.F)
	c.Text(&x.S, 20)
	c.Texts(&x.List, 20)
	c.Time(&x.At)
	n := c.Size(len(x.Names))
	if c.Reads() {
		x.Names, x.Column = make([]string, n), make([]float32, n)
	}
	c.Names(n, 20, func(i int) *string { return &x.Names[i] })
	Column(c, n, func(i int) *float32 { return &x.Column[i] })
}

func drawn(t *rapid.T) things {
	text := rapid.StringMatching("[a-c]{0,20}")
	x := things{
		U: rapid.Uint32().Draw(t, "u"), I: rapid.Int16().Draw(t, "i"), N: rapid.IntRange(0, math.MaxInt).Draw(t, "n"),
		Small: rapid.Uint8Range(0, 6).Draw(t, "small"), B: rapid.Bool().Draw(t, "b"), F: rapid.Float64().Draw(t, "f"),
		S: text.Draw(t, "s"), List: rapid.SliceOfN(text, 1, 3).Draw(t, "list"), Names: rapid.SliceOf(text).Draw(t, "names"),
	}
	if rapid.Bool().Draw(t, "at known") {
		x.At = time.Unix(0, rapid.Int64Min(math.MinInt64+1).Draw(t, "at")).UTC()
	}
	x.Column = rapid.SliceOfN(rapid.Float32(), len(x.Names), len(x.Names)).Draw(t, "column")
	return x
}

// TestWhatIsWrittenIsRead, and each state that is cut or changed is refused.
func TestWhatIsWrittenIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawn(t)
		w := NewWriter(nil, "things", 3)
		want.pack(w)
		b := append([]byte(nil), w.Flush()...) // in two pieces
		b = append(b, w.Seal()...)

		r, err := NewReader(b, "things", 4)
		require.NoError(t, err)
		assert.Equal(t, 3, r.Version)
		got := things{}
		got.pack(r)
		require.NoError(t, r.End())
		require.Equal(t, want, got)

		_, err = NewReader(b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")], "things", 4)
		require.Error(t, err)
		at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		b[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		_, err = NewReader(b, "things", 4)
		require.Error(t, err)
	})
}

func TestOtherStatesAreRefused(t *testing.T) {
	w := NewWriter(nil, "things", 3)
	b := w.Seal()
	_, err := NewReader(b, "others", 3)
	require.ErrorIs(t, err, ErrForeign)
	_, err = NewReader(b, "things", 2)
	var newer *NewerError
	require.ErrorAs(t, err, &newer)
	assert.Equal(t, NewerError{3, 2}, *newer)
	r, err := NewReader(packedtest.Frame("things", 3, []byte{1}), "things", 3)
	require.NoError(t, err)
	require.ErrorIs(t, r.End(), ErrLong)
}

// FuzzReader reads anything: it ends, with numbers that are finite, and in no more memory
// than what it read took.
func FuzzReader(f *testing.F) {
	w := NewWriter(nil, "things", 3)
	(&things{S: "a", Names: []string{"a", "ab"}, Column: []float32{1, 2}}).pack(w)
	f.Add(packedtest.Body("things", w.Seal()))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := NewReader(packedtest.Frame("things", 3, b), "things", 3)
		require.NoError(t, err)
		x := things{}
		x.pack(r)
		assert.LessOrEqual(t, len(x.Names), len(b))
		assert.LessOrEqual(t, len(x.List), len(b))
		for _, v := range append(x.Column, float32(x.F)) {
			assert.False(t, math.IsNaN(float64(v)))
		}
		if r.End() == nil { // it was something that is written
			w := NewWriter(nil, "things", 3)
			x.pack(w)
			again := things{}
			r, err := NewReader(w.Seal(), "things", 3)
			require.NoError(t, err)
			again.pack(r)
			require.NoError(t, r.End())
			assert.Equal(t, x, again)
		}
	})
}
