// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.yaml.in/yaml/v3"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/gpu-collector/gpu-collector/extension/admissionextension/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/test/heap"
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

func post(t *testing.T, addr, contentType, coding string, body []byte) (int, *spb.Status, http.Header) {
	t.Helper()
	if coding == "gzip" {
		body = zipped(t, body)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/v1/metrics", bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Content-Encoding", coding)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	s := new(spb.Status)
	if resp.StatusCode != http.StatusOK {
		unmarshal := proto.Unmarshal
		if contentType == contentJSON {
			unmarshal = protojson.Unmarshal
		}
		require.NoError(t, unmarshal(text, s), "a Status: %q", text)
	}
	return resp.StatusCode, s, resp.Header
}

const contentProto = "application/x-protobuf"

func zipped(t *testing.T, msg []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err := z.Write(msg)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return out.Bytes()
}

func report(t *testing.T, points int) pmetricotlp.ExportRequest {
	t.Helper()
	md := pmetric.NewMetrics()
	m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("hw.gpu.utilization")
	g := m.SetEmptyGauge()
	for i := range points {
		g.DataPoints().AppendEmpty().SetIntValue(int64(i))
	}
	return pmetricotlp.NewExportRequestFromMetrics(md)
}

func reportBytes(t *testing.T, points int) []byte {
	t.Helper()
	msg, err := report(t, points).MarshalProto()
	require.NoError(t, err)
	return msg
}

// TestNoByteBecomesMore than perByte, of what becomes most.
func TestNoByteBecomesMore(t *testing.T) {
	type request interface {
		UnmarshalProto(b []byte) error
		UnmarshalJSON(b []byte) error
	}
	metrics := func() request { return pmetricotlp.NewExportRequest() }
	logs := func() request { return plogotlp.NewExportRequest() }
	traces := func() request { return ptraceotlp.NewExportRequest() }
	profiles := func() request { return pprofileotlp.NewExportRequest() }
	const size = 40_000
	json := func(before, after string) []byte {
		return []byte(before + strings.Repeat("{},", size/3) + "{}" + after)
	}
	for name, tt := range map[string]struct {
		request func() request
		msg     []byte
	}{
		"resources":           {metrics, filled(size, "\x0a\x00")},
		"scopes":              {metrics, filled(size, "\x12\x00", 1)},
		"metrics":             {metrics, filled(size, "\x12\x00", 1, 2)},
		"points":              {metrics, filled(size, "\x0a\x00", 1, 2, 2, 5)},
		"histograms":          {metrics, filled(size, "\x0a\x00", 1, 2, 2, 9)},
		"exponential":         {metrics, filled(size, "\x0a\x00", 1, 2, 2, 10)},
		"exemplars":           {metrics, filled(size, "\x2a\x00", 1, 2, 2, 5, 1)},
		"attributes":          {metrics, filled(size, "\x0a\x00", 1, 1)},
		"lists":               {metrics, filled(size, "\x0a\x02\x2a\x00", 1, 1, 1, 2, 5)},
		"records":             {logs, filled(size, "\x12\x00", 1, 2)},
		"spans":               {traces, filled(size, "\x12\x00", 1, 2)},
		"links":               {traces, filled(size, "\x6a\x00", 1, 2, 2)},
		"profiles":            {profiles, filled(size, "\x12\x00", 1, 2)},
		"samples":             {profiles, filled(size, "\x12\x00", 1, 2, 2)},
		"JSON of spans":       {traces, json(`{"resourceSpans":[{"scopeSpans":[{"spans":[`, `]}]}]}`)},
		"JSON of exponential": {metrics, json(`{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"exponentialHistogram":{"dataPoints":[`, `]}}]}]}]}`)},
	} {
		req := tt.request()
		before := heap.Live()
		if tt.msg[0] == '{' {
			require.NoError(t, req.UnmarshalJSON(tt.msg), name)
		} else {
			require.NoError(t, req.UnmarshalProto(tt.msg), name)
		}
		each := float64(heap.Live()-before) / float64(len(tt.msg))
		runtime.KeepAlive(req)
		t.Logf("%-20s %.1f bytes of a byte", name, each)
		assert.LessOrEqual(t, each, float64(perByte), name)
		assert.Greater(t, each, 8.0, name)
	}
}

// nested is a push of so many bytes, whose one attribute is a value in a value, by the
// numbers of the fields that lead from the one to the other.
func nested(size int, fields ...protowire.Number) []byte {
	buf := make([]byte, size)
	at := len(buf)
	wrap := func(fields ...protowire.Number) { // from the inside out, back to front
		for _, field := range fields {
			head := protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.BytesType), uint64(len(buf)-at))
			at -= len(head)
			copy(buf[at:], head)
		}
	}
	for at > 32 {
		wrap(fields...)
	}
	wrap(2, 1, 1, 1)
	return buf[at:]
}

// TestDepthOfProtobuf: the largest message cannot use up Go's stack, which may take 1 GB.
// Its levels have four bytes each: a tag, and three for the length of what is inside. A
// decoder's call takes less than 256 bytes of stack for a level, and an exporter that writes
// a value as text less than 512: 1 MiB is less than 262,144 levels, and 128 MiB. The
// largest message has four times as much. The test walks 1 MiB in that much stack.
func TestDepthOfProtobuf(t *testing.T) {
	const size, stack = 1 << 20, 128 << 20
	require.Less(t, stack/size*maxMessage, 1_000_000_000)
	before := debug.SetMaxStack(stack)
	defer debug.SetMaxStack(before)
	for name, msg := range map[string][]byte{"lists": nested(size, 1, 5), "maps": nested(size, 2, 1, 6)} {
		req := pmetricotlp.NewExportRequest()
		require.NoError(t, req.UnmarshalProto(msg), name)
		again, err := req.MarshalProto()
		require.NoError(t, err)
		assert.True(t, bytes.Equal(msg, again), "%s: nothing of it is left out", name)
		md := pmetric.NewMetrics()
		req.Metrics().CopyTo(md)
		v, _ := md.ResourceMetrics().At(0).Resource().Attributes().Get("")
		assert.Greater(t, len(v.AsString()), len(msg)/10, name)
	}
}

func TestDepthOfJSON(t *testing.T) {
	open := func(n int, before, open string) string { return before + strings.Repeat(open, n) }
	closed := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for name, tt := range map[string]struct {
		body, want string
	}{
		"lists of an unknown name": {open(598_000, `{"x":`, "["), "deeper than 100 levels"},
		"objects":                  {open(1000, `{"x":`, `{"x":`), "deeper than 100 levels"},
		"at the limit":             {closed(100), ""},
		"over it":                  {closed(101), "deeper than 100 levels"},
		"behind what is closed":    {`{"x":` + closed(99) + `,"y":` + closed(100) + "}", "deeper than 100 levels"},
		"behind another value":     {"{}" + closed(101), "deeper than 100 levels"},
		"in a text":                {`{"x":"` + strings.Repeat("[", 200) + `\"` + strings.Repeat("[", 200) + `"}`, ""},
		"a number of its own":      {"[1e999]", ""},
		"nothing":                  {"", ""},
		"cut off":                  {`{"x":[`, "not well-formed JSON"},
		// pdata's parser takes a comma for the beginning of a list.
		"commas for brackets": {`{"a":[{"value":` + strings.Repeat(`,"arrayValue":,"values":,`, 600_000), "not well-formed JSON"},
	} {
		if err := checkJSON([]byte(tt.body)); tt.want == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, tt.want, name)
		}
	}
}

// TestMessagesThatThereIsNoMemoryFor: what may become larger than there is memory for one
// cluster is refused for good, over gRPC, over HTTP and in JSON.
func TestMessagesThatThereIsNoMemoryFor(t *testing.T) {
	t.Parallel()
	e, tel := newTestExtension(t, func(c *Config) { c.MaxBytes = 64 << 20 })
	const most = 64 << 20 / 2 / perByte
	next, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		assert.Positive(t, md.DataPointCount(), "a bomb was decoded")
		return nil
	})
	require.NoError(t, err)
	addrs := receive(t, e, next)
	cc := dial(t, addrs["grpc"])
	large, bomb := 0, filled(most+1, "\x0a\x00")
	bomb = append(bomb, "\x0a\x00"...)
	want := fmt.Sprintf("must be at most %d with the `max_bytes` of admission", most)
	for _, coding := range []string{"", "gzip"} {
		for contentType, body := range map[string][]byte{contentProto: bomb, contentJSON: []byte(`{"resourceMetrics":[` + strings.Repeat("{},", most/3) + `{}]}`)} {
			code, s, _ := post(t, addrs["http"], contentType, coding, body)
			assert.Equal(t, http.StatusBadRequest, code, "%s %s", contentType, coding)
			assert.Contains(t, s.GetMessage(), want)
			large++
		}
		opts := []grpc.CallOption{}
		if coding != "" {
			opts = append(opts, grpc.UseCompressor(coding))
		}
		err := exportRaw(t.Context(), cc, bomb, opts...)
		assert.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, fmt.Sprintf("it has %d bytes", len(bomb)))
		large++
	}
	code, _, _ := post(t, addrs["http"], contentJSON, "", []byte(`{"x":`+strings.Repeat("[", 598)))
	assert.Equal(t, http.StatusBadRequest, code, "nested")
	cause := func(cause string, n int) metricdata.DataPoint[int64] {
		return metricdata.DataPoint[int64]{Attributes: attribute.NewSet(attribute.String("cause", cause)), Value: int64(n)}
	}
	metadatatest.AssertEqualExtensionAdmissionRejections(t, tel, []metricdata.DataPoint[int64]{cause("large", large), cause("deep", 1)}, metricdatatest.IgnoreTimestamp())

	// As large a message passes, and so does what the receiver decompresses.
	honest := reportBytes(t, most/20)
	text, err := report(t, 1000).MarshalJSON()
	require.NoError(t, err)
	for _, coding := range []string{"", "gzip"} {
		code, s, _ := post(t, addrs["http"], contentProto, coding, honest)
		assert.Equal(t, http.StatusOK, code, s)
		code, s, _ = post(t, addrs["http"], contentJSON, coding, text)
		assert.Equal(t, http.StatusOK, code, s)
	}
	require.NoError(t, exportRaw(t.Context(), cc, honest))
	code, _, _ = post(t, addrs["http"], contentProto, "br", honest)
	assert.Equal(t, http.StatusBadRequest, code, "the receiver's answer")
	inUse(t, e, 0)
	assert.Zero(t, e.limiter.Usage().BytesInUse)

	// However much memory there is.
	e, _ = newTestExtension(t, func(c *Config) { c.MaxBytes = 1 << 40 })
	require.NoError(t, e.fits(maxMessage))
	require.ErrorContains(t, e.fits(maxMessage+1), "must be at most 4194304")
}

// TestPushesPayWithBytes: those that wait in the pipeline hold what they may become, so
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
		addrs := receive(t, e, next)
		cc := dial(t, addrs["grpc"])
		msg := reportBytes(t, 6000)
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
			code, _, header := post(t, addrs["http"], contentProto, "", msg)
			if code == http.StatusOK {
				return false
			}
			assert.Equal(t, http.StatusTooManyRequests, code)
			assert.Equal(t, "1", header.Get("Retry-After"))
			return true
		}
		results := make(chan bool, 100)
		in, most := 0, int(e.limiter.MostBytes())/(perByte*len(msg))
		for refused := false; !refused; {
			go func() { results <- send() }()
			select {
			case <-entered:
				in++
				require.LessOrEqual(t, in, most, "more than the share of the bytes")
			case refused = <-results:
				require.True(t, refused)
			}
		}
		assert.Equal(t, most, in, transport)
		assert.Equal(t, int64(in*perByte*len(msg)), e.limiter.Usage().BytesInUse)
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
	e, tel := newTestExtension(t, func(c *Config) { c.MaxBytes, c.ReceiveTimeout = 16<<20, minReceiveTimeout })
	addr := receive(t, e, consumertest.NewNop())["http"]
	const length, clients = 70_000, 100 // of twice 8 MB, which is what one cluster may have
	var answers []*bufio.Reader
	for range clients {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		_, err = io.WriteString(c, postHeaders(length, ""))
		require.NoError(t, err)
		_, _ = c.Write(make([]byte, length-20)) // fails once it is refused
		answers = append(answers, bufio.NewReader(c))
	}
	assert.LessOrEqual(t, e.limiter.Usage().BytesInUse, int64(8<<20))
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
	assert.Equal(t, clients, codes[http.StatusServiceUnavailable]+codes[http.StatusTooManyRequests]+codes[0], "%v", codes)
	inUse(t, e, 0)
	assert.Zero(t, e.limiter.Usage().BytesInUse)
	lateness(t, tel, int64(codes[http.StatusServiceUnavailable]))
	code, _, _ := post(t, addr, contentProto, "", reportBytes(t, 1000))
	assert.Equal(t, http.StatusOK, code)
}

func TestMessagesThatSomebodyElseDecoded(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	_, cc := serveGRPCInMemory(t, e, accept, grpc.ForceServerCodecV2(foreign{}))
	assert.Equal(t, codes.Internal, status.Code(push(t.Context(), cc)))
}

// foreign is the codec of a middleware that knows nothing of admission.
type foreign struct{ encoding.CodecV2 }

func (foreign) Unmarshal(mem.BufferSlice, any) error { return nil }
func (foreign) Name() string                         { return "proto" }

// Each receiver that ships has admission in front, on both transports, and one limit for a
// message over both. It takes no coding that holds memory before admission has let a body
// in, or beside what it counts. One that listens on more than loopback ends connections now
// and then. The demo's is of its own process.
func TestShippedLimits(t *testing.T) {
	type server struct {
		MaxMiB      int64    `yaml:"max_recv_msg_size_mib"`
		MaxSize     int64    `yaml:"max_request_body_size"`
		Algorithms  []string `yaml:"compression_algorithms"`
		Middlewares []struct{ ID string }
		Endpoint    string
		Keepalive   map[string]any
	}
	files, err := filepath.Glob("../../configs/*.yaml")
	require.NoError(t, err)
	servers := map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var cfg struct {
			Receivers map[string]struct{ Protocols map[string]*server }
		}
		require.NoError(t, yaml.Unmarshal(text, &cfg), file)
		base := filepath.Base(file)
		if base == "demo.yaml" {
			continue
		}
		for name, r := range cfg.Receivers {
			for protocol, s := range r.Protocols {
				servers[base]++
				require.NotEmpty(t, s.Middlewares, "%s %s %s", file, name, protocol)
				assert.Equal(t, "admission", s.Middlewares[0].ID, "%s %s %s", file, name, protocol)
				if protocol == "grpc" && !strings.HasPrefix(s.Endpoint, "127.0.0.1:") {
					assert.Contains(t, s.Keepalive, "server_parameters", "%s: senders find a gateway that is new", file)
				}
				want := int64(2 << 20)
				if base == "agent.yaml" || name == "otlp/app" {
					want = 1 << 20
				}
				assert.Equal(t, want, cmp.Or(s.MaxSize, s.MaxMiB<<20), "%s %s %s", file, name, protocol)
				if protocol == "http" {
					assert.Equal(t, []string{"", "gzip", "zlib", "deflate"}, s.Algorithms, "%s %s", file, name)
				}
			}
		}
	}
	assert.Equal(t, map[string]int{
		"agent.yaml": 2, "all-in-one.yaml": 3, "gateway.yaml": 2, "shard.yaml": 2, "kafka-shard.yaml": 2, "ingero-compat.yaml": 1,
	}, servers)
}
