// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// unfinishedHTTP are short headers of so many bytes without their end: net/http takes
// many times their size.
func unfinishedHTTP(size int) string {
	var out strings.Builder
	out.WriteString("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n")
	for i := 0; out.Len() < size; i++ {
		fmt.Fprintf(&out, "%x:\r\n", i)
	}
	return out.String()
}

// unfinishedGRPC is a header block of HTTP/2 without its end.
func unfinishedGRPC(t *testing.T) string {
	t.Helper()
	var out bytes.Buffer
	out.WriteString(http2Preface(t, false))
	f := http2.NewFramer(&out, nil)
	fields := bytes.Repeat([]byte{0x10, 1, 'x', 0}, 100) // RFC 7541, 6.2.3: never indexed
	require.NoError(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields}))
	for range 3 {
		require.NoError(t, f.WriteContinuation(1, false, fields))
	}
	return out.String()
}

// TestUnfinishedHeaders has four addresses hold four hundred connections to each server in
// the midst of headers, within its limits and beyond, for as long as it lets them.
func TestUnfinishedHeaders(t *testing.T) {
	const addresses, each = 4, 100
	g := gateway(t, options{})
	b := beside(t, alone(g), "unfinished_headers")
	inside, beyond := unfinishedHTTP(16<<10), unfinishedHTTP(mib)
	servers := []struct {
		name, addr string // a name where refusals are counted
		first      []string
	}{
		{"exposition", g.prom, []string{inside, beyond}},
		{"fleet_view", g.fleet, []string{inside, beyond}},
		{"straggler_threshold", g.api, []string{inside, beyond}},
		{"fleet_otlp/grpc", g.grpc, []string{unfinishedGRPC(t)}},
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for _, s := range servers {
		for i := range addresses * each {
			from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(10+i%addresses))}}
			all.Go(func() {
				for ctx.Err() == nil {
					unfinished(ctx, from, s.addr, s.first[i/addresses%len(s.first)])
				}
			})
		}
	}
	for _, s := range servers {
		for _, reason := range []string{"address", "headers"} {
			if s.addr == g.grpc && reason == "address" {
				continue // it takes a connection of each of thousands of nodes
			}
			eventually(t, s.name+" refuses for the reason "+reason, func() bool {
				require.False(t, g.ended(), "it lives")
				code, text := g.get("http://" + g.api + "/api/v1/threshold?cluster=" + bystander)
				require.Equal(t, http.StatusOK, code, "%s", text)
				return g.refusals(s.name, reason) >= addresses*each
			})
		}
	}
	cancel()
	all.Wait()
	b.endCalm(32*mib, 64<<10)
	assert.Less(t, g.peak(), int64(goMemoryLimit))
}

// unfinished keeps a connection in the midst of headers until the server hangs up.
func unfinished(ctx context.Context, from *net.Dialer, addr, first string) {
	c, err := from.DialContext(ctx, "tcp", addr)
	if err == nil {
		defer context.AfterFunc(ctx, func() { _ = c.Close() })()
		defer func() { _ = c.Close() }()
		_, _ = io.WriteString(c, first)
		_, _ = io.Copy(io.Discard, c)
	}
	select {
	case <-ctx.Done():
	case <-time.After(5 * time.Second): // its pace
	}
}

// refusals are those of a server that the gateway has counted.
func (g *target) refusals(server, reason string) int64 {
	g.t.Helper()
	_, text := g.get("http://" + g.telemetry + "/metrics")
	m := regexp.MustCompile(`otelcol_server_refusals(?:_total)?\{[^}]*reason="` + reason + `"[^}]*server="` + server + `"[^}]*\} (\d+)`).FindSubmatch(text)
	require.NotNil(g.t, m)
	var n int64
	_, err := fmt.Sscan(string(m[1]), &n)
	require.NoError(g.t, err)
	return n
}
