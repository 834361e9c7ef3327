// SPDX-License-Identifier: Apache-2.0

package fabricreceiver

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/confmap/xconfmap"
)

func TestConfigIsRead(t *testing.T) {
	file, err := confmaptest.LoadConf(filepath.Join("testdata", "config.yaml"))
	require.NoError(t, err)
	load := func(id string) *Config {
		sub, err := file.Sub(id)
		require.NoError(t, err)
		cfg := createDefaultConfig().(*Config)
		require.NoError(t, sub.Unmarshal(cfg))
		require.NoError(t, xconfmap.Validate(cfg))
		return cfg
	}
	assert.Equal(t, createDefaultConfig(), component.Config(load("fabric")))
	cfg := load("fabric/all")
	assert.Equal(t, 5*time.Second, cfg.CollectionInterval)
	assert.Equal(t, "lab", cfg.Cluster)
	assert.Equal(t, "node-7", cfg.NodeName)
	assert.Equal(t, []string{"mlx5_1?", "eno1"}, cfg.Exclude)
	assert.True(t, cfg.ManagementPorts)
	assert.Equal(t, 500*time.Millisecond, cfg.Deadline)
	assert.Equal(t, "/host/proc", cfg.ProcPath)
	assert.Equal(t, "/host/sys", cfg.SysPath)
	assert.True(t, cfg.Metrics.GpuNodeCPUPressure.Enabled)
}

func TestConfigIsChecked(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"`deadline` is 0s: it has to be more than 0":                                               func(c *Config) { c.Deadline = 0 },
		"`deadline` is 1m0s: it has to be at most `collection_interval`, which is 10s":             func(c *Config) { c.Deadline = time.Minute },
		"`exclude` has \"mlx5_[\": it has to be the name of a device, or a pattern such as mlx5_*": func(c *Config) { c.Exclude = []string{"mlx5_["} },
		"`exclude` has \"\"": func(c *Config) { c.Exclude = []string{""} },
		"`proc_path` is \"proc\": it has to be an absolute path": func(c *Config) { c.ProcPath = "proc" },
		"`sys_path` is \"\": it has to be an absolute path":      func(c *Config) { c.SysPath = "" },
		"collection_interval": func(c *Config) { c.CollectionInterval = 0 },
	} {
		cfg := createDefaultConfig().(*Config)
		change(cfg)
		require.ErrorContains(t, xconfmap.Validate(cfg), want)
	}
	cfg := createDefaultConfig().(*Config)
	cfg.Deadline, cfg.ProcPath = 0, ""
	err := xconfmap.Validate(cfg)
	require.ErrorContains(t, err, "deadline")
	require.ErrorContains(t, err, "proc_path")
}
