// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reason"
)

// factMetrics are the metrics that explain why a node is slow: those of the
// nvml receiver and, of the host, those that the hardware and the system
// conventions name. System conventions and host metrics receiver differ in
// names of attributes; both are read.
var factMetrics = map[string]pointReader{
	gpusemconv.MetricGPUUp:        pointFunc(readUp),
	gpusemconv.MetricGPUXIDEvents: pointFunc(readXid),
	gpusemconv.MetricErrors:       pointFunc(readErrors),
	gpusemconv.MetricPower:        pointFunc(readPower),
	gpusemconv.MetricGPUCount:     pointFunc(readCount),

	gpusemconv.MetricGPURemapFailed:       only(reason.FieldRemapFailed),
	gpusemconv.MetricGPURemapPending:      only(reason.FieldRemapPending),
	gpusemconv.MetricGPURetirementPending: only(reason.FieldRetirementPending),
	gpusemconv.MetricGPUMemoryUtil:        only(reason.FieldMemory),

	gpusemconv.MetricGPUThrottleActive: &gpuFields{gpusemconv.AttrReason, []namedField{
		{"power_brake", reason.FieldPowerBrake},
		{"hw_thermal", reason.FieldHWThermal},
		{"sw_thermal", reason.FieldSWThermal},
		{"hw_slowdown", reason.FieldHWSlowdown},
		{"power_cap", reason.FieldPowerCap},
	}},
	gpusemconv.MetricGPUThrottleTime: &gpuFields{gpusemconv.AttrReason, []namedField{
		{"power_brake", reason.FieldPowerBrakeTime},
		{"hw_thermal", reason.FieldHWThermalTime},
		{"sw_thermal", reason.FieldSWThermalTime},
	}},
	gpusemconv.MetricGPUClock:      &gpuFields{gpusemconv.AttrClock, []namedField{{"sm", reason.FieldSMClock}}},
	gpusemconv.MetricGPUClockLimit: &gpuFields{gpusemconv.AttrClock, []namedField{{"sm", reason.FieldSMClockLimit}}},
	gpusemconv.MetricTemperature:   &gpuFields{gpusemconv.AttrSensorLocation, []namedField{{"gpu", reason.FieldTemperature}}},
	gpusemconv.MetricGPUPowerLimit: &gpuFields{gpusemconv.AttrLimit, []namedField{{"enforced", reason.FieldPowerLimit}}},
	gpusemconv.MetricGPUUtilization: &gpuFields{gpusemconv.AttrGPUTask, []namedField{
		{"general", reason.FieldUtilization},
	}},
	gpusemconv.MetricGPUProcesses: &gpuFields{gpusemconv.AttrProcessType, []namedField{{"compute", reason.FieldProcesses}}},
	gpusemconv.MetricGPUPCIeLinkGeneration: &gpuFields{gpusemconv.AttrKind, []namedField{
		{"current", reason.FieldPCIeGeneration},
		{"max", reason.FieldPCIeGenerationLimit},
	}},
	gpusemconv.MetricGPUPCIeLinkWidth: &gpuFields{gpusemconv.AttrKind, []namedField{
		{"current", reason.FieldPCIeWidth},
		{"max", reason.FieldPCIeWidthLimit},
	}},
	gpusemconv.MetricGPUPCIeReplays: &gpuFields{gpusemconv.AttrKind, []namedField{{"replay", reason.FieldPCIeReplays}}},
	gpusemconv.MetricGPUNVLinkLinks: &gpuFields{gpusemconv.AttrState, []namedField{{"up", reason.FieldNVLinksUp}}},
	gpusemconv.MetricGPUNVLinkErrors: &gpuFields{gpusemconv.AttrErrorType, []namedField{
		{"replay", reason.FieldNVLinkReplay},
		{"recovery", reason.FieldNVLinkRecovery},
		{"crc_flit", reason.FieldNVLinkCRCFlit},
		{"crc_data", reason.FieldNVLinkCRCData},
		{"crc", reason.FieldNVLinkCRC},
	}},

	gpusemconv.MetricNodeCPUPressure:    nodeField(reason.NodeCPUPressure),
	gpusemconv.MetricHWNetworkBandwidth: pointFunc(readBandwidth),
	gpusemconv.MetricSystemLoadAverage:  nodeField(reason.NodeLoadAverage),
	gpusemconv.MetricSystemCPUUtil:      pointFunc(readSteal),
	gpusemconv.MetricSystemMemoryUtil:   pointFunc(readHostMemory),
}

func only(f reason.Field) *gpuFields { return &gpuFields{fields: []namedField{{field: f}}} }
