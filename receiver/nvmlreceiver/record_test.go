// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/record"
)

// teller records verdicts on one GPU as the scraper does.
func newObserver(t *testing.T) func(gpuhealth.Sample, gpuhealth.Verdict) pmetric.Metrics {
	t.Helper()
	r, history := record.NewDefault(testTime), record.History{}
	return func(s gpuhealth.Sample, v gpuhealth.Verdict) pmetric.Metrics {
		r.Begin(1, &history)
		r.Sample(&s)
		r.Verdict(&v)
		md := r.Emit(pcommon.NewResource())
		for _, m := range all(md) {
			points := pointsOf(m)
			if len(points) == 1 && points[0].Flags().NoRecordedValue() {
				continue
			}
			assert.NotEmpty(t, points, m.Name())
			for _, p := range points {
				assert.False(t, p.Flags().NoRecordedValue(), "%s: an end is a metric of its own", m.Name())
			}
		}
		return md
	}
}

// TestNoTwoTruths plays an exporter that keeps each series until it gets its
// end: after each report it has one hw.gpu.up per GPU, no score
// of a GPU that is unknown, and no reason that does not hold.
func TestNoTwoTruths(t *testing.T) {
	served := map[string]float64{}
	serve := func(md pmetric.Metrics) map[string]float64 {
		for metric, key := range map[string]string{"hw.gpu.up": "reason", "hw.gpu.health.reason": "reason", "hw.gpu.health.score": "hw.id"} {
			for _, p := range findAll(md, metric, nil) {
				attribute, _ := p.Attributes().Get(key)
				series := metric + "/" + attribute.Str()
				if p.Flags().NoRecordedValue() {
					delete(served, series)
				} else {
					served[series] = float64(p.IntValue())
				}
			}
		}
		return served
	}
	observe := newObserver(t)
	poll := func(up gpuhealth.Reason, v gpuhealth.Verdict) map[string]float64 {
		s := hopper()
		s.Reason = up
		return serve(observe(s, v))
	}
	score := "hw.gpu.health.score/" + gpuA
	well := gpuhealth.Verdict{State: gpuhealth.StateHealthy, Score: some(100)}
	why := func(state gpuhealth.State, score gpuhealth.Opt[int], reason string) gpuhealth.Verdict {
		return gpuhealth.Verdict{State: state, Score: score, Reasons: []gpuhealth.ActiveReason{{Reason: reason, Action: gpuhealth.ActionReboot}}}
	}
	assert.Equal(t, map[string]float64{"hw.gpu.up/ok": 1, score: 100}, poll(gpuhealth.ReasonOK, well))
	for range 2 {
		assert.Equal(t, map[string]float64{"hw.gpu.up/lost": 0, score: 0, "hw.gpu.health.reason/gpu_lost": 1},
			poll(gpuhealth.ReasonLost, why(gpuhealth.StateUnhealthy, some(0), "gpu_lost")))
	}
	for range 2 {
		assert.Equal(t, map[string]float64{"hw.gpu.up/hang": 0, "hw.gpu.health.reason/gpu_lost": 0, "hw.gpu.health.reason/nvml_hang": 1},
			poll(gpuhealth.ReasonHang, why(gpuhealth.StateUnknown, gpuhealth.Opt[int]{}, "nvml_hang")))
	}
	for range 2 {
		assert.Equal(t, map[string]float64{"hw.gpu.up/ok": 1, score: 100, "hw.gpu.health.reason/gpu_lost": 0, "hw.gpu.health.reason/nvml_hang": 0},
			poll(gpuhealth.ReasonOK, well))
	}
}

func TestReasonsThatAreOverAreBounded(t *testing.T) {
	observe := newObserver(t)
	const most = 128
	var md pmetric.Metrics
	for i := range 2 * most {
		md = observe(hopper(), gpuhealth.Verdict{Reasons: []gpuhealth.ActiveReason{{Reason: "gpu_lost"}, {Reason: fmt.Sprint("xid_", 1000+i)}}})
	}
	reasons := valuesBy(md, "hw.gpu.health.reason", "reason")
	require.Len(t, reasons, most)
	assert.Equal(t, []int64{1, 1, 0}, []int64{reasons["gpu_lost"], reasons["xid_1255"], reasons["xid_1254"]})
}

// TestARestartEndsWhatIsOver: with a state file the receiver knows what the last
// points of the process before claimed.
func TestARestartEndsWhatIsOver(t *testing.T) {
	directory := t.TempDir()
	life := func(do func(*gpuScraper)) {
		cfg := createDefaultConfig().(*Config)
		cfg.StateDirectory = directory
		set := settings(t)
		telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
		require.NoError(t, err)
		s, err := newScraper(cfg, set.Settings, telemetry)
		require.NoError(t, err)
		require.NoError(t, s.start(t.Context(), nil))
		do(s)
		s.keeper.Shutdown()
	}
	record := func(s *gpuScraper, sample gpuhealth.Sample) pmetric.Metrics {
		s.recorder.Begin(1, &s.history)
		verdict := s.monitor.Observe(&sample, testTime)
		s.recorder.Sample(&sample)
		s.recorder.Verdict(&verdict)
		return s.recorder.Emit(s.resource)
	}
	ill := hopper()
	ill.Numbers[reading.RemapPending] = gpuhealth.Flag(true)
	ill.Numbers[reading.ModeMIG] = gpuhealth.Flag(true)
	slice := gpuhealth.Sample{Identity: gpuhealth.Identity{UUID: sliceA, MIG: gpuhealth.MIG{Parent: gpuA, GPUInstance: some[uint32](1)}}, Reason: gpuhealth.ReasonOK}
	life(func(s *gpuScraper) {
		s.monitor.Opened(gpuhealth.DriverLoad{BootID: "a"}, false, testTime)
		record(s, ill)
		s.monitor.ObserveXid(gpuhealth.XidEvent{UUID: gpuA, Code: 48, Time: testTime})
		s.monitor.ObserveXid(gpuhealth.XidEvent{UUID: gpuA, GPUInstance: some[uint32](1), Code: 62, Time: testTime})
		s.monitor.Observe(&slice, testTime)
		s.keeper.Changed()
	})
	life(func(s *gpuScraper) {
		s.recorder.Begin(1, &s.history) // the driver comes late
		s.recorder.Begin(1, &s.history)
		s.monitor.Opened(gpuhealth.DriverLoad{BootID: "b"}, false, testTime.Add(time.Second))
		down := hopper()
		down.Reason = gpuhealth.ReasonHang
		md := record(s, down)
		assert.Equal(t, map[string]int64{"xid_48": 0, "ecc_uncorrected": 0, "remap_pending": 0, "nvml_hang": 1}, valuesBy(md, "hw.gpu.health.reason", "reason"))
		assert.Equal(t, []string{gpuA}, ended(md, "hw.gpu.health.score", nil), "it had one")
		assert.Equal(t, map[string]int64{"xid_62": 0, "nvml_hang": 1}, valuesBy(record(s, slice), "hw.gpu.health.reason", "reason"))
	})
}

const (
	gpuA   = "GPU-00000000-0000-4000-8000-00000000000a"
	sliceA = "MIG-00000000-0000-4000-8000-00000000000a"
)

func some[T any](v T) gpuhealth.Opt[T] { return gpuhealth.Some(v) }

// hopper is a sample with every reading.
func hopper() gpuhealth.Sample {
	s := gpuhealth.Sample{
		Identity: gpuhealth.Identity{
			UUID: gpuA, Model: "NVIDIA H100 80GB HBM3", Serial: "1", PCIBusID: "2", VBIOS: "3", DriverVersion: "4", CUDAVersion: "12.8",
		},
		Reason: gpuhealth.ReasonOK,
	}
	r := &s.Readings
	for f := reading.None + 1; f < reading.EndNumbers; f++ {
		r.Numbers[f] = some(0.0)
	}
	r.Numbers[reading.MemoryLimit], r.Numbers[reading.ModeECC] = some[float64](80<<30), some(1.0)
	for e := range r.ECC {
		for c := range r.ECC[e] {
			r.ECC[e][c] = some[uint64](1)
			for l := range r.ECCLocation[e][c] {
				r.ECCLocation[e][c][l] = some[uint64](1)
			}
		}
	}
	r.RecoveryAction = some(gpuhealth.RecoveryNone)
	r.RepairPending = [gpuhealth.NumRepairs]gpuhealth.Opt[bool]{some(false), some(false)}
	r.Throttle = some[uint64](0)
	for l := range r.IO {
		for d := range r.IO[l] {
			r.IO[l][d] = some[uint64](1 << 40)
		}
	}
	r.NVLink.Up, r.NVLink.Down = some[uint32](18), some[uint32](0)
	for _, kind := range []gpuhealth.NVLinkError{
		gpuhealth.NVLinkReplay, gpuhealth.NVLinkRecovery, gpuhealth.NVLinkCRC,
	} {
		r.NVLink.Errors[kind] = some[uint64](0)
	}
	r.Fabric.State, r.Fabric.Summary = some(gpuhealth.FabricCompleted), some(gpuhealth.FabricSummaryHealthy)
	for i := range r.Fabric.Conditions {
		r.Fabric.Conditions[i] = some(false)
	}
	return s
}

// recorded is the report of the samples and a monitor's verdicts on them.
func recorded(t *testing.T, cfg metadata.MetricsBuilderConfig, full bool, samples ...gpuhealth.Sample) pmetric.Metrics {
	t.Helper()
	r, history := record.New(metadata.NewMetricsBuilder(cfg, settings(t).Settings), full), record.History{}
	r.Begin(1, &history)
	monitor := gpuhealth.NewMonitor(gpuhealth.DefaultRubric())
	for i := range samples {
		verdict := monitor.Observe(&samples[i], testTime)
		r.Sample(&samples[i])
		r.Verdict(&verdict)
	}
	return r.Emit(pcommon.NewResource())
}

// TestWhatIsOffByDefault: what one asks for by name is there at any detail.
func TestWhatIsOffByDefault(t *testing.T) {
	const activities = int(reading.FP16Activity - reading.GraphicsActivity + 1)
	cfg := metadata.NewDefaultMetricsBuilderConfig()
	s := hopper()
	s.IORate[gpuhealth.LinkPCIe][gpuhealth.Transmit] = some(1e9)
	s.NVLink.BitErrorRate = [gpuhealth.NumBitErrors]gpuhealth.Opt[float64]{some(1e-15), some(0.0)}
	before := recorded(t, cfg, false, s)
	assert.Empty(t, find(before, "hw.gpu.activity", nil))
	assert.Empty(t, find(before, "hw.gpu.nvlink.bit_error_rate", nil))

	cfg.Metrics.HwGpuActivity.Enabled, cfg.Metrics.HwGpuNvlinkBitErrorRate.Enabled, cfg.Metrics.HwGpuIoRate.Enabled = true, true, true
	md := recorded(t, cfg, false, s)
	assert.Len(t, find(md, "hw.gpu.io.rate", nil), 1)
	assert.Len(t, find(md, "hw.gpu.activity", nil), activities)
	assert.Equal(t, map[string]float64{gpuA: 1e-15}, values(md, "hw.gpu.nvlink.bit_error_rate", map[string]string{"kind": "symbol"}))
	assert.Equal(t, before.DataPointCount()+activities+int(gpuhealth.NumBitErrors)+1, md.DataPointCount())
}

func TestUnknownHealthIsNoState(t *testing.T) {
	s := hopper()
	s.Reason = gpuhealth.ReasonHang
	md := recorded(t, metadata.NewDefaultMetricsBuilderConfig(), false, s)
	assert.Empty(t, values(md, "hw.gpu.health.score", nil))
	assert.Len(t, find(md, "hw.status", nil), 1)
	for _, p := range find(md, "hw.status", nil) {
		assert.Zero(t, p.IntValue())
	}
	assert.Equal(t, map[string]float64{gpuA: 1}, values(md, "hw.gpu.health.state", map[string]string{"state": "unknown"}))
}

// TestSliceNamesItsParent proves that each point of a MIG slice has hw.parent. The golden
// file of an A100 shows what a slice does not have.
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
	for _, m := range all(md) {
		for _, p := range pointsOf(m) {
			assert.Equal(t, gpuA, p.Attributes().AsRaw()["hw.parent"], m.Name())
		}
	}
}

// valuesBy is the values of a metric's points by one of their attributes.
func valuesBy(md pmetric.Metrics, metric, key string) map[string]int64 {
	out := map[string]int64{}
	for _, p := range find(md, metric, nil) {
		v, _ := p.Attributes().Get(key)
		out[v.Str()] = p.IntValue()
	}
	return out
}

// reported is values by metric and attribute.
type reported map[string]map[string]int64

// TestWhatHeldIsRecordedAsOver: a state has a point from when it first holds, and
// its last point never claims what is over.
func TestWhatHeldIsRecordedAsOver(t *testing.T) {
	keys := map[string]string{
		"hw.status": "hw.state", "hw.gpu.recovery_action": "action", "hw.gpu.repair.pending": "part", "hw.gpu.fabric.state": "state",
		"hw.gpu.fabric.health": "condition", "hw.gpu.throttle.active": "reason", "hw.gpu.nvlink.links": "state",
	}
	r, history := record.NewDefault(testTime), record.History{}
	report := func(hardware gpuhealth.HardwareState, samples ...gpuhealth.Sample) reported {
		r.Begin(1, &history)
		for i := range samples {
			r.Sample(&samples[i])
			r.Verdict(&gpuhealth.Verdict{Hardware: hardware})
		}
		md := r.Emit(pcommon.NewResource())
		got := reported{}
		for metric, key := range keys {
			got[metric] = valuesBy(md, metric, key)
		}
		return got
	}
	healthy := reported{
		"hw.status": {"ok": 1}, "hw.gpu.recovery_action": {"none": 1}, "hw.gpu.repair.pending": {}, "hw.gpu.fabric.state": {"completed": 1},
		"hw.gpu.fabric.health": {"unhealthy": 0}, "hw.gpu.throttle.active": {}, "hw.gpu.nvlink.links": {"up": 18},
	}
	assert.Equal(t, healthy, report(gpuhealth.HardwareOK, hopper()))

	s := hopper()
	s.RecoveryAction = some(gpuhealth.RecoveryDrainReset)
	s.RepairPending[gpuhealth.RepairTPC] = some(true)
	s.Throttle = some(uint64(gpuhealth.ThrottleHWThermal | gpuhealth.ThrottlePowerCap | gpuhealth.ThrottleSyncBoost | gpuhealth.ThrottleAppClocks))
	s.Fabric.State, s.Fabric.Summary = some(gpuhealth.FabricInProgress), some(gpuhealth.FabricSummaryLimitedCapacity)
	s.Fabric.Conditions[gpuhealth.FabricAccessTimeout] = some(true)
	s.NVLink.Up, s.NVLink.Down = some[uint32](17), some[uint32](1)
	ill := reported{
		"hw.status": {"ok": 0, "failed": 1}, "hw.gpu.recovery_action": {"none": 0, "drain_reset": 1}, "hw.gpu.repair.pending": {"tpc": 1},
		"hw.gpu.fabric.state":  {"completed": 0, "in_progress": 1},
		"hw.gpu.fabric.health": {"access_timeout": 1, "unhealthy": 0, "limited_capacity": 1},
		// That sync boost and application clocks hold is no fault.
		"hw.gpu.throttle.active": {"hw_thermal": 1, "power_cap": 1}, "hw.gpu.nvlink.links": {"up": 17, "down": 1},
	}
	assert.Equal(t, ill, report(gpuhealth.HardwareFailed, s))

	over := reported{
		"hw.status": {"ok": 1, "failed": 0}, "hw.gpu.recovery_action": {"none": 1, "drain_reset": 0}, "hw.gpu.repair.pending": {"tpc": 0},
		"hw.gpu.fabric.state":    {"completed": 1, "in_progress": 0},
		"hw.gpu.fabric.health":   {"access_timeout": 0, "unhealthy": 0, "limited_capacity": 0},
		"hw.gpu.throttle.active": {"hw_thermal": 0, "power_cap": 0}, "hw.gpu.nvlink.links": {"up": 18, "down": 0},
	}
	assert.Equal(t, over, report(gpuhealth.HardwareOK, hopper()))
	assert.Equal(t, over, report(gpuhealth.HardwareOK, hopper()), "the same state gives the same points")

	// A lost GPU ends all of it, and forgets nothing.
	lost := hopper()
	lost.Reason = gpuhealth.ReasonLost
	assert.Equal(t, map[string]int64{"ok": 0, "failed": 1}, report(gpuhealth.HardwareFailed, lost)["hw.status"])
	assert.Equal(t, over, report(gpuhealth.HardwareOK, hopper()))

	// A GPU that is no longer reported, as a slice that was destroyed, is forgotten.
	report(gpuhealth.HardwareOK)
	assert.Equal(t, healthy, report(gpuhealth.HardwareOK, hopper()))
}

// TestOlderCRCCounters: they have points where the newest is not there.
func TestOlderCRCCounters(t *testing.T) {
	ampere, flit := hopper(), map[string]string{"error.type": "crc_flit"}
	ampere.NVLink.Errors[gpuhealth.NVLinkCRCFlit] = some[uint64](1)
	cfg := metadata.NewDefaultMetricsBuilderConfig()
	assert.Empty(t, find(recorded(t, cfg, false, ampere), "hw.gpu.nvlink.errors", flit))
	ampere.NVLink.Errors[gpuhealth.NVLinkCRC] = gpuhealth.Opt[uint64]{}
	assert.Equal(t, map[string]float64{gpuA: 1}, values(recorded(t, cfg, false, ampere), "hw.gpu.nvlink.errors", flit))
}
