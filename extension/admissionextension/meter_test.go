// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// withheld reads as a message without its last byte. The reader waits for that byte.
type withheld struct {
	left  []byte
	piece int // of a read, and of a frame
	done  <-chan struct{}
}

func (w *withheld) Read(p []byte) (int, error) {
	if len(w.left) == 0 {
		<-w.done
		return 0, io.ErrUnexpectedEOF
	}
	n := copy(p, w.left[:min(w.piece, len(w.left))])
	w.left = w.left[n:]
	return n, nil
}

// unfinishedCall sends a message of so many bytes without its last one over a connection of
// its own, until the context or the server ends it.
func unfinishedCall(ctx context.Context, t *testing.T, all *sync.WaitGroup, addr string, conf *tls.Config, size, piece int) {
	t.Helper()
	var protocols http.Protocols
	protocols.SetHTTP2(conf != nil)
	protocols.SetUnencryptedHTTP2(conf == nil)
	transport := &http.Transport{TLSClientConfig: conf.Clone(), Protocols: &protocols}
	message := make([]byte, size)
	binary.BigEndian.PutUint32(message[1:], uint32(size-5))
	scheme := "http://"
	if conf != nil {
		scheme = "https://"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, scheme+addr+metricsMethod, &withheld{message[:size-1], piece, ctx.Done()})
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	req.Header.Set(gpusemconv.HeaderCluster, "attack")
	all.Go(func() {
		defer transport.CloseIdleConnections()
		if resp, err := transport.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
		}
	})
}

// TestMessagesPayAsTheyCome: messages without their last byte hold no more than half of the
// bytes, in frames of any size, and pushes beside them are taken.
func TestMessagesPayAsTheyCome(t *testing.T) {
	t.Parallel()
	certificates, client := certify(t)
	for name, frame := range map[string]int{"frames": 1 << 14, "tiny frames": 30, "TLS": 1 << 14} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, _ := newTestExtension(t, func(c *Config) { c.MaxBytes, c.ClusterShare, c.ReceiveTimeout = 16<<20, 1, maxReceiveTimeout })
			settings := []map[string]any{leftAlone}
			if name == "TLS" {
				settings = append(settings, certificates)
			}
			addrs := receive(t, e, consumertest.NewNop(), settings...)
			conf := client
			if name != "TLS" {
				conf = nil
			}
			size := 1 << 20
			if frame < 100 {
				size = 1 << 18 // with what its frames take
			}
			// Pushes of a dozen frames, before, beside and after.
			msg := report(t, 20_000)
			require.Greater(t, len(msg), 10<<14)
			var push func() error
			if name == "TLS" {
				body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(msg))), msg...)
				d := dialect{listener: "grpc"}
				c := d.client(t, client)
				push = func() error {
					if code := d.post(t.Context(), t, c, addrs["grpc"], "honest", len(body), bytes.NewReader(body)); code != http.StatusOK {
						return fmt.Errorf("answered with %d", code)
					}
					return nil
				}
			} else {
				cc := dial(t, addrs["grpc"])
				push = func() error { return exportRaw(clusterContext(t.Context(), "honest"), cc, msg) }
			}
			done := make(chan struct{})
			var pushed atomic.Int64
			var honest sync.WaitGroup
			honest.Go(func() {
				for err := error(nil); err == nil; pushed.Add(1) {
					select {
					case <-done:
						return
					default:
						err = push()
						assert.NoError(t, err, "after %d pushes", pushed.Load())
					}
				}
			})
			more := func() {
				n := pushed.Load() + 5
				assert.Eventually(t, func() bool { return t.Failed() || pushed.Load() >= n }, waitFor, tick)
			}
			more()
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			var calls sync.WaitGroup
			for range 20 {
				unfinishedCall(ctx, t, &calls, addrs["grpc"], conf, size, frame)
			}
			assert.Eventually(t, func() bool { return refusals(e, admission.ReasonBytes) >= 20-8 }, waitFor, tick, "the heaviest make room")
			more()
			close(done)
			honest.Wait()
			assert.LessOrEqual(t, e.limiter.Usage().BytesInUse, int64(8<<20))
			assert.Greater(t, e.limiter.Usage().BytesInUse, int64(5<<20), "they are paid for")
			leave()
			calls.Wait()
			inUse(t, e, 0)
			assert.Eventually(t, func() bool { return e.limiter.Usage().BytesInUse == 0 }, waitFor, tick, "all of it comes back")
		})
	}
}

// peer is a client that writes each frame itself.
type peer struct {
	net.Conn
	*http2.Framer // reads from the connection

	out   bytes.Buffer
	write *http2.Framer
	block bytes.Buffer
	hpack *hpack.Encoder
}

func newPeer(t *testing.T, addr string, settings ...http2.Setting) *peer {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	p := &peer{Conn: c, Framer: http2.NewFramer(nil, c)}
	p.write, p.hpack = http2.NewFramer(&p.out, nil), hpack.NewEncoder(&p.block)
	p.out.WriteString(http2.ClientPreface)
	require.NoError(t, p.write.WriteSettings(settings...))
	return p
}

// call opens a stream with the headers of a push, and more.
func (p *peer) call(t *testing.T, id uint32, more ...hpack.HeaderField) {
	t.Helper()
	p.block.Reset()
	for _, h := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: metricsMethod},
		{Name: ":authority", Value: "x"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}, more...) {
		require.NoError(t, p.hpack.WriteField(h))
	}
	block := p.block.Bytes()
	n := min(len(block), 1<<14)
	require.NoError(t, p.write.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndHeaders: n == len(block)}))
	if n < len(block) {
		require.NoError(t, p.write.WriteContinuation(id, true, block[n:]))
	}
}

func (p *peer) flush(t *testing.T) {
	t.Helper()
	_, err := p.Write(p.out.Bytes())
	require.NoError(t, err)
	p.out.Reset()
}

// TestHeadersAreBounded: a client may name a value again and again, each time with a byte.
func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()
	e, _ := newTestExtension(t, nil)
	addr := receive(t, e, consumertest.NewNop(), leftAlone)["grpc"]
	for values, ok := range map[int]bool{15: true, 20: false} {
		p := newPeer(t, addr)
		more := make([]hpack.HeaderField, values)
		for i := range more {
			more[i] = hpack.HeaderField{Name: "x-bin", Value: strings.Repeat("A", 4000)}
		}
		p.call(t, 1, more...)
		require.NoError(t, p.write.WriteData(1, true, make([]byte, 5)))
		p.flush(t)
		answered := false
		for !answered {
			frame, err := p.ReadFrame()
			require.NoError(t, err)
			switch frame := frame.(type) {
			case *http2.HeadersFrame:
				answered = frame.StreamEnded()
				assert.True(t, ok || !answered, "%d values", values)
			case *http2.RSTStreamFrame:
				answered = true
				assert.False(t, ok, "%d values", values)
			}
		}
	}
	inUse(t, e, 0)
}

// TestAnAnswerThatNobodyTakes: a client without a window for answers keeps no pushes away.
func TestAnAnswerThatNobodyTakes(t *testing.T) {
	t.Parallel()
	e, _ := newTestExtension(t, func(c *Config) { c.MaxBytes, c.ClusterShare = 8<<20, 1 })
	addr := receive(t, e, consumertest.NewNop(), leftAlone)["grpc"]
	p := newPeer(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, p)
	}()
	// One field that no receiver knows.
	message := append([]byte{0, 0, 0, 0, 0}, protowire.AppendBytes(protowire.AppendTag(nil, 31, protowire.BytesType), make([]byte, 60_000))...)
	binary.BigEndian.PutUint32(message[1:], uint32(len(message)-5))
	const half = 4 << 20
	held := int64(0)
	for id := uint32(1); held+int64(len(message))+1000 < half; id += 2 {
		p.call(t, id)
		for left := message; len(left) > 0; {
			n := min(len(left), 1<<14)
			require.NoError(t, p.write.WriteData(id, n == len(left), left[:n]))
			held += int64(n + 128)
			left = left[n:]
		}
		p.flush(t)
		require.Eventually(t, func() bool { u := e.limiter.Usage(); return u.InUse == 0 && u.BytesInUse == held }, waitFor, tick, "stream %d is answered", id)
	}
	require.NoError(t, exportRaw(t.Context(), dial(t, addr), report(t, 20_000)))
	<-ended
	assert.EqualValues(t, 1, refusals(e, admission.ReasonBytes))
	assert.Eventually(t, func() bool { return e.limiter.Usage().BytesInUse == 0 }, waitFor, tick)
}

// TestAClientThatDoesNotRead is ended, and keeps no goroutine for good.
func TestAClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	e, _ := newTestExtension(t, nil)
	h := &handshake{ledger: e.coming, patience: time.Millisecond}
	server, client := net.Pipe()
	t.Cleanup(func() { _ = client.Close() })
	c, _, err := h.ServerHandshake(server)
	require.NoError(t, err)
	time.AfterFunc(waitFor, func() { _ = client.Close() })
	_, err = c.Write(make([]byte, 9)) // a pipe holds nothing
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.ErrClosedPipe, "gRPC's reader learns of it")

	// One that reads in time is left alone, however often.
	h.patience = waitFor
	server, client = net.Pipe()
	t.Cleanup(func() { _ = client.Close() })
	c, _, err = h.ServerHandshake(server)
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, client) }()
	for range 3 {
		_, err = c.Write(make([]byte, 9))
		require.NoError(t, err)
	}
	require.NoError(t, c.Close())
}

// TestALargeMessageAlone: the receiver takes a message up to its own limit. Admission ends
// a message that the budget cannot hold.
func TestALargeMessageAlone(t *testing.T) {
	t.Parallel()
	e, _ := newTestExtension(t, func(c *Config) { c.MaxBytes = 4 << 20 })
	cc := dial(t, receive(t, e, consumertest.NewNop(), leftAlone)["grpc"])
	err := exportRaw(t.Context(), cc, make([]byte, 3<<20))
	assert.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.NoError(t, exportRaw(t.Context(), cc, report(t, 1000)), "over a connection that is new")
	assert.Eventually(t, func() bool { return e.limiter.Usage().BytesInUse == 0 }, waitFor, tick)
}

// Admission reads along only where it knows what the receiver's TLS is.
func TestTransportOf(t *testing.T) {
	t.Parallel()
	server := func(tls any) map[string]any {
		s := map[string]any{"endpoint": "x", "middlewares": []any{map[string]any{"id": "admission"}}}
		if tls != nil {
			s["tls"] = tls
		}
		return s
	}
	otlp := func(protocols map[string]any) map[string]any { return map[string]any{"protocols": protocols} }
	conf := func(receivers map[string]any) map[string]any { return map[string]any{"receivers": receivers} }
	cert := map[string]any{"cert_file": "c"}
	for name, tt := range map[string]struct {
		conf map[string]any
		want transport
		err  string
	}{
		"none":          {conf(map[string]any{"otlp": otlp(map[string]any{"grpc": map[string]any{}})}), transport{}, ""},
		"plain":         {conf(map[string]any{"otlp": otlp(map[string]any{"grpc": server(nil), "http": server(cert)})}), transport{known: true}, ""},
		"TLS":           {conf(map[string]any{"otlp": otlp(map[string]any{"grpc": server(cert)}), "otlp/2": otlp(map[string]any{"grpc": server(cert)})}), transport{true, cert}, ""},
		"HTTP alone":    {conf(map[string]any{"otlp": otlp(map[string]any{"http": server(nil)})}), transport{}, ""},
		"different TLS": {conf(map[string]any{"otlp": otlp(map[string]any{"grpc": server(cert)}), "otlp/2": otlp(map[string]any{"grpc": server(nil)})}), transport{}, "differ in `tls`"},
		"optional TLS":  {conf(map[string]any{"otlp": otlp(map[string]any{"grpc": server(map[string]any{"enabled": false})})}), transport{}, "remove `enabled`"},
		"odd TLS":       {conf(map[string]any{"otlp": otlp(map[string]any{"grpc": server("on")})}), transport{}, "not of a known form"},
		"another kind":  {conf(map[string]any{"jaeger": map[string]any{"grpc": server(nil)}, "otlp": otlp(map[string]any{"grpc": server(nil)})}), transport{}, "may be a gRPC server"},
		"in a list":     {conf(map[string]any{"many": map[string]any{"servers": []any{server(nil)}}}), transport{}, "may be a gRPC server"},
		"another's":     {map[string]any{"extensions": map[string]any{"x": map[string]any{"middlewares": []any{map[string]any{"id": "other"}, "admission"}}}}, transport{}, ""},
	} {
		got, err := transportOf(tt.conf, "admission")
		assert.Equal(t, tt.want, got, name)
		if tt.err == "" {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorContains(t, err, tt.err, name)
		}
	}
}
