// SPDX-License-Identifier: Apache-2.0

package standbyextension

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// patience is how long a connection waits for a process that is active: longer than
	// one takes over.
	patience    = 15 * time.Second
	dialAgain   = 100 * time.Millisecond
	dialTimeout = time.Second
)

// relay hands connections on to the active process, byte by byte: TLS goes through it. A
// connection that comes while nobody is active waits, and is then this process' own.
type relay struct {
	listen []string
	target func(place int) string
	room   chan struct{} // a place for each connection

	mu        sync.Mutex
	listeners []net.Listener
	handed    map[net.Conn]struct{} // to another process
	ended     chan struct{}
	endOnce   sync.Once
	all       sync.WaitGroup
}

func newRelay(listen []string, most int, target func(int) string) *relay {
	return &relay{listen: listen, target: target, room: make(chan struct{}, most), handed: map[net.Conn]struct{}{}, ended: make(chan struct{})}
}

func (r *relay) count() int { return len(r.room) }

// open begins to listen.
func (r *relay) open(ctx context.Context) error {
	var lc net.ListenConfig
	for place, addr := range r.listen {
		ln, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			return errors.Join(err, r.close())
		}
		r.mu.Lock()
		r.listeners = append(r.listeners, ln)
		r.mu.Unlock()
		r.all.Go(func() { r.accept(ln, place) })
	}
	return nil
}

// close ends listening, for others to listen there, and the connections to a process that
// is no longer active. Those that wait go on waiting.
func (r *relay) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, ln := range r.listeners {
		errs = append(errs, ln.Close())
	}
	r.listeners = nil
	for c := range r.handed {
		_ = c.Close()
	}
	clear(r.handed)
	return errors.Join(errs...)
}

// end closes all connections.
func (r *relay) end() {
	r.endOnce.Do(func() { close(r.ended) })
	r.all.Wait()
}

func (r *relay) accept(ln net.Listener, place int) {
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no file descriptors left, or a client that is gone
			time.Sleep(dialAgain)
			continue
		}
		select {
		case r.room <- struct{}{}:
			r.all.Go(func() {
				defer func() { <-r.room }()
				defer func() { _ = c.Close() }()
				r.hand(c, place)
			})
		default:
			_ = c.Close()
		}
	}
}

// hand finds who takes a connection, and copies until either end has had enough.
func (r *relay) hand(c net.Conn, place int) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if addr := r.target(place); addr != "" {
			to, err := net.DialTimeout("tcp", addr, dialTimeout)
			if err == nil {
				r.join(c, to)
				return
			}
		}
		select {
		case <-r.ended:
			return
		case <-time.After(dialAgain):
		}
	}
}

func (r *relay) join(a, b net.Conn) {
	r.mu.Lock()
	r.handed[b] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.handed, b)
		r.mu.Unlock()
		_ = b.Close()
	}()
	done := make(chan struct{}, 2)
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		if half, ok := to.(*net.TCPConn); ok {
			_ = half.CloseWrite() // the other way may go on
		}
		done <- struct{}{}
	}
	go pass(a, b)
	go pass(b, a)
	for range 2 {
		select {
		case <-done:
		case <-r.ended:
			return
		}
	}
}
