// SPDX-License-Identifier: Apache-2.0

//go:build linux

package harness

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRelayCounts(t *testing.T) {
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.CopyN(c, c, 5)
			_ = c.Close()
		}
	}()
	r, err := NewRelay(t.Context(), ln.Addr().String())
	require.NoError(t, err)
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.Addr)
	require.NoError(t, err)
	_, err = c.Write([]byte("hello"))
	require.NoError(t, err)
	text, err := io.ReadAll(c)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	assert.Equal(t, "hello", string(text))
	assert.EqualValues(t, 5, r.Up.Load())
	assert.EqualValues(t, 5, r.Down.Load())
}
