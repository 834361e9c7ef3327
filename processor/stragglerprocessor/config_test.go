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

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
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
	assert.Equal(t, straggler.DefaultConfig(), e)
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
	assert.InDelta(t, 1, n.Weights[nodesignal.Throughput], 0)
	assert.InDelta(t, 0.25, n.Weights[nodesignal.Compute], 0, "what is not set keeps its default")
	assert.InDelta(t, 0.2, n.Floors[nodesignal.CPU], 0)
	assert.Equal(t, []nodescore.Source{{
		Ratio: nodescore.Ratio{Metric: "tokens", Attributes: map[string]string{"phase": "train"}}, When: "busy",
	}}, n.Measures[nodesignal.Throughput].Sources)
	assert.Empty(t, n.Measures[nodesignal.Memory].Sources)
	links := n.Measures[nodesignal.Interconnect]
	assert.Equal(t, nodescore.CombineFirst, links.Combine)
	assert.Equal(t, nodescore.Source{
		Ratio: nodescore.Ratio{Metric: "lanes", Limit: "max_lanes"}, Times: []nodescore.Ratio{{Metric: "gen", BestLimit: true}},
		Across: "min", When: "load",
	}, links.Sources[0])
	assert.InDelta(t, 0.5, links.Sources[1].Allowed, 0)
	for _, specs := range [][nodesignal.Count]nodesignal.Spec{n.Signals, cfg.engine().Signals} {
		assert.False(t, specs[nodesignal.CPU].Decides)
		assert.Equal(t, nodesignal.High, specs[nodesignal.Memory].Direction)
		assert.InDelta(t, 0.3, specs[nodesignal.Memory].MinGap, 0)
		assert.Equal(t, nodesignal.Defaults()[nodesignal.Throughput], specs[nodesignal.Throughput])
	}
	assert.Equal(t, 15*time.Second, n.ReadingTTL)
	assert.Equal(t, time.Minute, n.CachedTTL)
	assert.Equal(t, []string{"gpu.job.id"}, cfg.GroupBy)
	assert.EqualValues(t, 2_000_000, cfg.MaxBytes)
}

func TestValidateSaysAllMistakesAtOnce(t *testing.T) {
	err := load(t, "straggler/mistakes").Validate()
	require.Error(t, err)
	assert.Len(t, strings.Split(err.Error(), "\n"), 8, "one sentence per mistake: %v", err)
	for _, want := range []string{"`mode` is \"\"", "`ttl_multiplier`", "`max_bytes` is 1000", "`group_by` has an empty name", "`group_by` names \"a\" twice", "`default_cluster`", "`compatibility`"} {
		require.ErrorContains(t, err, want)
	}

	cfg := load(t, "straggler/mistakes")
	cfg.Mode = modeGateway
	cfg.Gateway.K = -1
	cfg.Gateway.Quorum = 2
	cfg.Gateway.MinPeers = 2
	cfg.Gateway.MaxOnsets = 0
	for _, want := range []string{
		"`gateway::min_peers`", "`gateway::max_onsets`",
		"`gateway::k`", "`gateway::quorum`", "`push_interval`",
	} {
		require.ErrorContains(t, cfg.Validate(), want)
	}

	cfg.Mode = modeAgent
	minus := -1.0
	cfg.Signals = map[string]SignalConfig{
		"speed":  {},
		"memory": {Weight: &minus, Direction: "sideways", Combine: "max"},
		"power":  {Weight: new(float64), MinGap: &minus},
		"cpu": {Sources: []nodescore.Source{
			{Across: "all", When: "never"},
			{Ratio: nodescore.Ratio{Metric: "x", Use: "rate", Limit: "y"}},
			{Ratio: nodescore.Ratio{Metric: "x", Allowed: 1, LimitAttributes: map[string]string{"a": "b"}}, Times: []nodescore.Ratio{{Use: "twice"}}},
		}},
	}
	cfg.Agent.MaxNodes = 0
	cfg.Agent.NodeName = "nöde"
	for _, want := range []string{
		"`signals`: unknown signal \"speed\", known are throughput, compute, interconnect, cpu, power, memory, communication, score",
		"`signals::memory::weight` is -1", "`signals::memory::direction` is \"sideways\"", "`signals::memory::combine` is \"max\"",
		"`signals::cpu::sources::0::metric` is empty", "`signals::cpu::sources::0::across` is \"all\"", "`signals::cpu::sources::0::when` is \"never\"",
		"`signals::cpu::sources::1::allowed` is 0", "`signals::cpu::sources::1::limit` does not go",
		"`signals::cpu::sources::2::allowed` is for", "`signals::cpu::sources::2::limit_attributes`", "`signals::cpu::sources::2::times::0::use` is \"twice\"",
		"`agent::max_nodes`", "`agent::node_name`", "`push_interval`",
	} {
		assert.ErrorContains(t, cfg.Validate(), want)
	}
}

// TestOwnNode: what names no node is of the node that the agent's receivers name.
func TestOwnNode(t *testing.T) {
	t.Setenv("K8S_NODE_NAME", "gpu-7")
	cfg := createDefaultConfig().(*Config)
	cfg.Mode = modeAgent
	_, node := cfg.OwnNode()
	assert.Equal(t, "gpu-7", node)
	cfg.Mode = modeGateway
	_, node = cfg.OwnNode()
	assert.Empty(t, node)
}
