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
	var unasked sync.Map // of net.Conn
	s.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateNew {
			unasked.Store(c, nil)
		} else {
			unasked.Delete(c)
		}
	}
	s.RegisterOnShutdown(func() {
		unasked.Range(func(c, _ any) bool {
			_ = c.(net.Conn).Close()
			return true
		})
	})
}
