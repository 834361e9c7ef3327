// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue/dcgmnames"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/metricstore"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// dcgmExpressions are what people ask a Prometheus with dcgm-exporter. Its chart has no
// rules of its own (deployment/templates at 1f7abdb), so those are of the usual kinds.
var dcgmExpressions = []struct{ from, expr string }{
	// Dashboard 12239 of grafana.com selects by instance.
	{"12239", `DCGM_FI_DEV_GPU_TEMP{instance=~"$i", gpu=~"$g"}`},
	{"12239", `avg(DCGM_FI_DEV_GPU_TEMP{instance=~"$i", gpu=~"$g"})`},
	{"12239", `DCGM_FI_DEV_POWER_USAGE{instance=~"$i", gpu=~"$g"}`},
	{"12239", `sum(DCGM_FI_DEV_POWER_USAGE{instance=~"$i", gpu=~"$g"})`},
	{"12239", `DCGM_FI_DEV_SM_CLOCK{instance=~"$i", gpu=~"$g"} * 1000000`},
	{"12239", `DCGM_FI_DEV_GPU_UTIL{instance=~"$i", gpu=~"$g"}`},
	{"12239", `DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~"$i", gpu=~"$g"}`},
	{"12239", `DCGM_FI_DEV_FB_USED{instance=~"$i", gpu=~"$g"}`},
	// Its edition in the repository, grafana/dcgm-exporter-dashboard.json at 068798b, by Hostname.
	{"repository", `max(DCGM_FI_DEV_GPU_TEMP{Hostname=~"$h", gpu=~"$g"}) by (Hostname, gpu, uuid)`},
	{"repository", `avg(DCGM_FI_DEV_GPU_TEMP{Hostname=~"$h", gpu=~"$g"})`},
	{"repository", `max(DCGM_FI_DEV_POWER_USAGE{Hostname=~"$h", gpu=~"$g"}) by (Hostname, gpu, uuid)`},
	{"repository", `sum(max(DCGM_FI_DEV_POWER_USAGE{Hostname=~"$h", gpu=~"$g"}) by (gpu))`},
	{"repository", `max(DCGM_FI_DEV_SM_CLOCK{Hostname=~"$h", gpu=~"$g"} * 1000000) by (Hostname, UUID, gpu)`},
	{"repository", `max(DCGM_FI_PROF_GR_ENGINE_ACTIVE{Hostname=~"$h", gpu=~"$g"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)`},
	{"repository", `max(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{Hostname=~"$h", gpu=~"$g"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)`},
	{"repository", `max(DCGM_FI_DEV_FB_USED{Hostname=~"$h", gpu=~"$g"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)`},
	{"rule", `DCGM_FI_DEV_GPU_TEMP > 40`},
	{"rule", `DCGM_FI_DEV_XID_ERRORS{gpu=~"$g"} != 0`},
	{"rule", `increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[1m]) >= 0`},
	{"rule", `rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[1m]) >= 0`},
	{"rule", `DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 0.5`},
	{"rule", `sum by (modelName, Hostname, hostname, device, pci_bus_id, DCGM_FI_DRIVER_VERSION) (DCGM_FI_PROF_DRAM_ACTIVE)`},
	{"rule", `DCGM_FI_DEV_ROW_REMAP_FAILURE == 0 and on (UUID) DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS == 0`},
}

// TestDashboardsOfDCGM: with one overlay agent and gateway serve what dashboards and rules
// of dcgm-exporter ask for, with the driver's values, to the last digit. A real
// Prometheus evaluates them; the gate looks for names and labels.
func TestDashboardsOfDCGM(t *testing.T) {
	t.Parallel()
	state, file := fakenvml.NewH100(2), filepath.Join(t.TempDir(), "state")
	for i := range 2 {
		state.SetGPU(i, "field.79", 3_000_000_000*(i+1)).SetGPU(i, "utilization.memory", 41+i).SetGPU(i, "field.94", 7+i)
	}
	require.NoError(t, state.Write(file))
	const overlay = "configs/overlays/dcgm-names.yaml"
	gp := startGateway(t, overlay)
	ap := process.Run(t, process.Options{
		Config: []string{"configs/agent.yaml", overlay, pace, fmt.Sprintf(`
receivers: {nvml: {%s, library_path: %q, state_directory: ""}}
service: {pipelines: {metrics: {receivers: [nvml, fleet_otlp]}}}
`, nvmlPace, fakenvml.Library(t))},
		Env: []string{fakenvml.StateEnv + "=" + file, "GPU_COLLECTOR_GATEWAY=" + gp.GRPC, "GPU_COLLECTOR_INSECURE=true"},
	})
	host, err := os.Hostname()
	require.NoError(t, err)
	of := func(i int) labels {
		return labels{
			"gpu": strconv.Itoa(i), "UUID": fakenvml.UUID(i), "device": fmt.Sprint("nvidia", i), "modelName": "NVIDIA H100 80GB HBM3",
			"Hostname": host, "hostname": host, "DCGM_FI_DRIVER_VERSION": "570.86.15", "pci_bus_id": fmt.Sprintf("00000000:%02X:00.0", 0x1B+i*0x10),
		}
	}
	// The driver has only Xids that come once the agent listens.
	process.Eventually(t, "GPM's second sample", func() bool { return len(process.Scrape(t, gp.Prom)["DCGM_FI_PROF_DRAM_ACTIVE"]) == 2 })
	require.NoError(t, state.XID(0, 48).XID(0, 31).XID(1, 79).Write(file))
	addrs := map[string]string{"agent": ap.Prom, "gateway": gp.Prom}
	for name, addr := range addrs {
		process.Eventually(t, "the last Xids at the "+name, func() bool {
			s := process.Scrape(t, addr)
			return s.Is(31, "DCGM_FI_DEV_XID_ERRORS", of(0)) && s.Is(79, "DCGM_FI_DEV_XID_ERRORS", of(1))
		})
		s := process.Scrape(t, addr)
		for i := range 2 {
			for metric, want := range map[string]float64{
				"DCGM_FI_DEV_SM_CLOCK": 1980, "DCGM_FI_DEV_MEM_CLOCK": 2619, "DCGM_FI_DEV_GPU_TEMP": float64(45 + i), "DCGM_FI_DEV_MEMORY_TEMP": float64(55 + i),
				"DCGM_FI_DEV_POWER_USAGE": 351 + 1.25*float64(i), "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": float64(1_000_000_500 + i),
				"DCGM_FI_DEV_PCIE_REPLAY_COUNTER": float64(7 + i), "DCGM_FI_DEV_GPU_UTIL": float64(90 + i), "DCGM_FI_DEV_MEM_COPY_UTIL": float64(41 + i),
				"DCGM_FI_DEV_ENC_UTIL": 0, "DCGM_FI_DEV_DEC_UTIL": 0, "DCGM_FI_DEV_FB_USED": float64(60+i) * 1024, "DCGM_FI_DEV_FB_RESERVED": 512,
				"DCGM_FI_DEV_FB_FREE": float64(20-i)*1024 - 512, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": float64(4096+i+8192) * (1 << 20) / 1e6,
				"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.88, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.55, "DCGM_FI_PROF_DRAM_ACTIVE": 0.3,
				"DCGM_FI_PROF_PCIE_TX_BYTES": 2 << 30, "DCGM_FI_PROF_PCIE_RX_BYTES": 1 << 30,
				"DCGM_FI_DEV_POWER_VIOLATION": 1e9, "DCGM_FI_DEV_RELIABILITY_VIOLATION": 3e9 * float64(i+1),
				"DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": float64(i), "DCGM_FI_DEV_POWER_MGMT_LIMIT": 700,
			} {
				got, ok := s.Value(metric, of(i))
				assert.True(t, ok && got == want, "%s: %s of GPU %d is %v, want %v", name, metric, i, got, want)
			}
		}
		for _, n := range dcgmnames.All {
			assert.Equal(t, n.Default && n.Metric != "", n.Default && len(s[n.DCGM]) == 2, "%s: %s", name, n.DCGM)
		}
		for _, e := range dcgmExpressions {
			for _, metric := range regexp.MustCompile(`DCGM_FI_(DEV|PROF)_\w+`).FindAllString(e.expr, -1) {
				assert.Len(t, s[metric], 2, "%s: %s", name, e.expr)
			}
		}
	}
	if testing.Short() {
		return // a server of Prometheus is not part of the gate
	}
	for name, addr := range addrs {
		prom := metricstore.Prometheus(t, fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs: [{job_name: dcgm, static_configs: [{targets: [%q]}]}]\n", addr)).Addr
		for _, e := range dcgmExpressions {
			expr, want := strings.NewReplacer("$i", regexp.QuoteMeta(addr), "$h", host, "$g", "0|1").Replace(e.expr), 2
			expr = strings.ReplaceAll(expr, `\`, `\\`)
			if strings.HasPrefix(expr, "avg(") || strings.HasPrefix(expr, "sum(") {
				want = 1
			}
			process.Eventually(t, name+", "+e.from+": "+expr, func() bool {
				n, err := instantQuery(t, prom, expr)
				require.NoError(t, err)
				return n == want
			})
		}
		assert.Equal(t, []string{addr}, labelValues(t, prom, "instance", "DCGM_FI_DEV_FB_FREE"))
		assert.Equal(t, []string{host}, labelValues(t, prom, "Hostname", "DCGM_FI_DEV_FB_FREE"))
		assert.Equal(t, []string{"0", "1"}, labelValues(t, prom, "gpu", "DCGM_FI_DEV_FB_FREE"))
	}
}
