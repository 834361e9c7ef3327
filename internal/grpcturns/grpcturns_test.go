// SPDX-License-Identifier: Apache-2.0

package grpcturns

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"runtime"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
)

func TestInstall(t *testing.T) {
	plain := encoding.GetCompressor("gzip")
	defer encoding.RegisterCompressor(plain)
	for range 2 {
		Install("gzip", "nobody's")
		assert.Equal(t, compressor{plain}, encoding.GetCompressor("gzip"), "once")
		assert.Nil(t, encoding.GetCompressor("nobody's"))
	}
	var out bytes.Buffer
	w, err := encoding.GetCompressor("gzip").Compress(&out)
	require.NoError(t, err)
	_, err = w.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	r, err := encoding.GetCompressor("gzip").Decompress(&out)
	require.NoError(t, err)
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(text))
	_, err = encoding.GetCompressor("gzip").Decompress(bytes.NewReader([]byte("no gzip")))
	require.Error(t, err)
}

// source is a compressor whose messages are what the test says.
type source struct {
	encoding.Compressor
	from func() io.Reader
}

func (s source) Decompress(io.Reader) (io.Reader, error) { return s.from(), nil }

func open(t *testing.T, from io.Reader) io.Reader {
	t.Helper()
	r, err := compressor{source{from: func() io.Reader { return from }}}.Decompress(nil)
	require.NoError(t, err)
	return r
}

// endless zeros.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestTurnsEnd however the reading does: at the message's end, with an error, at gRPC's
// limit, and where nobody reads on.
func TestTurnsEnd(t *testing.T) {
	pool := mem.DefaultBufferPool()
	for range 3 * atOnce {
		for name, tt := range map[string]struct {
			from io.Reader
			want int
			fail bool
		}{
			"end":   {io.LimitReader(endless{}, 3<<20), 3 << 20, false},
			"error": {io.MultiReader(io.LimitReader(endless{}, 2<<20), iotest.ErrReader(errors.New("lost"))), 2 << 20, true},
			"limit": {endless{}, 4<<20 + 1, false},
			"odd":   {iotest.HalfReader(endless{}), 4<<20 + 1, false},
		} {
			got, err := mem.ReadAll(io.LimitReader(open(t, tt.from), 4<<20+1), pool) // as gRPC does
			assert.Equal(t, tt.fail, err != nil, name)
			assert.Equal(t, tt.want, got.Len(), name)
			got.Free()
			require.Empty(t, turns, name)
		}
	}
	for range atOnce {
		_, err := io.CopyN(io.Discard, open(t, endless{}), 2<<20)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { runtime.GC(); return len(turns) == 0 }, time.Minute, time.Millisecond)
}

// sized knows whether it is whole, as grpczstd's messages do.
type sized struct {
	io.Reader
	whole bool
}

func (s sized) Whole() ([]byte, bool) { return nil, s.whole }

// TestWindows: a message of zstd waits before it takes its window.
func TestWindows(t *testing.T) {
	whole := sized{endless{}, true}
	assert.Equal(t, whole, open(t, whole), "it waits for nobody")
	r := open(t, sized{io.LimitReader(endless{}, 10), false})
	_, err := r.Read(make([]byte, 5))
	require.NoError(t, err)
	assert.Len(t, turns, 1)
	_, err = io.ReadAll(r)
	require.NoError(t, err)
	assert.Empty(t, turns)
}

// gate counts those that are beyond the small part, and holds them there.
type gate struct {
	mu        sync.Mutex
	now, most int
	all       chan struct{} // closed to let them on
}

type gated struct {
	g    *gate
	out  int
	held bool
}

func (r *gated) Read(p []byte) (int, error) {
	if r.out >= small && !r.held {
		r.held = true
		r.g.mu.Lock()
		r.g.now++
		r.g.most = max(r.g.most, r.g.now)
		r.g.mu.Unlock()
		<-r.g.all
	}
	if r.out >= 2*small {
		r.g.mu.Lock()
		r.g.now--
		r.g.mu.Unlock()
		return 0, io.EOF
	}
	r.out += len(p)
	return len(p), nil
}

// TestAFewAtATime: the rest waits, and small messages wait for nobody.
func TestAFewAtATime(t *testing.T) {
	g := &gate{all: make(chan struct{})}
	var messages sync.WaitGroup
	for range 10 * atOnce {
		r := open(t, &gated{g: g})
		messages.Go(func() {
			_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, make([]byte, 32<<10))
			assert.NoError(t, err)
		})
	}
	require.Eventually(t, func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.now == atOnce
	}, time.Minute, time.Millisecond)
	n, err := io.Copy(io.Discard, open(t, io.LimitReader(endless{}, small-1)))
	require.NoError(t, err)
	assert.EqualValues(t, small-1, n)
	close(g.all)
	messages.Wait()
	assert.LessOrEqual(t, g.most, atOnce)
	assert.Empty(t, turns)
}

func BenchmarkSmall(b *testing.B) {
	var in bytes.Buffer
	w := gzip.NewWriter(&in)
	_, _ = w.Write(make([]byte, 40_000))
	_ = w.Close()
	c := compressor{encoding.GetCompressor("gzip")}
	b.ReportAllocs()
	for b.Loop() {
		r, err := c.Decompress(bytes.NewReader(in.Bytes()))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			b.Fatal(err)
		}
	}
}
