// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"fmt"
	"io"
	"iter"
	"math"
	"net"
	"net/http"
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

// slowly is one way to keep a connection: what is sent at once, and what a byte at
// a time for ever after.
type slowly struct {
	addr, first, drip string
	// verdict is what the server's last words are; nil where it needs none.
	verdict func([]byte) verdict
}

// TestSlowSenders holds as many connections as the process may have: headers and
// bodies that never end, with nothing more coming and with a byte now and then, and
// connections and streams on which nothing comes. The server ends them all.
//
// Admission's limit comes long before the connection's own: a slow machine has the time
// to say why it ends one.
//
// gRPC's own limit for a connection without so much as its preface is 120 s and no
// key of the receiver's: those are held and not waited for.
func TestSlowSenders(t *testing.T) {
	g := gateway(t, options{overlay: `
receivers:
  otlp:
    protocols:
      http: {read_header_timeout: 3s, read_timeout: 60s}
      grpc: {keepalive: {server_parameters: {max_connection_age: 5s, max_connection_age_grace: 20s}}}
extensions: {admission: {receive_timeout: 3s}}
`})
	b := beside(t, alone(g), "slow")
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	each := int(min(limit.Cur/2, 4000)) / 8
	var all, silent []*slowSender
	defer func() {
		for _, s := range append(all, silent...) {
			_ = s.conn.Close()
		}
	}()
	const post = "POST /v1/metrics HTTP/1.1\r\nHost: x\r\n"
	body := func(cluster string) string {
		return post + "Gpu-Cluster: " + cluster + "\r\nContent-Type: application/x-protobuf\r\nContent-Length: 1000000\r\n\r\n\x0a"
	}
	kinds := map[string]slowly{
		"nothing":                      {addr: g.http},
		"half of the headers":          {addr: g.http, first: post + "X-Slow: "},
		"a header in bytes":            {addr: g.http, first: post + "X-Slow: ", drip: "x"},
		"half of the body":             {addr: g.http, first: body("half"), verdict: httpVerdict},
		"a body in bytes":              {addr: g.http, first: body("bytes"), drip: "\x00", verdict: httpVerdict},
		"no stream":                    {addr: g.grpc, first: http2Preface(t, false), verdict: goneAway},
		"a stream without its message": {addr: g.grpc, first: http2Preface(t, true), verdict: callVerdict},
		"not even gRPC's preface":      {addr: g.grpc},
	}
	verdicts := map[string]map[verdict]int{}
	for what, how := range kinds {
		verdicts[what] = map[verdict]int{}
		for range each {
			s := dialSlow(t, what, how)
			if how.addr == g.grpc && how.first == "" {
				silent = append(silent, s)
			} else {
				all = append(all, s)
			}
		}
	}
	held := float64(len(all) + len(silent))
	figure.Print("hostile_slow_connections", held, "connections", 1000, false)
	figure.Print("hostile_slow_rss_per_connection", float64(g.memory("VmRSS")-b.before[g].rss)/held/1024, "KiB", 100, true)
	// The longest of the limits is 26 s.
	over := time.After(deadline)
	longest := time.Duration(0)
	for _, s := range all {
		select {
		case <-s.ended:
			longest = max(longest, s.held)
			if s.verdict != nil {
				v := s.verdict(s.said.Bytes())
				assert.NotEqual(t, unheardOf, v, "%s: %q", s.what, &s.said)
				verdicts[s.what][v]++
			}
		case <-over:
			require.Fail(t, "the server keeps it", s.what)
		}
	}
	for what, v := range verdicts {
		// Each in its own cluster, so that all get some permits.
		assert.True(t, kinds[what].verdict == nil || v[late] > each/20, "%s: %v", what, v)
	}
	figure.Print("hostile_slow_longest_held", longest.Seconds(), "s", 30, true)
	for _, s := range silent {
		_ = s.conn.Close()
	}
	b.endCalm(16*mib, 16<<10)
}

// slowSender is a connection that the server is to end.
type slowSender struct {
	slowly
	what  string
	conn  net.Conn
	ended chan struct{}
	said  bytes.Buffer  // until it ended
	held  time.Duration // until it ended
}

func dialSlow(t *testing.T, what string, how slowly) *slowSender {
	t.Helper()
	c, err := net.Dial("tcp", how.addr)
	require.NoError(t, err)
	s := &slowSender{slowly: how, what: what, conn: c, ended: make(chan struct{})}
	start := time.Now()
	_, err = io.WriteString(c, how.first)
	require.NoError(t, err)
	go func() {
		defer close(s.ended)
		_, _ = io.Copy(&s.said, c) // until EOF or a reset
		s.held = time.Since(start)
	}()
	if how.drip != "" {
		go func() {
			drip := time.NewTicker(500 * time.Millisecond)
			defer drip.Stop()
			for {
				select {
				case <-s.ended:
					return
				case <-drip.C:
					_, _ = io.WriteString(c, how.drip)
				}
			}
		}()
	}
	return s
}

// verdict is how a server ends a connection.
type verdict int

const (
	unheardOf verdict = iota
	late              // for it took too long
	refused           // for its cluster has its share of the permits
)

// httpVerdict expects 503, after which senders try again, or 429.
func httpVerdict(said []byte) verdict {
	switch {
	case bytes.HasPrefix(said, []byte("HTTP/1.1 503")) && bytes.Contains(said, []byte("Retry-After")):
		return late
	case bytes.HasPrefix(said, []byte("HTTP/1.1 429")):
		return refused
	}
	return unheardOf
}

// goneAway expects that the connection's age was its end.
func goneAway(said []byte) verdict {
	for frame := range frames(said) {
		if _, ok := frame.(*http2.GoAwayFrame); ok {
			return late
		}
	}
	return unheardOf
}

// callVerdict expects the status of a call.
func callVerdict(said []byte) verdict {
	for frame := range frames(said) {
		h, ok := frame.(*http2.MetaHeadersFrame)
		if !ok {
			continue
		}
		for _, f := range h.Fields {
			switch {
			case f.Name != "grpc-status":
			case f.Value == "8" || f.Value == "14":
				return refused
			case f.Value != "0":
				return late
			}
		}
	}
	return unheardOf
}

// frames are those of a server's side of a connection.
func frames(said []byte) iter.Seq[http2.Frame] {
	return func(yield func(http2.Frame) bool) {
		f := http2.NewFramer(nil, bytes.NewReader(said))
		f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		for frame, err := f.ReadFrame(); err == nil && yield(frame); {
			frame, err = f.ReadFrame()
		}
	}
}

// http2Preface begins a connection of gRPC, and a call whose message never comes.
func http2Preface(t *testing.T, call bool) string {
	t.Helper()
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&out, nil)
	require.NoError(t, f.WriteSettings())
	if call {
		var block bytes.Buffer
		require.NoError(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: callHeaders(&block, hpack.NewEncoder(&block)), EndHeaders: true}))
	}
	return out.String()
}

// callHeaders encodes the headers of a push, and more.
func callHeaders(block *bytes.Buffer, enc *hpack.Encoder, more ...hpack.HeaderField) []byte {
	block.Reset()
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: metricsMethod},
		{Name: ":authority", Value: "x"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}, more...) {
		_ = enc.WriteField(f)
	}
	return bytes.Clone(block.Bytes())
}

// TestFloods sends frames without end over HTTP/2.
func TestFloods(t *testing.T) {
	g := gateway(t, options{})
	b := beside(t, alone(g), "floods")
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	head := func(more ...hpack.HeaderField) []byte { return callHeaders(&block, enc, more...) }
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
			require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
			for i := 0; i < 20_000 && err == nil; i++ {
				err = flood(f, i) // until it hangs up, or has had enough
			}
		})
	}
	grown(b, b.figure, 300)
	b.endCalm(16*mib, 64<<10)
}

// TestHeaderFlood sends headers by the thousand, and names that nobody has.
func TestHeaderFlood(t *testing.T) {
	g := gateway(t, options{})
	b := beside(t, alone(g), "headers")
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
	b.endCalm(8*mib, 4096)
}

// TestTimes replays reports, old ones after new ones, and some from other
// centuries: none of it may hold up what comes after, or hide a straggler.
func TestTimes(t *testing.T) {
	for name, start := range fronts {
		t.Run(name, func(t *testing.T) {
			f := start(t, options{})
			g := f.door
			b := beside(t, f, "times_"+name)
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
			// Of one node alone, between its true ones, for many ticks: it is not the
			// slow one of ten.
			old.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool {
				name, _ := rm.Resource().Attributes().Get("host.name")
				return name.Str() != "node1"
			})
			require.Equal(t, 1, old.ResourceMetrics().Len())
			for range 60 {
				for _, md := range []pmetric.Metrics{fleet("c", ""), old} {
					_, err := g.push(t.Context(), "c", md)
					require.NoError(t, err)
				}
				require.False(t, f.view.straggler("c", "node1"))
				<-time.After(50 * time.Millisecond) // a quarter of a tick
			}
			// One that is slow from now on is found all the same.
			eventually(t, "the straggler is found", func() bool {
				_, err := g.push(t.Context(), "c", fleet("c", "node7"))
				require.NoError(t, err)
				return f.view.straggler("c", "node7")
			})
			b.end()
			assert.False(t, f.view.straggler("c", "node1"))
			assert.Len(t, f.view.nodes("c"), 10)
		})
	}
}
