// SPDX-License-Identifier: Apache-2.0

package grpczstd

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "go.opentelemetry.io/collector/config/configgrpc" // registers the Collector's own
	"google.golang.org/grpc/encoding"
)

const maxWhole = 1 << 20 // see contentcoding

func message(size int) []byte {
	r := rand.New(rand.NewPCG(1, uint64(size)))
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(r.IntN(7))
	}
	return b
}

func compressed(t testing.TB, msg []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w, err := compressor{}.Compress(&buf)
	require.NoError(t, err)
	for part := range chunks(msg) {
		_, err := w.Write(part)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	_, err = w.Write(msg)
	require.Error(t, err, "closed")
	require.Error(t, w.Close(), "closed")
	return buf.Bytes()
}

// chunks are pieces as gRPC's buffers are.
func chunks(msg []byte) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(msg) > 0 {
			n := min(len(msg), 32<<10)
			if !yield(msg[:n]) {
				return
			}
			msg = msg[n:]
		}
	}
}

func TestItIsWhatGRPCUses(t *testing.T) {
	assert.Equal(t, compressor{}, encoding.GetCompressor("zstd"))
}

func TestMessagesOfAllSizes(t *testing.T) {
	for _, size := range []int{0, 1, 1000, 40_000, maxWhole, maxWhole + 1, 5 << 20} {
		msg := message(size)
		// Its own form, and that of one who streams and says no size.
		var streamed bytes.Buffer
		z, err := zstd.NewWriter(&streamed)
		require.NoError(t, err)
		for part := range chunks(msg) {
			_, err := z.Write(part)
			require.NoError(t, err)
			require.NoError(t, z.Flush())
		}
		require.NoError(t, z.Close())
		for _, in := range [][]byte{compressed(t, msg), streamed.Bytes()} {
			r, err := compressor{}.Decompress(iotest.HalfReader(bytes.NewReader(in)))
			require.NoError(t, err)
			out, err := io.ReadAll(r)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(msg, out), "%d bytes", size)
			n, err := r.Read(make([]byte, 1))
			assert.Zero(t, n)
			require.ErrorIs(t, err, io.EOF)
		}
		d, err := zstd.NewReader(nil)
		require.NoError(t, err)
		out, err := d.DecodeAll(compressed(t, msg), nil)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(msg, out))
	}
}

func TestBadMessages(t *testing.T) {
	good := compressed(t, message(40_000))
	for name, in := range map[string]io.Reader{
		"cut off":      bytes.NewReader(good[:len(good)-1]),
		"no zstd":      bytes.NewReader([]byte("hello, this is text")),
		"another bit":  bytes.NewReader(append(bytes.Clone(good[:len(good)-1]), good[len(good)-1]^1)),
		"reader fails": iotest.ErrReader(errors.New("lost")),
	} {
		_, err := compressor{}.Decompress(in)
		require.Error(t, err, name)
	}
	// And the next message is fine.
	r, err := compressor{}.Decompress(bytes.NewReader(good))
	require.NoError(t, err)
	out, err := io.ReadAll(r)
	require.NoError(t, err)
	assert.Len(t, out, 40_000)
}

// A bomb is decoded as far as gRPC reads it, whether it says its size or not.
func TestABombIsNotDecodedAhead(t *testing.T) {
	const size = 32 << 20
	var streamed bytes.Buffer
	z, err := zstd.NewWriter(&streamed, zstd.WithWindowSize(windowSize), zstd.WithEncoderConcurrency(1))
	require.NoError(t, err)
	zeros := make([]byte, 1<<20)
	for range size / len(zeros) {
		_, err := z.Write(zeros)
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	require.Less(t, streamed.Len(), maxWhole)
	var start, end runtime.MemStats
	for name, in := range map[string][]byte{
		"streamed":  streamed.Bytes(),
		"with size": compressed(t, make([]byte, size)),
	} {
		runtime.GC()
		runtime.ReadMemStats(&start)
		r, err := compressor{}.Decompress(bytes.NewReader(in))
		require.NoError(t, err)
		n, err := io.Copy(io.Discard, io.LimitReader(r, 2<<20))
		require.NoError(t, err)
		assert.EqualValues(t, 2<<20, n)
		runtime.ReadMemStats(&end)
		assert.Less(t, end.TotalAlloc-start.TotalAlloc, uint64(16<<20), name)
	}
}

// Messages of many calls at once do not mix, whatever the pools hand out.
func TestAtOnce(t *testing.T) {
	var calls sync.WaitGroup
	for i := range 8 {
		msg := message(30_000 + i)
		calls.Go(func() {
			for range 50 {
				r, err := compressor{}.Decompress(bytes.NewReader(compressed(t, msg)))
				if err != nil {
					t.Error(err)
					return
				}
				out, err := io.ReadAll(r)
				if err != nil || !bytes.Equal(msg, out) {
					t.Errorf("%d bytes of %d, %v", len(out), len(msg), err)
				}
			}
		})
	}
	calls.Wait()
}

func FuzzDecompress(f *testing.F) {
	f.Add(compressed(f, message(100)))
	f.Add(compressed(f, message(200_000)))
	f.Add([]byte("\x28\xb5\x2f\xfd"))
	f.Fuzz(func(t *testing.T, in []byte) {
		plain, err := zstd.NewReader(bytes.NewReader(in), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(32<<20))
		require.NoError(t, err)
		defer plain.Close()
		want, wantErr := io.ReadAll(io.LimitReader(plain, 4<<20))
		r, err := compressor{}.Decompress(bytes.NewReader(in))
		if err != nil {
			require.Error(t, wantErr)
			return
		}
		got, err := io.ReadAll(io.LimitReader(r, 4<<20))
		require.Equal(t, wantErr == nil, err == nil)
		if err == nil {
			require.True(t, bytes.Equal(want, got))
		}
	})
}

func BenchmarkDecompress(b *testing.B) {
	in := compressed(b, message(40_000))
	r := bytes.NewReader(nil)
	b.ReportAllocs()
	for b.Loop() {
		r.Reset(in)
		out, err := compressor{}.Decompress(r)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, out); err != nil {
			b.Fatal(err)
		}
	}
}
