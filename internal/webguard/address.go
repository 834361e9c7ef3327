// SPDX-License-Identifier: Apache-2.0

package webguard

import (
	"net"
	"net/http"
)

// Address is that of a reader nobody has authenticated, without its port.
func Address(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
