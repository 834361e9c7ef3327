// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// TestSlowSenders holds as many connections as the process may have: headers and
// bodies that never end, and connections on which nothing comes.
func TestSlowSenders(t *testing.T) {
	t.Parallel()
	g := gateway(t, options{overlay: `
receivers: {otlp: {protocols: {http: {read_header_timeout: 3s, read_timeout: 6s}}}}
extensions: {admission: {receive_timeout: 3s}}
`})
	g.requireHonest("before")
	before := g.usage()
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	each := int(min(limit.Cur/2, 4000)) / 4
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for addr, texts := range map[string][]string{
		g.http: {"", "POST /v1/metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ", "POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nContent-Length: 1000000\r\n\r\n\x0a"},
		g.grpc: {""},
	} {
		for _, text := range texts {
			for range each {
				c, err := net.Dial("tcp", addr)
				require.NoError(t, err)
				conns = append(conns, c)
				_, err = io.WriteString(c, text)
				require.NoError(t, err)
			}
		}
	}
	start := time.Now()
	g.requireHonest("meanwhile")
	figure.Fprint(os.Stdout, "hostile_slow_connections", float64(len(conns)), "connections", 1000, false)
	figure.Fprint(os.Stdout, "hostile_slow_first_threshold", time.Since(start).Seconds(), "s", 10, true)
	rss := float64(g.memory("VmRSS")-before.rss) / float64(len(conns))
	figure.Fprint(os.Stdout, "hostile_slow_rss_per_connection", rss/1024, "KiB", 100, true)
	for _, c := range conns {
		_ = c.Close()
	}
	g.requireCalm(before, 16*mib, 16<<10)
	g.requireHonest("after")
}

// TestFloods sends frames without end over HTTP/2.
func TestFloods(t *testing.T) {
	t.Parallel()
	g := gateway(t, options{})
	g.requireHonest("before")
	before := g.usage()
	g.forgetPeak()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	head := func(more ...hpack.HeaderField) []byte {
		block.Reset()
		for _, f := range append([]hpack.HeaderField{
			{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: metricsMethod}, {Name: ":authority", Value: "x"},
			{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
		}, more...) {
			_ = enc.WriteField(f)
		}
		return bytes.Clone(block.Bytes())
	}
	for name, flood := range map[string]func(*http2.Framer, int) error{
		"reset": func(f *http2.Framer, i int) error {
			id := uint32(2*i + 1)
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head(), EndHeaders: true}); err != nil {
				return err
			}
			return f.WriteRSTStream(id, http2.ErrCodeCancel)
		},
		"continuation": func(f *http2.Framer, i int) error {
			if i == 0 {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head()})
			}
			return f.WriteContinuation(1, false, bytes.Repeat([]byte{0x00, 0x01, 'a', 0x01, 'b'}, 1000))
		},
		"ping": func(f *http2.Framer, _ int) error { return f.WritePing(false, [8]byte{}) },
		"settings": func(f *http2.Framer, i int) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i)})
		},
		"headers": func(f *http2.Framer, i int) error {
			more := make([]hpack.HeaderField, 1000)
			for k := range more {
				more[k] = hpack.HeaderField{Name: fmt.Sprintf("gpu-x%d", k), Value: strings.Repeat("v", 100), Sensitive: true}
			}
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: head(more...)[:16000], EndHeaders: true})
		},
		"streams that never send": func(f *http2.Framer, i int) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: head(), EndHeaders: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", g.grpc)
			require.NoError(t, err)
			defer func() { _ = c.Close() }()
			_, err = io.WriteString(c, http2.ClientPreface)
			require.NoError(t, err)
			go func() { _, _ = io.Copy(io.Discard, c) }()
			f := http2.NewFramer(c, nil)
			f.AllowIllegalWrites = true
			require.NoError(t, f.WriteSettings())
			require.NoError(t, c.SetDeadline(time.Now().Add(deadline)))
			for i := 0; i < 20_000 && err == nil; i++ {
				err = flood(f, i) // until it hangs up, or has had enough
			}
			g.requireHonest("during")
		})
	}
	figure.Fprint(os.Stdout, "hostile_floods_peak_rss_growth", float64(g.memory("VmHWM")-before.rss)/mib, "MiB", 300, true)
	g.requireCalm(before, 16*mib, 64<<10)
	g.requireHonest("after")
}

// TestHeaderFlood sends headers by the thousand, and names that nobody has.
func TestHeaderFlood(t *testing.T) {
	t.Parallel()
	g := gateway(t, options{})
	g.requireHonest("before")
	before := g.usage()
	client, body := keepAlive(t), marshal(t, fleet("flood", ""))
	var many []string
	for i := range 3000 {
		many = append(many, fmt.Sprintf("X-H%d", i), "v")
	}
	assert.Contains(t, []int{200, 400, 431}, g.post(client, "/v1/metrics", protobufType, body, many...))
	assert.Contains(t, []int{431, 0}, g.post(client, "/v1/metrics", protobufType, body, "X-Huge", strings.Repeat("v", 2*mib)))
	for i := range 3000 {
		code := g.post(client, "/v1/metrics", protobufType, nil, "gpu-cluster", fmt.Sprintf("c%d", i), "gpu-node", fmt.Sprintf("n%d", i),
			"gpu-group", fmt.Sprintf(`"g%d"`, i), "gpu-cluster", "another", "gpu-group", "\xff", "gpu-node", strings.Repeat("n", 1000))
		require.Equal(t, http.StatusOK, code)
	}
	g.requireCalm(before, 8*mib, 4096)
	g.requireHonest("after")
}

// TestTimes replays reports, old ones after new ones, and some from other
// centuries: none of it may hold up what comes after, or hide a straggler.
func TestTimes(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]options{"gateway": {}, "behind wire_diff": {extensions: ", wire_diff", overlay: wireDiff}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := gateway(t, o)
			g.requireHonest("c")
			at := func(ts pcommon.Timestamp, value float64) pmetric.Metrics {
				md := fleet("c", "")
				for _, rm := range md.ResourceMetrics().All() {
					p := rm.ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0)
					p.SetTimestamp(ts)
					p.SetDoubleValue(value)
				}
				return md
			}
			old := at(pcommon.NewTimestampFromTime(time.Now().Add(-time.Minute)), 0.5)
			for range 20 {
				_, err := g.push(t.Context(), "c", fleet("c", ""))
				require.NoError(t, err)
				for _, ts := range []pcommon.Timestamp{0, 1, math.MaxUint64, math.MaxInt64, math.MaxInt64 + 1, pcommon.NewTimestampFromTime(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC))} {
					_, err := g.push(t.Context(), "c", at(ts, 0.97))
					require.NoError(t, err)
				}
				_, err = g.push(t.Context(), "c", old)
				require.NoError(t, err)
			}
			// One that is slow from now on is found all the same.
			eventually(t, "the straggler is found", func() bool {
				_, err := g.push(t.Context(), "c", fleet("c", "node7"))
				require.NoError(t, err)
				return g.straggler("c", "node7")
			})
			assert.False(t, g.straggler("c", "node1"))
			assert.Len(t, g.nodes("c"), 10)
		})
	}
}
