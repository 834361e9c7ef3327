// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// Every point is of the report's time and of a GPU of the node, and shows what
// the simulated hardware reads.
func TestPointsShowTheHardware(t *testing.T) {
	f := newFleet(t, Config{Nodes: 2, GPUs: 3, Clusters: 2, Load: fleetsim.Training, Seed: 5, Raw: true, Faults: []Fault{
		{Target: fleetsim.Target{Node: 1}, Fault: fleetsim.Fault{Kind: fleetsim.ThermalThrottle, GPU: 1, Severity: 0.8}},
		{Target: fleetsim.Target{Node: 1}, Fault: fleetsim.Fault{Kind: fleetsim.NVLink, GPU: 1}},
		{Target: fleetsim.Target{Node: 1}, Fault: fleetsim.Fault{Kind: fleetsim.NVLinkErrors, GPU: 1}},
		{Target: fleetsim.Target{Node: 1}, Fault: fleetsim.Fault{Kind: fleetsim.ECC, GPU: 1, Severity: 0.9}},
		{Target: fleetsim.Target{Node: 1}, Fault: fleetsim.Fault{Kind: fleetsim.PCIe, GPU: 1}},
		{Target: fleetsim.Target{Node: 1}, Fault: fleetsim.Fault{Kind: fleetsim.Brake, GPU: 2, Severity: 0.2}},
	}})
	now := start.Add(time.Hour)
	var b []byte
	for range 60 {
		var err error
		b, err = f.Next(1, 1, now, b[:0])
		require.NoError(t, err)
	}
	md := decode(t, b)
	require.Equal(t, 2, md.ResourceMetrics().Len(), "the GPUs' and the job's")
	gpus := gpuIDs(md)
	require.Len(t, gpus, 3)
	values := map[string]float64{}
	serials := map[string]bool{}
	for _, rm := range md.ResourceMetrics().All() {
		for attr, want := range map[string]string{
			gpusemconv.AttrHostName: "node-000001", gpusemconv.AttrClusterName: "fleetsim-01", gpusemconv.AttrJobID: "job-00000",
		} {
			v, _ := rm.Resource().Attributes().Get(attr)
			assert.Equal(t, want, v.Str(), attr)
		}
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			for _, p := range metricreading.Points(m).All() {
				assert.Equal(t, pcommon.NewTimestampFromTime(now), p.Timestamp(), m.Name())
				if m.Name() != gpusemconv.MetricAppStepDuration {
					assert.Equal(t, pcommon.NewTimestampFromTime(start), p.StartTimestamp(), m.Name())
				}
				name := m.Name()
				for k, v := range p.Attributes().All() {
					switch k {
					case gpusemconv.AttrHWID:
						at := -1
						for i, id := range gpus {
							if id == v.Str() {
								at = i
							}
						}
						require.GreaterOrEqual(t, at, 0, "%s is of no GPU of the node", m.Name())
						name = fmt.Sprintf("%d %s", at, name)
					case "hw.serial_number":
						serials[v.Str()] = true
					case gpusemconv.AttrHWType, gpusemconv.AttrMemoryLocation, gpusemconv.AttrECCCounter, gpusemconv.AttrNetworkIODirection:
					default:
						name += " " + v.AsString()
					}
				}
				values[name] = p.DoubleValue() + float64(p.IntValue())
			}
		}
	}
	assert.Len(t, serials, 3)

	host := f.nodes[1].sim.Host()
	want := map[string]float64{"gpu.node.cpu.pressure": host.CPUPressure, "gpu.app.step.duration": host.StepSeconds, "hw.gpu.devices found": 3}
	bit := map[bool]float64{true: 1}
	for g := range 3 {
		r := f.nodes[1].sim.Reading(g)
		for name, v := range map[string]float64{
			"hw.temperature gpu": r.Celsius, "hw.temperature memory": r.MemoryCelsius, "hw.gpu.temperature.margin": fleetsim.MaxCelsius - r.Celsius,
			"hw.power": r.Watts, "hw.gpu.power.limit enforced": r.LimitWatts, "hw.energy": r.Joules,
			"hw.gpu.clock.frequency sm": r.ClockHertz, "hw.gpu.clock.frequency.limit sm": r.BoostHertz,
			"hw.gpu.utilization general": r.Utilization, "hw.gpu.memory.usage": r.MemoryUsed, "hw.gpu.memory.utilization": r.MemoryUsed / fleetsim.MemoryBytes,
			"hw.gpu.processes compute": float64(r.Processes), "hw.gpu.io pcie": r.PCIeBytes, "hw.gpu.io nvlink": r.NVLinkBytes,
			"hw.gpu.pcie.link.width current": float64(r.PCIeLanes), "hw.gpu.pcie.link.width max": 16, "hw.gpu.pcie.link.generation current": float64(r.PCIeGeneration),
			"hw.gpu.nvlink.links up": float64(r.NVLinksUp), "hw.gpu.nvlink.errors replay": r.NVLinkReplays, "hw.gpu.nvlink.errors crc": r.NVLinkCRC,
			"hw.errors corrected": r.ECCCorrected, "hw.errors uncorrected": r.ECCUncorrected, "hw.gpu.memory.remapped_rows uncorrected": float64(r.RemappedRows),
			"hw.gpu.memory.remap.pending": bit[r.RemapPending], "hw.gpu.memory.remap.failed": bit[r.RemapFailed],
			"hw.gpu.throttle.active power_cap":    bit[r.Throttled&gpuhealth.ThrottlePowerCap != 0],
			"hw.gpu.throttle.active hw_slowdown":  bit[r.Throttled&gpuhealth.ThrottleHWSlowdown != 0],
			"hw.gpu.throttle.time sw_thermal":     r.ThrottledSeconds[gpuhealth.ThrottleTimeSWThermal],
			"hw.gpu.throttle.time hw_thermal":     r.ThrottledSeconds[gpuhealth.ThrottleTimeHWThermal],
			"hw.gpu.throttle.time power_brake":    r.ThrottledSeconds[gpuhealth.ThrottleTimePowerBrake],
			"hw.gpu.xid.events 94 " + classOf(94): float64(count(&r, 94)), "hw.gpu.xid.events 64 " + classOf(64): float64(count(&r, 64)),
			"hw.gpu.health.state healthy": bit[g == 0],
		} {
			want[fmt.Sprintf("%d %s", g, name)] = v
		}
	}
	for name, v := range want {
		got, ok := values[name]
		if ok || v != 0 {
			assert.InDelta(t, v, got, 1, name)
		}
	}
	for _, name := range []string{
		"1 hw.gpu.throttle.time sw_thermal", "2 hw.gpu.throttle.time power_brake", "2 hw.gpu.throttle.active hw_slowdown", "1 hw.gpu.nvlink.links down",
		"1 hw.gpu.nvlink.errors replay", "1 hw.errors uncorrected", "1 hw.gpu.memory.remap.failed", "1 hw.gpu.xid.events 94 " + classOf(94), "1 hw.gpu.health.reason ecc_uncorrected reset_gpu",
	} {
		assert.Positive(t, values[name], "%s shows a fault\n%v", name, values)
	}
	assert.InDelta(t, 8, values["1 hw.gpu.pcie.link.width current"], 0)
	assert.Less(t, values["1 hw.gpu.health.score"], 50.0)
	assert.InDelta(t, 100, values["0 hw.gpu.health.score"], 0)
}

// gpuIDs are those of a report, in its order.
func gpuIDs(md pmetric.Metrics) (ids []string) {
	for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		if m.Name() == gpusemconv.MetricGPUInfo {
			for _, p := range metricreading.Points(m).All() {
				v, _ := p.Attributes().Get(gpusemconv.AttrHWID)
				ids = append(ids, v.Str())
			}
		}
	}
	return ids
}

func classOf(code uint64) string { return string(gpuhealth.DefaultRubric().Xid(code).Class) }

func count(r *fleetsim.Reading, code uint64) uint64 {
	for _, x := range r.Xids {
		if x.Code == code {
			return x.Count
		}
	}
	return 0
}
