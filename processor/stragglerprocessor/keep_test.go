// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"testing"
	"testing/synctest"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/extension/xextension/storage"

	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// TestGatewayKeepsWhatItLearnt with the Collector's own file storage: after a restart the
// straggler is one with the first tick, since the same time.
func TestGatewayKeepsWhatItLearnt(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		factory := filestorage.NewFactory()
		id := component.NewID(factory.Type())
		cfg := factory.CreateDefaultConfig().(*filestorage.Config)
		cfg.Directory = dir
		life := func(run func(r *gatewayRig)) {
			store, err := factory.Create(t.Context(), extensiontest.NewNopSettings(factory.Type()), cfg)
			require.NoError(t, err)
			require.NoError(t, store.Start(t.Context(), componenttest.NewNopHost()))
			r := newGatewayRig(t, func(c *Config) { c.StorageID = &id }, nil)
			h := hostWith(r.ext)
			h.ext[id] = store
			require.NoError(t, r.g.Start(t.Context(), h))
			run(r)
			require.NoError(t, r.g.Shutdown(t.Context()))
			require.NoError(t, store.Shutdown(t.Context()))
		}
		md := fleet(1, 1, 0.4, 1, 1)
		life(func(r *gatewayRig) {
			for range 30 {
				r.push(md)
				r.next()
			}
		})
		life(func(r *gatewayRig) {
			assert.Equal(t, 5, r.g.engine.Nodes())
			r.push(md)
			got := r.next()
			assert.InDelta(t, 1, got["n2 gpu.node.straggler J/stage-0"], 0)
			assert.InDelta(t, 0, got["n0 gpu.node.straggler J/stage-0"], 0)
			assert.Zero(t, got["n0 gpu.node.unjudged J/stage-0"], "nobody warms up again")
		})
		store, err := factory.Create(t.Context(), extensiontest.NewNopSettings(factory.Type()), cfg)
		require.NoError(t, err)
		require.NoError(t, store.Start(t.Context(), componenttest.NewNopHost()))
		client, err := store.(storage.Extension).GetClient(t.Context(), component.KindProcessor, component.NewID(metadata.Type), "")
		require.NoError(t, err)
		data, err := client.Get(t.Context(), engineKey)
		require.NoError(t, err)
		data[0]++ // of the checksum: gob would read the rest
		require.NoError(t, client.Set(t.Context(), engineKey, data))
		require.NoError(t, client.Close(t.Context()))
		require.NoError(t, store.Shutdown(t.Context()))
		life(func(r *gatewayRig) {
			assert.Zero(t, r.g.engine.Nodes())
			require.Len(t, r.logs.FilterMessageSnippet("is not used").All(), 1)
		})

		unknown := component.MustNewID("nowhere")
		r := newGatewayRig(t, func(c *Config) { c.StorageID = &unknown }, nil)
		assert.ErrorContains(t, r.g.Start(t.Context(), hostWith(r.ext)), "storage")
	})
}
