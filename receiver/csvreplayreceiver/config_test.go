// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/confmap/xconfmap"

	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/metadata"
)

func loadConfig(t *testing.T, name string) *Config {
	t.Helper()
	return loadConfigOf(t, "testdata/config.yaml", component.NewIDWithName(metadata.Type, name).String())
}

func loadConfigOf(t *testing.T, file, key string) *Config {
	t.Helper()
	cm, err := confmaptest.LoadConf(file)
	require.NoError(t, err)
	sub, err := cm.Sub(key)
	require.NoError(t, err)
	cfg := createDefaultConfig()
	require.NoError(t, sub.Unmarshal(cfg))
	return cfg.(*Config)
}

func TestLoadConfig(t *testing.T) {
	table, long := loadConfig(t, "table"), loadConfig(t, "dcgm")
	require.NoError(t, xconfmap.Validate(table))
	require.NoError(t, xconfmap.Validate(long))
	assert.Equal(t, TimeConfig{Column: "time_s", Unit: "s"}, table.Table.Time)
	assert.Equal(t, "dp{dp_rank}-pp{pp_rank}", table.Table.Resource["host.name"])
	assert.Equal(t, map[string]string{"metric_name": "DCGM_FI_DEV_GPU_TEMP"}, long.Table.Metrics[0].When)
}

func TestValidateNamesEveryMistake(t *testing.T) {
	err := (&Config{Speed: -1, StepWindow: -1}).Validate()
	require.Error(t, err)
	for _, key := range []string{"path", "speed", "step_window", "table::time::column", "table::resource", "table::metrics"} {
		require.ErrorContains(t, err, "`"+key+"`")
	}
	assert.Len(t, strings.Split(err.Error(), "\n"), 6, "one sentence per mistake")
}

func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Config, *TableConfig)
		want   string
	}{
		{"good", func(*Config, *TableConfig) {}, ""},
		{"speed NaN", func(c *Config, _ *TableConfig) { c.Speed = math.NaN() }, "`speed` is NaN"},
		{"speed infinite", func(c *Config, _ *TableConfig) { c.Speed = math.Inf(1) }, "`speed` is +Inf"},
		{"time unit", func(_ *Config, tc *TableConfig) { tc.Time.Unit = "min" }, "`table::time::unit` is \"min\": it must be s, ms, us or ns"},
		{"unit and layout", func(_ *Config, tc *TableConfig) { tc.Time.Layout = "2006" }, "are both set"},
		{"bad template", func(_ *Config, tc *TableConfig) { tc.Resource["x"] = "{a" }, "`table::resource::x` is \"{a\""},
		{"no column", func(_ *Config, tc *TableConfig) { tc.Metrics[0].Column = "" }, "`table::metrics[0]::column`"},
		{"no name", func(_ *Config, tc *TableConfig) { tc.Metrics[0].Name = "" }, "`table::metrics[0]::name`"},
		{"type", func(_ *Config, tc *TableConfig) { tc.Metrics[0].Type = "counter" }, "`table::metrics[0]::type` is \"counter\""},
		{"unit of the catalogue", func(_ *Config, tc *TableConfig) { tc.Metrics[0].Unit = "furlong" }, "`table::metrics[0]::unit`: metric gpu.app.step.duration has unit \"furlong\": must be s"},
		{"unit that is converted", func(_ *Config, tc *TableConfig) { tc.Metrics[0].Unit = "ms" }, ""},
		{"scale", func(_ *Config, tc *TableConfig) { tc.Metrics[0].Scale = math.Inf(1) }, "`table::metrics[0]::scale`"},
		{"attribute template", func(_ *Config, tc *TableConfig) { tc.Metrics[0].Attributes = map[string]string{"a": "}"} }, "`table::metrics[0]::attributes::a`"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := loadConfig(t, "table")
			tt.change(cfg, &cfg.Table)
			err := cfg.Validate()
			if tt.want == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, tt.want)
			}
		})
	}
}
