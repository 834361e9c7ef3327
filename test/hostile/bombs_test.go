// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http"
	"os"
	"sync"
	"testing"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// encodings are those that confighttp takes.
var encodings = map[string]func(io.Writer) io.WriteCloser{
	"gzip":    func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
	"zlib":    func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
	"deflate": func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
	"zstd": func(w io.Writer) io.WriteCloser {
		z, err := zstd.NewWriter(w, zstd.WithWindowSize(8*mib), zstd.WithEncoderConcurrency(1))
		if err != nil {
			panic(err)
		}
		return z
	},
	"snappy":          func(w io.Writer) io.WriteCloser { return &blockSnappy{to: w} },
	"x-snappy-framed": func(w io.Writer) io.WriteCloser { return snappy.NewBufferedWriter(w) },
	"lz4":             func(w io.Writer) io.WriteCloser { return lz4.NewWriter(w) },
}

// blockSnappy writes one block of snappy.
type blockSnappy struct {
	bytes.Buffer
	to io.Writer
}

func (b *blockSnappy) Close() error {
	_, err := b.to.Write(snappy.Encode(nil, b.Bytes()))
	return err
}

// unknown is the head of a message of so many bytes that is valid whatever follows:
// a field that no receiver knows.
func unknown(size int) []byte {
	head := []byte{0xfa, 0x01, 0, 0, 0, 0}
	n := size - len(head)
	for i := range 4 {
		head[2+i] = byte(n>>(7*i))&0x7f | 0x80
	}
	head[5] &= 0x7f
	return head
}

func compressed(t *testing.T, encoding string, size int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := encodings[encoding](&out)
	zeros := make([]byte, mib)
	for part := unknown(size); size > 0; part = zeros {
		n, err := w.Write(part[:min(size, len(part))])
		require.NoError(t, err)
		size -= n
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

// asIs is a compressor that lets a test hand gRPC what is compressed already.
type asIs struct{ name string }

func (a asIs) Name() string                               { return a.name }
func (asIs) Compress(w io.Writer) (io.WriteCloser, error) { return nopCloser{w}, nil }
func (asIs) Decompress(r io.Reader) (io.Reader, error)    { return r, nil }

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// TestDecompressionBombs sends what is small and becomes large, in every encoding
// that the receivers take, four at once, and measures the memory. They are valid
// messages: who unpacked them would say so.
func TestDecompressionBombs(t *testing.T) {
	t.Parallel()
	g := gateway(t, options{})
	g.requireHonest("before")
	before := g.usage()
	const size, at = 256 * mib, 4
	for name := range encodings {
		bomb := compressed(t, name, size)
		g.forgetPeak()
		var all sync.WaitGroup
		for range at {
			all.Go(func() {
				for _, path := range []string{"/v1/metrics", "/v1/logs"} {
					code := g.post(httpClient, path, protobufType, bomb, "Content-Encoding", name)
					// 0: it hung up in the midst of what is over the limit even before.
					assert.Contains(t, []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge, 0}, code, name)
				}
			})
		}
		all.Wait()
		grown(t, g, before, "hostile_bomb_"+name, at*100)
	}
	for _, chain := range []string{"gzip, gzip", "br", "compress", "identity, gzip", "x", ""} {
		assert.Less(t, g.post(httpClient, "/v1/metrics", protobufType, []byte("\x0a\x00"), "Content-Encoding", chain), 500, chain)
	}
	for _, name := range []string{"gzip", "zstd", "snappy"} {
		encoding.RegisterCompressor(asIs{name})
		bomb := compressed(t, map[string]string{"snappy": "x-snappy-framed"}[name]+map[string]string{"gzip": "gzip", "zstd": "zstd"}[name], size)
		g.forgetPeak()
		var all sync.WaitGroup
		for range at {
			all.Go(func() {
				for _, method := range []string{metricsMethod, logsMethod} {
					err := exportRaw(t.Context(), g.conn, method, bomb, grpc.UseCompressor(name))
					assert.Equal(t, codes.ResourceExhausted, status.Code(err), "%s: %v", name, err)
				}
			})
		}
		all.Wait()
		grown(t, g, before, "hostile_bomb_grpc_"+name, at*100)
	}
	g.requireCalm(before, 8*mib, 64<<10)
	g.requireHonest("after")
}

// grown tells by how much the peak of the memory is above what it was before.
func grown(t *testing.T, g *target, before usage, name string, limit float64) {
	t.Helper()
	peak := float64(g.memory("VmHWM")-before.rss) / mib
	figure.Fprint(os.Stdout, name+"_peak_rss_growth", peak, "MiB", limit, true)
	assert.LessOrEqual(t, peak, limit, name)
}

// TestLimits sends what is just within each limit, at it, and over it.
func TestLimits(t *testing.T) {
	t.Parallel()
	g := gateway(t, options{})
	const limit = 16 * mib
	message := func(size int) []byte {
		head := unknown(size)
		return append(head, make([]byte, size-len(head))...)
	}
	for _, tt := range []struct {
		size int
		ok   bool
	}{{limit - 1, true}, {limit, true}, {limit + 1, false}, {2 * limit, false}} {
		body := message(tt.size)
		for _, path := range []string{"/v1/metrics", "/v1/logs"} {
			code := g.post(httpClient, path, protobufType, body)
			if tt.ok {
				assert.Equal(t, http.StatusOK, code, "%s %d", path, tt.size)
			} else {
				assert.Contains(t, []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge, 0}, code, "%s %d", path, tt.size)
			}
		}
		for _, method := range []string{metricsMethod, logsMethod} {
			code := status.Code(exportRaw(t.Context(), g.conn, method, body))
			if tt.ok {
				assert.Equal(t, codes.OK, code, "%s %d", method, tt.size)
			} else {
				assert.Equal(t, codes.ResourceExhausted, code, "%s %d", method, tt.size)
			}
		}
	}
	g.requireHonest("after")
}
