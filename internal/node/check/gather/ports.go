// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"context"
	"errors"
	"net"
	"syscall"

	"github.com/gpu-collector/gpu-collector/internal/node/check"
	"github.com/gpu-collector/gpu-collector/internal/platform/distro"
)

// ports tries to listen on each address, for a moment, and takes no connection.
func ports(ctx context.Context, c *distro.Configuration) []check.Finding {
	all := make([]check.Port, 0, len(c.Listens))
	for _, l := range c.Listens {
		p := check.Port{Key: l.Key, Address: l.Address}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.Address)
		if err == nil {
			_ = listener.Close()
		} else {
			p.Taken, p.Error = errors.Is(err, syscall.EADDRINUSE), err.Error()
		}
		all = append(all, p)
	}
	return check.Ports(all)
}
