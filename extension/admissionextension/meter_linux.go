// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"errors"
	"io"
	"net"
	"syscall"

	"google.golang.org/grpc/mem"
)

// ReadOnReady reads into a buffer that it takes once there is something to read: gRPC asks
// connections for it, and those that are idle then hold no buffer of 32 KiB.
func (c *meteredConn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	tcp, ok := c.Conn.(*net.TCPConn)
	if !ok {
		return c.readAhead(size, pool)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	var buf *[]byte
	n := 0
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		buf = pool.Get(size)
		for {
			n, failed = syscall.Read(int(fd), *buf)
			if !errors.Is(failed, syscall.EINTR) {
				break
			}
		}
		if errors.Is(failed, syscall.EAGAIN) {
			pool.Put(buf)
			buf = nil
			return false
		}
		return true
	})
	switch {
	case err != nil: // closed, or out of time
	case failed != nil:
		err = &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: failed}
	case n == 0:
		err = io.EOF
	case !c.count.Received((*buf)[:n]):
		err = errNoBytes
	default:
		return buf, n, nil
	}
	if buf != nil {
		pool.Put(buf)
	}
	return nil, 0, err
}

// readAhead is for TLS, which holds a buffer of its own as well.
func (c *meteredConn) readAhead(size int, pool mem.BufferPool) (*[]byte, int, error) {
	buf := pool.Get(size)
	n, err := c.Read(*buf)
	if n == 0 {
		pool.Put(buf)
		return nil, 0, err
	}
	return buf, n, err
}
