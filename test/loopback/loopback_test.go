// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFreeAddr(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		addr := FreeAddr(t)
		assert.False(t, seen[addr], addr)
		seen[addr] = true
		l, err := net.Listen("tcp", addr)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
}

func TestReserved(t *testing.T) {
	addr := FreeAddr(t)
	// As another process would ask: the kernel is the same.
	require.ErrorContains(t, reserve(t.Context(), addr), "address already in use")
}

func TestTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
	require.ErrorContains(t, reserve(t.Context(), l.Addr().String()), "address already in use")
	udp, err := net.ListenPacket("udp", l.Addr().String())
	require.NoError(t, err, "nothing stays reserved")
	require.NoError(t, udp.Close())
}
