// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
)

// The demo's servers.
const (
	page = iota
	otlp
	thresholds
	exposition
	numPorts
)

var servers = [numPorts]struct {
	what, env string // the variable of configs/demo.yaml
	port      int    // the page's is a flag's
}{
	page:       {"the page", "DEMO_FLEET_PORT", 0},
	otlp:       {"OTLP", "DEMO_OTLP_PORT", 14317},
	thresholds: {"the API of thresholds", "DEMO_API_PORT", 8085},
	exposition: {"Prometheus' endpoint", "DEMO_PROMETHEUS_PORT", 9464},
}

// findPorts returns the ports of all servers, and a sentence about those that are free
// ones in place of the usual.
func findPorts(o *options) (ports [numPorts]int, moved string, err error) {
	var all []string
	for i, server := range servers {
		host, port := "127.0.0.1", server.port
		if i == page {
			host, port = strings.Trim(o.listen, "[]"), o.port
		}
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) {
			if l, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err == nil {
				all = append(all, fmt.Sprintf("%d is taken, %s has %d", port, server.what, portOf(l)))
			}
		}
		if err != nil && i == page {
			err = fmt.Errorf("`--listen` is %q and `--port` %d, must be an address of this machine and a port up to 65535: %w", host, port, err)
		}
		if err != nil {
			return ports, "", fmt.Errorf("no port for %s: %w", server.what, err)
		}
		// All are held until all are found, or one would be found twice.
		defer func() { _ = l.Close() }()
		ports[i] = portOf(l)
	}
	if len(all) > 0 {
		moved = "Ports: " + strings.Join(all, "; ") + "."
	}
	return ports, moved, nil
}

func portOf(l net.Listener) int {
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0 // not of TCP
}
