// SPDX-License-Identifier: Apache-2.0

package serverguard

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configopaque"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/config/configtls"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"
)

// pipes is a listener of pipes, which a bubble of synctest can wait for.
type pipes struct {
	conns chan net.Conn
	end   chan struct{}
}

func newPipes() pipes { return pipes{make(chan net.Conn), make(chan struct{})} }

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.end:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error {
	close(p.end)
	return nil
}

func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// dial returns a client's end of a connection from an address.
func (p pipes) dial(address string) net.Conn {
	client, server := net.Pipe()
	p.conns <- from{server, address}
	return client
}

type from struct {
	net.Conn
	address string
}

func (f from) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(f.address))
}

// guarded returns a guard and what it counted, by reason.
func guarded(t *testing.T, slots int) (*Guard, func() map[string]int64) {
	t.Helper()
	tel := componenttest.NewTelemetry()
	t.Cleanup(func() { require.NoError(t, tel.Shutdown(context.WithoutCancel(t.Context()))) })
	g, err := New(tel.NewTelemetrySettings(), "mine", slots)
	require.NoError(t, err)
	return g, func() map[string]int64 {
		got, err := tel.GetMetric("otelcol_server_refusals")
		require.NoError(t, err)
		counts := map[string]int64{}
		for _, p := range got.Data.(metricdata.Sum[int64]).DataPoints {
			reason, _ := p.Attributes.Value("reason")
			server, _ := p.Attributes.Value("server")
			assert.Equal(t, "mine", server.AsString())
			counts[reason.AsString()] = p.Value
		}
		return counts
	}
}

// TestSlots: an address has half of what the others leave, and a slot that is given
// back twice is one slot.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, counts := guarded(t, 4)
		ln := newPipes()
		var got []net.Conn
		go func() {
			guarded := g.Listener(ln)
			for c, err := guarded.Accept(); err == nil; c, err = guarded.Accept() {
				got = append(got, c)
			}
		}()
		taken := func(address string) bool {
			before := len(got)
			c := ln.dial(address)
			synctest.Wait()
			_ = c.SetReadDeadline(time.Now())
			_, err := c.Read(make([]byte, 1))
			assert.Equal(t, len(got) == before, errors.Is(err, io.EOF), "closed at once or taken")
			return len(got) > before
		}
		assert.True(t, taken("192.0.2.1:1"))
		assert.True(t, taken("192.0.2.1:2"))
		assert.False(t, taken("192.0.2.1:3"))
		assert.True(t, taken("[2001:db8::1]:1"))
		assert.False(t, taken("[2001:db8::2]:1"))
		assert.True(t, taken("192.0.2.2:1"))
		assert.False(t, taken("192.0.2.3:1"))
		assert.Equal(t, map[string]int64{"connections": 1, "address": 2}, counts())
		require.NoError(t, got[0].Close())
		_ = got[0].Close()
		assert.True(t, taken("192.0.2.3:1"))
		assert.False(t, taken("192.0.2.4:1"))
		for _, c := range got {
			_ = c.Close()
		}
		assert.Zero(t, g.slots.Taken())
		require.NoError(t, ln.Close())
	})
}

// block is a connection of HTTP/2 in the middle of a header block with a field of so
// many bytes, and more is what goes on with it.
func block(t *testing.T, size int) (first, more string) {
	t.Helper()
	var out bytes.Buffer
	f := http2.NewFramer(&out, nil)
	_, _ = out.WriteString(http2.ClientPreface)
	require.NoError(t, f.WriteSettings())
	length := size - 127 // RFC 7541, 5.1: a prefix of 7 bits, then 7 bits in each byte
	field := append([]byte{0, 1, 'x', 127, byte(length)&127 | 128, byte(length>>7)&127 | 128, byte(length >> 14)}, strings.Repeat("y", min(size, 1<<13))...)
	require.NoError(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: field}))
	first = out.String()
	out.Reset()
	require.NoError(t, f.WriteContinuation(1, false, []byte{0, 1, 'x', 1, 'y'}))
	return first, out.String()
}

// ask sends what is first, and then more every five seconds. It returns how long the
// server kept the connection, up to a minute.
func ask(c net.Conn, first, more string) (held time.Duration) {
	began, hungUp, sent := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, c)
		close(hungUp)
	}()
	go func() {
		defer close(sent)
		_, _ = io.WriteString(c, first)
		for more != "" {
			time.Sleep(5 * time.Second)
			if _, err := io.WriteString(c, more); err != nil {
				return
			}
		}
	}()
	select {
	case <-hungUp:
	case <-time.After(time.Minute):
	}
	held = time.Since(began)
	_ = c.Close()
	<-hungUp
	<-sent
	synctest.Wait()
	return held
}

// TestHeaders: headers that are not whole in time, or never will be, end their
// connection.
func TestHeaders(t *testing.T) {
	certified := httptest.NewTLSServer(nil)
	certificates := certified.TLS.Certificates
	certified.Close()
	const whole, half = "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.1\r\nX-Half: "
	unfinished, more := block(t, 200)
	for name, tt := range map[string]struct {
		secure      bool
		first, more string
		held        time.Duration
	}{
		"whole":            {false, whole, whole, time.Minute},
		"nothing":          {false, "", "", headerTime},
		"half":             {false, half, "", headerTime},
		"in bytes":         {false, half, "x", headerTime},
		"the second":       {false, whole, half, 5*time.Second + headerTime},
		"malformed":        {false, "GET\r\n\r\n", "", 0},
		"too large":        {false, half + strings.Repeat("x", 2*headerBytes), "", time.Second / 2},
		"HTTP/2, half":     {true, unfinished, "", PingAfter + PingTimeout},
		"HTTP/2, in bytes": {true, unfinished, more, PingAfter + PingTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := guarded(t, 9)
				server := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
				bound(server)
				pipes := newPipes()
				ln := g.Listener(pipes)
				if tt.secure {
					ln = tls.NewListener(ln, &tls.Config{Certificates: certificates, NextProtos: []string{"h2"}})
				}
				go func() { _ = server.Serve(ln) }()
				c := pipes.dial("192.0.2.1:1")
				if tt.secure {
					c = tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
				}
				assert.InDelta(t, tt.held, ask(c, tt.first, tt.more), float64(time.Second))
				assert.Zero(t, g.slots.Taken())
				require.NoError(t, server.Shutdown(t.Context()))
			})
		})
	}
}

// TestHeadersOverGRPC: a header block ends with the ping that it cannot answer, however
// many frames it has.
func TestHeadersOverGRPC(t *testing.T) {
	for name, tt := range map[string]struct {
		size int
		more bool
		held time.Duration
	}{
		"nothing":   {0, false, headerTime},
		"half":      {200, false, 30 * time.Second},
		"in frames": {200, true, 30 * time.Second},
		"too large": {2 * headerBytes, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := guarded(t, 9)
				server := grpc.NewServer(slices.Concat(headers, []grpc.ServerOption{grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 10 * time.Second})})...)
				pipes := newPipes()
				go func() { _ = server.Serve(g.Listener(pipes)) }()
				first, more := block(t, tt.size)
				if !tt.more {
					more = ""
				}
				if tt.size == 0 {
					first = ""
				}
				assert.InDelta(t, tt.held, ask(pipes.dial("192.0.2.1:1"), first, more), float64(time.Second))

				client, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return pipes.dial("192.0.2.1:1"), nil }))
				require.NoError(t, err)
				require.Equal(t, codes.Unimplemented, status.Code(client.Invoke(t.Context(), "/x/y", nil, nil)), "a call")
				require.NoError(t, client.Close())
				server.Stop()
				assert.Zero(t, g.slots.Taken())
			})
		})
	}
}

// TestServer: TLS is above the guard, so that there is HTTP/2.
func TestServer(t *testing.T) {
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	certificate := certified.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	require.NoError(t, err)
	cfg := confighttp.NewDefaultServerConfig()
	cfg.NetAddr.Endpoint = "127.0.0.1:0"
	cfg.TLS = configoptional.Some(configtls.ServerConfig{Config: configtls.Config{
		CertPem: configopaque.String(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})),
		KeyPem:  configopaque.String(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
	}})
	server := &Server{Name: "mine", Key: "http", Config: &cfg, Connections: 9, Handler: http.NotFoundHandler()}
	require.NoError(t, server.Start(t.Context(), componenttest.NewNopHost(), componenttest.NewNopTelemetrySettings()))
	client := certified.Client()
	resp, err := (&http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: client.Transport.(*http.Transport).TLSClientConfig}}).Get("https://" + server.Addr().String())
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, "HTTP/2.0", resp.Proto)

	cfg.NetAddr.Endpoint = server.Addr().String()
	second := &Server{Name: "mine", Key: "http", Config: &cfg, Connections: 9}
	require.ErrorContains(t, second.Start(t.Context(), componenttest.NewNopHost(), componenttest.NewNopTelemetrySettings()), "`http::endpoint` "+cfg.NetAddr.Endpoint+" cannot be listened on: ")
	require.NoError(t, server.Shutdown(t.Context()))
	require.NoError(t, second.Shutdown(t.Context()))
	require.NoError(t, (*Server)(nil).Shutdown(t.Context()))
}

func TestConnections(t *testing.T) {
	assert.Equal(t, int(memorybudget.Percent(50)/GRPCBytes), Connections(50, GRPCBytes))
	assert.Equal(t, minConnections, Connections(1, 1<<40))
}
