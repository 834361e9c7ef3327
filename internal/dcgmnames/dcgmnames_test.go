// SPDX-License-Identifier: Apache-2.0

package dcgmnames

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

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

// same are pairs of units, the catalogue's and dcgm-exporter's, that differ in name alone.
var same = map[[2]string]bool{
	{"{lane}", "lanes"}: true,
	{"Cel", "C"}:        true, {"W", "W"}: true, {"1", "1"}: true, {"1", "code"}: true, {"By/s", "B/s"}: true,
	{"{replay}", "retries"}: true, {"{row}", "rows"}: true, {"{page}", "pages"}: true, {"{error}", "errors"}: true,
}

// TestEachNameIsMappedOrHasAReason holds the names against the receiver: it has the metric,
// the attributes with these values, and a unit from which there is a factor.
func TestEachNameIsMappedOrHasAReason(t *testing.T) {
	text, err := os.ReadFile("../../receiver/nvmlreceiver/metadata.yaml")
	require.NoError(t, err)
	var receiver struct {
		Attributes map[string]struct {
			Name string `yaml:"name_override"`
			Enum []string
		}
		Metrics map[string]struct {
			Unit       string
			Attributes []string
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &receiver))
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
		for _, metric := range append([]string{n.Metric}, n.Less...) {
			assert.Contains(t, receiver.Metrics, metric, n.DCGM)
			assert.NotNil(t, reading.ByName(metric), "%s: %s", n.DCGM, metric)
		}
		m := receiver.Metrics[n.Metric]
		units := [2]string{m.Unit, n.Unit}
		_, known := factors[units]
		assert.NotEqual(t, known, same[units], "%s: from %q to %q", n.DCGM, m.Unit, n.Unit)
		for _, a := range n.Attributes {
			assert.True(t, slices.ContainsFunc(m.Attributes, func(name string) bool {
				def := receiver.Attributes[name]
				return (def.Name == a.Key || name == a.Key) && slices.Contains(def.Enum, a.Value)
			}), "%s: %s has no %s=%s", n.DCGM, n.Metric, a.Key, a.Value)
		}
	}
	assert.Equal(t, defaults, standard)
	slices.Sort(all)
	require.Len(t, slices.Compact(slices.Clone(all)), len(all), "a name is there twice")
}

func TestAProductHasTheDigitsOfTheReading(t *testing.T) {
	for _, c := range []struct {
		factor, sum, want float64
	}{{100, 0.29, 29}, {1000, 1_000_000.501, 1_000_000_501}, {1.0 / (1 << 20), 512 << 20, 512}, {1, 0.1 + 0.2, 0.1 + 0.2}} {
		assert.Equal(t, c.want, (&Name{Factor: c.factor}).Compute(c.sum)) //nolint:testifylint // to the last digit
	}
}
