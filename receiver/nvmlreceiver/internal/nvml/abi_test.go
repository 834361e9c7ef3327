// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// These tests go through the real ABI: go-nvml loads a libnvidia-ml.so.1 of ours.

type abi struct {
	testing.TB
	*Poller
	rewrite func()
	xids    chan gpuhealth.XidEvent
	trace   string
	// rejected are the fields that the last poll was wrong in.
	rejected map[string][]gpuhealth.Field
}

func openFake(tb testing.TB, state *fakenvml.State, change func(*Config)) *abi {
	tb.Helper()
	a := &abi{TB: tb, xids: make(chan gpuhealth.XidEvent, 16), trace: filepath.Join(tb.TempDir(), "trace")}
	tb.Setenv("FAKENVML_TRACE", a.trace)
	a.rewrite = state.Install(tb)
	cfg := Config{Library: NewLibrary(fakenvml.Library(tb), nil, nil), Deadline: time.Minute, SlowInterval: time.Hour, Retry: time.Nanosecond}
	cfg.OnXid = func(ev gpuhealth.XidEvent) { a.xids <- ev }
	if change != nil {
		change(&cfg)
	}
	a.Poller = NewPoller(cfg)
	tb.Cleanup(func() {
		require.NoError(tb, a.Close(time.Minute))
		a.balanced()
	})
	return a
}

// balanced proves that what was opened is closed, and nothing under a call.
func (a *abi) balanced() {
	a.Helper()
	text, err := os.ReadFile(a.trace)
	require.NoError(a, err)
	n := map[string]int{}
	for line := range strings.Lines(string(text)) {
		n[strings.TrimSpace(line)]++
		assert.NotContains(a, line, "VIOLATION")
	}
	assert.Equal(a, n["init"], n["shutdown"])
	assert.Equal(a, n["event_set_create"], n["event_set_free"])
	assert.Equal(a, n["gpm_alloc"], n["gpm_free"])
}

func (a *abi) poll() map[string]gpuhealth.Sample {
	a.Helper()
	out := map[string]gpuhealth.Sample{}
	a.rejected = map[string][]gpuhealth.Field{}
	for _, s := range a.Poll(a.Context()).Samples {
		s.Cached = false // which poll it was is no reading
		if rejected := s.Validate(); rejected != nil {
			a.rejected[s.UUID] = rejected
		}
		out[s.UUID] = s
	}
	return out
}

func (a *abi) xid() gpuhealth.XidEvent {
	a.Helper()
	select {
	case ev := <-a.xids:
		return ev
	case <-time.After(time.Minute):
		a.Fatal("no Xid")
		panic("unreachable")
	}
}

// TestH100: what is not as usual. TestModels of the receiver has all that a healthy one reports.
func TestH100(t *testing.T) {
	state := fakenvml.NewH100(1).SetGPU(0, "field.161.3", 7).SetGPU(0, "field.163.3", 2).SetGPU(0, "nvlink.5.up", 0).SetGPU(0, "field.230", 1)
	a := openFake(t, state, func(c *Config) { c.PerLink = true })
	s := a.poll()[fakenvml.UUID(0)]
	require.True(t, s.Up())
	assert.Empty(t, a.rejected)
	assert.Equal(t, gpuhealth.Some(1.0), s.Numbers[reading.PowerCapTime])
	assert.Equal(t, gpuhealth.Some(gpuhealth.RecoveryReset), s.RecoveryAction)
	assert.Equal(t, gpuhealth.Some[uint32](17), s.NVLink.Up)
	assert.Equal(t, gpuhealth.Some[uint32](1), s.NVLink.Down)
	assert.Equal(t, gpuhealth.Some[uint64](7), s.NVLink.Errors[gpuhealth.NVLinkReplay])
	assert.Equal(t, gpuhealth.Some[uint64](2), s.NVLink.Errors[gpuhealth.NVLinkCRC])
	assert.False(t, s.NVLink.Errors[gpuhealth.NVLinkCRCFlit].OK, "Hopper counts both kinds of CRC errors together")
	assert.False(t, s.IO[gpuhealth.LinkNVLinkRaw][gpuhealth.Transmit].OK, "it was not asked for")
	assert.False(t, s.NVLink.Errors[gpuhealth.NVLinkSymbol].OK, "Blackwell's fields are not an H100's")
	assert.Equal(t, gpuhealth.Some[uint64](7), s.NVLink.PerLink[3].Errors[gpuhealth.NVLinkReplay])
	assert.Equal(t, s, a.poll()[fakenvml.UUID(0)], "the same state gives the same sample")
}

func TestB200(t *testing.T) {
	state := fakenvml.NewB200(1).SetGPU(0, "field.214.7", 2).SetGPU(0, "field.215.7", 5).SetGPU(0, "field.221.3", 9).SetGPU(0, "field.219.3", 1).
		SetGPU(0, "field.220.3", 7<<8|9).SetGPU(0, "repair.tpc", 1).SetGPU(0, "field.163", -1)
	a := openFake(t, state, func(c *Config) { c.Detail, c.PerLink = true, true })
	s := a.poll()[fakenvml.UUID(0)]
	assert.Equal(t, map[string][]gpuhealth.Field{s.UUID: slices.Repeat([]gpuhealth.Field{gpuhealth.FieldNVLinkErrors}, 18)}, a.rejected, "field 163 of each link")
	n := gpuhealth.Some[uint64]
	assert.Equal(t, [gpuhealth.NumNVLinkErrors]gpuhealth.Opt[uint64]{
		gpuhealth.NVLinkRecovery: n(5), gpuhealth.NVLinkRecoveryFailed: n(2), gpuhealth.NVLinkSymbol: n(9), gpuhealth.NVLinkEffective: n(1),
	}, s.NVLink.Errors)
	assert.Equal(t, n(2), s.NVLink.PerLink[7].Errors[gpuhealth.NVLinkRecoveryFailed])
	assert.InEpsilon(t, 1e-15, s.NVLink.BitErrorRate[gpuhealth.BitErrorsSymbol].V, 1e-9)
	assert.InEpsilon(t, 7e-9, s.NVLink.BitErrorRate[gpuhealth.BitErrorsEffective].V, 1e-9, "that of the worst link")
	assert.Equal(t, gpuhealth.Some(true), s.RepairPending[gpuhealth.RepairTPC])
	assert.Equal(t, gpuhealth.Some(false), s.RepairPending[gpuhealth.RepairChannel])
	assert.Equal(t, gpuhealth.Some(-3.0), s.Numbers[reading.SlowdownMargin])
	assert.Equal(t, gpuhealth.Opt[float64]{}, s.Numbers[reading.TemperatureLimit])
	assert.Equal(t, n(5_000_000<<10), s.IO[gpuhealth.LinkNVLink][gpuhealth.Transmit], "the driver's sum, and not that of the links beside it")
	assert.Equal(t, n(5_500_000<<10), s.IO[gpuhealth.LinkNVLinkRaw][gpuhealth.Transmit])
	assert.Equal(t, s, a.poll()[fakenvml.UUID(0)])
}

func TestBytesByLinkWhereThereIsNoSum(t *testing.T) {
	a := openFake(t, fakenvml.NewB200(1).DeleteGPU(0, "field.138").SetGPU(0, "field.202", 1000).SetGPU(0, "field.202.4", 5000), nil)
	for range 2 {
		s := a.poll()[fakenvml.UUID(0)]
		assert.Equal(t, gpuhealth.Some[uint64](17*1000+5000), s.IO[gpuhealth.LinkNVLink][gpuhealth.Transmit])
		assert.Equal(t, gpuhealth.Some[uint64](6_000_000<<10), s.IO[gpuhealth.LinkNVLink][gpuhealth.Receive])
		assert.Equal(t, [gpuhealth.NumBitErrors]gpuhealth.Opt[float64]{}, s.NVLink.BitErrorRate, "it was not asked for")
	}
}

func TestDegrees(t *testing.T) {
	bits := func(kind gonvml.ValueType, raw uint64) value {
		v := value{kind: kind}
		binary.NativeEndian.PutUint64(v.bits[:], raw)
		return v
	}
	for want, values := range map[gpuhealth.Opt[float64]][]value{
		gpuhealth.Some(-2.0):                 {bits(gonvml.VALUE_TYPE_SIGNED_INT, 1<<32-2), bits(gonvml.VALUE_TYPE_UNSIGNED_INT, 1<<32-2)},
		gpuhealth.Some(-1.0):                 {bits(gonvml.VALUE_TYPE_SIGNED_INT, 1<<32-1)},
		gpuhealth.Some(7.0):                  {bits(gonvml.VALUE_TYPE_SIGNED_INT, 7), bits(gonvml.VALUE_TYPE_UNSIGNED_INT, 7), bits(gonvml.VALUE_TYPE_UNSIGNED_LONG_LONG, 7)},
		gpuhealth.Some(float64(1<<32 - 1)):   {bits(gonvml.VALUE_TYPE_UNSIGNED_INT, 1<<32-1)},
		gpuhealth.Some(math.MaxUint64 + 0.0): {bits(gonvml.VALUE_TYPE_UNSIGNED_LONG_LONG, 1<<64-1), bits(99, 0)},
	} {
		for _, v := range values {
			assert.Equal(t, want, v.degrees(), "%v", v)
		}
	}
}

// TestCallsOfAPoll counts a poll's calls of the driver: one batch of fields for each
// GPU, no call twice, no call by link where the batch has it, and no slow calls.
func TestCallsOfAPoll(t *testing.T) {
	calls := filepath.Join(t.TempDir(), "calls")
	t.Setenv("FAKENVML_CALLS", calls)
	a := openFake(t, fakenvml.NewH100(3), nil)
	a.poll() // with the slow readings
	counted := func() map[string]int {
		text, err := os.ReadFile(calls)
		require.NoError(t, err)
		n := map[string]int{}
		for line := range strings.Lines(string(text)) {
			gpu, function, _ := strings.Cut(strings.TrimSpace(line), " ")
			if gpu != "-1" {
				n[gpu+" "+function]++
			}
		}
		return n
	}
	require.Equal(t, 18+1, counted()["0 nvmlDeviceGetNvLinkState"], "all calls are seen")

	require.NoError(t, os.Truncate(calls, 0))
	a.poll()
	now := counted()
	assert.Contains(t, now, "0 nvmlDeviceGetFieldValues")
	for call, n := range now {
		gpu, function, _ := strings.Cut(call, " ")
		most := map[string]int{
			"nvmlDeviceGetClockInfo":      len(clocks),
			"nvmlDeviceGetTotalEccErrors": int(gpuhealth.NumECCErrors) * int(gpuhealth.NumECCCounters),
		}[function]
		assert.Equal(t, max(1, most), n, "%s is called so often at each poll: read it once, or in slowReaders", call)
		assert.Equal(t, n, now["0 "+function], "GPU %s is asked what GPU 0 is", gpu)
	}
	for _, slow := range []string{"NvLinkState", "TemperatureThreshold", "MemoryErrorCounter", "RetiredPages", "RemappedRows", "EnforcedPowerLimit", "MaxClockInfo", "EccMode"} {
		assert.NotContains(t, now, "0 nvmlDeviceGet"+slow)
	}
}

func TestFieldsAreLearnt(t *testing.T) {
	state := fakenvml.NewH100(1).SetGPU(0, "field.spoiler", 230).SetGPU(0, "field.197", uint32(1<<32-1_000_000))
	a := openFake(t, state, nil)
	s := a.poll()[fakenvml.UUID(0)]
	assert.False(t, s.RecoveryAction.OK)
	assert.Equal(t, gpuhealth.Some(351.0), s.Numbers[reading.Power], "one field that the driver cannot stand costs itself only")

	// It is not asked again, nor what is not supported.
	state.DeleteGPU(0, "field.spoiler").SetGPU(0, "field.221", 1).SetGPU(0, "field.197", 10)
	a.rewrite()
	s = a.poll()[fakenvml.UUID(0)]
	assert.False(t, s.RecoveryAction.OK)
	assert.False(t, s.NVLink.Errors[gpuhealth.NVLinkSymbol].OK)
	assert.Equal(t, gpuhealth.Some[uint64](1<<32+10), s.IO[gpuhealth.LinkPCIe][gpuhealth.Transmit], "the counter wrapped")

	// A new driver is asked for everything again.
	state.Set("driver.epoch", 1)
	a.rewrite()
	s = a.poll()[fakenvml.UUID(0)]
	assert.True(t, s.RecoveryAction.OK)
	assert.True(t, s.NVLink.Errors[gpuhealth.NVLinkSymbol].OK)
}

func TestMIG(t *testing.T) {
	state := fakenvml.NewA100MIG(2)
	a := openFake(t, state, nil)
	samples := a.poll()
	require.Len(t, samples, 6)
	parent := samples[fakenvml.UUID(1)]
	assert.False(t, parent.Numbers[reading.Utilization].OK)
	assert.Equal(t, gpuhealth.Flag(true), parent.Numbers[reading.ModeMIG])
	part := samples[fakenvml.SliceUUID(1, 0)]
	assert.Equal(t, gpuhealth.MIG{Parent: fakenvml.UUID(1), GPUInstance: gpuhealth.Some[uint32](2), ComputeInstance: gpuhealth.Some[uint32](0)}, part.MIG)
	assert.Equal(t, gpuhealth.Some(float64(20<<30)), part.Numbers[reading.MemoryLimit])
	assert.False(t, part.Numbers[reading.Power].OK)
	assert.Equal(t, gpuhealth.Some[uint64](0), part.ECCLocation[gpuhealth.ECCUncorrected][gpuhealth.ECCVolatile][gpuhealth.ECCSRAM])
	assert.Equal(t, gpuhealth.Some[uint64](0), parent.NVLink.Errors[gpuhealth.NVLinkCRC])
	assert.Equal(t, gpuhealth.Some[uint64](0), parent.NVLink.Errors[gpuhealth.NVLinkCRCFlit], "Ampere has both")

	// By nvml.h a GPU in slices does not report these: they are absent, not zero.
	assert.Equal(t, [2]gpuhealth.Opt[float64]{}, [...]gpuhealth.Opt[float64]{parent.Numbers[reading.RemapPending], parent.Numbers[reading.RemappedUncorrected]})
	assert.False(t, parent.Numbers[reading.EncoderUtilization].OK || parent.Numbers[reading.DecoderUtilization].OK)
	assert.False(t, parent.ECCLocation[gpuhealth.ECCUncorrected][gpuhealth.ECCVolatile][gpuhealth.ECCSRAM].OK)
	assert.True(t, parent.ECCLocation[gpuhealth.ECCUncorrected][gpuhealth.ECCAggregate][gpuhealth.ECCSRAM].OK)

	// Reshaped, lost, healed, switched off.
	state.DeleteSlice(1, 0).Slice(1, 3, 5, 0, "2g.10gb", 10<<30)
	a.rewrite()
	samples = a.poll()
	assert.NotContains(t, samples, fakenvml.SliceUUID(1, 0))
	assert.Contains(t, samples, fakenvml.SliceUUID(1, 3))
	state.SetGPU(1, "present", 0).XIDOf(1, 79, 5, math.MaxUint32)
	a.rewrite()
	samples = a.poll()
	assert.Equal(t, gpuhealth.ReasonLost, samples[fakenvml.SliceUUID(1, 3)].Reason, "a slice is lost with its GPU")
	ev := a.xid()
	assert.Equal(t, fakenvml.UUID(1), ev.UUID, "the name of a lost GPU is kept")
	assert.EqualValues(t, 79, ev.Code)
	assert.Equal(t, gpuhealth.Some[uint32](5), ev.GPUInstance)
	assert.False(t, ev.ComputeInstance.OK, "NVML has all bits for none")
	state.SetGPU(1, "present", 1).SetGPU(1, "mig.mode", 0)
	a.rewrite()
	samples = a.poll()
	assert.Len(t, samples, 4, "the other GPU keeps its slices")
	assert.True(t, func() bool { s := samples[fakenvml.UUID(1)]; return s.Up() && s.Numbers[reading.Utilization].OK }())
}

func TestActivity(t *testing.T) {
	state := fakenvml.NewH100(1).SetGPU(0, "mig.mode", 1).SetGPU(0, "mig.places", 7).Slice(0, 0, 2, 0, "3g.40gb", 40<<30).SetGPU(0, "mig.0.gpm.2", 25)
	a := openFake(t, state, func(c *Config) { c.Activity = true })
	assert.False(t, func() bool { s := a.poll()[fakenvml.UUID(0)]; return s.Numbers[reading.GraphicsActivity].OK }(), "it takes two samples")
	samples := a.poll()
	s := samples[fakenvml.UUID(0)]
	assert.Equal(t, gpuhealth.Some(0.8), s.Numbers[reading.SMActivity])
	assert.Equal(t, gpuhealth.Some(0.55), s.Numbers[reading.TensorActivity])
	assert.Equal(t, gpuhealth.Some(0.88), s.Numbers[reading.GraphicsActivity])
	assert.Equal(t, gpuhealth.Some(2048.0*(1<<20)), s.IORate[gpuhealth.LinkPCIe][gpuhealth.Transmit])
	assert.Equal(t, gpuhealth.Some(4096.0*(1<<20)), s.IORate[gpuhealth.LinkNVLink][gpuhealth.Receive])
	s = samples[fakenvml.SliceUUID(0, 0)]
	assert.Equal(t, gpuhealth.Some(0.25), s.Numbers[reading.SMActivity])
	state.DeleteSlice(0, 0)
	a.rewrite()
	a.poll()
	a.poll()
}

func TestXidAcrossAReload(t *testing.T) {
	state := fakenvml.NewH100(2)
	a := openFake(t, state, nil)
	a.poll()
	state.XID(1, 31)
	a.rewrite()
	assert.Equal(t, fakenvml.UUID(1), a.xid().UUID)
	state.Set("driver.loaded", 0)
	a.rewrite()
	require.ErrorIs(t, a.Poll(t.Context()).Err, ErrDriver)
	state.Set("driver.loaded", 1).Set("driver.epoch", 1)
	a.rewrite()
	assert.EqualValues(t, 2, a.Poll(t.Context()).Generation)
	state.XID(0, 48)
	a.rewrite()
	ev := a.xid()
	assert.Equal(t, fakenvml.UUID(0), ev.UUID)
	assert.EqualValues(t, 48, ev.Code)
}
