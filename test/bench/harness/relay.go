// SPDX-License-Identifier: Apache-2.0

//go:build linux

package harness

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// Relay passes connections on to an address and counts their bytes, as they are on the
// wire between two tiers.
type Relay struct {
	Addr     string
	Up, Down atomic.Int64

	to    string
	ln    net.Listener
	mu    sync.Mutex
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

// NewRelay listens on an address of its own.
func NewRelay(ctx context.Context, to string) (*Relay, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{Addr: ln.Addr().String(), to: to, ln: ln, conns: map[net.Conn]bool{}}
	r.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.serve(c) })
		}
	})
	return r, nil
}

func (r *Relay) serve(from net.Conn) {
	defer func() { _ = from.Close() }()
	to, err := new(net.Dialer).DialContext(context.Background(), "tcp", r.to)
	if err != nil {
		return // the sender sees its connection end, as at a gateway that is away
	}
	defer func() { _ = to.Close() }()
	r.mu.Lock()
	r.conns[from], r.conns[to] = true, true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.conns, from)
		delete(r.conns, to)
		r.mu.Unlock()
	}()
	var both sync.WaitGroup
	pass := func(dst, src net.Conn, n *atomic.Int64) {
		_, _ = io.Copy(counter{dst, n}, src)
		_, _ = dst.Close(), src.Close()
	}
	both.Go(func() { pass(to, from, &r.Up) })
	both.Go(func() { pass(from, to, &r.Down) })
	both.Wait()
}

// Close ends its connections.
func (r *Relay) Close() error {
	err := r.ln.Close()
	r.mu.Lock()
	for c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
	return err
}

type counter struct {
	io.Writer

	n *atomic.Int64
}

func (c counter) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.n.Add(int64(n))
	return n, err
}
