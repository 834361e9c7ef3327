// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpu-collector/gpu-collector/extension/admissionextension/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/nesting"
)

// filled is a message of so many bytes of pieces, at a place of a request.
func filled(size int, piece string, path ...protowire.Number) []byte {
	m := bytes.Repeat([]byte(piece), size/len(piece))
	for _, field := range slices.Backward(path) {
		m = protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), m)
	}
	return m
}

// asIs sends bytes as they are.
type asIs struct{}

func (asIs) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (asIs) Unmarshal(mem.BufferSlice, any) error { return nil }
func (asIs) Name() string                         { return "proto" }

func exportRaw(ctx context.Context, cc *grpc.ClientConn, msg []byte, opts ...grpc.CallOption) error {
	return cc.Invoke(ctx, metricsMethod, msg, nil, append(opts, grpc.ForceCodecV2(asIs{}))...)
}

func dial(t testing.TB, addr string) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

func postJSON(t *testing.T, addr, body string) int {
	t.Helper()
	resp, err := http.Post("http://"+addr+"/v1/metrics", contentJSON, strings.NewReader(body))
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

// withAttributes is a push of one point. It has attributes with long values, of the resource or its
// own.
func withAttributes(t *testing.T, n, size int, ofPoint bool, more int) (msg []byte, json string) {
	t.Helper()
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("hw.gpu.utilization")
	m.SetDescription(strings.Repeat("x", more))
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetIntValue(1)
	attrs := rm.Resource().Attributes()
	if ofPoint {
		attrs = p.Attributes()
	}
	for i := range n {
		attrs.PutStr(fmt.Sprintf("key.%04d", i), strings.Repeat("v", size))
	}
	req := pmetricotlp.NewExportRequestFromMetrics(md)
	msg, err := req.MarshalProto()
	require.NoError(t, err)
	text, err := req.MarshalJSON()
	require.NoError(t, err)
	return msg, string(text)
}

// TestAttributesAreBounded: in messages of all sizes, over each way in.
func TestAttributesAreBounded(t *testing.T) {
	t.Parallel()
	e, tel := newTestExtension(t, func(c *Config) {
		c.MaxAttributes, c.MaxAttributeBytes, c.MaxPointAttributes, c.MaxPointAttributeBytes = 20, 10_000, 10, 5_000
	})
	points := 0
	next, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		points += md.DataPointCount()
		return nil
	})
	require.NoError(t, err)
	for _, settings := range [][]map[string]any{nil, {leftAlone}} {
		addrs := receive(t, e, next, settings...)
		cc := dial(t, addrs["grpc"])
		sent := 0
		for _, more := range []int{0, nesting.Harmless} { // a small message, a large one
			for name, tt := range map[string]struct {
				n, size int
				ofPoint bool
				ok      bool
			}{
				"as many as may be":         {20, 10, false, true},
				"too many":                  {21, 10, false, false},
				"too long":                  {1, 10_001, false, false},
				"too long together":         {5, 2_001, false, false},
				"as many as a point may":    {10, 10, true, true},
				"too many of a point":       {11, 10, true, false},
				"too long of a point":       {1, 5_001, true, false},
				"as long as a resource may": {4, 2_000, false, true},
			} {
				msg, json := withAttributes(t, tt.n, tt.size, tt.ofPoint, more)
				before := points
				codings := []string{"", "gzip"}
				for _, coding := range codings {
					body := msg
					if coding != "" {
						body = encode(t, coding, msg)
					}
					code, s, _ := post(t, addrs["http"], coding, body)
					if tt.ok {
						assert.Equal(t, http.StatusOK, code, name)
					} else {
						assert.Equal(t, http.StatusBadRequest, code, name)
						assert.Contains(t, s.GetMessage(), "too many attributes", name)
						assert.Equal(t, int32(codes.InvalidArgument), s.GetCode())
					}
				}
				err := exportRaw(t.Context(), cc, msg)
				code := postJSON(t, addrs["http"], json)
				if tt.ok {
					require.NoError(t, err, name)
					assert.Equal(t, http.StatusOK, code, name)
					assert.Equal(t, before+4, points, name)
					continue
				}
				assert.Equal(t, codes.InvalidArgument, status.Code(err), name)
				require.ErrorContains(t, err, "too many attributes", name)
				assert.Equal(t, http.StatusBadRequest, code, name)
				assert.Equal(t, before, points, "%s: nothing of it was decoded", name)
				sent += 4
			}
		}
		assert.Equal(t, 40, sent)
	}
	metadatatest.AssertEqualExtensionAdmissionRejections(t, tel, []metricdata.DataPoint[int64]{
		{Attributes: attribute.NewSet(attribute.String("cause", "attributes")), Value: 80},
	}, metricdatatest.IgnoreTimestamp())
	inUse(t, e, 0)
	assert.Zero(t, e.limiter.Usage().BytesInUse)
}

// TestBombsAreNotDecoded: what is small and becomes large is refused for what it
// would become, over gRPC, over HTTP and in JSON.
func TestBombsAreNotDecoded(t *testing.T) {
	t.Parallel()
	const size = 3 << 20 // of at least 30 bytes each
	for _, open := range []bool{false, true} {
		e, tel := newTestExtension(t, func(c *Config) { c.MaxDecodedBytes, c.MaxAttributes = 16<<20, 10<<20 })
		next, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
			assert.Positive(t, md.DataPointCount(), "a bomb was decoded")
			return nil
		})
		require.NoError(t, err)
		var settings []map[string]any
		if open {
			settings = append(settings, leftAlone)
		}
		addrs := receive(t, e, next, settings...)
		cc := dial(t, addrs["grpc"])
		bombs := 0
		for name, bomb := range map[string][]byte{
			"resources":  filled(size, "\x0a\x00"),
			"points":     filled(size, "\x0a\x00", 1, 2, 2, 5),
			"attributes": filled(size, "\x0a\x00", 1, 1),
			"exemplars":  filled(size, "\x2a\x00", 1, 2, 2, 5, 1),
		} {
			for _, coding := range []string{"", "gzip", "zstd"} {
				body := bomb
				if coding != "" {
					body = encode(t, coding, bomb)
					require.Less(t, len(body), 15<<10, "small: %s", name)
				}
				code, s, _ := post(t, addrs["http"], coding, body)
				assert.Equal(t, http.StatusBadRequest, code, "%s %s", name, coding)
				assert.Contains(t, s.GetMessage(), "too large once it is decoded", name)
				bombs++
			}
			for _, opts := range [][]grpc.CallOption{nil, {grpc.UseCompressor(gzip.Name)}} {
				err := exportRaw(t.Context(), cc, bomb, opts...)
				assert.Equal(t, codes.InvalidArgument, status.Code(err), "%s: %v", name, err)
				bombs++
			}
		}
		for name, bomb := range map[string]string{
			"resources":  `{"resourceMetrics":[` + strings.Repeat("{},", size/3) + `{}]}`,
			"attributes": `{"resourceMetrics":[{"resource":{"attributes":[` + strings.Repeat("{},", size/3) + `{}]}}]}`,
			"exemplars":  `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"gauge":{"dataPoints":[{"exemplars":[` + strings.Repeat("{},", size/3) + `{}]}]}}]}]}]}`,
		} {
			assert.Equal(t, http.StatusBadRequest, postJSON(t, addrs["http"], bomb), name)
			bombs++
		}
		assert.Equal(t, http.StatusBadRequest, postJSON(t, addrs["http"], `{"x":`+strings.Repeat("[", 598_000)), "nested")
		cause := func(cause string, n int) metricdata.DataPoint[int64] {
			return metricdata.DataPoint[int64]{Attributes: attribute.NewSet(attribute.String("cause", cause)), Value: int64(n)}
		}
		metadatatest.AssertEqualExtensionAdmissionRejections(t, tel, []metricdata.DataPoint[int64]{cause("large", bombs), cause("deep", 1)}, metricdatatest.IgnoreTimestamp())

		// As many honest points pass.
		code, st, _ := post(t, addrs["http"], "gzip", encode(t, "gzip", report(t, 90_000)))
		assert.Equal(t, http.StatusOK, code, st)
		require.NoError(t, exportRaw(t.Context(), cc, report(t, 90_000)))
		inUse(t, e, 0)
		assert.Zero(t, e.limiter.Usage().BytesInUse)
	}
}

// TestPushesPayWithBytes: those that wait in the pipeline hold what they take, so
// that others find none left; and each cluster has its share.
func TestPushesPayWithBytes(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"grpc", "http"} {
		e, _ := newTestExtension(t, func(c *Config) { c.MaxBytes, c.RetryAfter.Max = 64<<20, time.Second })
		leave, entered := make(chan struct{}), make(chan struct{}, 100)
		next, err := consumer.NewMetrics(func(context.Context, pmetric.Metrics) error {
			entered <- struct{}{}
			<-leave
			return nil
		})
		require.NoError(t, err)
		addrs := receive(t, e, next, leftAlone)
		cc := dial(t, addrs["grpc"])
		msg := report(t, 60_000) // some 5 MiB decoded
		send := func() (refused bool) {
			if transport == "grpc" {
				err := exportRaw(t.Context(), cc, msg)
				if err == nil {
					return false
				}
				assert.Equal(t, codes.ResourceExhausted, status.Code(err), err)
				assert.Len(t, status.Convert(err).Details(), 1, "RetryInfo")
				return true
			}
			code, _, header := post(t, addrs["http"], "", msg)
			if code == http.StatusOK {
				return false
			}
			assert.Equal(t, http.StatusTooManyRequests, code)
			assert.Equal(t, "1", header.Get("Retry-After"))
			return true
		}
		results := make(chan bool, 100)
		in := 0
		for refused := false; !refused; {
			go func() { results <- send() }()
			select {
			case <-entered:
				in++
				require.Less(t, in, 10, "more than the share of the bytes")
			case refused = <-results:
				require.True(t, refused)
			}
		}
		assert.GreaterOrEqual(t, in, 2, transport)
		held := e.limiter.Usage().BytesInUse
		assert.LessOrEqual(t, held, int64(32<<20), "the share of a cluster alone")
		assert.Greater(t, held, int64(in*len(msg)))
		assert.Positive(t, refusals(e, admission.ReasonBytes))
		close(leave)
		for range in {
			assert.False(t, <-results)
		}
		inUse(t, e, 0)
		assert.Zero(t, e.limiter.Usage().BytesInUse, transport)
	}
}

// TestBodiesThatNeverEnd hold no more than the bytes there are, and give them back
// within the timeout.
func TestBodiesThatNeverEnd(t *testing.T) {
	t.Parallel()
	for _, coding := range []string{"", "gzip"} {
		e, tel := newTestExtension(t, func(c *Config) { c.MaxBytes, c.ReceiveTimeout = 64<<20, 2*time.Second })
		addr := receive(t, e, consumertest.NewNop(), map[string]any{"compression_algorithms": []any{}, "max_request_body_size": 16 << 20})["http"]
		body := report(t, 200_000) // 2 MiB
		length := len(body)
		if coding != "" {
			body = encode(t, coding, bytes.Repeat(body, 4))
			length = len(body)
		}
		var answers []*bufio.Reader
		for range 40 {
			c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
			require.NoError(t, err)
			defer func() { _ = c.Close() }()
			_, err = fmt.Fprintf(c, "POST /v1/metrics HTTP/1.1\r\nHost: g\r\nContent-Type: application/x-protobuf\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n", coding, length)
			require.NoError(t, err)
			_, _ = c.Write(body[:length-20]) // fails once it is refused
			answers = append(answers, bufio.NewReader(c))
		}
		assert.LessOrEqual(t, e.limiter.Usage().BytesInUse, int64(32<<20))
		codes := map[int]int{}
		for _, a := range answers {
			if resp, err := http.ReadResponse(a, nil); err == nil {
				codes[resp.StatusCode]++
				assert.NotEmpty(t, resp.Header.Get("Retry-After"))
				require.NoError(t, resp.Body.Close())
			} else {
				codes[0]++ // it was refused, and hung up while it was sending
			}
		}
		assert.Equal(t, 40, codes[http.StatusServiceUnavailable]+codes[http.StatusTooManyRequests]+codes[0], "%v", codes)
		inUse(t, e, 0)
		assert.Zero(t, e.limiter.Usage().BytesInUse)
		lateness(t, tel, int64(codes[http.StatusServiceUnavailable]))
		code, _, _ := post(t, addr, "", report(t, 1000))
		assert.Equal(t, http.StatusOK, code)
	}
}

// TestSmallPushesArePaidForAsWell: a small one is let in unseen while there is
// plenty, and looked at when there is not.
func TestSmallPushesArePaidForAsWell(t *testing.T) {
	e, _ := newTestExtension(t, func(c *Config) { c.MaxBytes = 64 << 20 })
	p, err := e.limiter.Acquire("")
	require.NoError(t, err)
	defer p.Release()
	msg := filled(60<<10, "\x0a\x00")
	require.NoError(t, e.pay(p, msg, kindOf(t), false, 0))
	unseen := e.limiter.Usage().BytesInUse
	assert.Equal(t, int64(112*len(msg)), unseen)
	require.True(t, p.ReserveAtEase(e.limiter.MostBytes()/2-unseen), "the ease is over")
	require.NoError(t, e.pay(p, report(t, 1000), kindOf(t), false, 0))
	seen := e.limiter.Usage().BytesInUse - e.limiter.MostBytes()/2
	assert.Less(t, seen, int64(300<<10))
	small := 0
	for ; e.pay(p, msg, kindOf(t), false, 0) == nil; small++ {
	}
	assert.Equal(t, int(e.limiter.MostBytes()/2-seen)/(len(msg)*73), small, "an empty resource of two bytes takes 144")
}

func TestMessagesThatSomebodyElseDecoded(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	opts, err := e.GetGRPCServerOptions(t.Context())
	require.NoError(t, err)
	ln := newPipes()
	srv := grpc.NewServer(append(opts, grpc.ForceServerCodecV2(foreign{}))...)
	pmetricotlp.RegisterGRPCServer(srv, &sink{export: accept})
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	cc, err := grpc.NewClient("passthrough:///pipe", grpc.WithContextDialer(ln.dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	assert.Equal(t, codes.Internal, status.Code(push(t.Context(), cc)))
}

func kindOf(t *testing.T) *nesting.Kind {
	t.Helper()
	kind := nesting.Of(metricsMethod)
	require.NotNil(t, kind)
	return kind
}

// foreign is the codec of a middleware that knows nothing of admission.
type foreign struct{ asIs }

func (foreign) Unmarshal(mem.BufferSlice, any) error { return nil }
