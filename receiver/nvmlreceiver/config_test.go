// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/confmap/xconfmap"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

func loadConfig(t *testing.T, id string) *Config {
	t.Helper()
	file, err := confmaptest.LoadConf(filepath.Join("testdata", "config.yaml"))
	require.NoError(t, err)
	sub, err := file.Sub(id)
	require.NoError(t, err)
	cfg := createDefaultConfig()
	require.NoError(t, sub.Unmarshal(cfg))
	return cfg.(*Config)
}

func TestConfigIsRead(t *testing.T) {
	cfg := loadConfig(t, "nvml")
	require.NoError(t, xconfmap.Validate(cfg))
	assert.Equal(t, createDefaultConfig(), component.Config(cfg))

	cfg = loadConfig(t, "nvml/all")
	require.NoError(t, xconfmap.Validate(cfg))
	assert.Equal(t, 2*time.Second, cfg.Deadline)
	assert.False(t, cfg.Metrics.HwEnergy.Enabled)
	assert.Equal(t, "/var/lib/gpus", cfg.StateDirectory)
	assert.Equal(t, 500*time.Millisecond, cfg.PodResources.Timeout)

	rubric, err := cfg.Health.rubric()
	require.NoError(t, err)
	assert.True(t, rubric.Xid(94).Off)
	assert.Equal(t, 80, rubric.Xid(31).Cap)
	for _, rule := range rubric.Rules() {
		if rule.Name == "nvlink_down" {
			assert.Equal(t, 60, rule.Cap)
			assert.Equal(t, gpuhealth.ActionService, rule.Action)
		}
	}
}

func TestValidateReportsEveryMistake(t *testing.T) {
	err := loadConfig(t, "nvml/wrong").Validate()
	for _, want := range []string{
		"`deadline` is 2s: it has to be less than `timeout`, which is 1s",
		"`retry_interval` is 0s: it has to be more than 0",
		"`library_path` is \"lib/libnvidia-ml.so.1\": it has to be an absolute path or a bare file name",
		"`detail` is \"all\": it has to be \"standard\" or \"full\"",
		"`expected_gpus` is -1: it has to be 0",
		"`release_file` is \"release\": it has to be an absolute path or empty",
		"`acknowledge_file` is \"release\": it has to be an absolute path or empty",
		"`acknowledge_file` is \"release\", which is `release_file` too",
		"`proc_path` is \"proc\": it has to be an absolute path",
		"`sys_path` is \"\": it has to be an absolute path",
		"`pod_resources::socket` is \"kubelet.sock\": it has to be an absolute path",
		"`pod_resources::cache_duration` is -1s: it has to be 0 or more",
		"`pod_resources::timeout` is -3s: it has to be more than 0",
		"`health::rules::no_such_rule`: no rule is called",
		"`health::xids::94`: a cap of 101 is not a score",
		"`health::xids::rubbish`: \"rubbish\" is no Xid",
		"`health::xids::48`: \"pray\" is no action",
		"`health::xids::13`: the action \"reset_gpu\" would be in no reason",
		"`pod_resources::resource_prefixes` is empty: no resource would be a GPU",
	} {
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, loadConfig(t, "nvml/no_deadline").Validate(), "`deadline` is -1s: it has to be more than 0")

	cfg := loadConfig(t, "nvml")
	cfg.PodResources.ResourcePrefixes, cfg.Metrics.HwGpuAllocation.Enabled = nil, false
	require.NoError(t, cfg.Validate(), "the kubelet is not asked")
	cfg.PodResources.ResourcePrefixes = []string{"nvidia.com/", ""}
	require.ErrorContains(t, cfg.Validate(), "`pod_resources::resource_prefixes` has an empty prefix")
	cfg.PodResources.ResourcePrefixes = []string{"nvidia.com/"}
	cfg.CollectionInterval = 0
	require.ErrorContains(t, cfg.Validate(), "collection_interval")
}

func TestNodeResource(t *testing.T) {
	t.Setenv("K8S_NODE_NAME", "from-the-environment")
	cfg := loadConfig(t, "nvml")
	attributes := nodeResource(cfg).Attributes().AsRaw()
	assert.NotEmpty(t, attributes["host.name"])
	assert.Equal(t, "from-the-environment", attributes["k8s.node.name"])
	assert.NotContains(t, attributes, "k8s.cluster.name")

	attributes = nodeResource(loadConfig(t, "nvml/all")).Attributes().AsRaw()
	assert.Equal(t, "node-7.example", attributes["host.name"])
	assert.Equal(t, "node-7", attributes["k8s.node.name"])
	assert.Equal(t, "lab", attributes["k8s.cluster.name"])

	cfg.NodeName = "n7"
	attributes = nodeResource(cfg).Attributes().AsRaw()
	assert.Equal(t, []any{"n7", "n7"}, []any{attributes["host.name"], attributes["k8s.node.name"]})

	t.Setenv("K8S_NODE_NAME", "")
	cfg.NodeName = ""
	assert.NotContains(t, nodeResource(cfg).Attributes().AsRaw(), "k8s.node.name")
}
