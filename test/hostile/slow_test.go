// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// slowly is one way to keep a connection: what is sent at once, and a byte now and then.
type slowly struct {
	what, addr, first, drip string
	answers                 bool // with a status of HTTP, at last
}

// TestSlowSenders holds as many connections as the process may have: headers and
// bodies that never end, with nothing more coming and with a byte now and then, and
// connections and streams on which nothing comes. The server ends them all.
//
// The receiver's limit comes long before the connection's own: a slow machine has the time
// to answer why it ends one.
func TestSlowSenders(t *testing.T) {
	g := gateway(t, `
receivers:
  fleet_otlp:
    max_connections: 10000 # of one address half
    protocols:
      http: {read_header_timeout: 3s, read_timeout: 60s}
      grpc: {keepalive: {server_parameters: {max_connection_age: 5s, max_connection_age_grace: 20s}}}
    admission: {receive_timeout: 3s}
`)
	b := beside(t, alone(g), "slow")
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	each := int(min(limit.Cur/2, 4000)) / 8
	var all []*slowSender
	defer func() {
		for _, s := range all {
			_ = s.conn.Close()
		}
	}()
	const post = "POST /v1/metrics HTTP/1.1\r\nHost: x\r\n"
	body := func(cluster string) string {
		return post + "Gpu-Cluster: " + cluster + "\r\nContent-Type: application/x-protobuf\r\nContent-Length: 1000000\r\n\r\n\x0a"
	}
	kinds := []slowly{
		{"nothing", g.HTTP, "", "", false},
		{"half of the headers", g.HTTP, post + "X-Slow: ", "", false},
		{"a header in bytes", g.HTTP, post + "X-Slow: ", "x", false},
		{"half of the body", g.HTTP, body("half"), "", true},
		{"a body in bytes", g.HTTP, body("bytes"), "\x00", true},
		{"no stream", g.GRPC, http2Preface(t, false), "", false},
		{"a stream without its message", g.GRPC, http2Preface(t, true), "", false},
		{"not even gRPC's preface", g.GRPC, "", "", false},
	}
	late := map[string]int{}
	for _, how := range kinds {
		for range each {
			all = append(all, dialSlow(t, how))
		}
	}
	held := float64(len(all))
	figure.Print("hostile_slow_connections", held, "connections", 1000, false)
	figure.Print("hostile_slow_rss_per_connection", float64(g.memory("VmRSS")-b.before[g].rss)/held/1024, "KiB", 100, true)
	// The longest of the limits is 26 s.
	over := time.After(process.Patience)
	longest := time.Duration(0)
	for _, s := range all {
		select {
		case <-s.ended:
			longest = max(longest, s.held)
			// After 503 senders try again. 429 is for what is over its cluster's share.
			if answer := s.answer.String(); strings.HasPrefix(answer, "HTTP/1.1 503") && strings.Contains(answer, "Retry-After") {
				late[s.what]++
			} else if s.answers {
				assert.True(t, strings.HasPrefix(answer, "HTTP/1.1 429"), "%s: %q", s.what, answer)
			}
		case <-over:
			require.Fail(t, "the server keeps it", s.what)
		}
	}
	for _, how := range kinds {
		// Each in its own cluster, so that all get some permits.
		assert.True(t, !how.answers || late[how.what] > each/20, "%s: %d", how.what, late[how.what])
	}
	figure.Print("hostile_slow_longest_held", longest.Seconds(), "s", 30, true)
	b.endCalm(16*mib, 16<<10)
}

type slowSender struct {
	slowly
	conn   net.Conn
	ended  chan struct{}
	answer bytes.Buffer  // until it ended
	held   time.Duration // until it ended
}

func dialSlow(t *testing.T, how slowly) *slowSender {
	t.Helper()
	c, err := net.Dial("tcp", how.addr)
	require.NoError(t, err)
	s := &slowSender{slowly: how, conn: c, ended: make(chan struct{})}
	start := time.Now()
	_, err = io.WriteString(c, how.first)
	require.NoError(t, err)
	go func() {
		defer close(s.ended)
		_, _ = io.Copy(&s.answer, c) // until EOF or a reset
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

// http2Preface begins a connection of gRPC, and a call whose message never comes.
func http2Preface(t *testing.T, call bool) string {
	t.Helper()
	var out, block bytes.Buffer
	out.WriteString(http2.ClientPreface)
	f, enc := http2.NewFramer(&out, nil), hpack.NewEncoder(&block)
	require.NoError(t, f.WriteSettings())
	if !call {
		return out.String()
	}
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", process.MetricsMethod}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		require.NoError(t, enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
	}
	require.NoError(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}))
	return out.String()
}
