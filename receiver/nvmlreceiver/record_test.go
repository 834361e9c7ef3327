// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

const (
	gpuA   = "GPU-00000000-0000-4000-8000-00000000000a"
	sliceA = "MIG-00000000-0000-4000-8000-00000000000a"
)

func some[T any](v T) gpuhealth.Opt[T] { return gpuhealth.Some(v) }

// hopper is a sample with every reading that an H100 has.
func hopper() gpuhealth.Sample {
	s := gpuhealth.Sample{
		Identity: gpuhealth.Identity{
			UUID: gpuA, Model: "NVIDIA H100 80GB HBM3", Serial: "1", PCIBusID: "2", VBIOS: "3", DriverVersion: "4", CUDAVersion: "12.8",
		},
		Reason: gpuhealth.ReasonOK,
	}
	r := &s.Readings
	r.MemoryTotal, r.MemoryUsed, r.MemoryReserved = some[uint64](80<<30), some[uint64](60<<30), some[uint64](1<<30)
	r.Utilization, r.Encoder, r.Decoder = some(0.9), some(0.0), some(0.0)
	for i := range r.Activity {
		r.Activity[i] = some(0.5)
	}
	r.Temperature, r.MemoryTemperature = some(50.0), some(60.0)
	for i := range r.TemperatureLimits {
		r.TemperatureLimits[i] = some(90.0)
	}
	r.TemperatureMargin, r.SlowdownMargin = some(30.0), some(-2.0)
	r.Power, r.PowerLimit, r.PowerLimitMax, r.Energy = some(500.0), some(700.0), some(700.0), some(1e6)
	for i := range r.Clocks {
		r.Clocks[i], r.ClockLimits[i] = some(1.5e9), some(1.9e9)
	}
	for e := range r.ECC {
		for c := range r.ECC[e] {
			r.ECC[e][c] = some[uint64](1)
			for l := range r.ECCLocation[e][c] {
				r.ECCLocation[e][c][l] = some[uint64](1)
			}
		}
	}
	r.SRAMThresholdExceeded = some(false)
	r.RemappedRows = gpuhealth.RemappedRows{Corrected: some[uint64](1), Uncorrected: some[uint64](0), Pending: some(false), Failed: some(false)}
	r.RecoveryAction = some(gpuhealth.RecoveryNone)
	r.Throttle = some[uint64](0)
	for i := range r.ThrottleTime {
		r.ThrottleTime[i] = some(1.5)
	}
	for l := range r.IO {
		for d := range r.IO[l] {
			r.IO[l][d] = some[uint64](1 << 40)
		}
	}
	r.PCIe = gpuhealth.PCIe{
		Width: some[uint32](16), WidthMax: some[uint32](16), Generation: some[uint32](5), GenerationMax: some[uint32](5),
		Replays: some[uint64](0), Rollovers: some[uint64](0),
	}
	r.NVLink.Up, r.NVLink.Down = some[uint32](18), some[uint32](0)
	for _, kind := range []gpuhealth.NVLinkError{
		gpuhealth.NVLinkReplay, gpuhealth.NVLinkRecovery, gpuhealth.NVLinkCRCFlit, gpuhealth.NVLinkCRCData,
	} {
		r.NVLink.Errors[kind] = some[uint64](0)
	}
	r.Fabric.State, r.Fabric.Summary = some(gpuhealth.FabricCompleted), some(gpuhealth.FabricSummaryHealthy)
	for i := range r.Fabric.Conditions {
		r.Fabric.Conditions[i] = some(false)
	}
	r.Processes = [gpuhealth.NumProcessTypes]gpuhealth.Opt[uint64]{some[uint64](1), some[uint64](0)}
	for i := range r.Modes {
		r.Modes[i] = some(i == int(gpuhealth.ModeECC))
	}
	return s
}

// turing is a sample with the readings of a T4: no row remapping, no NVLink, no HBM sensor.
func turing() gpuhealth.Sample {
	s := hopper()
	s.Model = "Tesla T4"
	r := &s.Readings
	r.RemappedRows, r.NVLink, r.Fabric = gpuhealth.RemappedRows{}, gpuhealth.NVLinks{}, gpuhealth.Fabric{}
	r.SRAMThresholdExceeded, r.MemoryTemperature = gpuhealth.Opt[bool]{}, gpuhealth.Opt[float64]{}
	r.IO[gpuhealth.LinkNVLink] = [gpuhealth.NumDirections]gpuhealth.Opt[uint64]{}
	r.Activity = [gpuhealth.NumActivities]gpuhealth.Opt[float64]{}
	r.RecoveryAction, r.TemperatureMargin = gpuhealth.Opt[gpuhealth.RecoveryAction]{}, gpuhealth.Opt[float64]{}
	r.TemperatureLimits[gpuhealth.LimitMemoryMax] = gpuhealth.Opt[float64]{}
	return s
}

// recorded is the report of the samples and a monitor's verdicts on them.
func recorded(t *testing.T, cfg metadata.MetricsBuilderConfig, full bool, samples ...gpuhealth.Sample) pmetric.Metrics {
	t.Helper()
	r := recorder{mb: metadata.NewMetricsBuilder(cfg, settings(t).Settings), ts: 1, full: full}
	monitor := gpuhealth.NewMonitor(gpuhealth.DefaultRubric())
	for i := range samples {
		verdict := monitor.Observe(&samples[i], testTime)
		r.sample(&samples[i])
		r.verdict(&verdict)
	}
	return r.mb.Emit()
}

// TestPointsOfAGPU keeps the number of points in view: they are what a fleet pays for.
func TestPointsOfAGPU(t *testing.T) {
	cfg := metadata.NewDefaultMetricsBuilderConfig()
	assert.Equal(t, 68, recorded(t, cfg, false, hopper()).DataPointCount())
	assert.Equal(t, 49, recorded(t, cfg, false, turing()).DataPointCount())
	assert.Equal(t, 110, recorded(t, cfg, true, hopper()).DataPointCount())

	cfg.Metrics.HwGpuActivity.Enabled = true
	assert.Len(t, find(recorded(t, cfg, false, hopper()), "hw.gpu.activity", nil), int(gpuhealth.NumActivities))
}

func TestLostGPUHasIdentityAndHealthOnly(t *testing.T) {
	s := hopper()
	s.Reason = gpuhealth.ReasonLost
	md := recorded(t, metadata.NewDefaultMetricsBuilderConfig(), false, s)
	names := map[string]int{}
	for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		names[m.Name()] = len(pointsOf(m))
	}
	assert.Equal(t, map[string]int{
		"hw.gpu.info": 1, "hw.gpu.up": 1, "hw.status": 4, "hw.gpu.health.score": 1, "hw.gpu.health.state": 4, "hw.gpu.health.reason": 1,
	}, names)
	assert.Equal(t, map[string]float64{gpuA: 0}, values(md, "hw.gpu.health.score", nil))
	assert.Equal(t, map[string]float64{gpuA: 1}, values(md, "hw.status", map[string]string{"hw.state": "failed"}))
	assert.Equal(t, map[string]float64{gpuA: 1}, values(md, "hw.gpu.health.state", map[string]string{"state": "unhealthy"}))
}

func TestUnknownHealthIsNoState(t *testing.T) {
	s := hopper()
	s.Reason = gpuhealth.ReasonHang
	md := recorded(t, metadata.NewDefaultMetricsBuilderConfig(), false, s)
	assert.Empty(t, values(md, "hw.gpu.health.score", nil))
	assert.Len(t, find(md, "hw.status", nil), 4)
	for _, p := range find(md, "hw.status", nil) {
		assert.Zero(t, p.IntValue())
	}
	assert.Equal(t, map[string]float64{gpuA: 1}, values(md, "hw.gpu.health.state", map[string]string{"state": "unknown"}))
}

// TestSliceNamesItsParent proves that no point of a MIG slice lacks hw.parent,
// and that what it does not have is absent.
func TestSliceNamesItsParent(t *testing.T) {
	slice := hopper()
	slice.UUID = sliceA
	slice.MIG = gpuhealth.MIG{Parent: gpuA, GPUInstance: some[uint32](1), ComputeInstance: some[uint32](0)}
	slice.NVLink.PerLink = []gpuhealth.NVLink{{Up: some(true), Errors: slice.NVLink.Errors}}
	cfg := metadata.NewDefaultMetricsBuilderConfig()
	cfg.Metrics.HwGpuActivity.Enabled = true
	cfg.Metrics.HwGpuNvlinkLinkErrors.Enabled, cfg.Metrics.HwGpuNvlinkLinkUp.Enabled = true, true
	cfg.Metrics.HwGpuMemoryReserved.Enabled = true
	md := recorded(t, cfg, true, slice)
	assert.Greater(t, md.DataPointCount(), 100)
	for _, rm := range md.ResourceMetrics().All() {
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			for _, p := range pointsOf(m) {
				parent, ok := p.Attributes().Get("hw.parent")
				if assert.True(t, ok, m.Name()) {
					assert.Equal(t, gpuA, parent.Str(), m.Name())
				}
			}
		}
	}

	bare := gpuhealth.Sample{Identity: slice.Identity, Reason: gpuhealth.ReasonOK}
	bare.MemoryTotal = some[uint64](10 << 30)
	md = recorded(t, cfg, true, bare)
	assert.Len(t, find(md, "hw.gpu.memory.limit", nil), 1)
	for _, name := range []string{"hw.power", "hw.gpu.utilization", "hw.errors", "hw.gpu.nvlink.links", "hw.gpu.throttle.active"} {
		assert.Empty(t, find(md, name, nil), name)
	}
}

func TestWhatHoldsIsSaid(t *testing.T) {
	s := hopper()
	s.RecoveryAction = some(gpuhealth.RecoveryDrainReset)
	s.Throttle = some(uint64(gpuhealth.ThrottleHWThermal))
	s.Fabric.State, s.Fabric.Summary = some(gpuhealth.FabricInProgress), some(gpuhealth.FabricSummaryLimitedCapacity)
	s.Fabric.Conditions[gpuhealth.FabricAccessTimeout] = some(true)
	md := recorded(t, metadata.NewDefaultMetricsBuilderConfig(), false, s)
	said := func(metric, key string) map[string]int64 {
		out := map[string]int64{}
		for _, p := range find(md, metric, nil) {
			v, _ := p.Attributes().Get(key)
			out[v.Str()] = p.IntValue()
		}
		return out
	}
	assert.Equal(t, map[string]int64{"none": 0, "drain_reset": 1}, said("hw.gpu.recovery_action", "action"))
	assert.Equal(t, map[string]int64{"completed": 0, "in_progress": 1}, said("hw.gpu.fabric.state", "state"))
	assert.Equal(t, map[string]int64{"access_timeout": 1, "unhealthy": 0, "limited_capacity": 1}, said("hw.gpu.fabric.health", "condition"))
	assert.Equal(t, map[string]int64{"sw_thermal": 0, "hw_thermal": 1, "power_brake": 0, "power_cap": 0, "hw_slowdown": 0}, said("hw.gpu.throttle.active", "reason"))
	assert.NotEmpty(t, find(md, "hw.gpu.health.reason", map[string]string{"action": "reset_gpu"}))
}
