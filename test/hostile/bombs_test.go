// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// encodings are those that the doors take, and one that HTTP alone refuses.
var encodings = map[string]func(io.Writer) io.WriteCloser{
	"gzip": func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
	"zlib": func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
	"zstd": func(w io.Writer) io.WriteCloser {
		z, err := zstd.NewWriter(w, zstd.WithWindowSize(8*mib), zstd.WithEncoderConcurrency(1))
		if err != nil {
			panic(err)
		}
		return z
	},
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

// TestDecompressionBombs sends what is small and becomes large, in what the doors decompress
// and in what one refuses, four at once, and measures the memory. They are valid
// messages: an unpacked one would be taken.
func TestDecompressionBombs(t *testing.T) {
	g := gateway(t)
	b := beside(t, alone(g), "bombs")
	const size, at = 256 * mib, 4
	for name := range encodings {
		bomb := compressed(t, name, size)
		g.forgetPeak()
		atOnce(at, func() {
			for _, path := range []string{"/v1/metrics", "/v1/logs"} {
				code, _ := g.post(nil, path, process.Protobuf, bomb, "Content-Encoding", name)
				// 0: it hung up in the midst of what is over the limit even before.
				assert.Contains(t, []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, 0}, code, name)
			}
		})
		grown(b, "hostile_bomb_"+name, inFlight)
	}
	for _, name := range []string{"gzip", "zstd"} {
		encoding.RegisterCompressor(asIs{name})
		bomb := compressed(t, name, size)
		g.forgetPeak()
		atOnce(at, func() {
			for _, method := range []string{process.MetricsMethod, logsMethod} {
				err := process.ExportRaw(t.Context(), g.conn, method, bomb, grpc.UseCompressor(name))
				assert.Equal(t, codes.ResourceExhausted, status.Code(err), "%s: %v", name, err)
			}
		})
		grown(b, "hostile_bomb_grpc_"+name, inFlight)
	}
	// Two blocks of a byte in a window of 512 MiB.
	window := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 19 << 3, 8, 0, 0, 'x', 9, 0, 0, 'y'}
	g.forgetPeak()
	atOnce(64, func() {
		for range at {
			err := process.ExportRaw(t.Context(), g.conn, process.MetricsMethod, window, grpc.UseCompressor("zstd"))
			assert.Equal(t, codes.Internal, status.Code(err), "%v", err)
			code, _ := g.post(nil, "/v1/metrics", process.Protobuf, window, "Content-Encoding", "zstd")
			assert.Equal(t, http.StatusUnsupportedMediaType, code)
		}
	})
	grown(b, "hostile_bomb_window", 100)
	b.endCalm(8*mib, 64<<10)
}

// TestBombsOfStructs sends what is small in bytes and large in structs: 2 MB of empty
// messages, four at once, over both transports, and in JSON. They are taken while there is
// memory for them.
func TestBombsOfStructs(t *testing.T) {
	g := gateway(t)
	b := beside(t, alone(g), "structs")
	encoding.RegisterCompressor(asIs{"gzip"})
	for name, bomb := range map[string][]byte{
		"resources":  pieces("\x0a\x00"),
		"points":     pieces("\x0a\x00", 1, 2, 2, 5),
		"attributes": pieces("\x0a\x00", 1, 1),
		"exemplars":  pieces("\x2a\x00", 1, 2, 2, 5, 1),
		"json":       []byte(`{"resourceMetrics":[` + strings.Repeat("{},", largest/3-100) + `{}]}`),
	} {
		packed := process.Gzip(t, bomb)
		g.forgetPeak()
		atOnce(4, func() {
			taken := []int{http.StatusOK, http.StatusTooManyRequests}
			if name == "json" {
				assert.Contains(t, taken, g.metrics(process.JSON, packed), name)
				return
			}
			assert.Contains(t, taken, g.metrics(process.Protobuf, packed), name)
			err := process.ExportRaw(t.Context(), g.conn, process.MetricsMethod, packed, grpc.UseCompressor("gzip"))
			assert.Contains(t, []codes.Code{codes.OK, codes.ResourceExhausted}, status.Code(err), "%s: %v", name, err)
		})
		grown(b, "hostile_structs_"+name, inFlight)
	}
	b.endCalm(8*mib, 64<<10)
}

// TestBodiesThatNeverEnd keeps bodies of 2 MB without their last bytes: three
// times the bytes that one cluster may have on their way where all limits are as they ship.
func TestBodiesThatNeverEnd(t *testing.T) {
	const share = goMemoryLimit / 2 / 2 // half of `max_bytes`, which is half of GOMEMLIMIT
	g := gateway(t)
	b := beside(t, alone(g), "endless_bodies")
	// Some at a time: real senders are on other machines, and take no CPU from the gateway.
	sending := make(chan struct{}, 16)
	for coding, body := range map[string][]byte{"": make([]byte, largest), "gzip": process.Gzip(t, pieces("\x0a\x00"))} {
		atOnce(3*share/largest, func() {
			// An address has half of the connections, and the bystanders have another.
			conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 2, 1)}}).Dial("tcp", g.HTTP)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			_, _ = fmt.Fprintf(conn, "POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n",
				process.Protobuf, coding, len(body))
			sending <- struct{}{}
			_, _ = conn.Write(body[:len(body)-20]) // fails once it is refused
			<-sending
			_ = conn.SetReadDeadline(time.Now().Add(process.Patience))
			_, err = io.Copy(io.Discard, conn)
			assert.False(t, os.IsTimeout(err), "the server has ended it")
		})
	}
	b.endCalm(8*mib, 64<<10)
	assert.Less(t, g.peak(), int64(goMemoryLimit))
}

// largest is a message that a gateway takes.
const largest = 2 * mib

// pieces is a message of 2 MB of a piece, at a place of a push.
func pieces(piece string, path ...protowire.Number) []byte {
	m := bytes.Repeat([]byte(piece), (largest-100-8*len(path))/len(piece))
	for _, field := range slices.Backward(path) {
		m = protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), m)
	}
	return m
}

// inFlight is what pushes that are being decoded may take, in MiB: half of GOMEMLIMIT.
// When the garbage of those before is collected is up to Go, within that.
const inFlight = goMemoryLimit / 2 / mib

// grown prints the growth of the memory's peak as a figure.
func grown(b *bystanders, name string, limit float64) {
	b.t.Helper()
	g := b.front.door
	figure.Print(name+"_peak_rss_growth", float64(g.memory("VmHWM")-b.before[g].rss)/mib, "MiB", limit, true)
}

// TestAttributesThatMultiply sends what an exporter may write with each point: long
// attributes of a resource with many points, and long ones of a point. In one push, in
// small ones, and in JSON. What keeps them bounds them.
func TestAttributesThatMultiply(t *testing.T) {
	g := gateway(t)
	b := beside(t, alone(g), "attributes")
	attrs := func(to pcommon.Map, n, size int) {
		for i := range n {
			to.PutStr(fmt.Sprint("made.up.", i), strings.Repeat("x", size))
		}
	}
	push := func(points int, fill func(resource, point pcommon.Map)) pmetric.Metrics {
		md := pmetric.NewMetrics()
		metrics := process.Node(md, "node", "k8s.cluster.name", "multiply")
		resource := md.ResourceMetrics().At(0).Resource().Attributes()
		for i := range points {
			p := process.Gauge(metrics, fmt.Sprint("hw.made.up.", i%200), "1", 1, "hw.id", strconv.Itoa(i))
			fill(resource, p.Attributes())
			fill = func(pcommon.Map, pcommon.Map) {}
		}
		return md
	}
	for name, tt := range map[string]struct {
		pushes int
		md     pmetric.Metrics
	}{
		"resource":       {1, push(2000, func(r, _ pcommon.Map) { attrs(r, 200, 4000) })},
		"point":          {100, push(1, func(_, p pcommon.Map) { attrs(p, 1, 2_000_000) })},
		"small resource": {100, push(2000, func(r, _ pcommon.Map) { attrs(r, 200, 1) })},
		"small point":    {100, push(1, func(_, p pcommon.Map) { attrs(p, 1, 20_000) })},
	} {
		proto, json := texts(t, pmetricotlp.NewExportRequestFromMetrics(tt.md))
		body, text := process.Gzip(t, proto), process.Gzip(t, json)
		g.forgetPeak()
		for range tt.pushes {
			assert.Equal(t, http.StatusOK, g.metrics(process.Protobuf, body), name)
			assert.Equal(t, http.StatusOK, g.metrics(process.JSON, text), name)
		}
		_, err := process.Export(t.Context(), g.conn, tt.md)
		require.NoError(t, err, name)
		grown(b, "hostile_attributes_"+strings.ReplaceAll(name, " ", "_"), 300)
	}
	b.endCalm(8*mib, 64<<10)
}
