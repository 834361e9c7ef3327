// SPDX-License-Identifier: Apache-2.0

package webguard

import (
	"net/http"
	"net/netip"
)

// Address is that of a reader without authentication, without its port. Of IPv6 it is
// the /64, in which one machine may have any number of addresses (RFC 4291, 2.5.4).
func Address(r *http.Request) string { return Network(r.RemoteAddr) }

// Network is the Address of a remote address with its port. Those that are no address of
// IP, as of Unix sockets, have one in common.
func Network(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return ""
	}
	addr := at.Addr().Unmap()
	if addr.Is4() || addr.IsLoopback() {
		return addr.String()
	}
	network := netip.PrefixFrom(addr.WithZone(""), 64).Masked().String()
	if zone := addr.Zone(); zone != "" {
		return network + "%" + zone
	}
	return network
}
