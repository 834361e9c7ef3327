// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

var temperatureLimits = [gpuhealth.NumTemperatureLimits]struct {
	sensor   metadata.AttributeHwSensorLocation
	kind     metadata.AttributeHwLimitType
	standard bool
}{
	gpuhealth.LimitSlowdown:  {metadata.AttributeHwSensorLocationGpu, metadata.AttributeHwLimitTypeThrottled, true},
	gpuhealth.LimitShutdown:  {metadata.AttributeHwSensorLocationGpu, metadata.AttributeHwLimitTypeCritical, false},
	gpuhealth.LimitGPUMax:    {metadata.AttributeHwSensorLocationGpu, metadata.AttributeHwLimitTypeMax, false},
	gpuhealth.LimitMemoryMax: {metadata.AttributeHwSensorLocationMemory, metadata.AttributeHwLimitTypeMax, true},
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
		if v := s.TemperatureLimits[i]; v.OK && (r.full || limit.standard) {
			r.mb.RecordHwTemperatureLimitDataPoint(r.ts, v.V, r.id, limit.sensor, limit.kind, r.parent...)
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
	gpuhealth.ClockMemory:   {metadata.AttributeClockMemory, true},
	gpuhealth.ClockVideo:    {metadata.AttributeClockVideo, false},
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

var throttleReasons = [...]struct {
	bit      gpuhealth.ThrottleReason
	reason   metadata.AttributeThrottleReason
	standard bool
}{
	{gpuhealth.ThrottleSWThermal, metadata.AttributeThrottleReasonSwThermal, true},
	{gpuhealth.ThrottleHWThermal, metadata.AttributeThrottleReasonHwThermal, true},
	{gpuhealth.ThrottlePowerBrake, metadata.AttributeThrottleReasonPowerBrake, true},
	{gpuhealth.ThrottlePowerCap, metadata.AttributeThrottleReasonPowerCap, true},
	{gpuhealth.ThrottleHWSlowdown, metadata.AttributeThrottleReasonHwSlowdown, true},
	{gpuhealth.ThrottleSyncBoost, metadata.AttributeThrottleReasonSyncBoost, false},
	{gpuhealth.ThrottleAppClocks, metadata.AttributeThrottleReasonAppClocks, false},
	{gpuhealth.ThrottleDisplayClocks, metadata.AttributeThrottleReasonDisplayClocks, false},
}

var throttleTimes = [gpuhealth.NumThrottleTimes]struct {
	reason   metadata.AttributeThrottleTimeReason
	standard bool
}{
	gpuhealth.ThrottleTimePower:          {metadata.AttributeThrottleTimeReasonPower, true},
	gpuhealth.ThrottleTimeThermal:        {metadata.AttributeThrottleTimeReasonThermal, true},
	gpuhealth.ThrottleTimeSyncBoost:      {metadata.AttributeThrottleTimeReasonSyncBoost, false},
	gpuhealth.ThrottleTimeBoardLimit:     {metadata.AttributeThrottleTimeReasonBoardLimit, false},
	gpuhealth.ThrottleTimeLowUtilization: {metadata.AttributeThrottleTimeReasonLowUtilization, false},
	gpuhealth.ThrottleTimeSWThermal:      {metadata.AttributeThrottleTimeReasonSwThermal, false},
	gpuhealth.ThrottleTimeHWThermal:      {metadata.AttributeThrottleTimeReasonHwThermal, false},
	gpuhealth.ThrottleTimePowerBrake:     {metadata.AttributeThrottleTimeReasonPowerBrake, true},
}

func (r *recorder) throttle() {
	if bits := r.s.Throttle; bits.OK {
		for _, t := range throttleReasons {
			if r.full || t.standard {
				r.mb.RecordHwGpuThrottleActiveDataPoint(r.ts, oneIf(bits.V&uint64(t.bit) != 0), r.id, t.reason, r.parent...)
			}
		}
	}
	for i, t := range throttleTimes {
		if v := r.s.ThrottleTime[i]; v.OK && (r.full || t.standard) {
			r.mb.RecordHwGpuThrottleTimeDataPoint(r.ts, v.V, r.id, t.reason, r.parent...)
		}
	}
}
