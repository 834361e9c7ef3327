// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/confmap/xconfmap"

	"github.com/gpu-collector/gpu-collector/internal/repair"
)

func load(t *testing.T, id string) *Config {
	t.Helper()
	all, err := confmaptest.LoadConf("testdata/config.yaml")
	require.NoError(t, err)
	sub, err := all.Sub(id)
	require.NoError(t, err)
	cfg := createDefaultConfig().(*Config)
	require.NoError(t, sub.Unmarshal(cfg))
	return cfg
}

func TestConfig(t *testing.T) {
	cfg := load(t, "verdict_actions")
	require.NoError(t, xconfmap.Validate(cfg))
	assert.True(t, cfg.DryRun)
	assert.Empty(t, cfg.rungs(), "each rung is off")
	assert.False(t, cfg.Audit.OTLP.HasValue())

	all := load(t, "verdict_actions/all")
	require.NoError(t, xconfmap.Validate(all))
	assert.Equal(t, "gpu-collector", all.Kubernetes.Get().Namespace)
	assert.Equal(t, "scontrol", all.Slurm.Get().Scontrol)
	assert.Equal(t, []repair.Step{
		repair.StepNotify, repair.StepEvent, repair.StepCondition, repair.StepLabel, repair.StepTaint, repair.StepCordon, repair.StepDrain,
		repair.StepEvict, repair.StepBurnIn,
	}, all.rungs())

	err := xconfmap.Validate(load(t, "verdict_actions/mistakes"))
	for _, want := range []string{
		"`cluster` is \"\"", "`state::storage` is empty", "`breaker::max_fraction` is 2", "`kubernetes::burn_in_job` is empty",
		"`kubernetes::rungs::evict` is true", "`slurm::burn_in_command` is empty", "`slurm::rungs::burn_in` is true", "`webhook::http::endpoint` is empty",
	} {
		assert.ErrorContains(t, err, want)
	}
}
