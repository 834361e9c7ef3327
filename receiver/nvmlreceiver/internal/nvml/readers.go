// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// reader fills in some readings and notes what its calls returned. CONTRIBUTING.md has
// what a new reading takes.
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

// readMemory prefers the call that has used and reserved bytes apart (driver 510).
func readMemory(d *device, r *gpuhealth.Readings, t *tally) {
	m2, code := guarded(d.library, fnMemoryV2, d.raw.GetMemoryInfo_v2, outdated...)
	if t.ok(code) {
		r.Numbers[reading.MemoryLimit], r.Numbers[reading.MemoryUsed] = gpuhealth.Ratio(m2.Total, 1, 1), gpuhealth.Ratio(m2.Used, 1, 1)
		r.Numbers[reading.MemoryReserved] = gpuhealth.Ratio(m2.Reserved, 1, 1)
		return
	}
	if !code.tryOlder() {
		return
	}
	m1, code := guarded(d.library, fnMemory, d.raw.GetMemoryInfo)
	if t.ok(code) {
		r.Numbers[reading.MemoryLimit], r.Numbers[reading.MemoryUsed] = gpuhealth.Ratio(m1.Total, 1, 1), gpuhealth.Ratio(m1.Used, 1, 1)
	}
}

func readUtilization(d *device, r *gpuhealth.Readings, t *tally) {
	if u, code := guarded(d.library, fnUtilization, d.raw.GetUtilizationRates); t.ok(code) {
		r.Numbers[reading.Utilization], r.Numbers[reading.MemoryUtilization] = percent(u.Gpu), percent(u.Memory)
	}
	put(d, t, fnEncoder, func() (uint32, gonvml.Return) { return first(d.raw.GetEncoderUtilization()) },
		percent, &r.Numbers[reading.EncoderUtilization])
	put(d, t, fnDecoder, func() (uint32, gonvml.Return) { return first(d.raw.GetDecoderUtilization()) },
		percent, &r.Numbers[reading.DecoderUtilization])
}

// put reads one value, in the unit of the reading. A call that fails leaves it absent.
func put[T, O any](d *device, t *tally, fn function, call func() (T, gonvml.Return), of func(T) gpuhealth.Opt[O], to *gpuhealth.Opt[O]) {
	if v, code := guarded(d.library, fn, call); t.ok(code) {
		*to = of(v)
	}
}

func percent(n uint32) gpuhealth.Opt[float64] { return gpuhealth.Ratio(n, 1, 100) }

func whole(n uint32) gpuhealth.Opt[float64] { return gpuhealth.Ratio(n, 1, 1) }

func megahertz(n uint32) gpuhealth.Opt[float64] { return gpuhealth.Ratio(n, 1e6, 1) }

// thousandths are milliwatts or millijoules.
func thousandths[T uint32 | uint64](n T) gpuhealth.Opt[float64] { return gpuhealth.Ratio(n, 1, 1000) }

func first[T any](v, _ T, ret gonvml.Return) (T, gonvml.Return) { return v, ret }

func second[T any](_, v T, ret gonvml.Return) (T, gonvml.Return) { return v, ret }

// readTemperature prefers the call that replaced GetTemperature in NVML 13.
func readTemperature(d *device, r *gpuhealth.Readings, t *tally) {
	if m, code := guarded(d.library, fnMargin, d.raw.GetMarginTemperature); t.ok(code) {
		r.Numbers[reading.TemperatureMargin] = gpuhealth.Some(float64(m.MarginTemperature))
	}
	v, code := guarded(d.library, fnTemperatureV, func() (gonvml.Temperature, gonvml.Return) { return d.raw.GetTemperatureV().V1() }, outdated...)
	if t.ok(code) {
		r.Numbers[reading.Temperature] = gpuhealth.Some(float64(v.Temperature))
		return
	}
	if !code.tryOlder() {
		return
	}
	put(d, t, fnTemperature, func() (uint32, gonvml.Return) { return d.raw.GetTemperature(gonvml.TEMPERATURE_GPU) },
		whole, &r.Numbers[reading.Temperature])
}

func readPower(d *device, r *gpuhealth.Readings, t *tally) {
	// Field 186 is the power of this moment; the call may be an average over a
	// second (nvml.h), and is for drivers without the field.
	if !r.Numbers[reading.Power].OK {
		put(d, t, fnPower, d.raw.GetPowerUsage, thousandths, &r.Numbers[reading.Power])
	}
	put(d, t, fnEnergy, d.raw.GetTotalEnergyConsumption, thousandths, &r.Numbers[reading.Energy])
}

// clocks are in NVML's order.
var clocks = [...]reading.Field{reading.GraphicsClock, reading.SMClock, reading.MemoryClock, reading.VideoClock}

func readClocks(d *device, r *gpuhealth.Readings, t *tally) {
	for c, clock := range clocks {
		put(d, t, fnClock, func() (uint32, gonvml.Return) { return d.raw.GetClockInfo(gonvml.ClockType(c)) },
			megahertz, &r.Numbers[clock])
	}
}

func readECC(d *device, r *gpuhealth.Readings, t *tally) {
	for e := range gpuhealth.NumECCErrors {
		for c := range gpuhealth.NumECCCounters {
			put(d, t, fnECC, func() (uint64, gonvml.Return) {
				return d.raw.GetTotalEccErrors(gonvml.MemoryErrorType(e), gonvml.EccCounterType(c)) //nolint:forbidigo // guarded by the line above
			}, gpuhealth.Some[uint64], &r.ECC[e][c])
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
	put(d, t, fnPCIeWidth, d.raw.GetCurrPcieLinkWidth, count, &r.Numbers[reading.PCIeWidth])
	put(d, t, fnPCIeGeneration, d.raw.GetCurrPcieLinkGeneration, count, &r.Numbers[reading.PCIeGeneration])
	if p, code := guarded(d.library, fnPerformanceState, d.raw.GetPerformanceState); t.ok(code) && p != gonvml.PSTATE_UNKNOWN {
		r.PerformanceState = gpuhealth.Some(uint32(p))
	}
}

// count is a count that go-nvml widened, count32 the same of what is no number of the catalogue.
func count(n int) gpuhealth.Opt[float64] { return whole(uint32(n)) }

func count32(n int) gpuhealth.Opt[uint32] { return gpuhealth.Some(uint32(n)) }
