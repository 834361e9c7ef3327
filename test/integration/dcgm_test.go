// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/dcgmnames"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/metricstore"
)

// dcgmPanels are what the panels of dcgm-exporter's own dashboard ask for, by metric: its
// edition on grafana.com (12239) selects by instance, that of its repository by Hostname.
var dcgmPanels = map[string][]string{
	"DCGM_FI_DEV_GPU_TEMP":            {`%s{instance=~"$i", gpu=~"$g"}`, `avg(%s{instance=~"$i", gpu=~"$g"})`, `max(%s{Hostname=~"$h", gpu=~"$g"}) by (Hostname, gpu, uuid)`},
	"DCGM_FI_DEV_POWER_USAGE":         {`%s{instance=~"$i", gpu=~"$g"}`, `sum(%s{instance=~"$i", gpu=~"$g"})`, `sum(max(%s{Hostname=~"$h", gpu=~"$g"}) by (gpu))`},
	"DCGM_FI_DEV_SM_CLOCK":            {`%s{instance=~"$i", gpu=~"$g"} * 1000000`, `max(%s{Hostname=~"$h", gpu=~"$g"} * 1000000) by (Hostname, UUID, gpu)`},
	"DCGM_FI_DEV_GPU_UTIL":            {`%s{instance=~"$i", gpu=~"$g"}`},
	"DCGM_FI_PROF_GR_ENGINE_ACTIVE":   {`max(%s{Hostname=~"$h", gpu=~"$g"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)`},
	"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": {`%s{instance=~"$i", gpu=~"$g"}`, `max(%s{Hostname=~"$h", gpu=~"$g"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)`},
	"DCGM_FI_DEV_FB_USED":             {`%s{instance=~"$i", gpu=~"$g"}`, `max(%s{Hostname=~"$h", gpu=~"$g"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)`},
}

// dcgmNode is an agent with the overlay, on fake GPUs.
func dcgmNode(t *testing.T, state *fakenvml.State) (dcgm, stateFile string) {
	t.Helper()
	stateFile, dcgm = filepath.Join(t.TempDir(), "state"), loopback.FreeAddr(t)
	require.NoError(t, state.Write(stateFile))
	start(t, options{
		configs: []string{"configs/agent.yaml", "configs/overlays/dcgm-names.yaml", fmt.Sprintf(`
receivers:
  nvml: {collection_interval: 200ms, deadline: 150ms, retry_interval: 200ms, library_path: %q}
  otlp: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}
exporters: {prometheus/dcgm: {endpoint: %q}}
extensions: {healthcheckv2: {http: {endpoint: %q}}}
service: {telemetry: {metrics: %s}}
`, fakenvml.Library(t), loopback.FreeAddr(t), loopback.FreeAddr(t), dcgm, loopback.FreeAddr(t), telemetryReader(t, loopback.FreeAddr(t)))},
		env: []string{fakenvml.StateEnv + "=" + stateFile, "GPU_COLLECTOR_INSECURE=true", "GPU_COLLECTOR_GATEWAY=" + loopback.FreeAddr(t)},
	})
	return dcgm, stateFile
}

// A dashboard of dcgm-exporter's shows fake GPUs, and all names have the values that the
// driver told.
func TestDashboardsOfDCGMGoOn(t *testing.T) {
	t.Parallel()
	const known = 2
	state := fakenvml.NewH100(known)
	for i := range known {
		state.SetGPU(i, "field.79", 3_000_000_000*(i+1)).SetGPU(i, "utilization.memory", 41+i)
	}
	dcgm, stateFile := dcgmNode(t, state)
	prom := metricstore.Prometheus(t, fmt.Sprintf(`
global: {scrape_interval: 1s}
scrape_configs: [{job_name: dcgm, static_configs: [{targets: [%q]}]}]
`, dcgm)).Addr

	fill := strings.NewReplacer("$i", ".*", "$h", ".*", "$g", ".*")
	for name, panels := range dcgmPanels {
		for _, panel := range panels {
			expr := fill.Replace(fmt.Sprintf(panel, name))
			want := known
			if strings.HasPrefix(expr, "avg(") || strings.HasPrefix(expr, "sum(") {
				want = 1
			}
			eventually(t, expr, func() bool {
				n, err := instantQuery(t, prom, expr)
				require.NoError(t, err)
				return n == want
			})
		}
	}
	for _, variable := range []string{"instance", "Hostname", "gpu"} {
		assert.NotEmpty(t, labelValues(t, prom, variable, "DCGM_FI_DEV_FB_FREE"), variable)
	}

	host, err := os.Hostname()
	require.NoError(t, err)
	for i := range known {
		of := labels{
			"gpu": strconv.Itoa(i), "UUID": fakenvml.UUID(i), "device": fmt.Sprint("nvidia", i), "modelName": "NVIDIA H100 80GB HBM3",
			"Hostname": host, "hostname": host, "DCGM_FI_DRIVER_VERSION": "570.86.15", "pci_bus_id": fmt.Sprintf("00000000:%02X:00.0", 0x1B+i*0x10),
		}
		for name, want := range map[string]float64{
			"DCGM_FI_DEV_SM_CLOCK": 1980, "DCGM_FI_DEV_MEM_CLOCK": 2619, "DCGM_FI_DEV_GPU_TEMP": float64(45 + i), "DCGM_FI_DEV_MEMORY_TEMP": float64(55 + i),
			"DCGM_FI_DEV_POWER_USAGE": 351 + 1.25*float64(i), "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": float64(1_000_000_500 + i),
			"DCGM_FI_DEV_GPU_UTIL": float64(90 + i), "DCGM_FI_DEV_MEM_COPY_UTIL": float64(41 + i), "DCGM_FI_DEV_ENC_UTIL": 0, "DCGM_FI_DEV_DEC_UTIL": 0,
			"DCGM_FI_DEV_XID_ERRORS": 0, "DCGM_FI_DEV_FB_USED": float64(60+i) * 1024, "DCGM_FI_DEV_FB_RESERVED": 512, "DCGM_FI_DEV_FB_FREE": float64(20-i)*1024 - 512,
			"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.88, "DCGM_FI_PROF_SM_ACTIVE": 0.80, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.55, "DCGM_FI_PROF_DRAM_ACTIVE": 0.30,
			"DCGM_FI_DEV_RELIABILITY_VIOLATION": 3e9 * float64(i+1), "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": float64(i), "DCGM_FI_DEV_POWER_MGMT_LIMIT": 700,
		} {
			s := scrape(t, dcgm)
			got, ok := s.value(name, of)
			if assert.True(t, ok, "%s of GPU %d", name, i) {
				assert.InDelta(t, want, got, 1e-6*max(want, 1), "%s of GPU %d", name, i)
			}
		}
	}
	var defaults int
	all := labelValues(t, prom, "__name__", "")
	for _, n := range dcgmnames.All {
		switch n.DCGM {
		case "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES",
			"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_FAILURE":
			continue // this H100 tells none
		}
		if n.Default && n.Metric != "" {
			defaults++
			assert.Contains(t, all, n.DCGM)
		}
	}
	assert.Equal(t, 17, defaults)

	require.NoError(t, state.XID(1, 79).DeleteGPU(0, "temperature").Write(stateFile))
	eventually(t, "the Xid is there, and what is not told has no series", func() bool {
		n, err := instantQuery(t, prom, `count(DCGM_FI_DEV_XID_ERRORS{gpu="1"} == 79) unless DCGM_FI_DEV_GPU_TEMP{gpu="0"}`)
		require.NoError(t, err)
		return n == 1
	})
	query := "http://" + prom + "/api/v1/metadata?" + url.Values{"metric": {"DCGM_FI_DEV_GPU_TEMP"}}.Encode()
	var metadata map[string][]struct{ Type string }
	require.NoError(t, promGet(t, query, &metadata))
	require.NotEmpty(t, metadata["DCGM_FI_DEV_GPU_TEMP"])
	assert.Equal(t, "gauge", metadata["DCGM_FI_DEV_GPU_TEMP"][0].Type)
}
