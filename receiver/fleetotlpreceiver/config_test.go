// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/xconfmap"

	"github.com/gpu-collector/gpu-collector/internal/platform/serverguard"
)

func load(t *testing.T, over settings) (*Config, error) {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	require.NoError(t, confmap.NewFromStringMap(over).Unmarshal(cfg))
	return cfg, xconfmap.Validate(cfg)
}

// TestDefaultsStayBesideAKey: one key of a server does not take the others' defaults away.
func TestDefaultsStayBesideAKey(t *testing.T) {
	cfg, err := load(t, settings{"protocols": settings{
		"grpc": settings{"keepalive": settings{"server_parameters": settings{"max_connection_age": "10m"}}},
		"http": settings{"metrics_url_path": "push", "cors": settings{"allowed_origins": []any{"https://a"}}},
	}})
	require.NoError(t, err)
	grpc, http := cfg.Protocols.GRPC.Get(), cfg.Protocols.HTTP.Get()
	parameters := grpc.Keepalive.Get().ServerParameters.Get()
	assert.Equal(t, 10*time.Minute, parameters.MaxConnectionAge)
	assert.Equal(t, serverguard.PingAfter, parameters.Time, "or a header block that never ends holds its connection")
	assert.True(t, grpc.Keepalive.Get().EnforcementPolicy.Get().PermitWithoutStream)
	assert.EqualValues(t, "/push", http.MetricsURLPath)
	assert.EqualValues(t, "/v1/logs", http.LogsURLPath)
	assert.EqualValues(t, grpc.MaxRecvMsgSizeMiB<<20, http.ServerConfig.MaxRequestBodySize, "the next hop takes over gRPC what came over HTTP")
	assert.Greater(t, http.ServerConfig.IdleTimeout, http.ServerConfig.ReadTimeout)
	only, err := load(t, settings{"protocols": settings{"http": settings{}}})
	require.NoError(t, err)
	assert.False(t, only.Protocols.GRPC.HasValue())
}

func TestEachMistakeIsNamed(t *testing.T) {
	http := settings{"http": settings{}}
	for want, over := range map[string]settings{
		"`protocols` is empty":                          {},
		"`protocols::grpc::middlewares` is set":         {"protocols": settings{"grpc": settings{"middlewares": []any{settings{"id": "x"}}}}},
		"`protocols::http` has one path for two":        {"protocols": settings{"http": settings{"metrics_url_path": "/v1/logs"}}},
		"`max_connections` is -1":                       {"protocols": http, "max_connections": -1},
		"`max_concurrent` is 0":                         {"protocols": http, "admission": settings{"max_concurrent": 0}},
		"`max_bytes` is 5":                              {"protocols": http, "admission": settings{"max_bytes": 5}},
		"`cluster_share` is 1.5":                        {"protocols": http, "admission": settings{"cluster_share": 1.5}},
		"`receive_timeout` is 10ms":                     {"protocols": http, "admission": settings{"receive_timeout": "10ms"}},
		"`retry_after` is 1.5s to 5s":                   {"protocols": http, "admission": settings{"retry_after": settings{"min": "1500ms"}}},
		"`retry_after` is 1s to 1h0m0s":                 {"protocols": http, "admission": settings{"retry_after": settings{"max": "1h"}}},
		"`foreign` is \"accept\"":                       {"protocols": http, "identity": settings{"foreign": "accept"}},
		"must be either the names or the attributes":    {"protocols": http, "identity": settings{"cluster_auth_attribute": "username", "cluster": "lab"}},
		"`node` is set without `cluster`":               {"protocols": http, "identity": settings{"node": "a"}},
		"`cluster` is \"lab\\n\": must be 1 to":         {"protocols": http, "identity": settings{"cluster": "lab\n"}},
		"`node_auth_attribute` is \"username\" without": {"protocols": http, "identity": settings{"node_auth_attribute": "username"}},
	} {
		_, err := load(t, over)
		require.ErrorContains(t, err, want)
	}
}
