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
	var all []check.Port
	for _, l := range listens {
		p := check.Port{Key: l.Key, Address: l.Address}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.Address)
		switch {
		case err == nil:
			p.Free = true
			_ = listener.Close()
		case errors.Is(err, syscall.EADDRINUSE):
			p.Held = true
			p.Holder, p.Own = holder(l.Address)
		default:
			p.Error = err.Error()
			if errno, ok := errors.AsType[syscall.Errno](err); ok {
				p.Error = errno.Error()
			}
		}
		all = append(all, p)
	}
	return all
}

// holder names the process that listens on the port of an address, as far as this user may see
// it, and reports whether it is a collector.
func holder(address string) (name string, own bool) {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", false
	}
	port, err := net.LookupPort("tcp", text)
	if err != nil {
		return "", false
	}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return "", false
	}
	const listening = 0x0a
	sockets := map[string]bool{}
	for _, read := range []func() (procfs.NetTCP, error){fs.NetTCP, fs.NetTCP6} {
		lines, _ := read()
		for _, line := range lines {
			if line.St == listening && line.LocalPort == uint64(port) { //nolint:gosec // G115: a port
				sockets[fmt.Sprintf("socket:[%d]", line.Inode)] = true
			}
		}
	}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		if to, err := os.Readlink(link); err != nil || !sockets[to] {
			continue
		}
		process := filepath.Dir(filepath.Dir(link))
		comm, err := os.ReadFile(filepath.Join(process, "comm")) //nolint:gosec // G304: of a process
		if err != nil {
			continue
		}
		name := strings.TrimSpace(string(comm))
		return name + " (process " + filepath.Base(process) + ")", strings.HasPrefix(name, "gpu-collector")
	}
	return "", false
}
