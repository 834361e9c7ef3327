// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/process"
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

// TestUnfinishedHeaders has four addresses hold four hundred connections to each server in
// the midst of headers, within its limits and beyond, for as long as it lets them.
func TestUnfinishedHeaders(t *testing.T) {
	const addresses, each = 4, 100
	g := gateway(t)
	b := beside(t, alone(g), "unfinished_headers")
	first := []string{unfinishedHTTP(16 << 10), unfinishedHTTP(mib)}
	servers := map[string]string{"exposition": g.Prom, "fleet_view": g.Fleet, "straggler_threshold": g.API} // by the names of their refusals
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	hungUp := map[string]*atomic.Int64{}
	defer all.Wait()
	defer cancel()
	for name, addr := range servers {
		count := new(atomic.Int64)
		hungUp[name] = count
		for i := range addresses * each {
			from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(10+i%addresses))}}
			all.Go(func() {
				for ctx.Err() == nil {
					unfinished(ctx, from, addr, first[i/addresses%len(first)])
					count.Add(1)
				}
			})
		}
	}
	for name := range servers {
		process.Eventually(t, name+" refuses connections and hangs up", func() bool {
			_, err := get("http://" + g.API + "/api/v1/threshold?cluster=" + bystander)
			require.NoError(t, err)
			n, _ := process.Scrape(t, g.Telemetry).Value("otelcol_server_refusals", process.Labels{"reason": "address", "server": name})
			return n >= addresses*each && hungUp[name].Load() >= addresses*each
		})
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
