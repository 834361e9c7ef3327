// SPDX-License-Identifier: Apache-2.0

package webguard

import (
	"net"
	"net/http"
	"sync"
)

// EndUnasked has the Shutdown of a server, which does not serve yet, close the connections
// that nothing was asked on. net/http waits for them for five to six seconds
// (golang.org/issue/22682), and browsers open some ahead.
func EndUnasked(s *http.Server) {
	u := &unasked{conns: map[net.Conn]struct{}{}, next: s.ConnState}
	s.ConnState = u.note
	s.RegisterOnShutdown(u.end)
}

type unasked struct {
	next func(net.Conn, http.ConnState) // may be nil

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	ended bool
}

func (u *unasked) note(c net.Conn, state http.ConnState) {
	if u.next != nil {
		u.next(c, state)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(u.conns, c)
	case u.ended:
		_ = c.Close()
	default:
		u.conns[c] = struct{}{}
	}
}

func (u *unasked) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
	for c := range u.conns {
		_ = c.Close()
	}
	clear(u.conns)
}
