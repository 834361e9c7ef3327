// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

// reader fills in some readings and notes what its calls returned. A new
// signal is a new reader, a new function in the guard's table and a new field
// of gpuhealth.Readings.
type reader func(*device, *gpuhealth.Readings, *tally)

// fastReaders run at each poll.
var fastReaders = []reader{
	readMemory,
	readUtilization,
	readTemperature,
	readFields,
	readPower,
	readClocks,
	readECC,
	readThrottle,
	readPCIe,
	readNVLinks,
	readFabric,
	readProcesses,
}

// readMemory prefers the call that tells used from reserved bytes (driver 510).
func readMemory(d *device, r *gpuhealth.Readings, t *tally) {
	m2, code := guarded(d.library, fnMemoryV2, d.raw.GetMemoryInfo_v2, outdated...)
	if t.ok(code) {
		r.MemoryTotal, r.MemoryUsed = gpuhealth.Some(m2.Total), gpuhealth.Some(m2.Used)
		r.MemoryReserved = gpuhealth.Some(m2.Reserved)
		return
	}
	if !code.tryOlder() {
		return
	}
	m1, code := guarded(d.library, fnMemory, d.raw.GetMemoryInfo)
	if t.ok(code) {
		r.MemoryTotal, r.MemoryUsed = gpuhealth.Some(m1.Total), gpuhealth.Some(m1.Used)
	}
}

func readUtilization(d *device, r *gpuhealth.Readings, t *tally) {
	if u, code := guarded(d.library, fnUtilization, d.raw.GetUtilizationRates); t.ok(code) {
		r.Utilization, r.MemoryUtilization = gpuhealth.Ratio(u.Gpu, 1, 100), gpuhealth.Ratio(u.Memory, 1, 100)
	}
	if v, code := guarded(d.library, fnEncoder, func() (uint32, gonvml.Return) { return first(d.raw.GetEncoderUtilization()) }); t.ok(code) {
		r.Encoder = gpuhealth.Ratio(v, 1, 100)
	}
	if v, code := guarded(d.library, fnDecoder, func() (uint32, gonvml.Return) { return first(d.raw.GetDecoderUtilization()) }); t.ok(code) {
		r.Decoder = gpuhealth.Ratio(v, 1, 100)
	}
}

func first[T any](v, _ T, ret gonvml.Return) (T, gonvml.Return) { return v, ret }

func second[T any](_, v T, ret gonvml.Return) (T, gonvml.Return) { return v, ret }

// readTemperature prefers the call that replaced GetTemperature in NVML 13.
func readTemperature(d *device, r *gpuhealth.Readings, t *tally) {
	if m, code := guarded(d.library, fnMargin, d.raw.GetMarginTemperature); t.ok(code) {
		r.TemperatureMargin = gpuhealth.Some(float64(m.MarginTemperature))
	}
	v, code := guarded(d.library, fnTemperatureV, func() (gonvml.Temperature, gonvml.Return) { return d.raw.GetTemperatureV().V1() }, outdated...)
	if t.ok(code) {
		r.Temperature = gpuhealth.Some(float64(v.Temperature))
		return
	}
	if !code.tryOlder() {
		return
	}
	old, code := guarded(d.library, fnTemperature, func() (uint32, gonvml.Return) { return d.raw.GetTemperature(gonvml.TEMPERATURE_GPU) })
	if t.ok(code) {
		r.Temperature = gpuhealth.Ratio(old, 1, 1)
	}
}

func readPower(d *device, r *gpuhealth.Readings, t *tally) {
	// Field 186 is the power of this moment; the call may be an average over a
	// second (nvml.h), and is for drivers that lack the field.
	if !r.Power.OK {
		if mw, code := guarded(d.library, fnPower, d.raw.GetPowerUsage); t.ok(code) {
			r.Power = gpuhealth.Ratio(mw, 1, 1000)
		}
	}
	if mj, code := guarded(d.library, fnEnergy, d.raw.GetTotalEnergyConsumption); t.ok(code) {
		r.Energy = gpuhealth.Ratio(mj, 1, 1000)
	}
}

func readClocks(d *device, r *gpuhealth.Readings, t *tally) {
	for c := range gpuhealth.NumClocks {
		domain := gonvml.ClockType(c)
		if mhz, code := guarded(d.library, fnClock, func() (uint32, gonvml.Return) { return d.raw.GetClockInfo(domain) }); t.ok(code) {
			r.Clocks[c] = gpuhealth.Ratio(mhz, 1e6, 1)
		}
	}
}

func readECC(d *device, r *gpuhealth.Readings, t *tally) {
	for e := range gpuhealth.NumECCErrors {
		for c := range gpuhealth.NumECCCounters {
			n, code := guarded(d.library, fnECC, func() (uint64, gonvml.Return) {
				return d.raw.GetTotalEccErrors(gonvml.MemoryErrorType(e), gonvml.EccCounterType(c))
			})
			if t.ok(code) {
				r.ECC[e][c] = gpuhealth.Some(n)
			}
		}
	}
}

// readThrottle falls back to the name that the call had before driver 535.
func readThrottle(d *device, r *gpuhealth.Readings, t *tally) {
	bits, code := guarded(d.library, fnClockEvents, d.raw.GetCurrentClocksEventReasons, outdated...)
	if code.tryOlder() {
		t.ok(code)
		bits, code = guarded(d.library, fnClockThrottle, d.raw.GetCurrentClocksThrottleReasons)
	}
	if t.ok(code) {
		r.Throttle = gpuhealth.Some(bits)
	}
}

func readPCIe(d *device, r *gpuhealth.Readings, t *tally) {
	if n, code := guarded(d.library, fnPCIeWidth, d.raw.GetCurrPcieLinkWidth); t.ok(code) {
		r.PCIe.Width = count32(n)
	}
	if n, code := guarded(d.library, fnPCIeGeneration, d.raw.GetCurrPcieLinkGeneration); t.ok(code) {
		r.PCIe.Generation = count32(n)
	}
	if p, code := guarded(d.library, fnPerformanceState, d.raw.GetPerformanceState); t.ok(code) && p != gonvml.PSTATE_UNKNOWN {
		r.PerformanceState = gpuhealth.Some(uint32(p))
	}
}

// count32 is a count that go-nvml widened.
func count32(n int) gpuhealth.Opt[uint32] { return gpuhealth.Some(uint32(n)) }
