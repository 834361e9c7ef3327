// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

const vendor = "NVIDIA"

// gpuType is the value of hw.type, which the hardware conventions ask for on
// metrics that other hardware has too.
const gpuType = metadata.AttributeHwTypeGpu

var upReasons = map[gpuhealth.Reason]metadata.AttributeUpReason{
	gpuhealth.ReasonOK:              metadata.AttributeUpReasonOk,
	gpuhealth.ReasonLost:            metadata.AttributeUpReasonLost,
	gpuhealth.ReasonHang:            metadata.AttributeUpReasonHang,
	gpuhealth.ReasonResetRequired:   metadata.AttributeUpReasonResetRequired,
	gpuhealth.ReasonNotFound:        metadata.AttributeUpReasonNotFound,
	gpuhealth.ReasonDriverNotLoaded: metadata.AttributeUpReasonDriverNotLoaded,
	gpuhealth.ReasonDriverMismatch:  metadata.AttributeUpReasonDriverMismatch,
	gpuhealth.ReasonError:           metadata.AttributeUpReasonError,
}

var clocks = [gpuhealth.NumClocks]metadata.AttributeClock{
	gpuhealth.ClockGraphics: metadata.AttributeClockGraphics,
	gpuhealth.ClockSM:       metadata.AttributeClockSm,
	gpuhealth.ClockMemory:   metadata.AttributeClockMemory,
	gpuhealth.ClockVideo:    metadata.AttributeClockVideo,
}

var errorTypes = [gpuhealth.NumECCErrors]metadata.AttributeErrorType{
	gpuhealth.ECCCorrected:   metadata.AttributeErrorTypeCorrected,
	gpuhealth.ECCUncorrected: metadata.AttributeErrorTypeUncorrected,
}

var eccCounters = [gpuhealth.NumECCCounters]metadata.AttributeGpuEccCounter{
	gpuhealth.ECCVolatile:  metadata.AttributeGpuEccCounterVolatile,
	gpuhealth.ECCAggregate: metadata.AttributeGpuEccCounterAggregate,
}

var throttleReasons = []struct {
	bit    gpuhealth.ThrottleReason
	reason metadata.AttributeThrottleReason
}{
	{gpuhealth.ThrottleSWThermal, metadata.AttributeThrottleReasonSwThermal},
	{gpuhealth.ThrottleHWThermal, metadata.AttributeThrottleReasonHwThermal},
	{gpuhealth.ThrottlePowerBrake, metadata.AttributeThrottleReasonPowerBrake},
	{gpuhealth.ThrottlePowerCap, metadata.AttributeThrottleReasonPowerCap},
	{gpuhealth.ThrottleHWSlowdown, metadata.AttributeThrottleReasonHwSlowdown},
	{gpuhealth.ThrottleSyncBoost, metadata.AttributeThrottleReasonSyncBoost},
	{gpuhealth.ThrottleAppClocks, metadata.AttributeThrottleReasonAppClocks},
	{gpuhealth.ThrottleDisplayClocks, metadata.AttributeThrottleReasonDisplayClocks},
}

// record adds the points of one validated sample. What the sample does not
// have gets no point.
func record(mb *metadata.MetricsBuilder, ts pcommon.Timestamp, s *gpuhealth.Sample) {
	recordIdentity(mb, ts, s)
	id := s.UUID

	if s.MemoryTotal.OK {
		mb.RecordHwGpuMemoryLimitDataPoint(ts, int64(s.MemoryTotal.V), id)
	}
	if s.MemoryUsed.OK {
		mb.RecordHwGpuMemoryUsageDataPoint(ts, int64(s.MemoryUsed.V), id)
	}
	if s.MemoryTotal.OK && s.MemoryUsed.OK {
		mb.RecordHwGpuMemoryUtilizationDataPoint(ts, float64(s.MemoryUsed.V)/float64(s.MemoryTotal.V), id)
	}

	if s.Utilization.OK {
		mb.RecordHwGpuUtilizationDataPoint(ts, s.Utilization.V, id, metadata.AttributeHwGpuTaskGeneral)
	}
	if s.Encoder.OK {
		mb.RecordHwGpuUtilizationDataPoint(ts, s.Encoder.V, id, metadata.AttributeHwGpuTaskEncoder)
	}
	if s.Decoder.OK {
		mb.RecordHwGpuUtilizationDataPoint(ts, s.Decoder.V, id, metadata.AttributeHwGpuTaskDecoder)
	}

	if s.Temperature.OK {
		mb.RecordHwTemperatureDataPoint(ts, s.Temperature.V, id, metadata.AttributeHwSensorLocationGpu)
	}
	if s.MemoryTemperature.OK {
		mb.RecordHwTemperatureDataPoint(ts, s.MemoryTemperature.V, id, metadata.AttributeHwSensorLocationMemory)
	}

	if s.Power.OK {
		mb.RecordHwPowerDataPoint(ts, s.Power.V, id, gpuType)
	}
	if s.PowerLimit.OK {
		mb.RecordHwGpuPowerLimitDataPoint(ts, s.PowerLimit.V, id, metadata.AttributePowerLimitKindEnforced)
	}
	if s.PowerLimitMax.OK {
		mb.RecordHwGpuPowerLimitDataPoint(ts, s.PowerLimitMax.V, id, metadata.AttributePowerLimitKindMax)
	}
	if s.Energy.OK {
		mb.RecordHwEnergyDataPoint(ts, s.Energy.V, id, gpuType)
	}

	for c, attribute := range clocks {
		if v := s.Clocks[c]; v.OK {
			mb.RecordHwGpuClockFrequencyDataPoint(ts, v.V, id, attribute)
		}
		if v := s.ClockLimits[c]; v.OK {
			mb.RecordHwGpuClockFrequencyLimitDataPoint(ts, v.V, id, attribute)
		}
	}

	for e, errorType := range errorTypes {
		for c, counter := range eccCounters {
			if v := s.ECC[e][c]; v.OK {
				mb.RecordHwErrorsDataPoint(ts, int64(v.V), id, gpuType, errorType,
					metadata.AttributeGpuMemoryLocationAll, counter)
			}
		}
	}

	if s.Throttle.OK {
		for _, t := range throttleReasons {
			var active int64
			if s.Throttle.V&uint64(t.bit) != 0 {
				active = 1
			}
			mb.RecordHwGpuThrottleActiveDataPoint(ts, active, id, t.reason)
		}
	}
}

// recordIdentity adds the points that every GPU has, also one that is lost.
func recordIdentity(mb *metadata.MetricsBuilder, ts pcommon.Timestamp, s *gpuhealth.Sample) {
	facts := make([]metadata.MetricAttributeOption, 0, 6)
	for _, f := range []struct {
		value string
		with  func(string) metadata.MetricAttributeOption
	}{
		{s.Model, metadata.WithHwModelMetricAttribute},
		{s.Serial, metadata.WithHwSerialNumberMetricAttribute},
		{s.DriverVersion, metadata.WithHwDriverVersionMetricAttribute},
		{s.VBIOS, metadata.WithHwFirmwareVersionMetricAttribute},
		{s.PCIBusID, metadata.WithGpuPciBusIDMetricAttribute},
		{s.CUDAVersion, metadata.WithGpuCudaVersionMetricAttribute},
	} {
		if f.value != "" {
			facts = append(facts, f.with(f.value))
		}
	}
	mb.RecordHwGpuInfoDataPoint(ts, 1, s.UUID, vendor, int64(s.Index), facts...)

	var up int64
	if s.Up() {
		up = 1
	}
	mb.RecordHwGpuUpDataPoint(ts, up, s.UUID, upReasons[s.Reason])
}
