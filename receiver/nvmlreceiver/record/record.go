// SPDX-License-Identifier: Apache-2.0

// Package record writes samples of GPUs, and verdicts on them, as the metrics of the nvml
// receiver. It knows no NVML, so that a simulator can write them too.
package record // import "github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/record"

import (
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

const vendor = "NVIDIA"

// gpuType is the value of hw.type, which the hardware conventions ask for on
// metrics that other hardware has too.
const gpuType = metadata.AttributeHwTypeGpu

// Recorder adds the points of one validated sample. A missing value has no point.
type Recorder struct {
	mb *metadata.MetricsBuilder
	ts pcommon.Timestamp
	// full asks for every attribute value; without it those that repeat others,
	// or that only a specialist reads, are left out.
	full    bool
	history *History

	s  *gpuhealth.Sample
	id string
	// parent is hw.parent for a MIG slice and nil for a whole GPU.
	parent []metadata.MetricAttributeOption
	states *states
}

// New returns a Recorder that records with a builder.
func New(mb *metadata.MetricsBuilder, full bool) *Recorder { return &Recorder{mb: mb, full: full} }

// NewDefault returns a Recorder of the default metrics, whose counters began at start.
func NewDefault(start time.Time) *Recorder {
	set := receiver.Settings{TelemetrySettings: component.TelemetrySettings{Logger: zap.NewNop()}}
	cfg := metadata.NewDefaultMetricsBuilderConfig()
	return New(metadata.NewMetricsBuilder(cfg, set, metadata.WithStartTime(pcommon.NewTimestampFromTime(start))), false)
}

// Begin starts a report of the GPUs that the history is of.
func (r *Recorder) Begin(ts pcommon.Timestamp, history *History) {
	r.ts, r.history = ts, history
	history.begin()
}

// Emit returns what was recorded since the last call.
func (r *Recorder) Emit(resource pcommon.Resource) pmetric.Metrics {
	md := r.mb.Emit(metadata.WithResource(resource))
	end(md)
	return md
}

// Census counts the whole GPUs of a node: Expected are Found, Lost or Pending.
type Census struct{ Expected, Found, Lost, Pending int }

// Node adds what concerns no single GPU. The pressure is a share of time.
func (r *Recorder) Node(c Census, pressure gpuhealth.Opt[float64]) {
	r.mb.RecordHwGpuDevicesDataPoint(r.ts, int64(c.Expected), metadata.AttributeCountStateExpected)
	r.mb.RecordHwGpuDevicesDataPoint(r.ts, int64(c.Found), metadata.AttributeCountStateFound)
	r.mb.RecordHwGpuDevicesDataPoint(r.ts, int64(c.Lost), metadata.AttributeCountStateLost)
	r.mb.RecordHwGpuDevicesDataPoint(r.ts, int64(c.Pending), metadata.AttributeCountStatePending)
	if pressure.OK {
		r.mb.RecordGpuNodeCPUPressureDataPoint(r.ts, pressure.V)
	}
}

// Xids adds how many Xids of a code a GPU had.
func (r *Recorder) Xids(uuid string, code uint64, class gpuhealth.XidClass, count int64) {
	r.mb.RecordHwGpuXidEventsDataPoint(r.ts, count, uuid, int64(code), string(class))
}

// Sample adds everything that the sample has, but for the verdict.
func (r *Recorder) Sample(s *gpuhealth.Sample) {
	r.of(s)
	r.identity()
	if !s.Up() {
		return
	}
	r.numbers()
	r.slowdownLimit()
	r.throttle()
	r.memory()
	r.recovery()
	r.bytes()
	r.nvlink()
	r.fabric()
}

func (r *Recorder) of(s *gpuhealth.Sample) {
	r.s, r.id, r.parent, r.states = s, s.UUID, nil, r.history.of(s.UUID, s.Parent)
	if s.Parent != "" {
		r.parent = []metadata.MetricAttributeOption{metadata.WithHwParentMetricAttribute(s.Parent)}
	}
}

// identity adds the points that every GPU has, a lost GPU too.
func (r *Recorder) identity() {
	s := r.s
	facts := append(make([]metadata.MetricAttributeOption, 0, 8), r.parent...)
	fact := func(value string, with func(string) metadata.MetricAttributeOption) {
		if value != "" {
			facts = append(facts, with(value))
		}
	}
	fact(s.Model, metadata.WithHwModelMetricAttribute)
	fact(s.Serial, metadata.WithHwSerialNumberMetricAttribute)
	fact(s.DriverVersion, metadata.WithHwDriverVersionMetricAttribute)
	fact(s.VBIOS, metadata.WithHwFirmwareVersionMetricAttribute)
	fact(s.PCIBusID, metadata.WithGpuPciBusIDMetricAttribute)
	fact(s.CUDAVersion, metadata.WithGpuCudaVersionMetricAttribute)
	if s.GPUInstance.OK {
		facts = append(facts, metadata.WithGpuMigGpuInstanceIDMetricAttribute(int64(s.GPUInstance.V)))
	}
	r.mb.RecordHwGpuInfoDataPoint(r.ts, 1, s.UUID, vendor, int64(s.Index), facts...)
	// One series at a time: a GPU is not up and down at once.
	if before := r.states.up; before != "" && before != s.Reason {
		r.mb.RecordHwGpuUpDataPoint(r.ts, Ended, s.UUID, metadata.MapAttributeUpReason[string(before)], r.parent...)
	}
	r.states.up = s.Reason
	r.mb.RecordHwGpuUpDataPoint(r.ts, oneIf(s.Up()), s.UUID, metadata.MapAttributeUpReason[string(s.Reason)], r.parent...)
}
