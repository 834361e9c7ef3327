// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

var temperatureLimits = [gpuhealth.NumTemperatureLimits]struct {
	sensor metadata.AttributeHwSensorLocation
	kind   metadata.AttributeHwLimitType
}{
	gpuhealth.LimitSlowdown:  {metadata.AttributeHwSensorLocationGpu, metadata.AttributeHwLimitTypeThrottled},
	gpuhealth.LimitShutdown:  {metadata.AttributeHwSensorLocationGpu, metadata.AttributeHwLimitTypeCritical},
	gpuhealth.LimitGPUMax:    {metadata.AttributeHwSensorLocationGpu, metadata.AttributeHwLimitTypeMax},
	gpuhealth.LimitMemoryMax: {metadata.AttributeHwSensorLocationMemory, metadata.AttributeHwLimitTypeMax},
}

// temperatureLimit reports whether a limit has a point: people compare it with a
// temperature. Where the GPU tells its margin, that is the better comparison.
func (r *recorder) temperatureLimit(limit gpuhealth.TemperatureLimit) bool {
	switch limit {
	case gpuhealth.LimitMemoryMax:
		return true
	case gpuhealth.LimitSlowdown:
		return r.full || !r.s.MarginLimits[limit].OK || !r.s.TemperatureMargin.OK
	default:
		return r.full
	}
}

func (r *recorder) temperature() {
	s := r.s
	if s.Temperature.OK {
		r.mb.RecordHwTemperatureDataPoint(r.ts, s.Temperature.V, r.id, metadata.AttributeHwSensorLocationGpu, r.parent...)
	}
	if s.MemoryTemperature.OK {
		r.mb.RecordHwTemperatureDataPoint(r.ts, s.MemoryTemperature.V, r.id, metadata.AttributeHwSensorLocationMemory, r.parent...)
	}
	for i, limit := range temperatureLimits {
		if v := s.TemperatureLimits[i]; v.OK && r.temperatureLimit(gpuhealth.TemperatureLimit(i)) {
			r.mb.RecordHwTemperatureLimitDataPoint(r.ts, v.V, r.id, limit.sensor, limit.kind, r.parent...)
		}
		if v := s.MarginLimits[i]; v.OK && (r.full || i == int(gpuhealth.LimitSlowdown)) {
			r.mb.RecordHwGpuTemperatureMarginLimitDataPoint(r.ts, v.V, r.id, limit.sensor, limit.kind, r.parent...)
		}
	}
	if s.TemperatureMargin.OK {
		r.mb.RecordHwGpuTemperatureMarginDataPoint(r.ts, s.TemperatureMargin.V, r.id, r.parent...)
	}
}

func (r *recorder) power() {
	s := r.s
	if s.Power.OK {
		r.mb.RecordHwPowerDataPoint(r.ts, s.Power.V, r.id, gpuType, r.parent...)
	}
	if s.PowerLimit.OK {
		r.mb.RecordHwGpuPowerLimitDataPoint(r.ts, s.PowerLimit.V, r.id, metadata.AttributePowerLimitKindEnforced, r.parent...)
	}
	if s.PowerLimitMax.OK && r.full {
		r.mb.RecordHwGpuPowerLimitDataPoint(r.ts, s.PowerLimitMax.V, r.id, metadata.AttributePowerLimitKindMax, r.parent...)
	}
	if s.Energy.OK {
		r.mb.RecordHwEnergyDataPoint(r.ts, s.Energy.V, r.id, gpuType, r.parent...)
	}
}

var clocks = [gpuhealth.NumClocks]struct {
	domain   metadata.AttributeClock
	standard bool
}{
	// The graphics clock is the SM clock on every GPU since Fermi.
	gpuhealth.ClockGraphics: {metadata.AttributeClockGraphics, false},
	gpuhealth.ClockSM:       {metadata.AttributeClockSm, true},
	// The memory's clock has no steps to speak of while a job runs.
	gpuhealth.ClockMemory: {metadata.AttributeClockMemory, false},
	gpuhealth.ClockVideo:  {metadata.AttributeClockVideo, false},
}

func (r *recorder) clocks() {
	for c, clock := range clocks {
		if !r.full && !clock.standard {
			continue
		}
		if v := r.s.Clocks[c]; v.OK {
			r.mb.RecordHwGpuClockFrequencyDataPoint(r.ts, v.V, r.id, clock.domain, r.parent...)
		}
		if v := r.s.ClockLimits[c]; v.OK {
			r.mb.RecordHwGpuClockFrequencyLimitDataPoint(r.ts, v.V, r.id, clock.domain, r.parent...)
		}
	}
}

// throttleReasons are by bit. A clock of the same reason, where the GPU has it,
// says all that the bit does and what was between two polls.
var throttleReasons = [...]struct {
	bit    gpuhealth.ThrottleReason
	reason metadata.AttributeThrottleReason
	clock  gpuhealth.ThrottleTime
	kind   reasonKind
}{
	{gpuhealth.ThrottleSWThermal, metadata.AttributeThrottleReasonSwThermal, gpuhealth.ThrottleTimeSWThermal, reasonClocked},
	{gpuhealth.ThrottleHWThermal, metadata.AttributeThrottleReasonHwThermal, gpuhealth.ThrottleTimeHWThermal, reasonClocked},
	{gpuhealth.ThrottlePowerBrake, metadata.AttributeThrottleReasonPowerBrake, gpuhealth.ThrottleTimePowerBrake, reasonClocked},
	{gpuhealth.ThrottlePowerCap, metadata.AttributeThrottleReasonPowerCap, 0, reasonRare},
	{gpuhealth.ThrottleHWSlowdown, metadata.AttributeThrottleReasonHwSlowdown, 0, reasonRare},
	{gpuhealth.ThrottleSyncBoost, metadata.AttributeThrottleReasonSyncBoost, 0, reasonNoFault},
	{gpuhealth.ThrottleAppClocks, metadata.AttributeThrottleReasonAppClocks, 0, reasonNoFault},
	{gpuhealth.ThrottleDisplayClocks, metadata.AttributeThrottleReasonDisplayClocks, 0, reasonNoFault},
}

// reasonKind is when a reason has a point at the standard detail.
type reasonKind int

const (
	// reasonClocked: always where there is no clock, else from when it first holds.
	reasonClocked reasonKind = iota
	// reasonRare: from when it first holds.
	reasonRare
	// reasonNoFault: never.
	reasonNoFault
)

var throttleTimes = [gpuhealth.NumThrottleTimes]metadata.AttributeThrottleTimeReason{
	gpuhealth.ThrottleTimePower:          metadata.AttributeThrottleTimeReasonPower,
	gpuhealth.ThrottleTimeThermal:        metadata.AttributeThrottleTimeReasonThermal,
	gpuhealth.ThrottleTimeSyncBoost:      metadata.AttributeThrottleTimeReasonSyncBoost,
	gpuhealth.ThrottleTimeBoardLimit:     metadata.AttributeThrottleTimeReasonBoardLimit,
	gpuhealth.ThrottleTimeLowUtilization: metadata.AttributeThrottleTimeReasonLowUtilization,
	gpuhealth.ThrottleTimeReliability:    metadata.AttributeThrottleTimeReasonReliability,
	gpuhealth.ThrottleTimeSWThermal:      metadata.AttributeThrottleTimeReasonSwThermal,
	gpuhealth.ThrottleTimeHWThermal:      metadata.AttributeThrottleTimeReasonHwThermal,
	gpuhealth.ThrottleTimePowerBrake:     metadata.AttributeThrottleTimeReasonPowerBrake,
}

// throttleTime reports whether the clock is one to look at: those of heat and of
// the power brake, and on older GPUs, which lack these, the one of all heat.
func (r *recorder) throttleTime(which gpuhealth.ThrottleTime) bool {
	switch which {
	case gpuhealth.ThrottleTimeSWThermal, gpuhealth.ThrottleTimeHWThermal, gpuhealth.ThrottleTimePowerBrake:
		return true
	case gpuhealth.ThrottleTimeThermal:
		return r.full || !r.s.ThrottleTime[gpuhealth.ThrottleTimeSWThermal].OK && !r.s.ThrottleTime[gpuhealth.ThrottleTimeHWThermal].OK
	default:
		return r.full
	}
}

func (r *recorder) throttle() {
	if bits := r.s.Throttle; bits.OK {
		for i, t := range throttleReasons {
			if t.kind == reasonNoFault && !r.full {
				continue
			}
			holds := bits.V&uint64(t.bit) != 0
			if r.tells(setThrottle, i, holds, t.kind == reasonClocked && !r.s.ThrottleTime[t.clock].OK) {
				r.mb.RecordHwGpuThrottleActiveDataPoint(r.ts, oneIf(holds), r.id, t.reason, r.parent...)
			}
		}
	}
	for i, reason := range throttleTimes {
		if v := r.s.ThrottleTime[i]; v.OK && r.throttleTime(gpuhealth.ThrottleTime(i)) {
			r.mb.RecordHwGpuThrottleTimeDataPoint(r.ts, v.V, r.id, reason, r.parent...)
		}
	}
}
