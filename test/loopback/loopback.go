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

// Linux gives ports 32768 to 60999 to outgoing connections and to port 0
// (ip_local_port_range). These lie below, so no other test takes them first.
const first, count = 20000, 12000

// held are the reservations of this process, which end with it.
var held struct {
	sync.Mutex
	reservations []net.PacketConn
}

// Addr returns a host:port on 127.0.0.1 that is free, and that no
// other caller gets while this process runs, in it or in another: packages are
// tested side by side, and a server may take its port long after it was chosen.
// It fails when no port is free.
func Addr(ctx context.Context) (string, error) {
	for range count {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+rand.IntN(count)))
		if reserve(ctx, addr) == nil {
			return addr, nil
		}
	}
	return "", errors.New("no free port on 127.0.0.1")
}

// reserve holds the UDP port of that number, which no server of ours takes
// and which leaves the TCP port to the server. It fails where either is taken.
func reserve(ctx context.Context, addr string) error {
	reservation, err := new(net.ListenConfig).ListenPacket(ctx, "udp", addr)
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return errors.Join(err, reservation.Close())
	}
	held.Lock()
	defer held.Unlock()
	held.reservations = append(held.reservations, reservation)
	return l.Close()
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
