// SPDX-License-Identifier: Apache-2.0

// Package fleetsim is a physical model of GPU nodes under load: what a poll of
// their sensors reads, second by second. It is pure and repeatable: the same
// seed gives the same readings.
//
// The question is how often readings change and by how much, and the model is as
// simple as that allows. A load phase sets how hard the chip works, and power follows
// the work with correlated noise. The clock gives way when power meets its cap. Heat
// follows power with inertia; counters integrate.
package fleetsim // import "github.com/gpu-collector/gpu-collector/sim/fleetsim"

import (
	"math"
	"math/rand/v2"
	"time"
)

// Spec is a model of GPU.
type Spec struct {
	IdleWatts, CapWatts float64
	// BoostHertz is the clock with power to spare, ClockStepHertz the step that
	// the driver changes it by.
	BoostHertz, IdleHertz, ClockStepHertz float64
	MemoryBytes                           float64
	// InletCelsius is the air, and KelvinPerWatt how much warmer the chip
	// settles for each watt; the memory settles MemoryKelvin above the chip at
	// full power.
	InletCelsius, KelvinPerWatt, MemoryKelvin float64
	// Inertia is the time constant of the chip with its heat sink.
	Inertia time.Duration
	// MaxCelsius is where the driver begins to lower the clock, SlowdownCelsius
	// where the hardware halves it. The memory stays below MaxMemoryCelsius at both.
	MaxCelsius, SlowdownCelsius, MaxMemoryCelsius float64
	// PCIeGeneration, PCIeLanes and NVLinks are what the board can do.
	PCIeGeneration, PCIeLanes, NVLinks int
	// PCIeBytesPerSecond and NVLinkBytesPerSecond are what a training job moves
	// each way while it exchanges gradients, well below the links' 64 and 450 GB/s.
	PCIeBytesPerSecond, NVLinkBytesPerSecond float64
}

// H100 is an H100 SXM5 in air. Power cap, memory, boost clock and links are the
// data sheet's (NVIDIA H100 datasheet, 2023). `nvidia-smi -q -d SUPPORTED_CLOCKS`
// lists the clock step. The hardware slows down 2 °C above its maximum (NVML field
// 194). The maximum, idle power, 65 to 70 °C at full load from 26 °C air, and the tens
// of seconds to get there are common for such nodes, and from no recording.
var H100 = Spec{
	IdleWatts: 70, CapWatts: 700,
	BoostHertz: 1980e6, IdleHertz: 345e6, ClockStepHertz: 15e6,
	MemoryBytes:  80 << 30,
	InletCelsius: 26, KelvinPerWatt: 0.06, MemoryKelvin: 12,
	Inertia:    30 * time.Second,
	MaxCelsius: 87, SlowdownCelsius: 89, MaxMemoryCelsius: 105,
	PCIeGeneration: 5, PCIeLanes: 16, NVLinks: 18,
	PCIeBytesPerSecond: 2e9, NVLinkBytesPerSecond: 90e9,
}

// Throttle is a reason that holds a GPU's clock down.
type Throttle int

// The reasons, those of NVML's clocks event reasons that faults lead to. The
// hardware says HWSlowdown beside its own two.
const (
	PowerCap Throttle = iota
	PowerBrake
	HWThermal
	SWThermal
	HWSlowdown
	AppClocks
	NumThrottles
)

// MaxXids is how many codes of Xids one GPU may have.
const MaxXids = 4

// Xid counts the events of one code; Code is 0 where there is none.
type Xid struct{ Code, Count uint64 }

// Reading is what one poll of a GPU's sensors gives, in the resolution that
// the driver has: whole degrees, whole percent, milliwatts, clock steps.
type Reading struct {
	// Up is whether the GPU answers. A silent GPU has no readings: only Up and Xids
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
	Throttled              [NumThrottles]bool
	ThrottledSeconds       [NumThrottles]float64 // since the start
	PCIeBytes, NVLinkBytes float64               // each way, since the start
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

// gpu is the state of one GPU.
type gpu struct {
	spec       *Spec
	rng        *rand.Rand
	efficiency float64 // chips of one model differ by a few per cent in power
	inlet      float64 // and stand at different places in the air
	power, air ar1
	celsius    float64
	thermal    governor
	// speed is the share of the GPU's own speed that its faults leave, 1 without a
	// fault. free is its clock as a share of the highest clock without a fault.
	speed, free float64
	now         Reading
}

func newGPU(spec *Spec, rng *rand.Rand) gpu {
	g := gpu{spec: spec, rng: rng, thermal: governor{share: 1}, speed: 1, free: 1}
	g.efficiency = 1 + 0.03*rng.NormFloat64()
	g.inlet = spec.InletCelsius + 4*rng.Float64()
	g.power = ar1{sigma: powerNoise, time: powerNoiseTime}
	g.air = ar1{sigma: airNoise, time: airNoiseTime}
	g.celsius = g.inlet + spec.IdleWatts*spec.KelvinPerWatt
	// Counters that start at zero would be small for the whole run.
	g.now.Joules = rng.Float64() * 1e9
	g.now.PCIeBytes, g.now.NVLinkBytes = rng.Float64()*1e14, rng.Float64()*1e15
	g.now.Up = true
	g.now.BoostHertz, g.now.LimitWatts = spec.BoostHertz, spec.CapWatts
	g.now.PCIeGeneration, g.now.PCIeLanes, g.now.NVLinksUp = spec.PCIeGeneration, spec.PCIeLanes, spec.NVLinks
	return g
}

// step advances the GPU by dt under a demand, with what is wrong with it.
func (g *gpu) step(d demand, e *effect, dt time.Duration) {
	s, r, sec := g.spec, &g.now, dt.Seconds()
	g.fail(e, d.busy > 0)
	wanted := s.IdleWatts + (s.CapWatts*1.05*g.efficiency-s.IdleWatts)*d.work
	wanted *= 1 + g.power.next(g.rng, dt)
	clock := s.BoostHertz
	if d.busy == 0 {
		clock = s.IdleHertz
	}
	free := clock
	if wanted > s.CapWatts {
		free *= math.Cbrt(s.CapWatts / wanted)
	}
	// The highest clock, before the power is looked at.
	held := min(e.clock, e.brake, g.thermal.next(g.celsius, s, dt, r))
	r.Throttled[PowerBrake] = e.brake < 1
	r.Throttled[AppClocks] = e.clock < 1 && d.busy > 0
	r.Throttled[HWSlowdown] = r.Throttled[PowerBrake] || r.Throttled[HWThermal]
	// Dynamic power goes with f·V², and V nearly with f.
	if clock > s.BoostHertz*held {
		clock = s.BoostHertz * held
		wanted = s.IdleWatts + (wanted-s.IdleWatts)*held*held*held
	}
	r.LimitWatts = s.CapWatts * e.cap
	r.Throttled[PowerCap] = wanted > r.LimitWatts
	if r.Throttled[PowerCap] {
		// So the clock gives way by the cube root.
		clock *= math.Cbrt(r.LimitWatts / wanted)
		wanted = r.LimitWatts
	}
	for i, on := range r.Throttled {
		if on {
			r.ThrottledSeconds[i] += sec
		}
	}
	g.free = free / s.BoostHertz
	g.speed = max(minSpeed, e.speed*clock/free)
	r.ClockHertz = math.Floor(clock/s.ClockStepHertz) * s.ClockStepHertz
	r.Watts = math.Round(wanted*1000) / 1000
	r.Joules += wanted * sec

	settles := g.inlet + g.air.next(g.rng, dt) + wanted*s.KelvinPerWatt/e.cooling
	g.celsius += (settles - g.celsius) * (1 - math.Exp(-dt.Seconds()/s.Inertia.Seconds()))
	r.Celsius = math.Round(g.celsius)
	r.MemoryCelsius = math.Round(g.celsius + s.MemoryKelvin*wanted/s.CapWatts)

	r.Utilization = math.Round(d.busy*100) / 100
	r.MemoryUsed = math.Round(d.memory*s.MemoryBytes/(2<<20)) * (2 << 20) // allocated in blocks of 2 MiB
	r.PCIeBytes += math.Round(s.PCIeBytesPerSecond * d.links * sec)
	r.NVLinkBytes += math.Round(s.NVLinkBytesPerSecond * d.links * sec)
}

// governor lowers the clock of a chip that is too hot: the driver bit by bit,
// the hardware, which is the last resort, by half and until it is well below.
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

// next returns the share of the highest clock that heat allows, and notes who
// holds it down.
func (t *governor) next(celsius float64, s *Spec, dt time.Duration, r *Reading) float64 {
	switch {
	case celsius >= s.MaxCelsius:
		t.share = max(minGoverned, t.share-governorDown*(1+celsius-s.MaxCelsius)*dt.Seconds())
	case celsius < s.MaxCelsius-governorBand:
		t.share = min(1, t.share+governorUp*dt.Seconds())
	}
	switch {
	case celsius >= s.SlowdownCelsius:
		t.half = true
	case celsius < s.SlowdownCelsius-hardwareBand:
		t.half = false
	}
	r.Throttled[SWThermal], r.Throttled[HWThermal] = t.share < 1, t.half
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
