// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// Sample is the reading as the nvml receiver takes it of a healthy node's H100. What is not
// in the model is as on such a board.
func (r *Reading) Sample(id gpuhealth.Identity) gpuhealth.Sample {
	s := gpuhealth.Sample{Identity: id, Reason: gpuhealth.ReasonOK}
	if !r.Up {
		s.Reason = gpuhealth.ReasonLost
		return s
	}
	v := &s.Readings
	v.Numbers[reading.MemoryLimit], v.Numbers[reading.MemoryUsed] = gpuhealth.Some[float64](MemoryBytes), gpuhealth.Some(r.MemoryUsed)
	v.Numbers[reading.Utilization] = gpuhealth.Some(r.Utilization)
	v.Numbers[reading.Temperature], v.Numbers[reading.MemoryTemperature] = gpuhealth.Some(r.Celsius), gpuhealth.Some(r.MemoryCelsius)
	v.Numbers[reading.MaxMemoryTemperature] = gpuhealth.Some(MaxMemoryCelsius)
	v.Numbers[reading.TemperatureMargin] = gpuhealth.Some(MaxCelsius - r.Celsius)
	v.Numbers[reading.SlowdownMargin] = gpuhealth.Some(MaxCelsius - SlowdownCelsius)
	v.Numbers[reading.Power], v.Numbers[reading.PowerLimit], v.Numbers[reading.PowerLimitMax] = gpuhealth.Some(r.Watts), gpuhealth.Some(r.LimitWatts), gpuhealth.Some(CapWatts)
	v.Numbers[reading.Energy] = gpuhealth.Some(r.Joules)
	v.Numbers[reading.SMClock], v.Numbers[reading.SMClockLimit] = gpuhealth.Some(r.ClockHertz), gpuhealth.Some(r.BoostHertz)
	v.ECC[gpuhealth.ECCCorrected][gpuhealth.ECCVolatile] = gpuhealth.Some(uint64(r.ECCCorrected))
	v.ECC[gpuhealth.ECCUncorrected][gpuhealth.ECCVolatile] = gpuhealth.Some(uint64(r.ECCUncorrected))
	v.Numbers[reading.SRAMThreshold] = gpuhealth.Flag(false)
	v.Numbers[reading.RemappedCorrected], v.Numbers[reading.RemappedUncorrected] = gpuhealth.Some(0.0), gpuhealth.Some(float64(r.RemappedRows))
	v.Numbers[reading.RemapPending], v.Numbers[reading.RemapFailed] = gpuhealth.Flag(r.RemapPending), gpuhealth.Flag(r.RemapFailed)
	v.RecoveryAction = gpuhealth.Some(gpuhealth.RecoveryNone)
	v.Throttle = gpuhealth.Some(uint64(r.Throttled))
	for i, clock := range throttleClocks {
		v.Numbers[clock.seconds] = gpuhealth.Some(r.ThrottledSeconds[i])
	}
	for link, bytes := range map[gpuhealth.Link]float64{gpuhealth.LinkPCIe: r.PCIeBytes, gpuhealth.LinkNVLink: r.NVLinkBytes} {
		v.IO[link] = [gpuhealth.NumDirections]gpuhealth.Opt[uint64]{gpuhealth.Some(uint64(bytes)), gpuhealth.Some(uint64(bytes))}
	}
	v.Numbers[reading.PCIeWidth], v.Numbers[reading.PCIeWidthLimit] = gpuhealth.Some(float64(r.PCIeLanes)), gpuhealth.Some[float64](PCIeLanes)
	v.Numbers[reading.PCIeGeneration], v.Numbers[reading.PCIeGenerationLimit] = gpuhealth.Some(float64(r.PCIeGeneration)), gpuhealth.Some[float64](PCIeGeneration)
	v.Numbers[reading.PCIeReplays] = gpuhealth.Some(0.0)
	v.NVLink.Up, v.NVLink.Down = gpuhealth.Some(uint32(r.NVLinksUp)), gpuhealth.Some(uint32(NVLinks-r.NVLinksUp))
	v.NVLink.Errors[gpuhealth.NVLinkReplay] = gpuhealth.Some(uint64(r.NVLinkReplays))
	v.NVLink.Errors[gpuhealth.NVLinkCRC] = gpuhealth.Some(uint64(r.NVLinkCRC))
	v.NVLink.Errors[gpuhealth.NVLinkRecovery] = gpuhealth.Some(uint64(0))
	v.Fabric.State, v.Fabric.Summary = gpuhealth.Some(gpuhealth.FabricCompleted), gpuhealth.Some(gpuhealth.FabricSummaryHealthy)
	v.Numbers[reading.Processes] = gpuhealth.Some(float64(max(0, r.Processes)))
	v.Numbers[reading.ModePersistence], v.Numbers[reading.ModeECC], v.Numbers[reading.ModeMIG] = gpuhealth.Flag(true), gpuhealth.Flag(true), gpuhealth.Flag(false)
	return s
}
