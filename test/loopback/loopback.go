// SPDX-License-Identifier: Apache-2.0

// Package loopback gives tests and benchmarks addresses for servers that take an address
// rather than a listener.
package loopback

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
)

// The ports lie below those that Linux gives to outgoing connections and to
// port 0 (ip_local_port_range, 32768 to 60999), so that no test beside this one
// takes them before the server does.
const first, count = 20000, 12000

var given struct {
	sync.Mutex
	ports map[int]bool
}

// Addr returns a host:port on 127.0.0.1 that nobody listens on, and none twice
// in a process. It fails when no port is free.
func Addr(ctx context.Context) (string, error) {
	given.Lock()
	defer given.Unlock()
	if given.ports == nil {
		given.ports = map[int]bool{}
	}
	for range count {
		port := first + rand.IntN(count)
		if given.ports[port] {
			continue
		}
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
		if err != nil {
			continue
		}
		given.ports[port] = true
		return addr, l.Close()
	}
	return "", errors.New("no free port on 127.0.0.1")
}

// FreeAddr is Addr for a test.
func FreeAddr(t testing.TB) string {
	t.Helper()
	addr, err := Addr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return addr
}
