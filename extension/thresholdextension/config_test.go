// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap/confmaptest"
)

func load(t *testing.T, id string) *Config {
	cm, err := confmaptest.LoadConf(filepath.Join("testdata", "config.yaml"))
	require.NoError(t, err)
	sub, err := cm.Sub(id)
	require.NoError(t, err)
	cfg := createDefaultConfig().(*Config)
	require.NoError(t, sub.Unmarshal(cfg))
	return cfg
}

func TestLoadConfig(t *testing.T) {
	cfg := load(t, "straggler_threshold")
	require.NoError(t, cfg.Validate())
	assert.Equal(t, "none", cfg.ConsistentHash)
	assert.False(t, cfg.API.HasValue(), "no port is opened unless asked for")

	cfg = load(t, "straggler_threshold/all")
	require.NoError(t, cfg.Validate())
	assert.Equal(t, "prod", cfg.Cluster)
	assert.Equal(t, "tenant", cfg.ClusterAuthAttribute)
	assert.Equal(t, "node", cfg.ConsistentHash)
	assert.True(t, cfg.ingero())
	assert.Equal(t, time.Minute, cfg.ReceivedTTL)
	require.True(t, cfg.API.HasValue())
	assert.Equal(t, "127.0.0.1:8085", cfg.API.Get().NetAddr.Endpoint, "the default bind is loopback")
}

func TestValidateSaysAllMistakesAtOnce(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	cfg.Cluster = strings.Repeat("x", 300)
	cfg.ReceivedTTL = 0
	cfg.NodeAuthAttribute = "host"
	cfg.Compatibility = []string{"ingero", "dcgm"}
	cfg.ConsistentHash = "gpu"
	err := cfg.Validate()
	require.Error(t, err)
	for _, want := range []string{
		"`cluster`", "`received_ttl`", "`node_auth_attribute` is \"host\" without `cluster_auth_attribute`", "`compatibility` has \"dcgm\"",
		"`consistent_hash` is \"gpu\", must be one of none, node, cluster",
	} {
		require.ErrorContains(t, err, want)
	}
	assert.Len(t, strings.Split(err.Error(), "\n"), 5)
}
