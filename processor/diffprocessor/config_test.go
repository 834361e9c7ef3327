// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/confmap/xconfmap"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
)

func TestLoadConfig(t *testing.T) {
	extension := component.MustNewID("straggler_threshold")
	defaults := createDefaultConfig().(*Config)
	defaults.Table = component.MustNewID("exposition")
	for _, tt := range []struct {
		id   component.ID
		want *Config
	}{
		{component.NewID(metadata.Type), defaults},
		{component.NewIDWithName(metadata.Type, "all"), &Config{
			Table:             component.MustNewIDWithName("exposition", "x"),
			Forward:           ForwardChanges,
			FlushInterval:     time.Second,
			MaxBatchBytes:     1_000_000,
			ResyncInterval:    time.Minute,
			HeartbeatInterval: 30 * time.Second,
			OverLimit:         OverLimitForward,
			VanishedAfter:     time.Minute,
			Deadbands: []lastvalue.Band{
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
		{"over limit", func(c *Config) { c.OverLimit = "" }, []string{"`over_limit` is \"\": must be \"drop\" or \"forward\""}},
		{"vanished", func(c *Config) { c.VanishedAfter = -1 }, []string{"`vanished_after` is -1ns: must be positive, or 0 for never"}},
		{"no table", func(c *Config) { c.Table = component.ID{} }, []string{"`table` is not set: must be the exposition extension"}},
		{"all", func(c *Config) { c.Forward = ForwardAll }, nil},
		{"all, at once", func(c *Config) { c.Forward, c.FlushInterval = ForwardAll, time.Second }, []string{"`forward` is \"all\": `flush_interval` and `threshold_extension` are for changes"}},
		{"never vanished", func(c *Config) { c.VanishedAfter = 0 }, nil},
		{
			"everything", func(c *Config) {
				*c = Config{FlushInterval: -1, ResyncInterval: -1, HeartbeatInterval: -1, VanishedAfter: -1}
			},
			[]string{
				"`table`", "`forward` is \"\": must be \"changes\" or \"all\"", "`flush_interval`", "`max_batch_bytes`", "`resync_interval`", "`heartbeat_interval`", "`vanished_after`", "`over_limit`",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := createDefaultConfig().(*Config)
			cfg.Table = component.MustNewID("exposition")
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
