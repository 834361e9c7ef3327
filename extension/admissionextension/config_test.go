// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap/confmaptest"

	"github.com/gpu-collector/gpu-collector/extension/admissionextension/internal/metadata"
)

func TestLoadConfig(t *testing.T) {
	cm, err := confmaptest.LoadConf(filepath.Join("testdata", "config.yaml"))
	require.NoError(t, err)
	all := createDefaultConfig().(*Config)
	all.MaxConcurrent = 200
	all.ClusterShare = 0.25
	all.MaxClusters = 10
	all.ReceiveTimeout = 5 * time.Second
	all.MaxRequestBodySize = 4 << 20
	all.RetryAfter = RetryAfterConfig{Min: 2 * time.Second, Max: 10 * time.Second}
	all.ClusterHeader = "X-Cluster"
	all.ClusterAuthAttribute = "tenant"
	for id, want := range map[component.ID]component.Config{
		component.NewID(metadata.Type):                createDefaultConfig(),
		component.NewIDWithName(metadata.Type, "all"): all,
	} {
		sub, err := cm.Sub(id.String())
		require.NoError(t, err)
		cfg := NewFactory().CreateDefaultConfig()
		require.NoError(t, sub.Unmarshal(cfg))
		assert.Equal(t, want, cfg)
		assert.NoError(t, cfg.(*Config).Validate())
	}
}

func TestValidateNamesEveryMistake(t *testing.T) {
	cfg := &Config{
		MaxConcurrent: 0, ClusterShare: math.NaN(), MaxClusters: 1001, ReceiveTimeout: time.Millisecond,
		RetryAfter:    RetryAfterConfig{Min: 1500 * time.Millisecond, Max: 0},
		ClusterHeader: "grpc-cluster", NodeAuthAttribute: "host",
	}
	err := cfg.Validate()
	require.Error(t, err)
	want := []string{
		"`max_concurrent` is 0", "`cluster_share` is NaN", "`max_clusters` is 1001", "`receive_timeout` is 1ms", "`max_request_body_size` is 0", "`retry_after::min` is 1.5s",
		"`retry_after::max` is 0s, must be whole seconds", "`retry_after::max` is 0s, must not be less", "`cluster_header` is \"grpc-cluster\"",
		"`node_auth_attribute` is \"host\" without `cluster_auth_attribute`",
	}
	assert.Len(t, strings.Split(err.Error(), "\n"), len(want))
	for _, w := range want {
		assert.ErrorContains(t, err, w)
	}
}
