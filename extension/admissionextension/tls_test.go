// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc/codes"

	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// certify makes a certificate for the loopback address and returns the settings
// of a server with it, and of its clients.
func certify(t *testing.T) (server map[string]any, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	files := map[string]any{}
	for name, block := range map[string]*pem.Block{
		"cert_file": {Type: "CERTIFICATE", Bytes: der},
		"key_file":  {Type: "PRIVATE KEY", Bytes: private},
	} {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
		files[name] = path
	}
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return files, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// dialect is a way to push over TLS, byte by byte where that is wanted.
type dialect struct {
	listener string // the receiver's
	http1    bool
}

func (d dialect) grpc() bool { return d.listener == "grpc" }

func (d dialect) client(t *testing.T, conf *tls.Config) *http.Client {
	t.Helper()
	conf = conf.Clone()
	var protocols http.Protocols
	protocols.SetHTTP1(d.http1)
	protocols.SetHTTP2(!d.http1)
	transport := &http.Transport{TLSClientConfig: conf, Protocols: &protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// do sends a request as it comes. Over HTTP/1.1 a client would keep back the
// first 4 KiB of a body, and the headers with them.
func (d dialect) do(c *http.Client, req *http.Request) (*http.Response, error) {
	if !d.http1 {
		return c.Do(req)
	}
	conf := c.Transport.(*http.Transport).TLSClientConfig
	conn, err := (&tls.Dialer{Config: conf}).DialContext(req.Context(), "tcp", req.URL.Host)
	if err != nil {
		return nil, err
	}
	var head bytes.Buffer
	_, _ = fmt.Fprintf(&head, "POST %s HTTP/1.1\r\nHost: gateway\r\nContent-Length: %d\r\n", req.URL.Path, req.ContentLength)
	for name := range req.Header {
		_, _ = fmt.Fprintf(&head, "%s: %s\r\n", name, req.Header.Get(name))
	}
	head.WriteString("\r\n")
	if _, err := head.WriteTo(conn); err != nil {
		return nil, err
	}
	defer context.AfterFunc(req.Context(), func() { _ = conn.Close() })()
	var sending sync.WaitGroup
	sending.Go(func() { _, _ = io.Copy(struct{ io.Writer }{conn}, req.Body) }) // until the server has closed
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err == nil {
		var body []byte
		body, err = io.ReadAll(resp.Body)
		resp.Body = io.NopCloser(bytes.NewReader(body))
	}
	_ = req.Body.Close()
	_ = conn.Close()
	sending.Wait()
	return resp, err
}

// post sends a body and returns its answer as one of OTLP/HTTP's codes: gRPC's
// in HTTP/2 are translated, and 0 is for a client that hung up.
func (d dialect) post(ctx context.Context, t *testing.T, c *http.Client, addr, cluster string, length int, body io.Reader) int {
	t.Helper()
	path, content := "/v1/metrics", "application/x-protobuf"
	if d.grpc() {
		path, content = metricsMethod, "application/grpc"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+addr+path, body)
	if !assert.NoError(t, err) { //nolint:testifylint // not on the test's goroutine
		return 0
	}
	req.ContentLength = int64(length)
	req.Header.Set("Content-Type", content)
	req.Header.Set("Te", "trailers")
	req.Header.Set(gpusemconv.HeaderCluster, cluster)
	resp, err := d.do(c, req)
	if ctx.Err() != nil || !assert.NoError(t, err) { //nolint:testifylint // as above
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	if ctx.Err() != nil {
		return 0
	}
	assert.NoError(t, err) //nolint:testifylint // as above
	assert.Equal(t, d.http1, resp.ProtoMajor == 1)
	if !d.grpc() {
		if resp.StatusCode != http.StatusOK {
			assert.NotEmpty(t, resp.Header.Get("Retry-After"))
		}
		return resp.StatusCode
	}
	text := resp.Trailer.Get("Grpc-Status")
	if text == "" {
		text = resp.Header.Get("Grpc-Status") // there was nothing but trailers
	}
	code, err := strconv.Atoi(text)
	assert.NoError(t, err) //nolint:testifylint // as above
	switch codes.Code(code) {
	case codes.OK:
		return http.StatusOK
	case codes.Canceled:
		return http.StatusServiceUnavailable
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	default:
		t.Errorf("grpc-status %d", code)
		return 0
	}
}

// drip is a body that comes byte by byte, or after its beginning not at all.
type drip struct {
	begin  io.Reader
	every  time.Duration // 0 for never
	closed chan struct{}
	once   sync.Once
}

func (d *drip) Read(p []byte) (int, error) {
	if n, err := d.begin.Read(p); n > 0 {
		return n, err
	}
	var next <-chan time.Time
	if d.every > 0 {
		next = time.After(d.every)
	}
	select {
	case <-next:
		p[0] = 0
		return 1, nil
	case <-d.closed:
		return 0, io.ErrUnexpectedEOF
	}
}

// Close is called once there is an answer.
func (d *drip) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

// slowBodies are clients that send headers and then hold back the body, half of
// them a byte at a time. Begin runs them until they are answered or hang up; the
// function that it returns waits for that and counts the answers.
type slowBodies struct {
	dialect
	conf *tls.Config
	addr string
}

const slowClients, slowLength = 40, 100_000

func (s slowBodies) begin(ctx context.Context, t *testing.T) (answers func() map[int]int) {
	t.Helper()
	codes := make(chan int, slowClients)
	for i := range slowClients {
		c := s.client(t, s.conf)
		begin := ""
		if s.grpc() {
			begin = prefix(slowLength)
		}
		go func() {
			body := &drip{begin: strings.NewReader(begin), closed: make(chan struct{})}
			if i%2 == 0 {
				body.every = 20 * time.Millisecond // all of it takes half an hour
			}
			codes <- s.post(ctx, t, c, s.addr, "slow", slowLength+len(begin), body)
		}()
	}
	return func() map[int]int {
		out := map[int]int{}
		for range slowClients {
			out[<-codes]++
		}
		return out
	}
}

// prefix is what gRPC sends before a message of n bytes.
func prefix(n int) string { return string([]byte{0, 0, byte(n >> 16), byte(n >> 8), byte(n)}) }

// TestSlowBodiesOverTLS: many clients that send headers and then hold back the
// body, over every protocol that a receiver with TLS speaks. Others' pushes go on
// while they hold their permits, which are back when they hang up or are late.
func TestSlowBodiesOverTLS(t *testing.T) {
	files, clientTLS := certify(t)
	md := pmetric.NewMetrics()
	md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty().SetEmptyGauge().DataPoints().AppendEmpty().SetIntValue(1)
	whole, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	require.NoError(t, err)
	for name, d := range map[string]dialect{
		"HTTP 1.1": {listener: "http", http1: true},
		"HTTP 2":   {listener: "http"},
		"gRPC":     {listener: "grpc"},
	} {
		start := func(t *testing.T, receiveTimeout time.Duration) (*admissionExtension, *componenttest.Telemetry, slowBodies, *atomic.Int64) {
			t.Helper()
			e, tel := newTestExtension(t, func(c *Config) {
				c.MaxConcurrent, c.ClusterShare, c.ReceiveTimeout = 20, 0.5, receiveTimeout
			})
			arrived := new(atomic.Int64)
			next, err := consumer.NewMetrics(func(context.Context, pmetric.Metrics) error {
				arrived.Add(1)
				return nil
			})
			require.NoError(t, err)
			return e, tel, slowBodies{d, clientTLS, receive(t, e, next, files)[d.listener]}, arrived
		}
		t.Run(name+": others go on", func(t *testing.T) {
			t.Parallel()
			e, tel, slow, arrived := start(t, maxReceiveTimeout)
			ctx, hangUp := context.WithCancel(t.Context())
			answers := slow.begin(ctx, t)
			defer func() { hangUp(); answers() }()
			inUse(t, e, 10) // of 20, what a cluster may have
			healthy := d.client(t, clientTLS)
			for range 50 {
				in := string(whole)
				if d.grpc() {
					in = prefix(len(whole)) + in
				}
				require.Equal(t, http.StatusOK, d.post(t.Context(), t, healthy, slow.addr, "healthy", len(in), strings.NewReader(in)))
			}
			assert.EqualValues(t, 50, arrived.Load())
			inUse(t, e, 10) // all of that while they held theirs
			require.Eventually(t, func() bool { return refusals(e, admission.ReasonShare) == slowClients-10 }, waitFor, tick)

			hangUp()
			inUse(t, e, 0)
			lateness(t, tel, 0)
			assert.EqualValues(t, 50, arrived.Load())
		})
		t.Run(name+": permits are back", func(t *testing.T) {
			t.Parallel()
			e, tel, slow, arrived := start(t, minReceiveTimeout)
			// A client that is never told that it is late hangs up, and counts as 0.
			ctx, hangUp := context.WithTimeout(t.Context(), 2*time.Minute)
			defer hangUp()
			answers := slow.begin(ctx, t)()
			inUse(t, e, 0)
			assert.Equal(t, slowClients, answers[http.StatusTooManyRequests]+answers[http.StatusServiceUnavailable], answers)
			assert.GreaterOrEqual(t, answers[http.StatusServiceUnavailable], 10)
			lateness(t, tel, int64(answers[http.StatusServiceUnavailable]))
			assert.Zero(t, arrived.Load())
		})
	}
}
