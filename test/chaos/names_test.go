// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/nameserver"
)

// TestNames has the shard move to another address, as pods do: a new one is
// there, the name says so, and the old one goes, in peace or in a crash.
func TestNames(t *testing.T) {
	t.Parallel()
	hosts := []string{"127.0.0.1", "127.0.0.2"}
	_, port, err := net.SplitHostPort(loopback.FreeAddr(t))
	require.NoError(t, err)
	at := func(i int) string { return net.JoinHostPort(hosts[i], port) }
	names := nameserver.Start(t, hosts[0])
	w := newWorld(t, setup{shardAddr: at(0), toShard: "dns://" + names.Addr + "/shard.test:" + port})
	old, other := w.shard, newMember(t, "shard 2", at(1), []string{"GPU_COLLECTOR_GATEWAY=" + w.up.Listen, noTLS}, "configs/shard.yaml")
	other.before = old.before
	for i := range pick(2, 4) {
		w.suffer(func() {
			require.NoError(t, other.Start())
			names.Set(hosts[(i+1)%2])
			time.Sleep(pick(interval, 2*interval))
			if i%2 == 0 {
				require.NoError(t, old.Kill())
			} else {
				require.NoError(t, old.Stop())
			}
		})
		w.shard = other
		w.recovered(t)
		old, other = other, old
	}
}
