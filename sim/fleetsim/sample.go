// SPDX-License-Identifier: Apache-2.0

package fleetsim

import "github.com/gpu-collector/gpu-collector/internal/gpuhealth"

// Sample is the reading as the health rubric takes it. Readings that the model
// lacks are absent.
func (r *Reading) Sample(id gpuhealth.Identity, spec *Spec) gpuhealth.Sample {
	s := gpuhealth.Sample{Identity: id, Reason: gpuhealth.ReasonOK}
	if !r.Up {
		s.Reason = gpuhealth.ReasonLost
		return s
	}
	v := &s.Readings
	v.MemoryTotal, v.MemoryUsed = gpuhealth.Some(uint64(spec.MemoryBytes)), gpuhealth.Some(uint64(r.MemoryUsed))
	v.Utilization = gpuhealth.Some(r.Utilization)
	v.Temperature, v.MemoryTemperature = gpuhealth.Some(r.Celsius), gpuhealth.Some(r.MemoryCelsius)
	v.TemperatureMargin = gpuhealth.Some(spec.MaxCelsius - r.Celsius)
	v.MarginLimits[gpuhealth.LimitSlowdown] = gpuhealth.Some(spec.MaxCelsius - spec.SlowdownCelsius)
	v.Power, v.PowerLimit, v.PowerLimitMax = gpuhealth.Some(r.Watts), gpuhealth.Some(r.LimitWatts), gpuhealth.Some(spec.CapWatts)
	v.Energy = gpuhealth.Some(r.Joules)
	v.Clocks[gpuhealth.ClockSM], v.ClockLimits[gpuhealth.ClockSM] = gpuhealth.Some(r.ClockHertz), gpuhealth.Some(r.BoostHertz)
	v.ECC[gpuhealth.ECCCorrected][gpuhealth.ECCVolatile] = gpuhealth.Some(uint64(r.ECCCorrected))
	v.ECC[gpuhealth.ECCUncorrected][gpuhealth.ECCVolatile] = gpuhealth.Some(uint64(r.ECCUncorrected))
	v.RemappedRows = gpuhealth.RemappedRows{
		Corrected: gpuhealth.Some(uint64(0)), Uncorrected: gpuhealth.Some(uint64(r.RemappedRows)),
		Pending: gpuhealth.Some(r.RemapPending), Failed: gpuhealth.Some(r.RemapFailed),
	}
	var bits uint64
	for reason, bit := range throttleBits {
		if r.Throttled[reason] {
			bits |= uint64(bit)
		}
	}
	v.Throttle = gpuhealth.Some(bits)
	for reason, time := range throttleTimes {
		v.ThrottleTime[time] = gpuhealth.Some(r.ThrottledSeconds[reason])
	}
	v.PCIe = gpuhealth.PCIe{
		Width: gpuhealth.Some(uint32(r.PCIeLanes)), WidthMax: gpuhealth.Some(uint32(spec.PCIeLanes)),
		Generation: gpuhealth.Some(uint32(r.PCIeGeneration)), GenerationMax: gpuhealth.Some(uint32(spec.PCIeGeneration)),
	}
	v.NVLink.Up = gpuhealth.Some(uint32(r.NVLinksUp))
	v.NVLink.Errors[gpuhealth.NVLinkReplay] = gpuhealth.Some(uint64(r.NVLinkReplays))
	v.NVLink.Errors[gpuhealth.NVLinkCRC] = gpuhealth.Some(uint64(r.NVLinkCRC))
	v.Processes[gpuhealth.ProcessCompute] = gpuhealth.Some(uint64(max(0, r.Processes)))
	v.Modes[gpuhealth.ModeECC] = gpuhealth.Some(true)
	return s
}

var throttleBits = [NumThrottles]gpuhealth.ThrottleReason{
	PowerCap: gpuhealth.ThrottlePowerCap, PowerBrake: gpuhealth.ThrottlePowerBrake,
	HWThermal: gpuhealth.ThrottleHWThermal, SWThermal: gpuhealth.ThrottleSWThermal,
	HWSlowdown: gpuhealth.ThrottleHWSlowdown, AppClocks: gpuhealth.ThrottleAppClocks,
}

// throttleTimes are the driver's clocks; it has none for the two other reasons.
var throttleTimes = map[Throttle]gpuhealth.ThrottleTime{
	PowerCap: gpuhealth.ThrottleTimePower, PowerBrake: gpuhealth.ThrottleTimePowerBrake,
	HWThermal: gpuhealth.ThrottleTimeHWThermal, SWThermal: gpuhealth.ThrottleTimeSWThermal,
}
