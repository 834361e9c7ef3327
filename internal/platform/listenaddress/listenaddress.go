// SPDX-License-Identifier: Apache-2.0

// Package listenaddress checks whether a server can listen on a configured address.
package listenaddress // import "github.com/gpu-collector/gpu-collector/internal/platform/listenaddress"

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
)

// name is of a host: not only digits and dots, which would be an address with a slip.
var name = regexp.MustCompile(`^[\w.-]*[A-Za-z_-][\w.-]*$`)

// Check returns what is wrong with an endpoint, for behind the name of its key.
func Check(endpoint string) error {
	host, port, err := net.SplitHostPort(endpoint)
	_, noAddress := netip.ParseAddr(host)
	_, noPort := net.LookupPort("tcp", port) // takes a service's name too, and nothing for 0
	if err == nil && port != "" && noPort == nil && (host == "" || noAddress == nil || name.MatchString(host)) {
		return nil
	}
	return fmt.Errorf("is %q, must be a host and a port of 0 to 65535, such as 127.0.0.1:4317 or [::1]:4317", endpoint)
}
