// SPDX-License-Identifier: Apache-2.0

package dcgmnames

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// defaults are the names of dcgm-exporter's etc/default-counters.csv that are no comments.
var defaults = []string{
	"DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE",
	"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL",
	"DCGM_FI_DEV_ENC_UTIL", "DCGM_FI_DEV_DEC_UTIL", "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_RESERVED",
	"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_VGPU_LICENSE_STATUS", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
	"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
	"DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES",
}

func TestEachNameIsMappedOrHasAReason(t *testing.T) {
	var standard, all []string
	for _, n := range All {
		all = append(all, n.DCGM)
		if n.Default {
			standard = append(standard, n.DCGM)
		}
		if n.Metric == "" {
			assert.NotEmpty(t, n.Note, n.DCGM)
			continue
		}
		assert.NotNil(t, reading.ByName(n.Metric), "%s: the catalogue has no %s", n.DCGM, n.Metric)
		assert.Positive(t, n.Factor, n.DCGM)
		assert.NotEmpty(t, n.Help, n.DCGM)
		assert.NotEmpty(t, n.Unit, n.DCGM)
	}
	assert.Equal(t, defaults, standard)
	slices.Sort(all)
	require.Len(t, slices.Compact(slices.Clone(all)), len(all), "a name is there twice")
}
