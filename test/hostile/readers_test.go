// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-collector/gpu-collector/test/process"
)

// elsewhere dials from another address than the bystanders: a reader's share is by it.
var elsewhere = &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, 2)}}

// TestReadersThatDoNotRead has ten addresses ask the fleet view for all that is long, and
// one address scrape, over 1,200 connections that read nothing. Scrapes that are sent away
// or cut off come back at once.
func TestReadersThatDoNotRead(t *testing.T) {
	g := gateway(t, "extensions: {exposition: {http: {write_timeout: 30s}}}\n") // as shipped
	b := beside(t, alone(g), "idle_readers")
	newAttack(t, g).run(0, 4) // so that there is more to read than the kernel keeps
	var all sync.WaitGroup
	var again atomic.Int64
	for i := range 400 {
		from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(10+i%10))}}
		for _, ask := range [][2]string{{g.Prom, "/metrics"}, {g.Fleet, "/api/v1/observe?gpus=true"}, {g.Fleet, "/api/v1/nodes?limit=500"}} {
			by := from
			if ask[0] == g.Prom {
				by = elsewhere
			}
			all.Go(func() {
				for idleReader(by, ask[0], ask[1], b.done) && ask[0] == g.Prom {
					again.Add(1)
				}
			})
		}
	}
	<-time.After(20 * time.Second) // of scrapes beside them
	process.Eventually(t, "one is sent away and comes back", func() bool { return again.Load() > 0 })
	b.end()
	all.Wait()
}

// idleReader asks and reads nothing until the server ends the connection, which is true.
func idleReader(from *net.Dialer, addr, path string, done <-chan struct{}) bool {
	c, err := from.Dial("tcp", addr)
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	if c.(*net.TCPConn).SetReadBuffer(4096) != nil {
		return false
	}
	if _, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", path); err != nil {
		return false
	}
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-done:
			return false
		case <-look.C:
			if hungUp(c) {
				return true
			}
		}
	}
}

// hungUp reports whether the other side ended a connection, of what is not read.
func hungUp(c net.Conn) (yes bool) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(poll, 0)
		yes = n > 0 || err != nil
	})
	return yes || err != nil
}

// TestExpensiveQuestions asks for all that is long to work out, 200 questions at a time.
func TestExpensiveQuestions(t *testing.T) {
	g := gateway(t)
	b := beside(t, alone(g), "expensive")
	newAttack(t, g).run(0, 20)
	atOnce(200, func() {
		client := &http.Client{Timeout: process.Patience, Transport: &http.Transport{DialContext: elsewhere.DialContext}}
		defer client.CloseIdleConnections()
		for _, path := range []string{
			"stats/summary", "nodes?gpus=true&limit=500", "gpus?limit=500", "stragglers?limit=1000", "groups?limit=500",
			"telemetry/aggregations?group_by=host&since=7d", "telemetry/hosts?limit=500", "telemetry?limit=500",
		} {
			resp, err := client.Get("http://" + g.Fleet + "/api/v1/" + path)
			if err == nil { // or there are too many
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}
	})
	b.end()
}
