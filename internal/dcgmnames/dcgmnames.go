// SPDX-License-Identifier: Apache-2.0

// Package dcgmnames is what dcgm-exporter's metrics are here: metric, attributes, factor.
package dcgmnames // import "github.com/gpu-collector/gpu-collector/internal/dcgmnames"

import (
	semconv "github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// Use is how a name's value comes from a point.
type Use uint8

// The uses.
const (
	// UseValue is the point's value times the factor.
	UseValue Use = iota
	// UseRate is a counter's growth per second times the factor, summed over the points.
	UseRate
	// UseFree is the memory that is neither used nor reserved.
	UseFree
	// UseLastXID is the code of the last Xid, 0 before the first.
	UseLastXID
)

// Attribute selects points.
type Attribute struct{ Key, Value string }

// Name is one of dcgm-exporter's.
type Name struct {
	DCGM, Help, Unit string
	// Default: dcgm-exporter has it on without a list of the user's.
	Default bool
	// Metric is ours, empty where there is none: then Note says why.
	Metric     string
	Attributes []Attribute
	Factor     float64
	Use        Use
	Note       string
}

const (
	activity  = "hw.gpu.activity"
	reserved  = "hw.gpu.memory.reserved"
	io        = "hw.gpu.io"
	link      = "gpu.link"
	hopper    = "Hopper and newer"
	mebibyte  = 1.0 / (1 << 20)
	violation = 1e9
)

func value(dcgm, help, unit, metric string, factor float64, attributes ...string) Name {
	n := Name{DCGM: dcgm, Help: help, Unit: unit, Metric: metric, Factor: factor}
	for i := 0; i+1 < len(attributes); i += 2 {
		n.Attributes = append(n.Attributes, Attribute{attributes[i], attributes[i+1]})
	}
	return n
}

func (n Name) standard() Name        { n.Default = true; return n }
func (n Name) use(u Use) Name        { n.Use = u; return n }
func (n Name) note(text string) Name { n.Note = text; return n }
func missing(dcgm, why string) Name  { return Name{DCGM: dcgm, Note: why} }
func clock(dcgm, of string) Name {
	return value(dcgm, of+" clock", "MHz", semconv.MetricGPUClock, 1e-6, semconv.AttrClock, of)
}

func task(dcgm, help, of string) Name {
	return value(dcgm, help, "%", semconv.MetricGPUUtilization, 100, semconv.AttrGPUTask, of)
}

func active(dcgm, help, of string) Name {
	return value(dcgm, help, "1", activity, 1, "unit", of).note(hopper)
}

func held(dcgm, help, reason string) Name {
	return value(dcgm, help, "ns", semconv.MetricGPUThrottleTime, violation, semconv.AttrReason, reason)
}

func ecc(dcgm, help, kind, counter string) Name {
	return value(dcgm, help, "count", semconv.MetricErrors, 1,
		semconv.AttrErrorType, kind, "gpu.memory.location", "all", "gpu.ecc.counter", counter)
}

// All is dcgm-exporter's default list (its etc/default-counters.csv, release 4.5.3-4.8.2)
// in its order, and then others in wide use.
var All = []Name{
	clock("DCGM_FI_DEV_SM_CLOCK", "sm").standard(),
	clock("DCGM_FI_DEV_MEM_CLOCK", "memory").standard(),
	value("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature", "C", semconv.MetricTemperature, 1, semconv.AttrSensorLocation, "memory").standard().note("no point where the GPU does not tell it, not 0"),
	value("DCGM_FI_DEV_GPU_TEMP", "GPU temperature", "C", semconv.MetricTemperature, 1, semconv.AttrSensorLocation, "gpu").standard(),
	value("DCGM_FI_DEV_POWER_USAGE", "Power draw", "W", semconv.MetricPower, 1).standard(),
	value("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy since the driver was loaded", "mJ", semconv.MetricEnergy, 1000).standard(),
	value("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe retries", "count", semconv.MetricGPUPCIeReplays, 1, semconv.AttrKind, "replay").standard(),
	task("DCGM_FI_DEV_GPU_UTIL", "GPU utilisation", "general").standard(),
	task("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilisation", "memory").standard(),
	task("DCGM_FI_DEV_ENC_UTIL", "Encoder utilisation", "encoder").standard(),
	task("DCGM_FI_DEV_DEC_UTIL", "Decoder utilisation", "decoder").standard(),
	value("DCGM_FI_DEV_XID_ERRORS", "Code of the last Xid, 0 for none", "code", semconv.MetricGPUXIDEvents, 1).standard().use(UseLastXID).note("ours counts each code; since the collector was started"),
	value("DCGM_FI_DEV_FB_FREE", "Free memory", "MiB", semconv.MetricGPUMemoryLimit, mebibyte).standard().use(UseFree).note("the limit less usage and reserved"),
	value("DCGM_FI_DEV_FB_USED", "Memory in use", "MiB", semconv.MetricGPUMemoryUsage, mebibyte).standard(),
	value("DCGM_FI_DEV_FB_RESERVED", "Memory that the driver reserves", "MiB", reserved, mebibyte).standard(),
	value("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "NVLink bandwidth of all links, both directions", "MB/s", io, 1e-6, link, "nvlink").standard().use(UseRate),
	missing("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "a virtual GPU's licence: its host is not watched").standard(),
	value("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrectable errors", "rows", semconv.MetricGPURemappedRows, 1, semconv.AttrCause, "uncorrected").standard(),
	value("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for correctable errors", "rows", semconv.MetricGPURemappedRows, 1, semconv.AttrCause, "corrected").standard(),
	value("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether a row could not be remapped", "1", semconv.MetricGPURemapFailed, 1).standard(),
	active("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Share of time with graphics or compute work", "graphics").standard(),
	active("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Activity of the tensor cores", "tensor").standard(),
	active("DCGM_FI_PROF_DRAM_ACTIVE", "Activity of the memory interface", "dram").standard(),
	value("DCGM_FI_PROF_PCIE_TX_BYTES", "Bytes sent over PCIe per second", "B/s", io, 1, link, "pcie", semconv.AttrNetworkIODirection, "transmit").standard().use(UseRate),
	value("DCGM_FI_PROF_PCIE_RX_BYTES", "Bytes received over PCIe per second", "B/s", io, 1, link, "pcie", semconv.AttrNetworkIODirection, "receive").standard().use(UseRate),

	active("DCGM_FI_PROF_SM_ACTIVE", "Activity of the SMs", "sm"),
	active("DCGM_FI_PROF_SM_OCCUPANCY", "Occupancy of the SMs", "sm_occupancy"),
	active("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "Activity of the FP64 units", "fp64"),
	active("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "Activity of the FP32 units", "fp32"),
	active("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "Activity of the FP16 units", "fp16"),
	held("DCGM_FI_DEV_POWER_VIOLATION", "Time held down by power", "power"),
	held("DCGM_FI_DEV_THERMAL_VIOLATION", "Time held down by heat", "thermal"),
	held("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", "Time held down by sync boost", "sync_boost"),
	held("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", "Time held down by the board's limit", "board_limit"),
	held("DCGM_FI_DEV_LOW_UTIL_VIOLATION", "Time held down by low utilisation", "low_utilization"),
	held("DCGM_FI_DEV_RELIABILITY_VIOLATION", "Time held down for reliability", "reliability"),
	ecc("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Corrected errors since the driver was loaded", "corrected", "volatile"),
	ecc("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Uncorrected errors since the driver was loaded", "uncorrected", "volatile"),
	ecc("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "Corrected errors of the board's life", "corrected", "aggregate"),
	ecc("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "Uncorrected errors of the board's life", "uncorrected", "aggregate"),
	value("DCGM_FI_DEV_RETIRED_SBE", "Pages retired for single-bit errors", "pages", semconv.MetricGPURetiredPages, 1, semconv.AttrCause, "sbe"),
	value("DCGM_FI_DEV_RETIRED_DBE", "Pages retired for double-bit errors", "pages", semconv.MetricGPURetiredPages, 1, semconv.AttrCause, "dbe"),
	value("DCGM_FI_DEV_RETIRED_PENDING", "Whether a page waits to be retired", "1", semconv.MetricGPURetirementPending, 1),
	value("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLink retries", "count", semconv.MetricGPUNVLinkErrors, 1, semconv.AttrErrorType, "replay"),
	value("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "NVLink recoveries", "count", semconv.MetricGPUNVLinkErrors, 1, semconv.AttrErrorType, "recovery"),
	value("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVLink CRC errors of flits", "count", semconv.MetricGPUNVLinkErrors, 1, semconv.AttrErrorType, "crc_flit"),
	value("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "NVLink CRC errors of data", "count", semconv.MetricGPUNVLinkErrors, 1, semconv.AttrErrorType, "crc_data"),
	value("DCGM_FI_DEV_POWER_MGMT_LIMIT", "Power limit in force", "W", semconv.MetricGPUPowerLimit, 1, semconv.AttrLimit, "enforced"),
	missing("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "a bit mask: `hw.gpu.throttle.active` has a series per reason"),
	missing("DCGM_EXP_XID_ERRORS_COUNT", "`increase(hw_gpu_xid_events_total[5m])`"),
	missing("DCGM_EXP_CLOCK_EVENTS_COUNT", "`hw.gpu.throttle.active`"),
	missing("DCGM_EXP_GPU_HEALTH_STATUS", "`hw.gpu.health.state`, and `hw.gpu.health.reason` with what to do"),
	missing("DCGM_EXP_P2P_STATUS", "a state of pairs of GPUs, which the receiver does not read"),
}
