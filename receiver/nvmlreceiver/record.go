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

// recorder adds the points of one validated sample. A missing value has no point.
type recorder struct {
	mb *metadata.MetricsBuilder
	ts pcommon.Timestamp
	// full asks for every attribute value; without it those that repeat others,
	// or that only a specialist reads, are left out.
	full bool
	// said is what was said of each GPU's states.
	said said

	s  *gpuhealth.Sample
	id string
	// parent is hw.parent for a MIG slice and nil for a whole GPU.
	parent []metadata.MetricAttributeOption
	states *states
}

// begin starts a report.
func (r *recorder) begin(ts pcommon.Timestamp) {
	r.ts = ts
	r.said.begin()
}

// sample adds everything that the sample has, but for the verdict.
func (r *recorder) sample(s *gpuhealth.Sample) {
	r.of(s)
	r.identity()
	if !s.Up() {
		return
	}
	r.load()
	r.temperature()
	r.power()
	r.clocks()
	r.throttle()
	r.memoryErrors()
	r.retirement()
	r.recovery()
	r.pcie()
	r.nvlink()
	r.fabric()
	r.settings()
}

func (r *recorder) of(s *gpuhealth.Sample) {
	r.s, r.id, r.parent, r.states = s, s.UUID, nil, r.said.of(s.UUID, s.Parent)
	if s.Parent != "" {
		r.parent = []metadata.MetricAttributeOption{metadata.WithHwParentMetricAttribute(s.Parent)}
	}
}

// identity adds the points that every GPU has, a lost GPU too.
func (r *recorder) identity() {
	s := r.s
	facts := append(make([]metadata.MetricAttributeOption, 0, 10), r.parent...)
	for _, f := range [...]struct {
		value string
		with  func(string) metadata.MetricAttributeOption
	}{
		{s.Model, metadata.WithHwModelMetricAttribute},
		{s.Serial, metadata.WithHwSerialNumberMetricAttribute},
		{s.DriverVersion, metadata.WithHwDriverVersionMetricAttribute},
		{s.VBIOS, metadata.WithHwFirmwareVersionMetricAttribute},
		{s.PCIBusID, metadata.WithGpuPciBusIDMetricAttribute},
		{s.CUDAVersion, metadata.WithGpuCudaVersionMetricAttribute},
		{s.PartNumber, metadata.WithGpuBoardPartNumberMetricAttribute},
		{s.InfoROM, metadata.WithGpuInforomVersionMetricAttribute},
	} {
		if f.value != "" {
			facts = append(facts, f.with(f.value))
		}
	}
	if s.ModuleID.OK {
		facts = append(facts, metadata.WithGpuModuleIDMetricAttribute(int64(s.ModuleID.V)))
	}
	r.mb.RecordHwGpuInfoDataPoint(r.ts, 1, s.UUID, vendor, int64(s.Index), facts...)
	// One series at a time: a GPU is not up and down at once.
	if before := r.states.up; before != "" && before != s.Reason {
		r.mb.RecordHwGpuUpDataPoint(r.ts, over, s.UUID, upReasons[before], r.parent...)
	}
	r.states.up = s.Reason
	r.mb.RecordHwGpuUpDataPoint(r.ts, oneIf(s.Up()), s.UUID, upReasons[s.Reason], r.parent...)
}

func (r *recorder) load() {
	s := r.s
	if s.MemoryTotal.OK {
		r.mb.RecordHwGpuMemoryLimitDataPoint(r.ts, int64(s.MemoryTotal.V), r.id, r.parent...)
	}
	if s.MemoryUsed.OK {
		r.mb.RecordHwGpuMemoryUsageDataPoint(r.ts, int64(s.MemoryUsed.V), r.id, r.parent...)
	}
	if s.MemoryReserved.OK {
		r.mb.RecordHwGpuMemoryReservedDataPoint(r.ts, int64(s.MemoryReserved.V), r.id, r.parent...)
	}
	if s.MemoryTotal.OK && s.MemoryUsed.OK {
		r.mb.RecordHwGpuMemoryUtilizationDataPoint(r.ts, float64(s.MemoryUsed.V)/float64(s.MemoryTotal.V), r.id, r.parent...)
	}
	if s.Utilization.OK {
		r.mb.RecordHwGpuUtilizationDataPoint(r.ts, s.Utilization.V, r.id, metadata.AttributeHwGpuTaskGeneral, r.parent...)
	}
	if s.Encoder.OK && r.full {
		r.mb.RecordHwGpuUtilizationDataPoint(r.ts, s.Encoder.V, r.id, metadata.AttributeHwGpuTaskEncoder, r.parent...)
	}
	if s.Decoder.OK && r.full {
		r.mb.RecordHwGpuUtilizationDataPoint(r.ts, s.Decoder.V, r.id, metadata.AttributeHwGpuTaskDecoder, r.parent...)
	}
	if s.MemoryCopy.OK && r.full {
		r.mb.RecordHwGpuUtilizationDataPoint(r.ts, s.MemoryCopy.V, r.id, metadata.AttributeHwGpuTaskMemory, r.parent...)
	}
	for unit, attribute := range activities {
		if v := s.Activity[unit]; v.OK {
			r.mb.RecordHwGpuActivityDataPoint(r.ts, v.V, r.id, attribute, r.parent...)
		}
	}
	for kind, attribute := range processTypes {
		if v := s.Processes[kind]; v.OK && (r.full || kind == int(gpuhealth.ProcessCompute)) {
			r.mb.RecordHwGpuProcessesDataPoint(r.ts, int64(v.V), r.id, attribute, r.parent...)
		}
	}
}

var activities = [gpuhealth.NumActivities]metadata.AttributeActivityUnit{
	gpuhealth.ActivitySM:          metadata.AttributeActivityUnitSm,
	gpuhealth.ActivitySMOccupancy: metadata.AttributeActivityUnitSmOccupancy,
	gpuhealth.ActivityTensor:      metadata.AttributeActivityUnitTensor,
	gpuhealth.ActivityDRAM:        metadata.AttributeActivityUnitDram,
	gpuhealth.ActivityFP64:        metadata.AttributeActivityUnitFp64,
	gpuhealth.ActivityFP32:        metadata.AttributeActivityUnitFp32,
	gpuhealth.ActivityFP16:        metadata.AttributeActivityUnitFp16,
	gpuhealth.ActivityGraphics:    metadata.AttributeActivityUnitGraphics,
}

var processTypes = [gpuhealth.NumProcessTypes]metadata.AttributeProcessType{
	gpuhealth.ProcessCompute:  metadata.AttributeProcessTypeCompute,
	gpuhealth.ProcessGraphics: metadata.AttributeProcessTypeGraphics,
}

func oneIf(on bool) int64 {
	if on {
		return 1
	}
	return 0
}
