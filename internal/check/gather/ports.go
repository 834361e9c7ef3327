// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"

	"github.com/gpu-collector/gpu-collector/internal/check"
	"github.com/gpu-collector/gpu-collector/internal/distro"
)

// ports tries to listen on each address, for a moment, and takes no connection.
func ports(ctx context.Context, listens []distro.Listen) []check.Port {
	all := make([]check.Port, len(listens))
	held := map[string]*check.Port{} // by socket
	for i, l := range listens {
		p := &all[i]
		p.Key, p.Address = l.Key, l.Address
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.Address)
		switch {
		case err == nil:
			p.Free = true
			_ = listener.Close()
		case errors.Is(err, syscall.EADDRINUSE):
			p.Held = true
			for _, socket := range sockets(l.Address) {
				held[socket] = p
			}
		default:
			p.Error = err.Error()
			if errno, ok := errors.AsType[syscall.Errno](err); ok {
				p.Error = errno.Error()
			}
		}
	}
	if len(held) > 0 {
		holders(ctx, held)
	}
	return all
}

// sockets are those that listen on an address, or in its way, as /proc names them.
func sockets(address string) (names []string) {
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil
	}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return nil
	}
	const listening = 0x0a
	for _, read := range []func() (procfs.NetTCP, error){fs.NetTCP, fs.NetTCP6} { //nolint:staticcheck // SA1019: netlink would be one more dependency
		lines, _ := read()
		for _, line := range lines {
			anyAddress := line.LocalAddr.IsUnspecified() || len(at.IP) == 0 || at.IP.IsUnspecified()
			if line.St == listening && line.LocalPort == uint64(at.Port) && (anyAddress || line.LocalAddr.Equal(at.IP)) {
				names = append(names, fmt.Sprintf("socket:[%d]", line.Inode))
			}
		}
	}
	return names
}

// holders names the processes that hold sockets, as far as this user may see them.
func holders(ctx context.Context, held map[string]*check.Port) {
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		links, _ := os.ReadDir(filepath.Join(process, "fd"))
		for _, link := range links {
			to, err := os.Readlink(filepath.Join(process, "fd", link.Name()))
			p := held[to]
			if err != nil || p == nil {
				continue
			}
			comm, _ := os.ReadFile(filepath.Join(process, "comm")) //nolint:gosec // G304: of a process
			name := strings.TrimSpace(string(comm))
			p.Holder, p.Own = name+" (process "+filepath.Base(process)+")", strings.HasPrefix(name, "gpu-collector")
		}
		if ctx.Err() != nil {
			return
		}
	}
}
