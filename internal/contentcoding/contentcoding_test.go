// SPDX-License-Identifier: Apache-2.0

package contentcoding

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const limit = 16 << 20

func message(size int) []byte {
	r := rand.New(rand.NewPCG(1, uint64(size)))
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(r.IntN(7))
	}
	return b
}

// forms has every form in which senders write a coding.
var forms = []struct {
	form, coding string
	encode       func(testing.TB, []byte) []byte
}{
	{"zstd with size", "zstd", func(t testing.TB, msg []byte) []byte {
		z, err := zstd.NewWriter(nil)
		require.NoError(t, err)
		return z.EncodeAll(msg, nil)
	}},
	{"zstd in a stream", "zstd", stream(func(w io.Writer) io.WriteCloser {
		z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(8<<20))
		if err != nil {
			panic(err)
		}
		return z
	})},
	{"gzip", "gzip", stream(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) })},
	{"zlib", "zlib", stream(func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) })},
	{"deflate", "deflate", stream(func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) })},
	{"lz4", "lz4", stream(func(w io.Writer) io.WriteCloser { return lz4.NewWriter(w) })},
	{"framed snappy", "x-snappy-framed", stream(func(w io.Writer) io.WriteCloser { return snappy.NewBufferedWriter(w) })},
	{"snappy in frames", "snappy", stream(func(w io.Writer) io.WriteCloser { return snappy.NewBufferedWriter(w) })},
	{"snappy", "snappy", func(_ testing.TB, msg []byte) []byte { return snappy.Encode(nil, msg) }},
}

func stream(open func(io.Writer) io.WriteCloser) func(testing.TB, []byte) []byte {
	return func(t testing.TB, msg []byte) []byte {
		var out bytes.Buffer
		w := open(&out)
		for len(msg) > 0 {
			n, err := w.Write(msg[:min(len(msg), 32<<10)])
			require.NoError(t, err)
			msg = msg[n:]
		}
		require.NoError(t, w.Close())
		return out.Bytes()
	}
}

// encoded is the message of that size in forms[form]. Encoders are slow under the race
// detector: each message is encoded once.
func encoded(t testing.TB, form, size int) []byte {
	key := [2]int{form, size}
	if kept[key] == nil {
		kept[key] = forms[form].encode(t, message(size))
	}
	return kept[key]
}

var kept = map[[2]int][]byte{}

func decode(coding string, in []byte) ([]byte, error) {
	m, err := Open(coding, iotest.HalfReader(bytes.NewReader(in)), limit)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(m)
}

func TestMessagesOfAllSizes(t *testing.T) {
	for i, f := range forms {
		t.Run(f.form, func(t *testing.T) {
			for _, size := range []int{1, 1000, 40_000, maxWhole, maxWhole + 1, 3 << 20} {
				msg := message(size)
				m, err := Open(f.coding, bytes.NewReader(encoded(t, i, size)), limit)
				require.NoError(t, err)
				whole, ok := m.Whole()
				if size != maxWhole { // the window of a stream of zstd may be larger
					assert.Equal(t, size < maxWhole, ok, "%d bytes", size)
				}
				if ok {
					assert.True(t, bytes.Equal(msg, whole), "%d bytes", size)
				}
				out, err := io.ReadAll(m)
				require.NoError(t, err)
				assert.True(t, bytes.Equal(msg, out), "%d bytes", size)
				_, err = m.Read(make([]byte, 1))
				require.ErrorIs(t, err, io.EOF)
				require.NoError(t, m.Close())
				_, ok = m.Whole()
				assert.False(t, ok, "closed")
			}
		})
	}
}

func TestBadMessages(t *testing.T) {
	for i, f := range forms {
		t.Run(f.form, func(t *testing.T) {
			for _, size := range []int{40_000, 3 << 20} { // in one piece, and in parts
				good := encoded(t, i, size)
				_, err := decode(f.coding, good[:len(good)*2/3])
				require.Error(t, err, "cut off")
				_, err = decode(f.coding, []byte("hello, this is text and nothing else"))
				require.Error(t, err, "text")
				lost := errors.New("lost")
				m, err := Open(f.coding, io.MultiReader(bytes.NewReader(good[:len(good)*2/3]), iotest.ErrReader(lost)), limit)
				if err == nil {
					_, err = io.ReadAll(m)
				}
				require.ErrorIs(t, err, lost)
				// And the next message is fine.
				out, err := decode(f.coding, good)
				require.NoError(t, err)
				assert.Len(t, out, size)
			}
		})
	}
	_, err := Open("br", bytes.NewReader(nil), limit)
	require.ErrorIs(t, err, ErrUnknown)
	_, err = Open("gzip, gzip", bytes.NewReader(nil), limit)
	require.ErrorIs(t, err, ErrUnknown)
}

// allocated is what a call takes from the heap, as a count of bytes: a collection does no more to it than empty the pools.
func allocated(call func()) uint64 {
	var start, end runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&start)
	call()
	runtime.ReadMemStats(&end)
	return end.TotalAlloc - start.TotalAlloc
}

// A bomb gives no byte more than the limit, and takes no memory for the rest.
func TestBombs(t *testing.T) {
	for _, f := range forms {
		t.Run(f.form, func(t *testing.T) {
			const size = 64 << 20
			bomb := f.encode(t, make([]byte, size))
			for _, most := range []int64{100, 2 << 20} {
				took := allocated(func() {
					m, err := Open(f.coding, bytes.NewReader(bomb), most)
					if err == nil {
						var n int64
						n, err = io.Copy(io.Discard, m)
						assert.LessOrEqual(t, n, most)
					}
					require.ErrorIs(t, err, ErrTooLarge)
				})
				// 8 MiB are the window that the sender of zstd chose, block snappy reads
				// its input, and lz4 takes several blocks of 4 MiB from its pools.
				assert.Less(t, took, uint64(size*3/4))
			}
			small := f.encode(t, make([]byte, 1000))
			_, err := Open(f.coding, bytes.NewReader(small), 999)
			require.ErrorIs(t, err, ErrTooLarge)
			m, err := Open(f.coding, bytes.NewReader(small), 1000)
			require.NoError(t, err)
			require.NoError(t, m.Close())
		})
	}
}

// A few bytes cannot claim memory that the message then does not fill.
func TestClaims(t *testing.T) {
	for name, tt := range map[string]struct {
		coding string
		in     []byte
	}{
		// A frame with a window of 448 MiB, and one raw block of one byte.
		"window of zstd": {"zstd", []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 18<<3 | 6, 0x09, 0x00, 0x00, 'a'}},
		// A frame that says it has 64 GiB.
		"size of zstd":   {"zstd", []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 16, 0, 0, 0, 0x09, 0x00, 0x00, 'a'}},
		"size of snappy": {"snappy", []byte{0xff, 0xff, 0xff, 0x07, 0x00, 'a'}},
	} {
		t.Run(name, func(t *testing.T) {
			took := allocated(func() {
				_, err := decode(tt.coding, tt.in)
				require.Error(t, err)
			})
			assert.Less(t, took, uint64(4<<20))
		})
	}
}

// panics reads a stream as a decoder with a mistake in it.
type panics struct{}

func (panics) Read([]byte) (int, error) { panic("index out of range") }

func TestAPanicIsAnError(t *testing.T) {
	_, err := Open("gzip", panics{}, limit)
	require.ErrorContains(t, err, "index out of range")
	big := forms[2].encode(t, message(5<<20))
	m, err := Open("gzip", io.MultiReader(bytes.NewReader(big[:maxWhole+4096]), panics{}), limit)
	require.NoError(t, err)
	_, err = io.ReadAll(m)
	require.ErrorContains(t, err, "index out of range")
}

// Messages of many calls at once do not mix, whatever the pools hand out.
func TestAtOnce(t *testing.T) {
	var calls sync.WaitGroup
	for i := range 8 {
		calls.Go(func() {
			for n := range 20 {
				f := forms[(i+n)%len(forms)]
				msg := message(30_000 + i)
				out, err := decode(f.coding, f.encode(t, msg))
				assert.True(t, err == nil && bytes.Equal(msg, out), "%s: %v", f.form, err)
			}
		})
	}
	calls.Wait()
}

func FuzzOpen(f *testing.F) {
	for _, form := range forms {
		f.Add(form.coding, form.encode(f, message(100)))
		f.Add(form.coding, form.encode(f, message(50_000)))
	}
	f.Fuzz(func(t *testing.T, coding string, in []byte) {
		const most = 2 << 20
		m, err := Open(coding, bytes.NewReader(in), most)
		if err != nil {
			return
		}
		whole, ok := m.Whole()
		whole = bytes.Clone(whole)
		out, err := io.ReadAll(m)
		require.LessOrEqual(t, len(out), most)
		if ok {
			require.NoError(t, err)
			require.True(t, bytes.Equal(whole, out))
		}
		// The next message is not touched by this one.
		for _, form := range forms {
			if form.coding == coding {
				again, err := Open(coding, bytes.NewReader(form.encode(t, []byte("next"))), math.MaxInt64)
				require.NoError(t, err)
				out, err := io.ReadAll(again)
				require.NoError(t, err)
				require.Equal(t, "next", string(out))
			}
		}
	})
}

func BenchmarkOpen(b *testing.B) {
	for _, f := range forms {
		b.Run(f.form, func(b *testing.B) {
			in := f.encode(b, message(40_000))
			r := bytes.NewReader(nil)
			b.ReportAllocs()
			for b.Loop() {
				r.Reset(in)
				m, err := Open(f.coding, r, limit)
				if err != nil {
					b.Fatal(err)
				}
				_ = m.Close()
			}
		})
	}
}
