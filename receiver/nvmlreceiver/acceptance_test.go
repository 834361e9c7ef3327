// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvmlreceiver

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// The receiver has to survive all of these; the tests prove it through the C ABI
// of NVML. Tests of internal/nvml are marked with *.
//
//	 1  no library: one warning, no points    TestNoLibrary, TestBinaryWithoutNVML
//	    library that comes later, is replaced TestLibraryThatIsInstalledLater*
//	 2  goldens                               TestModels, TestEightGPUs
//	 3  GPU lost at run time                  TestLostGPU
//	    one index fails, more than 8 GPUs     TestOneOfSixteenFails, TestSixteenGPUsOneFails*
//	    MIG enabled, reshaped, disabled       TestSlicesComeAndGo, TestMIG*
//	 4  lost and Xid 79                       TestXidOfALostGPU
//	 5  heal                                  TestLostGPU, TestXidOfALostGPU
//	    driver unloaded, reloaded, upgraded   TestDriverThatIsReloaded, TestDriverThatIsUpgraded
//	 6  any call hangs                        TestEveryCallOfAGPUMayHang*, TestEveryCallOfTheNodeMayHang*, TestHangingGPU
//	 7  impossible readings                   TestEveryImpossibleReadingCostsItselfOnly, TestImpossibleUUIDs
//	 8  counters that go back                 TestEveryCounterMayGoBack, TestCountersThatGoBack
//	 9  symbols that are missing              TestEverySymbolMayBeMissing*, TestMissingSymbols, TestFabricOfOlderDrivers*
//	10  no BIND_NOW                           TestTestBinaryBindsLazily, and of the binaries test/integration
//	11  same state, same points               TestSameStateSamePoints, TestQuietModelsForwardTheHeartbeatOnly

// impossible are values that no GPU can have, each with the field that is
// rejected, and the points that are absent. NVML's mark of a missing value is
// impossible too when the call claims success.
var impossible = []struct {
	key        string
	value      any
	field      string
	metric     string
	attributes map[string]string
}{
	{"memory.used", uint64(81) << 30, "memory.used", "hw.gpu.memory.usage", nil},
	{"memory.total", 0, "memory.total", "hw.gpu.memory.limit", nil},
	{"temperature", 300, "temperature.gpu", "hw.temperature", map[string]string{"hw.sensor_location": "gpu"}},
	{"temperature.memory", 300, "temperature.memory", "hw.temperature", map[string]string{"hw.sensor_location": "memory"}},
	{"temperature.slowdown", 250, "temperature.limit", "hw.temperature.limit", map[string]string{"hw.sensor_location": "gpu", "hw.limit_type": "throttled"}},
	{"temperature.margin", -300, "temperature.margin", "hw.gpu.temperature.margin", nil},
	{"pcie.width", 0, "pcie.width", "hw.gpu.pcie.link.width", map[string]string{"kind": "current"}},
	{"pcie.width.max", 3, "pcie.width.max", "hw.gpu.pcie.link.width", map[string]string{"kind": "max"}},
	{"pcie.generation", 0, "pcie.generation", "hw.gpu.pcie.link.generation", map[string]string{"kind": "current"}},
	{"field.186", 200_000_000, "power", "hw.power", nil},
	{"power.limit", 200_000_000, "power.limit.enforced", "hw.gpu.power.limit", map[string]string{"limit": "enforced"}},
	{"utilization.gpu", 101, "utilization.general", "hw.gpu.utilization", map[string]string{"hw.gpu.task": "general"}},
	{"clock.sm", 200_000, "clock", "hw.gpu.clock.frequency", map[string]string{"clock": "sm"}},
	{"ecc.uncorrected.volatile.dram", "0xFFFFFFFF", "ecc.location", "hw.errors", map[string]string{"error.type": "uncorrected", "gpu.ecc.counter": "volatile", "gpu.memory.location": "dram"}},
	{"ecc.corrected.volatile.sram", -1, "ecc.location", "hw.errors", map[string]string{"error.type": "corrected", "gpu.ecc.counter": "volatile", "gpu.memory.location": "sram"}},
	{"remapped.corrected", 1 << 20, "remapped_rows", "hw.gpu.memory.remapped_rows", map[string]string{"cause": "corrected"}},
	{"field.94", "0xFFFFFFFF", "pcie.replays", "hw.gpu.pcie.replays", map[string]string{"kind": "replay"}},
	{"throttle", "0xFFFFFFFF", "throttle", "hw.gpu.throttle.active", nil},
	{"energy", -1, "energy", "hw.energy", nil},
	{"gpm.2", "nan", "activity", "hw.gpu.activity", map[string]string{"unit": "sm"}},
	{"processes.compute", uint32(1<<32 - 1), "processes", "hw.gpu.processes", map[string]string{"type": "compute"}},
	{"processes.graphics", 1 << 30, "processes", "hw.gpu.processes", map[string]string{"type": "graphics"}},
	{"retired.sbe", 1 << 30, "retired_pages", "hw.gpu.memory.retired_pages", map[string]string{"cause": "sbe"}},
	{"retired.dbe", uint32(1<<32 - 1), "retired_pages", "hw.gpu.memory.retired_pages", map[string]string{"cause": "dbe"}},
	{"retired.pending", 2, "retired_pages", "hw.gpu.memory.retirement.pending", nil},
	{"remapped.failed", uint32(1<<32 - 1), "remapped_rows", "hw.gpu.memory.remap.failed", nil},
	{"remapped.pending", 2, "remapped_rows", "hw.gpu.memory.remap.pending", nil},
	{"sram.threshold_exceeded", uint32(1<<32 - 1), "sram_threshold", "hw.gpu.ecc.sram.threshold_exceeded", nil},
	{"repair.tpc", uint32(1<<32 - 1), "repair", "hw.gpu.repair.pending", map[string]string{"part": "tpc"}},
	{"mode.ecc", -1, "mode", "hw.gpu.mode", map[string]string{"mode": "ecc"}},
	{"utilization.gpu", "0xFFFFFFFF", "utilization.general", "hw.gpu.utilization", map[string]string{"hw.gpu.task": "general"}},
	{"utilization.decoder", "0xFFFFFFFF", "utilization.decoder", "hw.gpu.utilization", map[string]string{"hw.gpu.task": "decoder"}},
	{"throttle", "0xFFFFFFFFFFFFFFFF", "throttle", "hw.gpu.throttle.active", nil},
	{"field.230", 77, "recovery_action", "hw.gpu.recovery_action", nil},
	{"field.230", "0xFFFFFFFF", "recovery_action", "hw.gpu.recovery_action", nil},
	{"fabric.state", 99, "fabric", "hw.gpu.fabric.state", nil},
	{"fabric.summary", 200, "fabric", "hw.gpu.fabric.health", map[string]string{"condition": "unhealthy"}},
	{"field.186", "0xFFFFFFFF", "power", "hw.power", nil},
	{"clock.memory", "0xFFFFFFFF", "clock", "hw.gpu.clock.frequency", map[string]string{"clock": "memory"}},
	{"field.74", -1, "throttle.time", "hw.gpu.throttle.time", map[string]string{"reason": "power"}},
	{"field.138", -1, "io", "hw.gpu.io", map[string]string{"gpu.link": "nvlink", "network.io.direction": "transmit"}},
	{"field.197", "0xFFFFFFFF", "io", "hw.gpu.io", map[string]string{"gpu.link": "pcie", "network.io.direction": "transmit"}},
	{"field.161.7", "0xFFFFFFFF", "nvlink.errors", "hw.gpu.nvlink.errors", map[string]string{"error.type": "replay"}},
	{"nvlink.5.up", "0xFFFFFFFF", "nvlink.links", "hw.gpu.nvlink.links", map[string]string{"state": "up"}},
	{"ecc.uncorrected.volatile", "0xFFFFFFFE", "ecc", "hw.errors", map[string]string{"error.type": "uncorrected", "gpu.ecc.counter": "volatile", "gpu.memory.location": "all"}},
	{"gpm.3", -40, "activity", "hw.gpu.activity", map[string]string{"unit": "sm_occupancy"}},
}

// of are the points of the GPU, but for those that say how it is or are
// calculated from others, by metric and attributes.
func of(md pmetric.Metrics, uuid string) map[string]pmetric.NumberDataPoint {
	out := map[string]pmetric.NumberDataPoint{}
	for _, m := range all(md) {
		for _, p := range pointsOf(m) {
			if id, ok := p.Attributes().Get("hw.id"); !ok || id.Str() != uuid {
				continue
			}
			kept := p.Attributes().AsRaw()
			delete(kept, "hw.id")
			delete(kept, "hw.parent")
			out[fmt.Sprint(m.Name(), kept)] = p
		}
	}
	return out
}

func (n *node) rejected() map[string]int64 {
	n.Helper()
	m, err := n.telemetry.GetMetric("otelcol_receiver_nvml_rejected_fields")
	require.NoError(n, err)
	out := map[string]int64{}
	for _, dp := range m.Data.(metricdata.Sum[int64]).DataPoints {
		field, _ := dp.Attributes.Value(attribute.Key("field"))
		out[field.AsString()] = dp.Value
	}
	return out
}

// TestEveryImpossibleReadingCostsItselfOnly gives each GPU another impossible
// value; the last GPU has none.
func TestEveryImpossibleReadingCostsItselfOnly(t *testing.T) {
	sound := len(impossible)
	state := fakenvml.NewH100(sound + 1)
	for i := range sound + 1 {
		state.SetGPU(i, "memory.used", uint64(60)<<30).SetGPU(i, "retired.sbe", 1).SetGPU(i, "retired.dbe", 1).SetGPU(i, "retired.pending", 0)
	}
	for i, c := range impossible {
		state.SetGPU(i, c.key, c.value)
	}
	state.Install(t)
	library := fakenvml.Library(t)
	n := startNode(t, func(cfg *Config) {
		cfg.LibraryPath, cfg.Detail, cfg.Metrics.HwGpuActivity.Enabled = library, DetailFull, true
	})
	n.first() // GPM's activity takes two samples
	before := map[string]int64{}
	if m, err := n.telemetry.GetMetric("otelcol_receiver_nvml_rejected_fields"); err == nil && len(m.Data.(metricdata.Sum[int64]).DataPoints) > 0 {
		before = n.rejected()
	}
	md := n.scrape()
	assert.Equal(t, upAll(sound+1), up(md))

	whole := len(of(md, fakenvml.UUID(sound)))
	want := map[string]int64{}
	for i, c := range impossible {
		t.Run(fmt.Sprint(c.key, " ", c.value), func(t *testing.T) {
			with := func(gpu int) map[string]string {
				attributes := map[string]string{"hw.id": fakenvml.UUID(gpu)}
				maps.Copy(attributes, c.attributes)
				return attributes
			}
			assert.Empty(t, find(md, c.metric, with(i)))
			gone := len(find(md, c.metric, with(sound)))
			require.Positive(t, gone, "a sound GPU has it")
			// The utilization of the memory is the quotient of two readings.
			assert.InDelta(t, whole-gone, len(of(md, fakenvml.UUID(i))), 3, "the rest goes out")
			if c.field != "" {
				want[c.field]++
				assert.Positive(t, n.logs.FilterMessage("a reading that cannot be true is left out").FilterField(zap.String("gpu", fakenvml.UUID(i))).FilterField(zap.String("field", c.field)).Len())
			}
		})
	}
	got := n.rejected()
	for field := range got {
		got[field] -= before[field]
	}
	assert.Equal(t, want, got)
	n.shutdown()
}

func TestImpossibleUUIDs(t *testing.T) {
	state := fakenvml.NewH100(8).SetGPU(1, "uuid", "garbage").SetGPU(3, "uuid", "").SetGPU(6, "uuid", fakenvml.UUID(5))
	n, rewrite := startFake(t, state)
	md := n.first()
	want := upAll(8)
	for _, i := range []int{1, 3, 6} {
		delete(want, fakenvml.UUID(i))
	}
	assert.Equal(t, want, up(md))
	assert.Equal(t, map[string]int64{"uuid": 3}, n.rejected())
	assert.InDelta(t, 357.25, values(md, "hw.power", nil)[fakenvml.UUID(5)], 0, "the first of two keeps the name")
	n.scrape()
	assert.Equal(t, 1, n.logs.FilterMessage("some GPUs are not reported: their UUID is unknown, empty or another GPU's").Len())
	assert.Equal(t, 1, n.logs.FilterMessage("a reading that cannot be true is left out").FilterField(zap.String("field", "uuid")).Len())

	for _, i := range []int{1, 3, 6} {
		state.SetGPU(i, "uuid", fakenvml.UUID(i))
	}
	state.Set("driver.epoch", 1)
	rewrite()
	assert.Equal(t, upAll(8), up(n.scrape()))
	n.shutdown()
}

// TestEveryCounterMayGoBack loads the driver again, which begins all counters
// anew, and does what a backend does: subtract within one start time.
func TestEveryCounterMayGoBack(t *testing.T) {
	state := fakenvml.NewH100(2)
	set := func(value int) {
		for i := range 2 {
			for _, key := range []string{
				"energy", "field.94", "field.95", "field.138", "field.139", "field.161", "field.162", "field.163", "field.197", "field.198",
				"field.74", "field.75", "field.76", "field.77", "field.78", "field.269", "field.270", "field.271",
				"ecc.corrected.volatile", "ecc.uncorrected.volatile", "ecc.corrected.aggregate", "ecc.uncorrected.aggregate",
				"ecc.corrected.volatile.dram", "ecc.corrected.volatile.sram", "ecc.uncorrected.volatile.dram", "ecc.uncorrected.volatile.sram",
			} {
				state.SetGPU(i, key, value)
			}
		}
	}
	set(9_000_000)
	rewrite := state.Install(t)
	library := fakenvml.Library(t)
	n := startNode(t, func(cfg *Config) {
		cfg.LibraryPath, cfg.Detail, cfg.Metrics.HwGpuNvlinkLinkErrors.Enabled = library, DetailFull, true
	})
	n.first()

	type series struct {
		value      float64
		start, end pcommon.Timestamp
	}
	read := func(md pmetric.Metrics) map[string]series {
		out := map[string]series{}
		for _, m := range all(md) {
			if m.Type() != pmetric.MetricTypeSum || !m.Sum().IsMonotonic() {
				continue
			}
			for _, p := range m.Sum().DataPoints().All() {
				value := p.DoubleValue()
				if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
					value = float64(p.IntValue())
				}
				out[fmt.Sprint(m.Name(), p.Attributes().AsRaw())] = series{value, p.StartTimestamp(), p.Timestamp()}
			}
		}
		return out
	}
	before := read(n.scrape())
	set(5)
	state.Set("driver.epoch", 1)
	rewrite()
	after := read(n.scrape())
	back := map[string]int{}
	for name, was := range before {
		is := after[name]
		require.NotZero(t, is.end, name)
		if is.value < was.value {
			assert.Equal(t, was.end, is.start, "%s went back", name)
			metric, _, _ := strings.Cut(name, "map[")
			back[metric]++
		} else {
			assert.Equal(t, was.start, is.start, "%s did not", name)
		}
		assert.GreaterOrEqual(t, is.value, 0.0)
	}
	for metric, least := range map[string]int{
		"hw.energy": 2, "hw.errors": 16, "hw.gpu.io": 8, "hw.gpu.nvlink.errors": 6, "hw.gpu.nvlink.link.errors": 18, "hw.gpu.pcie.replays": 4, "hw.gpu.throttle.time": 16,
	} {
		assert.GreaterOrEqual(t, back[metric], least, metric)
	}

	// From here on they count from the new start.
	set(7)
	rewrite()
	for name, is := range read(n.scrape()) {
		if is.value > after[name].value {
			assert.Equal(t, after[name].start, is.start, name)
		}
	}
	n.shutdown()
}

// TestPCIeBytesThatGoBack: a counter of 32 bits wraps, or begins anew without
// the driver being loaded anew.
func TestPCIeBytesThatGoBack(t *testing.T) {
	state := fakenvml.NewH100(1).SetGPU(0, "field.197", 1_000_000)
	n, rewrite := startFake(t, state)
	n.first()
	bytes := func(counter uint32) pmetric.NumberDataPoint {
		t.Helper()
		state.SetGPU(0, "field.197", counter)
		rewrite()
		return point(t, n.scrape(), "hw.gpu.io", map[string]string{"hw.id": fakenvml.UUID(0), "gpu.link": "pcie", "network.io.direction": "transmit"})
	}
	before := bytes(2_000_000)
	anew := bytes(500)
	assert.EqualValues(t, 500, anew.IntValue())
	assert.Equal(t, before.Timestamp(), anew.StartTimestamp(), "it began anew after the last point")
	high := bytes(1<<32 - 1000)
	wrapped := bytes(500)
	assert.EqualValues(t, 1<<32+500, wrapped.IntValue())
	assert.Equal(t, high.StartTimestamp(), wrapped.StartTimestamp())
	n.shutdown()
}

// TestDriverThatIsUpgraded: the new kernel module refuses the old library
// until the process that holds it is started again, or the old one is back.
func TestDriverThatIsUpgraded(t *testing.T) {
	state := fakenvml.NewH100(8)
	n, rewrite := startFake(t, state)
	before := n.first()

	state.Set("call.nvmlInit_v2.return", int(nvml.LibRMVersionMismatch)).Set("driver.epoch", 1)
	rewrite()
	for range 3 {
		md := n.scrape()
		want := map[string]string{}
		for i := range 8 {
			want[fakenvml.UUID(i)] = "driver_mismatch"
		}
		assert.Equal(t, want, up(md))
		assert.Empty(t, values(md, "hw.power", nil))
		assert.Len(t, values(md, "hw.gpu.info", nil), len(values(before, "hw.gpu.info", nil)))
	}
	assert.Equal(t, 1, n.logs.FilterMessage("NVML is in trouble").Len())

	state.Delete("call.nvmlInit_v2.return")
	rewrite()
	assert.Equal(t, upAll(8), up(n.scrape()))
	n.shutdown()
}

// TestOneOfSixteenFails: NVML cannot determine the handle of one index after
// the driver was loaded again.
func TestOneOfSixteenFails(t *testing.T) {
	state := fakenvml.NewH100(16)
	n, rewrite := startFake(t, state)
	assert.Equal(t, upAll(16), up(n.first()))

	state.SetGPU(11, "call.nvmlDeviceGetHandleByIndex_v2.return", int(nvml.Unknown)).Set("driver.epoch", 1)
	rewrite()
	want := upAll(16)
	want[fakenvml.UUID(11)] = "error"
	for range 3 {
		md := n.scrape()
		assert.Equal(t, want, up(md))
		assert.Len(t, values(md, "hw.power", nil), 15)
	}

	state.DeleteGPU(11, "call.nvmlDeviceGetHandleByIndex_v2.return")
	rewrite()
	assert.Equal(t, upAll(16), up(n.scrape()))
	n.shutdown()
}

func TestSlicesComeAndGo(t *testing.T) {
	state := fakenvml.NewH100(2)
	n, rewrite := startFake(t, state)
	assert.Equal(t, upAll(2), up(n.first()))
	slices := func(places ...int) {
		t.Helper()
		rewrite()
		want, parents := upAll(2), map[string]string{}
		for _, place := range places {
			want[fakenvml.SliceUUID(1, place)] = "ok"
			parents[fakenvml.SliceUUID(1, place)] = fakenvml.UUID(1)
		}
		md := n.scrape()
		assert.Equal(t, want, up(md), "what is cut anew is gone, not lost")
		got := map[string]string{}
		for _, p := range find(md, "hw.gpu.up", nil) {
			if parent, ok := p.Attributes().Get("hw.parent"); ok {
				id, _ := p.Attributes().Get("hw.id")
				got[id.Str()] = parent.Str()
			}
		}
		assert.Equal(t, parents, got)
		mode := map[string]string{"hw.id": fakenvml.UUID(1), "mode": "mig"}
		assert.EqualValues(t, min(len(places), 1), point(t, md, "hw.gpu.mode", mode).IntValue())
	}
	state.SetGPU(1, "mig.mode", 1).SetGPU(1, "mig.places", 7).Slice(1, 0, 1, 0, "4g.40gb", 40<<30).Slice(1, 1, 2, 0, "3g.40gb", 40<<30)
	slices(0, 1)
	state.DeleteSlice(1, 0).Slice(1, 4, 5, 0, "1g.10gb", 10<<30)
	slices(1, 4)

	state.SetGPU(1, "present", 0)
	rewrite()
	lost := upAll(2)
	lost[fakenvml.UUID(1)], lost[fakenvml.SliceUUID(1, 1)], lost[fakenvml.SliceUUID(1, 4)] = "lost", "lost", "lost"
	assert.Equal(t, lost, up(n.scrape()), "slices are lost with their GPU, those that were there last")
	state.SetGPU(1, "present", 1)
	slices(1, 4)

	state.DeleteSlice(1, 1).DeleteSlice(1, 4).SetGPU(1, "mig.mode", 0)
	slices()
	n.shutdown()
	assert.Equal(t, 3, n.logs.FilterMessage("GPU does not answer").Len())
}

// TestGarbageCondemnsNoBoard: what is garbage at each poll leaves the board
// healthy, and what was true once needs a second reading.
func TestGarbageCondemnsNoBoard(t *testing.T) {
	state := fakenvml.NewH100(2)
	for _, key := range []string{"sram.threshold_exceeded", "remapped.failed", "remapped.pending", "repair.tpc", "repair.channel", "retired.pending", "retired.dbe"} {
		state.SetGPU(0, key, uint32(1<<32-1))
	}
	n, rewrite := startFake(t, state)
	n.first()
	for range 5 {
		assert.Equal(t, map[string]float64{fakenvml.UUID(0): 100, fakenvml.UUID(1): 100}, values(n.scrape(), "hw.gpu.health.score", nil))
	}
	assert.Positive(t, n.rejected()["sram_threshold"])
	assert.Positive(t, n.rejected()["repair"])
	assert.Positive(t, n.rejected()["remapped_rows"])

	state.SetGPU(1, "present", 0)
	rewrite()
	n.scrape()
	state.SetGPU(1, "present", 1).SetGPU(1, "remapped.failed", 1)
	rewrite()
	score := func() float64 { return values(n.scrape(), "hw.gpu.health.score", nil)[fakenvml.UUID(1)] }
	n.scrape() // a handle anew, and with it slow readings
	assert.InDelta(t, 10, score(), 0, "at the next poll, and not a minute later")
	n.shutdown()
}
