// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"
)

func TestConfig(t *testing.T) {
	load := func(keys map[string]any) *Config {
		cfg := createDefaultConfig().(*Config)
		require.NoError(t, confmap.NewFromStringMap(keys).Unmarshal(cfg))
		return cfg
	}
	good := load(map[string]any{"directories": []any{"/var/log/nccl/*"}, "ras": map[string]any{"endpoint": "[::1]:28028"}})
	require.NoError(t, good.Validate())
	assert.Nil(t, load(nil).RAS, "never asked without the section")
	err := load(map[string]any{
		"collection_interval": "0s", "directories": []any{"logs", "/["}, "max_files": 0, "max_bytes": 1, "proc_path": "proc", "ras": map[string]any{"endpoint": "10.0.0.7:28028"},
	}).Validate()
	for _, want := range []string{
		`"collection_interval"`,
		"`directories` has \"logs\": it has to be an absolute path, or a pattern such as /var/log/nccl/*",
		"`directories` has \"/[\"",
		"`max_files` is 0: it has to be at least 1",
		"`max_bytes` is 1: it has to be at least 8388608",
		"`proc_path` is \"proc\": it has to be an absolute path",
		"`ras::endpoint` is \"10.0.0.7:28028\": it has to be a loopback address and a port, such as 127.0.0.1:28028",
	} {
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, load(map[string]any{"ras": map[string]any{}}).Validate(), "`ras::endpoint` is \"\"")
	require.ErrorContains(t, load(nil).Validate(), "`directories` is empty: it has to name the folder that NCCL_INSPECTOR_DUMP_DIR names")
}
