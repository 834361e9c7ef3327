// SPDX-License-Identifier: Apache-2.0

package wirediffextension

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/extension/extensiontest"

	"github.com/gpu-collector/gpu-collector/extension/wirediffextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
)

func TestConfig(t *testing.T) {
	conf, err := confmaptest.LoadConf(filepath.Join("testdata", "config.yaml"))
	require.NoError(t, err)
	load := func(name string) *Config {
		sub, err := conf.Sub(name)
		require.NoError(t, err)
		cfg := createDefaultConfig().(*Config)
		require.NoError(t, sub.Unmarshal(cfg))
		require.NoError(t, cfg.Validate())
		return cfg
	}
	assert.Equal(t, createDefaultConfig(), load("wire_diff"))
	source := component.MustNewID("straggler_threshold")
	assert.Equal(t, &Config{
		ResyncInterval: time.Minute, HeartbeatInterval: 30 * time.Second, TTL: 20 * time.Minute, VanishedAfter: 2 * time.Minute,
		MaxNodes: 2000, MaxSeries: 1_000_000, MaxSeriesPerNode: 1000, ClusterShare: 0.8,
		Deadbands:   []deadband.Rule{{Metric: "hw.temperature", Absolute: 1}},
		Granularity: GranularityNode, ThresholdExtension: &source, MetricsURLPath: "/otlp/v1/metrics",
	}, load("wire_diff/all"))
}

func TestValidateReportsAll(t *testing.T) {
	err := (&Config{
		FlushInterval: time.Second, ResyncInterval: -1, HeartbeatInterval: -1, TTL: time.Millisecond, VanishedAfter: -1, MetricsURLPath: "v1",
		Deadbands: []deadband.Rule{{}}, Granularity: "gpu",
	}).Validate()
	for _, key := range []string{
		"`flush_interval`", "`resync_interval`", "`heartbeat_interval`", "`ttl`", "`vanished_after`", "`max_nodes`", "`max_series`",
		"`cluster_share`", "`max_series_per_node`", "`deadbands[0]`", "`granularity`", "`metrics_url_path`",
	} {
		assert.ErrorContains(t, err, key)
	}
}

// source is an extension that hears the next hop.
type source struct {
	component.StartFunc
	component.ShutdownFunc
	told      func(resync.Request)
	cancelled bool
}

func (s *source) Subscribe(fn func(resync.Request)) func() {
	s.told = fn
	return func() { s.cancelled = true }
}

func TestResyncAtTheNextHopsWord(t *testing.T) {
	id := component.MustNewID("straggler_threshold")
	cfg := createDefaultConfig().(*Config)
	cfg.ThresholdExtension = &id
	e, err := newExtension(cfg, extensiontest.NewNopSettings(metadata.Type))
	require.NoError(t, err)
	assert.Equal(t, []component.ID{id}, e.Dependencies())
	require.ErrorContains(t, e.Start(t.Context(), componenttest.NewNopHost()), "`threshold_extension`")
	require.ErrorContains(t, e.Start(t.Context(), host{id: &doorman{}}), "`threshold_extension`")
	src := new(source)
	require.NoError(t, e.Start(t.Context(), host{id: src}))

	push := func() int64 {
		p := e.begin()
		p.shrink(t.Context(), encode(t, report("n", 0, 1, 2)))
		forwarded := p.judge.Forwarded
		p.end(t.Context(), true)
		return forwarded
	}
	assert.EqualValues(t, 2, push())
	assert.Zero(t, push())
	src.told(resync.Request{})
	assert.EqualValues(t, 2, push())
	require.NoError(t, e.Shutdown(t.Context()))
	assert.True(t, src.cancelled)
	assert.Nil(t, newUnstarted(t).Dependencies())
}
