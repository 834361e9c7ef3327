// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
)

// TestADamagedStateIsSetAside: whatever a disk did to a gateway's file, the gateway starts,
// says what it makes of the file, and has its nodes back with one push of each.
func TestADamagedStateIsSetAside(t *testing.T) {
	t.Parallel()
	const page = 4096
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 21))
	drawn := func(b []byte) []byte {
		at := rng.IntN(len(b)/page) * page
		return b[at : at+page]
	}
	gp, state := newGatewayPorts(t), t.TempDir()
	gateway := start(t, options{configs: []string{"configs/gateway.yaml", gp.overlay(t), patient}, env: []string{"STATE_DIRECTORY=" + state}})
	f := &fleet{cluster: "broken", hot: -1}
	client, file := grpcClient(t, gp.grpc), filepath.Join(state, "processor_straggler__state")
	whole := func() {
		t.Helper()
		eventually(t, "one push is taken", func() bool {
			_, err := client.Export(t.Context(), pmetricotlp.NewExportRequestFromMetrics(f.push()))
			return err == nil
		})
		eventually(t, "all nodes are seen", func() bool {
			var nodes fleetapi.NodePage
			getJSON(t, "http://"+gp.fleet+"/api/v1/nodes?cluster=broken", &nodes)
			return len(nodes.Nodes) == 8
		})
	}
	kept := func() {
		t.Helper()
		eventually(t, "the state is written", func() bool {
			size, ok := scrape(t, gp.telemetry).value("otelcol_processor_straggler_state_size", nil)
			return ok && size > 0
		})
	}
	// The older beginning of a file, to which bbolt turns, may be from before the first state.
	const aside, used = "is set aside, and a new one begins", "goes on with the state of before"
	told := func() (lines int) {
		for _, text := range []string{aside, used, "set aside, under its keys", "has no state of before"} {
			lines += gateway.log.Count(text)
		}
		return lines
	}
	whole()
	for restarts, damage := range []func([]byte) []byte{
		// The beginnings are whole: this ends the process where nobody looks first.
		func(b []byte) []byte { clear(b[2*page:]); return b },
		func(b []byte) []byte { return b[:1+rng.IntN(len(b)-1)] },
		func(b []byte) []byte { clear(drawn(b)); clear(drawn(b)); return b },
		func(b []byte) []byte { drawn(b)[rng.IntN(page)] ^= 1 << rng.IntN(8); return b },
		func(b []byte) []byte { copy(drawn(b), drawn(b)); return b },
		func(b []byte) []byte {
			for p, i := drawn(b), 0; i < page; i++ {
				p[i] = byte(rng.Uint32())
			}
			return b
		},
		func(b []byte) []byte { return b },
	} {
		kept()
		gateway.kill()
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Greater(t, len(b), 2*page)
		require.NoError(t, os.WriteFile(file, damage(b), 0o600))
		before := told()
		gateway.restart()
		whole()
		require.Greater(t, told(), before, "each start says what became of the file")
		if restarts == 0 {
			require.Equal(t, 1, gateway.log.Count(aside, file+".set_aside"))
			bad, err := os.ReadFile(file + ".set_aside")
			require.NoError(t, err)
			assert.Equal(t, b, bad)
		}
	}
	assert.GreaterOrEqual(t, gateway.log.Count(used), 1, "the last file is whole")
	assert.Zero(t, gateway.log.Count("will not survive a restart"))
}
