// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configmiddleware"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/extension/admissionextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/extension/admissionextension/internal/metadatatest"
)

// pipes listens in memory, where a test decides what time it is.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (p *pipes) dial(context.Context, string) (net.Conn, error) {
	c, s := net.Pipe()
	select {
	case p.conns <- s:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) conn(t *testing.T) net.Conn {
	t.Helper()
	c, err := p.dial(t.Context(), "")
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// serveHTTP serves a receiver's handler in the chain that receivers put around it.
func serveHTTP(t *testing.T, e *admissionExtension, work func(context.Context) error) *pipes {
	t.Helper()
	id := component.NewID(metadata.Type)
	cfg := confighttp.NewDefaultServerConfig()
	cfg.ReadTimeout = 20 * time.Second // as in the shipped configurations
	cfg.Middlewares = []configmiddleware.Config{{ID: id}}
	srv, err := cfg.ToServer(t.Context(), host{id: e}, componenttest.NewNopTelemetrySettings(),
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			if err := work(r.Context()); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}))
	require.NoError(t, err)
	srv.Protocols = new(http.Protocols) // as over TLS
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	ln := newPipes()
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { assert.NoError(t, srv.Close()); <-done })
	return ln
}

func postHeaders(length int, encoding string) string {
	return "POST /v1/metrics HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/x-protobuf\r\n" +
		"Content-Encoding: " + encoding + "\r\nContent-Length: " + strconv.Itoa(length) + "\r\n\r\n"
}

func lateness(t *testing.T, tel *componenttest.Telemetry, want int64) {
	t.Helper()
	if want == 0 {
		_, err := tel.GetMetric("otelcol_extension_admission_receive_timeouts")
		assert.Error(t, err, "counted")
		return
	}
	metadatatest.AssertEqualExtensionAdmissionReceiveTimeouts(t, tel,
		[]metricdata.DataPoint[int64]{{Value: want}}, metricdatatest.IgnoreTimestamp())
}

// sleepThenTake waits for work that is longer than every timeout of the way in.
func sleepThenTake(ctx context.Context) error {
	select {
	case <-time.After(25 * time.Second):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// TestHTTPBodyThatDoesNotCome holds no permit for longer than the timeout,
// whether nothing comes or a byte now and then, and may be repeated.
func TestHTTPBodyThatDoesNotCome(t *testing.T) {
	for _, tt := range []struct {
		name, encoding, begin string
		trickle               bool
	}{
		{name: "nothing"},
		{name: "trickle", trickle: true},
		{name: "gzip", encoding: "gzip", begin: string(zipped(t, make([]byte, 100))[:12])},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, tel := newTestExtension(t, onePermit)
				c := serveHTTP(t, e, accept).conn(t)
				_, err := io.WriteString(c, postHeaders(100, tt.encoding)+tt.begin)
				require.NoError(t, err)
				synctest.Wait()
				require.Equal(t, 1, e.limiter.Usage().InUse)
				began := time.Now()
				var trickle sync.WaitGroup
				defer trickle.Wait()
				if tt.trickle {
					trickle.Go(func() {
						for range 99 {
							if _, err := c.Write([]byte{0}); err != nil {
								return // the server has closed
							}
							time.Sleep(time.Second)
						}
					})
				}
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				require.NoError(t, err)
				defer func() { _ = resp.Body.Close() }()
				assert.Equal(t, 10*time.Second, time.Since(began))
				assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
				assert.Equal(t, "5", resp.Header.Get("Retry-After"))
				assert.True(t, resp.Close, "the rest of the body is not another request")
				synctest.Wait()
				assert.Zero(t, e.limiter.Usage().InUse)
				lateness(t, tel, 1)
				_ = c.Close()
			})
		})
	}
}

// TestHTTP2BodyThatDoesNotCome: others go on over the same connection.
func TestHTTP2BodyThatDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, tel := newTestExtension(t, nil)
		ln := serveHTTP(t, e, accept)
		transport := &http.Transport{
			Protocols:   new(http.Protocols),
			DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return ln.dial(ctx, addr) },
		}
		transport.Protocols.SetUnencryptedHTTP2(true)
		defer transport.CloseIdleConnections()
		send := func(body io.Reader) *http.Response {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://gateway/v1/metrics", body)
			require.NoError(t, err)
			resp, err := transport.RoundTrip(r)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, 2, resp.ProtoMajor)
			return resp
		}
		began := time.Now()
		var late sync.WaitGroup
		late.Go(func() {
			body, _ := io.Pipe()
			resp := send(body)
			assert.Equal(t, 10*time.Second, time.Since(began))
			assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
			assert.Equal(t, "5", resp.Header.Get("Retry-After"))
		})
		synctest.Wait()
		require.Equal(t, 1, e.limiter.Usage().InUse)
		assert.Equal(t, http.StatusOK, send(strings.NewReader("body")).StatusCode)
		late.Wait()
		synctest.Wait()
		assert.Zero(t, e.limiter.Usage().InUse)
		lateness(t, tel, 1)
	})
}

// TestHTTPTimeoutEndsWithTheBody: what the pipeline then takes is its own
// affair, and the connection serves the next push.
func TestHTTPTimeoutEndsWithTheBody(t *testing.T) {
	for _, tt := range []struct {
		name, encoding, body string
		wait                 time.Duration
	}{
		{name: "late", body: "body", wait: 4 * time.Second},
		{name: "empty"},
		{name: "at once", encoding: "gzip", body: string(zipped(t, make([]byte, 100)))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, _ := newTestExtension(t, onePermit)
				c := serveHTTP(t, e, sleepThenTake).conn(t)
				answers := bufio.NewReader(c)
				for range 2 {
					began := time.Now()
					_, err := io.WriteString(c, postHeaders(len(tt.body), tt.encoding))
					require.NoError(t, err)
					time.Sleep(tt.wait)
					_, err = io.WriteString(c, tt.body)
					require.NoError(t, err)
					resp, err := http.ReadResponse(answers, nil)
					require.NoError(t, err)
					assert.Equal(t, http.StatusOK, resp.StatusCode)
					assert.Equal(t, tt.wait+25*time.Second, time.Since(began))
					_ = resp.Body.Close()
				}
			})
		})
	}
}

// TestHTTPRestOfABody: a decompressor is content before the body has ended; the
// server waits for the rest, without a permit and not for ever.
func TestHTTPRestOfABody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, tel := newTestExtension(t, onePermit)
		c := serveHTTP(t, e, accept).conn(t)
		var deflated bytes.Buffer
		z := zlib.NewWriter(&deflated)
		_, err := z.Write(make([]byte, 100))
		require.NoError(t, err)
		require.NoError(t, z.Close())
		_, err = io.WriteString(c, postHeaders(deflated.Len()+50, "deflate")+deflated.String())
		require.NoError(t, err)
		synctest.Wait()
		assert.Zero(t, e.limiter.Usage().InUse)
		began := time.Now()
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		assert.Equal(t, 10*time.Second, time.Since(began))
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.True(t, resp.Close)
		lateness(t, tel, 0)
		_ = c.Close()
	})
}

// serveGRPCInMemory is serveGRPC without a socket.
func serveGRPCInMemory(t *testing.T, e *admissionExtension, export func(context.Context) error, more ...grpc.ServerOption) (*pipes, *grpc.ClientConn) {
	t.Helper()
	opts, err := e.GetGRPCServerOptions(t.Context())
	require.NoError(t, err)
	srv := grpc.NewServer(append(opts, more...)...)
	pmetricotlp.RegisterGRPCServer(srv, &sink{export: export})
	ln := newPipes()
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	cc, err := grpc.NewClient("passthrough:///pipe", grpc.WithContextDialer(ln.dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return ln, cc
}

// TestGRPCMessageThatDoesNotCome: a client without a deadline holds its permit
// for no longer than the timeout, and others go on over the same connection.
func TestGRPCMessageThatDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, tel := newTestExtension(t, onePermit)
		_, cc := serveGRPCInMemory(t, e, accept)
		began := time.Now()
		s, err := cc.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, metricsMethod)
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, 1, e.limiter.Usage().InUse)
		require.Equal(t, codes.ResourceExhausted, status.Code(push(t.Context(), cc)))

		var m any
		// OTLP has senders repeat a push that was cancelled.
		assert.Equal(t, codes.Canceled, status.Code(s.RecvMsg(&m)))
		assert.Equal(t, 10*time.Second, time.Since(began))
		synctest.Wait()
		assert.Zero(t, e.limiter.Usage().InUse)
		lateness(t, tel, 1)
		require.NoError(t, push(t.Context(), cc))
		synctest.Wait() // the answer is there before the permit is back

		ctx, cancel := context.WithCancel(t.Context())
		_, err = cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, metricsMethod)
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, 1, e.limiter.Usage().InUse)
		cancel()
		time.Sleep(time.Minute)
		lateness(t, tel, 1) // neither who was in time nor who gave up
	})
}

// TestGRPCTimeoutEndsWithTheMessage: what the pipeline then takes is its own
// affair.
func TestGRPCTimeoutEndsWithTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newTestExtension(t, onePermit)
		_, cc := serveGRPCInMemory(t, e, sleepThenTake)
		began := time.Now()
		require.NoError(t, push(t.Context(), cc))
		assert.Equal(t, 25*time.Second, time.Since(began))
	})
}

// TestHeadersAreBounded: a client may name a value again and again, each time with a byte.
func TestHeadersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for values, refused := range map[int]bool{10: false, 20: true} {
			e, _ := newTestExtension(t, onePermit)
			ln, _ := serveGRPCInMemory(t, e, accept)
			c := ln.conn(t)
			framer := http2.NewFramer(c, c)
			reset := make(chan struct{})
			go func() {
				for {
					f, err := framer.ReadFrame()
					if err != nil {
						return
					}
					if f.Header().Type == http2.FrameRSTStream {
						close(reset)
					}
				}
			}()
			_, err := io.WriteString(c, http2.ClientPreface)
			require.NoError(t, err)
			require.NoError(t, framer.WriteSettings())
			var headers bytes.Buffer
			enc := hpack.NewEncoder(&headers)
			fields := [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", metricsMethod}, {":authority", "gateway"}, {"content-type", "application/grpc"}, {"te", "trailers"}}
			for range values {
				fields = append(fields, [2]string{"x-bin", strings.Repeat("A", 4000)})
			}
			for _, f := range fields {
				require.NoError(t, enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
			}
			require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers.Bytes(), EndHeaders: true}))
			synctest.Wait()
			assert.Equal(t, !refused, e.limiter.Usage().InUse == 1)
			select {
			case <-reset:
				assert.True(t, refused)
			default:
				assert.False(t, refused)
			}
			_ = c.Close()
			synctest.Wait()
		}
	})
}
