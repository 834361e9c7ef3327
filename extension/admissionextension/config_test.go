// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"math"
	"path/filepath"
	"runtime/debug"
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
	all.MaxBytes = 512 << 20
	all.RetryAfter = RetryAfterConfig{Min: 2 * time.Second, Max: 10 * time.Second}
	all.ClusterHeader = "X-Cluster"
	all.ClusterAuthAttribute = "tenant"
	authenticator := component.MustNewIDWithName("basicauth", "agents")
	all.Authenticator, all.UnauthenticatedShare = &authenticator, 0.1
	all.AuthenticatorHeaders = []string{"X-Api-Key"}
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
		MaxConcurrent: 0, MaxBytes: 1, ClusterShare: math.NaN(), MaxClusters: 1001, ReceiveTimeout: time.Millisecond,
		RetryAfter:    RetryAfterConfig{Min: 1500 * time.Millisecond, Max: 0},
		ClusterHeader: "grpc-cluster", NodeAuthAttribute: "host",
	}
	err := cfg.Validate()
	require.Error(t, err)
	want := []string{
		"`max_concurrent` is 0", "`max_bytes` is 1", "`cluster_share` is NaN", "`unauthenticated_share` is 0", "`max_clusters` is 1001", "`receive_timeout` is 1ms", "`retry_after::min` is 1.5s",
		"`retry_after::max` is 0s, must be whole seconds", "`retry_after::max` is 0s, must not be less", "`cluster_header` is \"grpc-cluster\"",
		"`node_auth_attribute` is \"host\" without `cluster_auth_attribute`", "`authenticator_headers` is empty",
	}
	assert.Len(t, strings.Split(err.Error(), "\n"), len(want))
	for _, w := range want {
		assert.ErrorContains(t, err, w)
	}
}

func TestAuthenticatorHeadersHaveNames(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	cfg.AuthenticatorHeaders = []string{"X-Api-Key", "a b"}
	require.EqualError(t, cfg.Validate(), "`authenticator_headers` has \"a b\", must be valid HTTP header names")
}

// TestBytesFollowTheMemoryLimit of the process, where it has one.
func TestBytesFollowTheMemoryLimit(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	assert.Equal(t, int64(1<<30), cfg.MemoryBytes())
	before := debug.SetMemoryLimit(800 << 20)
	defer debug.SetMemoryLimit(before)
	assert.Equal(t, int64(400<<20), cfg.MemoryBytes())
	cfg.MaxBytes = 5 << 20
	assert.Equal(t, int64(5<<20), cfg.MemoryBytes())
}
