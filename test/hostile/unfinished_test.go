// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// withheld reads as a message over gRPC without its last byte. The reader waits for that byte.
type withheld struct {
	left, piece int // bytes of it, and of a frame
	begun       bool
	sent        func() // all but the last byte
	done        <-chan struct{}
}

// Read implements io.Reader.
func (w *withheld) Read(p []byte) (int, error) {
	n := min(len(p), w.piece, w.left-1)
	if n <= 0 {
		w.sent()
		<-w.done
		return 0, io.ErrUnexpectedEOF
	}
	clear(p[:n])
	if !w.begun {
		w.begun = true
		size := w.left - 5
		copy(p, []byte{0, byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)})
	}
	w.left -= n
	return n, nil
}

// TestMessagesThatNeverEnd keeps messages over gRPC without their last byte: on many
// connections, on many streams, and in frames of some bytes. In all they are ten times what
// admission lets such messages hold, and each connection has a cluster of its own.
func TestMessagesThatNeverEnd(t *testing.T) {
	const budget = 64 * mib
	g := gateway(t, options{overlay: fmt.Sprintf("extensions: {admission: {max_bytes: %d, receive_timeout: 5m}}\n", budget)})
	b := beside(t, alone(g), "unfinished")
	large := pushLarge(t, g)
	for name, tt := range map[string]struct{ connections, streams, size, frame int }{
		"connections": {60, 1, 15 * mib, 16 << 10},
		"streams":     {20, 4, 4 * mib, 16 << 10},
		"connection":  {1, 80, 4 * mib, 16 << 10},
		"tiny":        {40, 4, mib, 200}, // each frame takes more than its bytes
	} {
		before := g.live()
		g.forgetPeak()
		leave := make(chan struct{})
		var calls, sent sync.WaitGroup
		var conns []net.Conn
		for c := range tt.connections {
			conn, err := net.Dial("tcp", g.grpc)
			require.NoError(t, err)
			client, err := (&http2.Transport{AllowHTTP: true}).NewClientConn(conn)
			require.NoError(t, err)
			conns = append(conns, conn)
			for range tt.streams {
				sent.Add(1)
				once := sync.OnceFunc(sent.Done)
				body := &withheld{left: tt.size, piece: tt.frame, sent: once, done: leave}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+g.grpc+metricsMethod, body)
				require.NoError(t, err)
				req.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "Gpu-Cluster": {fmt.Sprint("made-up-", c)}}
				calls.Go(func() {
					defer once()
					if resp, err := client.RoundTrip(req); err == nil {
						_ = resp.Body.Close()
					}
				})
			}
		}
		sent.Wait() // or ended
		large.more(5)
		bound(t, "hostile_unfinished_"+name+"_live_heap", float64(g.live()-before)/mib, "MiB", budget/mib)
		grown(b, "hostile_unfinished_"+name, 4*budget/mib)
		held := g.bytesInUse()
		assert.LessOrEqual(t, held, float64(budget), name)
		figure.Fprint(os.Stdout, "hostile_unfinished_"+name+"_sent", float64(tt.connections*tt.streams*tt.size)/mib, "MiB", budget/mib, false)
		figure.Fprint(os.Stdout, "hostile_unfinished_"+name+"_counted", held/mib, "MiB", budget/mib, true)
		close(leave)
		calls.Wait()
		for _, c := range conns {
			_ = c.Close() // the server may have done so
		}
	}
	large.end()
	eventually(t, "all of it comes back", func() bool { return g.bytesInUse() < mib })
	b.endCalm(16*mib, 64<<10)
}

// large pushes what takes many frames, one after the other, from an honest cluster.
type large struct {
	t      *testing.T
	done   chan struct{}
	all    sync.WaitGroup
	pushed atomic.Int64
	failed atomic.Pointer[error]
}

func pushLarge(t *testing.T, g *target) *large {
	t.Helper()
	l := &large{t: t, done: make(chan struct{})}
	const more = 200_000
	body := append(append(marshal(t, fleet("large", "")), unknown(more)...), make([]byte, more-len(unknown(more)))...)
	conn, ctx := dial(t, g.grpc), metadata.AppendToOutgoingContext(t.Context(), "gpu-cluster", "large", "gpu-group", `"default"`)
	l.all.Go(func() {
		for ticker := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-l.done:
				return
			case <-ticker.C:
			}
			if err := exportRaw(ctx, conn, metricsMethod, body); err != nil {
				err = fmt.Errorf("after %d pushes: %w", l.pushed.Load(), err)
				l.failed.Store(&err)
				return
			}
			l.pushed.Add(1)
		}
	})
	t.Cleanup(l.stop)
	return l
}

// more waits until so many more pushes are through, or one failed.
func (l *large) more(n int64) {
	l.t.Helper()
	n += l.pushed.Load()
	eventually(l.t, "large pushes come through", func() bool { return l.pushed.Load() >= n || l.failed.Load() != nil })
}

func (l *large) stop() {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	l.all.Wait()
}

// end asserts that each of them came through.
func (l *large) end() {
	l.t.Helper()
	l.stop()
	if err := l.failed.Load(); err != nil {
		require.NoError(l.t, *err)
	}
}

// wire writes frames as no honest client does.
type wire struct {
	*http2.Framer

	out, block bytes.Buffer
	hpack      *hpack.Encoder
}

// call writes the headers of a push.
func (w *wire) call(id uint32, cluster string, more ...hpack.HeaderField) {
	w.block.Reset()
	for _, h := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: metricsMethod},
		{Name: ":authority", Value: "x"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
		{Name: "gpu-cluster", Value: cluster},
	}, more...) {
		_ = w.hpack.WriteField(h)
	}
	block := w.block.Bytes()
	n := min(len(block), 1<<14)
	_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndHeaders: n == len(block)})
	if n < len(block) {
		_ = w.WriteContinuation(id, true, block[n:])
	}
}

// message writes a whole one of so many bytes.
func (w *wire) message(id uint32, size int) {
	body := append([]byte{0, 0, byte(size >> 16), byte(size >> 8), byte(size)}, unknown(size)...)
	body = append(body, make([]byte, size+5-len(body))...)
	for len(body) > 0 {
		n := min(len(body), 1<<14)
		_ = w.WriteData(id, n == len(body), body[:n])
		body = body[n:]
	}
}

// TestFramesOfNoClient sends what is cheap on the wire and dear to who counts it, or the
// other way round.
func TestFramesOfNoClient(t *testing.T) {
	const budget = 64 * mib
	g := gateway(t, options{overlay: fmt.Sprintf("extensions: {admission: {max_bytes: %d, receive_timeout: 5m}}\n", budget)})
	b := beside(t, alone(g), "frames")
	large := pushLarge(t, g)
	values := make([]hpack.HeaderField, 4100)
	for i := range values {
		values[i] = hpack.HeaderField{Name: "x-bin", Value: strings.Repeat("A", 4000)}
	}
	for _, tt := range []struct {
		name                 string
		connections, streams int
		window               uint32
		attack               func(w *wire, id uint32, cluster string)
	}{
		// Their answers never leave.
		{"window", 100, 50, 0, func(w *wire, id uint32, cluster string) {
			w.call(id, cluster)
			w.message(id, 60_000)
		}},
		// 16 MB of headers, with a byte for each value.
		{"headers", 50, 20, 1 << 16, func(w *wire, id uint32, cluster string) { w.call(id, cluster, values...) }},
		{"empty", 50, 20, 1 << 16, func(w *wire, id uint32, cluster string) {
			w.call(id, cluster)
			for range 2000 {
				_ = w.WriteData(id, false, nil)
			}
		}},
		// The head of a frame that would have 16 MB.
		{"heads", 200, 1, 1 << 16, func(w *wire, id uint32, cluster string) {
			w.call(id, cluster)
			w.out.Write([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, byte(id)})
		}},
	} {
		before := g.live()
		g.forgetPeak()
		leave := make(chan struct{})
		var read, done sync.WaitGroup
		for c := range tt.connections {
			w := &wire{}
			w.Framer, w.hpack = http2.NewFramer(&w.out, nil), hpack.NewEncoder(&w.block)
			w.out.WriteString(http2.ClientPreface)
			require.NoError(t, w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: tt.window}))
			for i := range tt.streams {
				tt.attack(w, uint32(2*i+1), fmt.Sprint("made-up-", c))
			}
			require.NoError(t, w.WritePing(false, [8]byte{}))
			conn, err := net.Dial("tcp", g.grpc)
			require.NoError(t, err)
			read.Add(1)
			done.Go(func() {
				defer func() { _ = conn.Close() }()
				seen := sync.OnceFunc(read.Done)
				defer seen()
				in := http2.NewFramer(nil, conn)
				for {
					frame, err := in.ReadFrame()
					if err != nil {
						return // the server ended it
					}
					if ping, ok := frame.(*http2.PingFrame); ok && ping.IsAck() && ping.Data == [8]byte{} {
						seen() // all is read
						break
					}
				}
				go func() { _, _ = io.Copy(io.Discard, conn) }() // until it is closed
				<-leave
			})
			_, _ = conn.Write(w.out.Bytes()) // or is ended
		}
		read.Wait()
		large.more(5)
		bound(t, "hostile_frames_"+tt.name+"_live_heap", float64(g.live()-before)/mib, "MiB", budget/mib)
		grown(b, "hostile_frames_"+tt.name, 4*budget/mib)
		assert.LessOrEqual(t, g.bytesInUse(), float64(budget), tt.name)
		close(leave)
		done.Wait()
	}
	large.end()
	eventually(t, "all of it comes back", func() bool { return g.bytesInUse() < mib })
	b.endCalm(16*mib, 64<<10)
}

// live is the heap in use. gRPC's pools of buffers keep what was freed for two collections
// of garbage.
func (g *target) live() int64 {
	g.t.Helper()
	least := g.usage().heap
	for range 2 {
		least = min(least, g.usage().heap)
	}
	return least
}

var bytesInUse = regexp.MustCompile(`(?m)^otelcol_extension_admission_bytes_in_use\S* (\S+)$`)

// bytesInUse is what admission has counted.
func (g *target) bytesInUse() float64 {
	g.t.Helper()
	_, text := g.get("http://" + g.telemetry + "/metrics")
	m := bytesInUse.FindSubmatch(text)
	require.NotNil(g.t, m, "%.300s", text)
	v, err := strconv.ParseFloat(string(m[1]), 64)
	require.NoError(g.t, err)
	return v
}
