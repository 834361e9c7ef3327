// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/confmap/xconfmap"
)

func TestConfig(t *testing.T) {
	conf, err := confmaptest.LoadConf(filepath.Join("testdata", "config.yaml"))
	require.NoError(t, err)
	load := func(id string) *Config {
		cfg := createDefaultConfig().(*Config)
		sub, err := conf.Sub(id)
		require.NoError(t, err)
		require.NoError(t, sub.Unmarshal(cfg))
		return cfg
	}
	require.NoError(t, xconfmap.Validate(load("fleet_view")))
	all := load("fleet_view/all")
	require.NoError(t, xconfmap.Validate(all))
	assert.Equal(t, &Config{Extension: component.MustNewIDWithName("fleet_view", "other"), DefaultCluster: "prod"}, all)
	err = xconfmap.Validate(load("fleet_view/mistakes"))
	require.ErrorContains(t, err, "`default_cluster` is \"\"")
	require.ErrorContains(t, (&Config{DefaultCluster: "c"}).Validate(), "`extension` is empty")
}
