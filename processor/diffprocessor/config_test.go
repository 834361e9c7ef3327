// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"math"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/confmap/xconfmap"

	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
)

func TestLoadConfig(t *testing.T) {
	extension := component.MustNewID("straggler_threshold")
	for _, tt := range []struct {
		id   component.ID
		want *Config
	}{
		{component.NewID(metadata.Type), createDefaultConfig().(*Config)},
		{component.NewIDWithName(metadata.Type, "all"), &Config{
			FlushInterval:     time.Second,
			MaxBatchBytes:     1_000_000,
			MaxPendingPoints:  50_000,
			ResyncInterval:    time.Minute,
			HeartbeatInterval: 30 * time.Second,
			TTL:               5 * time.Minute,
			MaxNodes:          2000,
			MaxSeries:         1_000_000,
			ClusterShare:      0.8,
			MaxSeriesPerNode:  5000,
			MaxBytes:          100_000_000,
			OverLimit:         OverLimitForward,
			VanishedAfter:     time.Minute,
			Deadbands: []deadband.Rule{
				{Metric: "hw.temperature", Absolute: 1},
				{Metric: "hw.gpu.clock.*", Absolute: 15e6, Relative: 0.01},
			},
			ThresholdExtension: &extension,
		}},
	} {
		t.Run(tt.id.String(), func(t *testing.T) {
			conf, err := confmaptest.LoadConf(filepath.Join("testdata", "config.yaml"))
			require.NoError(t, err)
			sub, err := conf.Sub(tt.id.String())
			require.NoError(t, err)
			cfg := createDefaultConfig()
			require.NoError(t, sub.Unmarshal(cfg))
			require.NoError(t, xconfmap.Validate(cfg))
			assert.Equal(t, tt.want, cfg)
		})
	}
}

func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*Config)
		want []string // one per mistake, none when valid
	}{
		{"defaults", func(*Config) {}, nil},
		{"no resync", func(c *Config) { c.ResyncInterval = 0 }, nil},
		{"flush", func(c *Config) { c.FlushInterval = time.Second }, nil},
		{"busy flush", func(c *Config) { c.FlushInterval = time.Millisecond }, []string{"`flush_interval` is 1ms: must be at least 10ms, or 0 for none"}},
		{"batch", func(c *Config) { c.MaxBatchBytes = 1000 }, []string{"`max_batch_bytes` is 1000: must be at least 16384"}},
		{"resync", func(c *Config) { c.ResyncInterval = -1 }, []string{"`resync_interval` is -1ns: must be positive"}},
		{"heartbeat", func(c *Config) { c.HeartbeatInterval = -time.Second }, []string{"`heartbeat_interval` is -1s: must be positive"}},
		{"ttl", func(c *Config) { c.TTL, c.VanishedAfter = 999*time.Millisecond, 0 }, []string{"`ttl` is 999ms: must be at least 1s"}},
		{"nodes", func(c *Config) { c.MaxNodes = 0 }, []string{"`max_nodes` is 0: must be at least 1"}},
		{"share", func(c *Config) { c.ClusterShare = math.NaN() }, []string{"`cluster_share` is NaN: must be in (0,1]"}},
		{"series", func(c *Config) { c.MaxSeries = 0 }, []string{"`max_series` is 0: must be between 1 and"}},
		{"vanished", func(c *Config) { c.VanishedAfter = c.TTL }, []string{"`vanished_after` is 10m0s: must be below `ttl` (10m0s), or 0 for never"}},
		{"pending", func(c *Config) { c.MaxPendingPoints = -1 }, []string{"`max_pending_points` is -1: must be positive, or 0 for 25 % of the memory"}},
		{"bytes", func(c *Config) { c.MaxBytes = 1000 }, []string{"`max_bytes` is 1000: must be at least 1048576, or 0 for 25 % of the memory"}},
		{"over limit", func(c *Config) { c.OverLimit = "" }, []string{"`over_limit` is \"\": must be \"drop\" or \"forward\""}},
		{"never vanished", func(c *Config) { c.VanishedAfter = 0 }, nil},
		{"series per node", func(c *Config) { c.MaxSeriesPerNode = 65535 }, []string{"`max_series_per_node` is 65535: must be between 1 and 65534"}},
		{"too many series", func(c *Config) { c.MaxSeries = maxSeriesLimit + 1 }, []string{"`max_series` is 1000000001: must be"}},
		{
			"everything", func(c *Config) {
				*c = Config{FlushInterval: -1, MaxPendingPoints: -1, MaxBytes: -1, ResyncInterval: -1, HeartbeatInterval: -1, VanishedAfter: -1}
			},
			[]string{
				"`flush_interval`", "`max_batch_bytes`", "`max_pending_points`", "`resync_interval`", "`heartbeat_interval`", "`ttl`", "`vanished_after`", "`max_nodes`", "`max_series`", "`cluster_share`", "`max_series_per_node`", "`max_bytes`", "`over_limit`",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := createDefaultConfig().(*Config)
			tt.edit(cfg)
			err := cfg.Validate()
			if len(tt.want) == 0 {
				require.NoError(t, err)
				return
			}
			joined, ok := err.(interface{ Unwrap() []error })
			require.True(t, ok, "%v", err)
			require.Len(t, joined.Unwrap(), len(tt.want))
			for _, want := range tt.want {
				assert.ErrorContains(t, err, want)
			}
		})
	}
}

// TestMemoryFollowsTheLimit of the process, where it has one.
func TestMemoryFollowsTheLimit(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	cfg := createDefaultConfig().(*Config)
	assert.Equal(t, int64(512<<20), cfg.bytes())
	assert.Equal(t, 512<<10, cfg.pendingPoints())
	debug.SetMemoryLimit(800 << 20)
	assert.Equal(t, int64(200<<20), cfg.bytes())
	assert.Equal(t, 200<<10, cfg.pendingPoints())
	cfg.MaxBytes, cfg.MaxPendingPoints = 5<<20, 7
	assert.Equal(t, int64(5<<20), cfg.bytes())
	assert.Equal(t, 7, cfg.pendingPoints())
}
