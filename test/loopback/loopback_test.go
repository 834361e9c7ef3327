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
