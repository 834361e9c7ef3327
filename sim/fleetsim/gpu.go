// SPDX-License-Identifier: Apache-2.0

// Package fleetsim is a physical model of GPU nodes under load: what a poll of their sensors
// reads, second by second. It is pure: the same seed gives the same readings.
//
// A load phase sets how hard the chip works, and power follows the work with correlated noise.
// The clock gives way when power meets its cap. Heat follows power with inertia; counters
// integrate.
package fleetsim // import "github.com/gpu-collector/gpu-collector/sim/fleetsim"

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// The GPU is an H100 SXM5 in air. Power cap, memory, boost clock and links are the
// data sheet's (NVIDIA H100 datasheet, 2023). `nvidia-smi -q -d SUPPORTED_CLOCKS`
// lists the clock step. The hardware slows down 2 °C above its maximum (NVML field
// 194). The maximum, idle power, 65 to 70 °C at full load from 26 °C air, and the tens
// of seconds to get there are common for such nodes, and from no recording.
const (
	IdleWatts              = 70.0
	CapWatts               = 700.0
	BoostHertz             = 1980e6 // the clock with power to spare
	IdleHertz              = 345e6
	ClockStepHertz         = 15e6 // the driver changes the clock by steps
	MemoryBytes    float64 = 80 << 30
	InletCelsius           = 26.0             // of the air
	KelvinPerWatt          = 0.06             // how much warmer the chip settles
	MemoryKelvin           = 12.0             // of the memory above the chip at full power
	Inertia                = 30 * time.Second // time constant of the chip with its heat sink
	// MaxCelsius is where the driver begins to lower the clock, SlowdownCelsius
	// where the hardware halves it. The memory stays below MaxMemoryCelsius at both.
	MaxCelsius       = 87.0
	SlowdownCelsius  = 89.0
	MaxMemoryCelsius = 105.0
	// What the board can do.
	PCIeGeneration = 5
	PCIeLanes      = 16
	NVLinks        = 18
	// PCIeBytesPerSecond and NVLinkBytesPerSecond are what a training job moves
	// each way while it exchanges gradients, well below the links' 64 and 450 GB/s.
	PCIeBytesPerSecond   = 2e9
	NVLinkBytesPerSecond = 90e9
)

// throttleClocks are the driver's clocks of what holds a GPU's clock down; the other reasons
// that faults lead to have none.
var throttleClocks = [...]struct {
	seconds reading.Field
	reason  gpuhealth.ThrottleReason
}{
	{reading.PowerCapTime, gpuhealth.ThrottlePowerCap},
	{reading.PowerBrakeTime, gpuhealth.ThrottlePowerBrake},
	{reading.HWThermalTime, gpuhealth.ThrottleHWThermal},
	{reading.SWThermalTime, gpuhealth.ThrottleSWThermal},
}

// MaxXids is how many codes of Xids one GPU may have.
const MaxXids = 4

// Xid counts the events of one code; Code is 0 where there is none.
type Xid struct{ Code, Count uint64 }

// Reading is what one poll of a GPU's sensors gives, in the resolution that
// the driver has: whole degrees, whole percent, milliwatts, clock steps.
type Reading struct {
	// Up is whether the GPU answers. A lost GPU has no readings: only Up and Xids
	// mean something.
	Up                     bool
	Celsius, MemoryCelsius float64
	Watts, LimitWatts      float64
	Joules                 float64 // since the start
	// ClockHertz is at most BoostHertz, the most that the board can do whatever
	// holds it down.
	ClockHertz, BoostHertz float64
	MemoryUsed             float64 // bytes
	Utilization            float64 // 0 to 1, in hundredths
	Processes              int
	Throttled              gpuhealth.ThrottleReason     // those that hold
	ThrottledSeconds       [len(throttleClocks)]float64 // since the start
	PCIeBytes, NVLinkBytes float64                      // each way, since the start
	// PCIeGeneration and PCIeLanes are those in use: a GPU at rest lowers the
	// generation to save power.
	PCIeGeneration, PCIeLanes int
	NVLinksUp                 int
	NVLinkReplays, NVLinkCRC  float64 // since the start
	// ECCCorrected and ECCUncorrected are since the driver was loaded.
	ECCCorrected, ECCUncorrected float64
	RemappedRows                 int // for errors that could not be corrected
	RemapPending, RemapFailed    bool
	Xids                         [MaxXids]Xid
}

// How readings scatter. The standard deviations are relative; the times are
// for how long a deviation lasts.
const (
	powerNoise     = 0.015
	powerNoiseTime = 5 * time.Second
	airNoise       = 0.4 // kelvin: fans and neighbours
	airNoiseTime   = 2 * time.Minute
)

type gpu struct {
	rng        *rand.Rand
	efficiency float64 // chips of one model differ by a few per cent in power
	inlet      float64 // and stand in air of different temperature
	power, air ar1
	celsius    float64
	thermal    governor
	// speed is the share of the GPU's own speed that its faults leave, 1 without a
	// fault. free is its clock as a share of the highest clock without a fault.
	speed, free float64
	now         Reading
}

func newGPU(rng *rand.Rand) gpu {
	g := gpu{rng: rng, thermal: governor{share: 1}, speed: 1, free: 1}
	g.efficiency = 1 + 0.03*rng.NormFloat64()
	g.inlet = InletCelsius + 4*rng.Float64()
	g.power = ar1{sigma: powerNoise, time: powerNoiseTime}
	g.air = ar1{sigma: airNoise, time: airNoiseTime}
	g.celsius = g.inlet + IdleWatts*KelvinPerWatt
	// Counters that start at zero would be small for the whole run.
	g.now.Joules = rng.Float64() * 1e9
	g.now.PCIeBytes, g.now.NVLinkBytes = rng.Float64()*1e14, rng.Float64()*1e15
	g.now.Up = true
	g.now.BoostHertz, g.now.LimitWatts = BoostHertz, CapWatts
	g.now.PCIeGeneration, g.now.PCIeLanes, g.now.NVLinksUp = PCIeGeneration, PCIeLanes, NVLinks
	return g
}

// step advances the GPU by dt under a demand, with what is wrong with it.
func (g *gpu) step(d demand, e *effect, dt time.Duration) {
	r, sec := &g.now, dt.Seconds()
	g.fail(e, d.busy > 0)
	watts := IdleWatts + (CapWatts*1.05*g.efficiency-IdleWatts)*d.work
	watts *= 1 + g.power.next(g.rng, dt)
	clock := BoostHertz
	if d.busy == 0 {
		clock = IdleHertz
	}
	free := clock
	if watts > CapWatts {
		free *= math.Cbrt(CapWatts / watts)
	}
	// The highest clock, before the power is looked at.
	held := min(e.left[clockLimit], e.left[brake], g.thermal.next(g.celsius, dt))
	r.Throttled = 0
	hold := func(holds bool, reasons gpuhealth.ThrottleReason) {
		if holds {
			r.Throttled |= reasons
		}
	}
	hold(g.thermal.share < 1, gpuhealth.ThrottleSWThermal)
	hold(g.thermal.half, gpuhealth.ThrottleHWThermal|gpuhealth.ThrottleHWSlowdown)
	hold(e.left[brake] < 1, gpuhealth.ThrottlePowerBrake|gpuhealth.ThrottleHWSlowdown)
	hold(e.left[clockLimit] < 1 && d.busy > 0, gpuhealth.ThrottleAppClocks)
	// Dynamic power goes with f·V², and V nearly with f.
	if clock > BoostHertz*held {
		clock = BoostHertz * held
		watts = IdleWatts + (watts-IdleWatts)*held*held*held
	}
	r.LimitWatts = CapWatts * e.left[powerLimit]
	if watts > r.LimitWatts {
		hold(true, gpuhealth.ThrottlePowerCap)
		// So the clock gives way by the cube root.
		clock *= math.Cbrt(r.LimitWatts / watts)
		watts = r.LimitWatts
	}
	for i, clock := range throttleClocks {
		if r.Throttled&clock.reason != 0 {
			r.ThrottledSeconds[i] += sec
		}
	}
	g.free = free / BoostHertz
	g.speed = max(minSpeed, e.left[speed]*clock/free)
	r.ClockHertz = math.Floor(clock/ClockStepHertz) * ClockStepHertz
	r.Watts = math.Round(watts*1000) / 1000
	r.Joules += watts * sec

	settles := g.inlet + g.air.next(g.rng, dt) + watts*KelvinPerWatt/e.left[cooling]
	g.celsius += (settles - g.celsius) * (1 - math.Exp(-dt.Seconds()/Inertia.Seconds()))
	r.Celsius = math.Round(g.celsius)
	r.MemoryCelsius = math.Round(g.celsius + MemoryKelvin*watts/CapWatts)

	r.Utilization = math.Round(d.busy*100) / 100
	r.MemoryUsed = math.Round(d.memory*MemoryBytes/(2<<20)) * (2 << 20) // allocated in blocks of 2 MiB
	r.PCIeBytes += math.Round(PCIeBytesPerSecond * d.links * sec)
	r.NVLinkBytes += math.Round(NVLinkBytesPerSecond * d.links * sec)
}

// governor lowers the clock of a chip that is too hot: the driver bit by bit, the hardware by
// half until the chip is well below.
type governor struct {
	share float64 // of the highest clock, by the driver
	half  bool
}

const (
	// How fast the driver gives way for each kelvin too much, and how fast it
	// comes back. Both are chosen so that a chip settles within a minute or two.
	governorDown, governorUp = 0.03, 0.005 // per second
	// governorBand is how far below the limits the clock comes back.
	governorBand = 2.0
	hardwareBand = 5.0
	minGoverned  = 0.3
)

// next returns the share of the highest clock that heat allows.
func (t *governor) next(celsius float64, dt time.Duration) float64 {
	switch {
	case celsius >= MaxCelsius:
		t.share = max(minGoverned, t.share-governorDown*(1+celsius-MaxCelsius)*dt.Seconds())
	case celsius < MaxCelsius-governorBand:
		t.share = min(1, t.share+governorUp*dt.Seconds())
	}
	switch {
	case celsius >= SlowdownCelsius:
		t.half = true
	case celsius < SlowdownCelsius-hardwareBand:
		t.half = false
	}
	if t.half {
		return min(t.share, 0.5)
	}
	return t.share
}

// ar1 is noise with a memory: a first-order autoregressive process.
type ar1 struct {
	sigma float64
	time  time.Duration
	value float64
}

func (a *ar1) next(rng *rand.Rand, dt time.Duration) float64 {
	keep := math.Exp(-dt.Seconds() / a.time.Seconds())
	a.value = keep*a.value + math.Sqrt(1-keep*keep)*a.sigma*rng.NormFloat64()
	return a.value
}
