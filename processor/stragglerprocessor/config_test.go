// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap/confmaptest"

	"github.com/gpu-collector/gpu-collector/internal/nodescore"
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

func TestDefaultsAreTheEngines(t *testing.T) {
	cfg := load(t, "straggler")
	require.NoError(t, cfg.Validate())
	e := cfg.engine()
	assert.Equal(t, 50*time.Second, e.TTL)
	assert.Equal(t, 5, e.Quorum)
	n, err := cfg.node()
	require.NoError(t, err)
	assert.Equal(t, nodescore.DefaultConfig(), n)
}

func TestLoadAgent(t *testing.T) {
	cfg := load(t, "straggler/agent")
	require.NoError(t, cfg.Validate())
	assert.Equal(t, "straggler_threshold/agent", cfg.ThresholdExtension.String())
	n, err := cfg.node()
	require.NoError(t, err)
	assert.Equal(t, nodescore.Weights{1, 0.25, 0, 0.15}, n.Weights)
	assert.Equal(t, nodescore.Floors{0.35, 0.35, 0, 0.2}, n.Floors)
	assert.Equal(t, 15*time.Second, n.ReadingTTL)
	assert.Equal(t, time.Minute, n.CachedTTL)
	assert.Equal(t, []string{"gpu.job.id"}, cfg.GroupBy)
}

func TestValidateSaysAllMistakesAtOnce(t *testing.T) {
	err := load(t, "straggler/mistakes").Validate()
	require.Error(t, err)
	assert.Len(t, strings.Split(err.Error(), "\n"), 7, "one sentence per mistake: %v", err)
	for _, want := range []string{"`mode` is \"\"", "`ttl_multiplier`", "`group_by` has an empty name", "`group_by` names \"a\" twice", "`default_cluster`", "`compatibility`"} {
		require.ErrorContains(t, err, want)
	}

	cfg := load(t, "straggler/mistakes")
	cfg.Mode = modeGateway
	cfg.Gateway.K = -1
	cfg.Gateway.Quorum = 2
	for _, want := range []string{"`gateway::k`", "`gateway::quorum`", "`push_interval`"} {
		require.ErrorContains(t, cfg.Validate(), want)
	}

	cfg.Mode = modeAgent
	cfg.Agent.Weights = map[string]float64{"speed": 1, "memory": -1}
	cfg.Agent.Floors = map[string]float64{"temperature": 1}
	cfg.Agent.MaxNodes = 0
	cfg.Agent.NodeName = "nöde"
	for _, want := range []string{
		"`agent::weights`: unknown signal \"speed\", known are throughput, compute, memory, cpu",
		"`agent::floors`: unknown signal \"temperature\"",
		"`agent::weights::memory` is -1", "`agent::max_nodes`", "`agent::node_name`", "`push_interval`",
	} {
		assert.ErrorContains(t, cfg.Validate(), want)
	}
}
