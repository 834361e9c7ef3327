// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/confmap/xconfmap"
)

func TestLoadConfig(t *testing.T) {
	cm, err := confmaptest.LoadConf(filepath.Join("testdata", "config.yaml"))
	require.NoError(t, err)
	cfg, all := createDefaultConfig().(*Config), createDefaultConfig().(*Config)
	for id, c := range map[string]*Config{"straggler_threshold": cfg, "straggler_threshold/all": all} {
		sub, err := cm.Sub(id)
		require.NoError(t, err)
		require.NoError(t, sub.Unmarshal(c))
		require.NoError(t, xconfmap.Validate(c))
	}
	assert.Equal(t, createDefaultConfig(), cfg)
	assert.False(t, cfg.API.HasValue(), "no port is opened unless asked for")
	assert.Equal(t, "tenant", all.ClusterAuthAttribute)
	assert.True(t, all.ingero())
	require.True(t, all.API.HasValue())
	assert.Equal(t, "127.0.0.1:8085", all.API.Get().NetAddr.Endpoint, "the default bind is loopback")
}

func TestValidateReportsAllMistakesAtOnce(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	cfg.Cluster = strings.Repeat("x", 300)
	cfg.ReceivedTTL = 0
	cfg.NodeAuthAttribute = "host"
	cfg.Compatibility = []string{"ingero", "dcgm"}
	cfg.ConsistentHash = "gpu"
	err := xconfmap.Validate(cfg)
	require.Error(t, err)
	for _, want := range []string{
		"`cluster`", "`received_ttl`", "`node_auth_attribute` is \"host\" without `cluster_auth_attribute`", "`compatibility` has \"dcgm\"",
		"`consistent_hash` is \"gpu\", must be one of none, node, cluster",
	} {
		require.ErrorContains(t, err, want)
	}
	assert.Len(t, strings.Split(err.Error(), "\n"), 5)
}
