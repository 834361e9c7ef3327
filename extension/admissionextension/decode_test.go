// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.yaml.in/yaml/v3"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/gpu-collector/gpu-collector/internal/contentcoding"
)

// leftAlone are the settings of a receiver that decodes nothing itself.
var leftAlone = map[string]any{"compression_algorithms": []any{}, "max_request_body_size": 4 << 20}

var encoders = map[string]func(io.Writer) io.WriteCloser{
	"gzip":    func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
	"zlib":    func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
	"deflate": func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
	"zstd": func(w io.Writer) io.WriteCloser {
		z, err := zstd.NewWriter(w)
		if err != nil {
			panic(err)
		}
		return z
	},
	"snappy":          func(w io.Writer) io.WriteCloser { return snappy.NewBufferedWriter(w) },
	"x-snappy-framed": func(w io.Writer) io.WriteCloser { return snappy.NewBufferedWriter(w) },
	"lz4":             func(w io.Writer) io.WriteCloser { return lz4.NewWriter(w) },
}

func encode(t *testing.T, coding string, msg []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := encoders[coding](&out)
	_, err := w.Write(msg)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

func report(t *testing.T, points int) []byte {
	t.Helper()
	md := pmetric.NewMetrics()
	m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("hw.gpu.utilization")
	g := m.SetEmptyGauge()
	for i := range points {
		g.DataPoints().AppendEmpty().SetIntValue(int64(i))
	}
	msg, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	require.NoError(t, err)
	return msg
}

func post(t *testing.T, addr, coding string, body []byte) (int, *spb.Status, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/v1/metrics", bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-protobuf")
	if coding != "" {
		req.Header.Set("Content-Encoding", coding)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	s := new(spb.Status)
	if resp.StatusCode != http.StatusOK {
		require.NoError(t, proto.Unmarshal(text, s), "a Status: %q", text)
	}
	return resp.StatusCode, s, resp.Header
}

// TestBodiesThatTheReceiverLeavesAlone: the receiver's own parser gets what the
// sender compressed, and nobody gets more memory than the limits give.
func TestBodiesThatTheReceiverLeavesAlone(t *testing.T) {
	t.Parallel()
	e, _ := newTestExtension(t, func(c *Config) { c.MaxRequestBodySize = 4 << 20 })
	points := make(chan int, 1)
	next, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		points <- md.DataPointCount()
		return nil
	})
	require.NoError(t, err)
	addr := receive(t, e, next, leftAlone)["http"]
	assert.Len(t, encoders, len(contentcoding.Names()))
	for coding := range encoders {
		for _, n := range []int{1, 3000, 90_000} { // harmless, in one piece, in parts
			msg := report(t, n)
			code, s, _ := post(t, addr, coding, encode(t, coding, msg))
			require.Equal(t, http.StatusOK, code, "%s, %d bytes: %v", coding, len(msg), s)
			assert.Equal(t, n, <-points)
		}
		zeros := encode(t, coding, make([]byte, 32<<20))
		code, s, _ := post(t, addr, coding, zeros)
		assert.Equal(t, http.StatusBadRequest, code)
		assert.Contains(t, s.GetMessage(), "too large", coding)
		for _, broken := range [][]byte{zeros[:len(zeros)/2], []byte("hello, this is no compressed text")} {
			code, s, _ = post(t, addr, coding, broken)
			assert.Equal(t, http.StatusBadRequest, code, coding)
			assert.NotEmpty(t, s.GetMessage(), coding)
		}
		for _, size := range []int{100 << 10, 2 << 20} { // in one piece, in parts
			code, s, _ = post(t, addr, coding, encode(t, coding, nested(size)))
			assert.Equal(t, http.StatusBadRequest, code, coding)
			assert.Contains(t, s.GetMessage(), "nested", coding)
		}
	}
	for _, unknown := range []string{"br", "gzip, gzip", "identity, gzip"} {
		code, _, header := post(t, addr, unknown, report(t, 1))
		assert.Equal(t, http.StatusUnsupportedMediaType, code, unknown)
		assert.Contains(t, header.Get("Accept-Encoding"), "zstd")
	}
	for _, none := range []string{"", "identity"} {
		code, _, _ := post(t, addr, none, report(t, 1))
		assert.Equal(t, http.StatusOK, code, none)
		assert.Equal(t, 1, <-points)
	}
	code, _, _ := post(t, addr, "", nested(100<<10))
	assert.Equal(t, http.StatusBadRequest, code)
	inUse(t, e, 0)
}

// nested is a message of about so many bytes with lists in lists.
func nested(size int) []byte {
	m := make([]byte, 0, size)
	wrap := func(field protowire.Number, m []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), m)
	}
	for range 200 {
		m = wrap(1, wrap(5, m)) // ArrayValue.values, AnyValue.array_value
	}
	schema := wrap(3, bytes.Repeat([]byte("k"), size))
	return wrap(1, append(wrap(1, wrap(1, wrap(2, wrap(5, m)))), schema...))
}

// TestLateCompressedBody: the time for a body is the same where admission decodes.
func TestLateCompressedBody(t *testing.T) {
	t.Parallel()
	e, _ := newTestExtension(t, func(c *Config) { c.ReceiveTimeout = time.Second })
	addr := receive(t, e, consumertest.NewNop(), leftAlone)["http"]
	for _, begin := range []string{"", "\x28\xb5\x2f\xfd"} {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		_, err = io.WriteString(c, postHeaders(100, "zstd")+begin)
		require.NoError(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		assert.Equal(t, "5", resp.Header.Get("Retry-After"))
		require.NoError(t, resp.Body.Close())
	}
	inUse(t, e, 0)
}

// Each receiver that ships has admission in front, on both transports, and one limit
// for a message: the receiver's over gRPC and HTTP, and admission's. Each bounds the streams
// of a connection. One that listens on more than loopback ends connections now and then. The demo's is of its own process.
func TestShippedLimits(t *testing.T) {
	type server struct {
		MaxMiB      int64    `yaml:"max_recv_msg_size_mib"`
		MaxStreams  uint32   `yaml:"max_concurrent_streams"`
		MaxSize     int64    `yaml:"max_request_body_size"`
		Algorithms  []string `yaml:"compression_algorithms"`
		Middlewares []struct{ ID string }
		Endpoint    string
		Keepalive   map[string]any
	}
	files, err := filepath.Glob("../../configs/*.yaml")
	require.NoError(t, err)
	servers := map[string]int{}
	// A shard's connection carries many nodes, a job's one of them.
	streams := map[string]uint32{
		"actions.yaml": 16, "agent.yaml": 16, "all-in-one.yaml": 16, "gateway.yaml": 100, "shard.yaml": 100, "kafka-shard.yaml": 100, "ingero-compat.yaml": 100,
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var cfg struct {
			Receivers  map[string]struct{ Protocols map[string]*server }
			Extensions map[string]struct {
				MaxSize int64 `yaml:"max_request_body_size"`
			}
		}
		require.NoError(t, yaml.Unmarshal(text, &cfg), file)
		base := filepath.Base(file)
		if base == "demo.yaml" {
			continue
		}
		var conf map[string]any
		require.NoError(t, yaml.Unmarshal(text, &conf), file)
		under, err := transportOf(conf, "admission")
		require.NoError(t, err, file)
		assert.Equal(t, strings.Contains(string(text), "        middlewares: [{id: admission}"), under.known, "%s: messages over gRPC pay as they come", file)
		limit := cmp.Or(cfg.Extensions["admission"].MaxSize, createDefaultConfig().(*Config).MaxRequestBodySize)
		for name, r := range cfg.Receivers {
			for protocol, s := range r.Protocols {
				servers[base]++
				require.NotEmpty(t, s.Middlewares, "%s %s %s", file, name, protocol)
				assert.Equal(t, "admission", s.Middlewares[0].ID, "%s %s %s", file, name, protocol)
				if protocol == "grpc" {
					assert.Equal(t, streams[base], s.MaxStreams, "%s %s: streams of one connection", file, name)
				}
				if protocol == "grpc" && !strings.HasPrefix(s.Endpoint, "127.0.0.1:") {
					assert.Contains(t, s.Keepalive, "server_parameters", "%s: senders find a gateway that is new", file)
				}
				if base == "ingero-compat.yaml" || name == "otlp/gateway" {
					continue // the one decodes bodies by itself, the other takes larger messages and no bodies
				}
				assert.Equal(t, limit, cmp.Or(s.MaxSize, s.MaxMiB<<20), "%s %s %s", file, name, protocol)
				if protocol == "http" {
					assert.Equal(t, []string{}, s.Algorithms, "%s %s", file, name)
				}
			}
		}
	}
	assert.Equal(t, map[string]int{
		"actions.yaml": 1, "agent.yaml": 2, "all-in-one.yaml": 3, "gateway.yaml": 2, "shard.yaml": 2, "kafka-shard.yaml": 2, "ingero-compat.yaml": 2,
	}, servers)
}
