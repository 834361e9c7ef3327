// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGatewayKeepsWhatItLearnt: after a restart the straggler is one with the first tick,
// since the same time. A damaged file is set aside, and the gateway runs.
func TestGatewayKeepsWhatItLearnt(t *testing.T) {
	directory := t.TempDir()
	file := filepath.Join(directory, "straggler.state")
	synctest.Test(t, func(t *testing.T) {
		life := func(run func(r *gatewayRig)) {
			r := newGatewayRig(t, func(c *Config) { c.StateDirectory = directory }, nil)
			require.NoError(t, r.g.Start(t.Context(), hostWith(r.ext)))
			run(r)
			require.NoError(t, r.g.Shutdown(t.Context()))
		}
		md := fleet(1, 1, 0.4, 1, 1)
		life(func(r *gatewayRig) {
			for range 30 {
				r.push(md)
				r.next()
			}
			assert.FileExists(t, file, "it is written while the gateway runs")
		})
		life(func(r *gatewayRig) {
			data, err := learnt{r.g.gateway}.Snapshot()
			require.NoError(t, err)
			assert.Nil(t, data, "before its first tick it has nothing else to keep")
		})
		life(func(r *gatewayRig) {
			assert.Equal(t, 5, r.g.engine.Nodes())
			r.push(md)
			got := r.next()
			assert.InDelta(t, 1, got["n2 gpu.node.straggler J/stage-0"], 0)
			assert.InDelta(t, 0, got["n0 gpu.node.straggler J/stage-0"], 0)
			assert.Zero(t, got["n0 gpu.node.unjudged J/stage-0"], "nobody warms up again")
		})
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		data[len(data)/2] ^= 1
		require.NoError(t, os.WriteFile(file, data, 0o600))
		life(func(r *gatewayRig) {
			assert.Zero(t, r.g.engine.Nodes())
			require.Len(t, r.logs.FilterMessageSnippet("the file is set aside").All(), 1)
			assert.FileExists(t, file+".set_aside")
		})
	})
}
