// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"math"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"

	"github.com/gpu-collector/gpu-collector/internal/memorybudget"
)

const mib = 1 << 20

// resolved is what the mains have read of such configurations.
func resolved(t *testing.T, uris ...string) *confmap.Conf {
	t.Helper()
	r, err := confmap.NewResolver(confmap.ResolverSettings{
		URIs:              uris,
		ProviderFactories: []confmap.ProviderFactory{envprovider.NewFactory(), fileprovider.NewFactory(), yamlprovider.NewFactory()},
	})
	require.NoError(t, err)
	conf, err := r.Resolve(t.Context())
	require.NoError(t, err)
	return conf
}

// All parts of each configuration that ships fit into what its memory_limiter allows,
// in a cgroup of 2 GiB.
func TestShippedConfigurationsFit(t *testing.T) {
	const (
		pushes, table, pending     = memorybudget.Pushes, memorybudget.Table, memorybudget.Pending
		history, views, comparison = memorybudget.History, memorybudget.Views, memorybudget.Comparison
		scores                     = memorybudget.Scores
		two                        = 2 << 30
		percent                    = two / 100 * 80
	)
	gateway := []memorybudget.Part{pushes, table, history, views, comparison}
	seen := map[string]bool{}
	for _, tt := range []struct {
		files []string
		limit int64
		parts []memorybudget.Part
	}{
		{[]string{"agent.yaml"}, 160 * mib, []memorybudget.Part{pushes, scores}},
		{[]string{"all-in-one.yaml"}, 320 * mib, append(slices.Clone(gateway), scores)},
		{[]string{"gateway.yaml"}, percent, gateway},
		{[]string{"shard.yaml"}, percent, []memorybudget.Part{pushes, table, pending}},
		{[]string{"kafka-shard.yaml"}, percent, []memorybudget.Part{pushes, table, comparison}},
		{[]string{"kafka-root.yaml"}, percent, []memorybudget.Part{table, history, views}},
		{[]string{"ingero-compat.yaml"}, percent, []memorybudget.Part{pushes, comparison}},
		{[]string{"demo.yaml"}, 0, []memorybudget.Part{table, history, views, comparison, scores}},
		{[]string{"agent.yaml", "overlays/prometheus.yaml"}, 160 * mib, []memorybudget.Part{pushes, scores}},
		{[]string{"agent.yaml", "overlays/mtls-agent.yaml", "overlays/tenant-agent.yaml"}, 160 * mib, []memorybudget.Part{pushes, scores}},
		{[]string{"gateway.yaml", "overlays/mtls-gateway.yaml", "overlays/tenants.yaml"}, percent, gateway},
		{[]string{"gateway.yaml", "overlays/root.yaml"}, percent, nil},
		{[]string{"gateway.yaml", "overlays/otlp-push.yaml"}, percent, append(slices.Clone(gateway), table, pending)},
		{[]string{"gateway.yaml", "overlays/remote-write.yaml"}, percent, append(slices.Clone(gateway), table, pending)},
	} {
		var uris []string
		for _, file := range tt.files {
			seen[file] = true
			uris = append(uris, "file:../../configs/"+file)
		}
		d := division(resolved(t, uris...), two)
		assert.Equal(t, tt.limit, d.Limit, tt.files)
		assert.ElementsMatch(t, tt.parts, d.Parts, tt.files)
		if d.Limit == 0 {
			d.Limit, _ = memorybudget.Limit(0)
		}
		sum := d.Fixed
		for _, p := range d.Parts {
			sum += d.Of(p)
		}
		assert.LessOrEqual(t, sum, d.Limit, tt.files)
	}
	for _, pattern := range []string{"*.yaml", "overlays/*.yaml"} {
		files, err := filepath.Glob("../../configs/" + pattern)
		require.NoError(t, err)
		for _, file := range files {
			name, err := filepath.Rel("../../configs", file)
			require.NoError(t, err)
			assert.True(t, seen[name], name)
		}
	}
}

func TestDivisionGoesByWhatTheServiceHas(t *testing.T) {
	for name, tt := range map[string]struct {
		config string
		want   memorybudget.Division
	}{
		"the least memory_limiter": {
			"{processors: {memory_limiter: {limit_mib: 400, spike_limit_mib: 80}, memory_limiter/b: {limit_mib: 100}}, " +
				"service: {pipelines: {metrics: {processors: [memory_limiter]}, logs: {processors: [memory_limiter/b]}}}}",
			memorybudget.Division{Limit: 80 * mib},
		},
		"a percentage": {
			"{processors: {memory_limiter: {limit_percentage: 50}}, service: {pipelines: {metrics: {processors: [memory_limiter]}}}}",
			memorybudget.Division{Limit: 400_000},
		},
		"an extension": {
			"{extensions: {memory_limiter: {limit_mib: 100, spike_limit_mib: 10}}, service: {extensions: [memory_limiter]}}",
			memorybudget.Division{Limit: 90 * mib},
		},
		"what nobody uses": {
			"{processors: {memory_limiter: {limit_mib: 400}, diff: {}}, extensions: {admission: {}}, service: {pipelines: {metrics: {processors: []}}}}",
			memorybudget.Division{},
		},
		"keys with bytes": {
			"{processors: {diff: {flush_interval: 1s, max_bytes: 1000000, max_pending_points: 1000}}, extensions: {admission: {max_bytes: 500}, fleet_view: {history: {sqlite: {queue_mib: 1}}}}, " +
				"service: {extensions: [admission, fleet_view], pipelines: {metrics: {processors: [diff]}}}}",
			memorybudget.Division{Fixed: 1000000 + 1000<<10 + 500 + mib, Parts: []memorybudget.Part{memorybudget.Views}},
		},
		"an agent compares nobody": {
			"{processors: {straggler: {mode: agent}}, service: {pipelines: {metrics: {processors: [straggler]}}}}",
			memorybudget.Division{Parts: []memorybudget.Part{memorybudget.Scores}},
		},
		"mistakes": {
			"{processors: {memory_limiter: {limit_mib: many}, diff: 3}, service: {pipelines: {metrics: {processors: [memory_limiter, diff]}}}}",
			memorybudget.Division{},
		},
	} {
		assert.Equal(t, tt.want, division(resolved(t, "yaml:"+tt.config), 1_000_000), name)
	}
}

func TestGarbageIsCollectedByTheSameNumber(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	conf := resolved(t, "yaml:{processors: {memory_limiter: {limit_mib: 150, spike_limit_mib: 50}}, service: {pipelines: {metrics: {processors: [memory_limiter]}}}}")
	t.Setenv("GOMEMLIMIT", "off")
	require.NoError(t, memoryDivider{}.Convert(t.Context(), conf))
	assert.EqualValues(t, math.MaxInt64, debug.SetMemoryLimit(-1), "the environment has decided")
	t.Setenv("GOMEMLIMIT", "")
	require.NoError(t, memoryDivider{}.Convert(t.Context(), conf))
	assert.EqualValues(t, 100*mib, debug.SetMemoryLimit(-1))
	assert.EqualValues(t, 50*mib, memorybudget.Pushes.Bytes())

	// A reload goes by its own configuration, whatever the one before said.
	conf = resolved(t, "yaml:{processors: {memory_limiter: {limit_mib: 190, spike_limit_mib: 50}}, service: {pipelines: {metrics: {processors: [memory_limiter]}}}}")
	require.NoError(t, memoryDivider{}.Convert(t.Context(), conf))
	assert.EqualValues(t, 140*mib, debug.SetMemoryLimit(-1))
	assert.EqualValues(t, 70*mib, memorybudget.Pushes.Bytes())
	require.NoError(t, memoryDivider{}.Convert(t.Context(), resolved(t, "yaml:{service: {}}")))
	assert.Greater(t, debug.SetMemoryLimit(-1), int64(140*mib))
	t.Setenv("GOMEMLIMIT", "1GiB")
	debug.SetMemoryLimit(1 << 30)
	require.NoError(t, memoryDivider{}.Convert(t.Context(), conf))
	assert.EqualValues(t, 1<<30, debug.SetMemoryLimit(-1), "the environment's stays")
}
