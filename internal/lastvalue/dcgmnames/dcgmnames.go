// SPDX-License-Identifier: Apache-2.0

// Package dcgmnames is what dcgm-exporter's metrics are here: metric, attributes, factor.
package dcgmnames // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/dcgmnames"

import (
	"strconv"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	semconv "github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Prefix begins each name.
const Prefix = "DCGM_"

// Attribute selects points.
type Attribute struct{ Key, Value string }

// Name is one of dcgm-exporter's. Its value is the sum of the metric's points that have
// the attributes, less those of the metrics Less, times Factor.
type Name struct {
	DCGM, Help, Unit string
	// Default: dcgm-exporter has it on without a list of the user's.
	Default bool
	// Counter: dcgm-exporter has it as a counter.
	Counter bool
	// Metric is ours, empty where there is none: then Note has the reason.
	Metric     string
	Attributes []Attribute
	Less       []string
	Factor     float64
	Note       string
}

// factors are those from the catalogue's units to dcgm-exporter's; 1 for all others.
var factors = map[[2]string]float64{
	{"Hz", "MHz"}: 1e-6, {"J", "mJ"}: 1000, {"1", "%"}: 100, {"By", "MiB"}: 1.0 / (1 << 20), {"s", "ns"}: 1e9, {"By/s", "MB/s"}: 1e-6,
}

const (
	ioRate = "hw.gpu.io.rate"
	link   = "gpu.link"
	hopper = "Hopper+"
)

// value is a name; attributes are keys and values in turn.
func value(dcgm, help, unit, metric string, attributes ...string) Name {
	m := reading.ByName(metric)
	n := Name{DCGM: dcgm, Help: help, Unit: unit, Metric: metric, Factor: 1, Counter: m.Kind == reading.Counter}
	if f, ok := factors[[2]string{m.Unit, unit}]; ok {
		n.Factor = f
	}
	for i := 0; i+1 < len(attributes); i += 2 {
		n.Attributes = append(n.Attributes, Attribute{attributes[i], attributes[i+1]})
	}
	return n
}

func (n Name) standard() Name              { n.Default = true; return n }
func (n Name) counter() Name               { n.Counter = true; return n }
func (n Name) less(metrics ...string) Name { n.Less = metrics; return n }
func (n Name) note(text string) Name       { n.Note = text; return n }
func missing(dcgm, why string) Name        { return Name{DCGM: dcgm, Note: why} }

func task(dcgm, help, of string) Name {
	return value(dcgm, help, "%", semconv.MetricGPUUtilization, semconv.AttrGPUTask, of).standard()
}

func active(dcgm, help, of string) Name {
	return value(dcgm, help, "1", semconv.MetricGPUActivity, semconv.AttrActivityUnit, of).note(hopper)
}

func held(dcgm, help, reason string) Name {
	return value(dcgm, help, "ns", semconv.MetricGPUThrottleTime, semconv.AttrReason, reason)
}

func ecc(dcgm, help, kind, counter string) Name {
	return value(dcgm, help, "errors", semconv.MetricErrors,
		semconv.AttrErrorType, kind, semconv.AttrMemoryLocation, "all", semconv.AttrECCCounter, counter)
}

func linkErrors(dcgm, help, kind string) Name {
	return value(dcgm, help, "errors", semconv.MetricGPUNVLinkErrors, semconv.AttrErrorType, kind)
}

// All is dcgm-exporter's default list (its etc/default-counters.csv, release 4.5.3-4.8.2)
// in its order, and then others in wide use.
var All = []Name{
	value("DCGM_FI_DEV_SM_CLOCK", "SM clock", "MHz", semconv.MetricGPUClock, semconv.AttrClock, "sm").standard(),
	value("DCGM_FI_DEV_MEM_CLOCK", "Memory clock", "MHz", semconv.MetricGPUClock, semconv.AttrClock, "memory").standard(),
	value("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature", "C", semconv.MetricTemperature, semconv.AttrSensorLocation, "memory").standard().note("no 0 where untold"),
	value("DCGM_FI_DEV_GPU_TEMP", "GPU temperature", "C", semconv.MetricTemperature, semconv.AttrSensorLocation, "gpu").standard(),
	value("DCGM_FI_DEV_POWER_USAGE", "Power draw", "W", semconv.MetricPower).standard(),
	value("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy since the driver was loaded", "mJ", semconv.MetricEnergy).standard(),
	value("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe retries", "retries", semconv.MetricGPUPCIeReplays, semconv.AttrKind, "replay").standard(),
	task("DCGM_FI_DEV_GPU_UTIL", "GPU utilization", "general"),
	task("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization", "memory"),
	task("DCGM_FI_DEV_ENC_UTIL", "Encoder utilization", "encoder"),
	task("DCGM_FI_DEV_DEC_UTIL", "Decoder utilization", "decoder"),
	value("DCGM_FI_DEV_XID_ERRORS", "Code of the last Xid, 0 before the first", "code", "hw.gpu.xid.last").standard().note("since start"),
	value("DCGM_FI_DEV_FB_FREE", "Free memory", "MiB", semconv.MetricGPUMemoryLimit).less(semconv.MetricGPUMemoryUsage, "hw.gpu.memory.reserved").standard(),
	value("DCGM_FI_DEV_FB_USED", "Memory in use", "MiB", semconv.MetricGPUMemoryUsage).standard(),
	value("DCGM_FI_DEV_FB_RESERVED", "Memory that the driver keeps", "MiB", "hw.gpu.memory.reserved").standard(),
	value("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Traffic of all NVLinks, both directions", "MB/s", ioRate, link, "nvlink").standard().note(hopper),
	missing("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "not watched").standard(),
	value("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrectable errors", "rows", semconv.MetricGPURemappedRows, semconv.AttrCause, "uncorrected").counter().standard(),
	value("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for correctable errors", "rows", semconv.MetricGPURemappedRows, semconv.AttrCause, "corrected").counter().standard(),
	value("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether a row could not be remapped", "1", semconv.MetricGPURemapFailed).standard(),
	active("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Share of time with graphics or compute work", "graphics").standard(),
	active("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Activity of the tensor cores", "tensor").standard(),
	active("DCGM_FI_PROF_DRAM_ACTIVE", "Activity of the memory interface", "dram").standard(),
	value("DCGM_FI_PROF_PCIE_TX_BYTES", "Bytes sent over PCIe per second", "B/s", ioRate, link, "pcie", semconv.AttrNetworkIODirection, "transmit").standard().note(hopper),
	value("DCGM_FI_PROF_PCIE_RX_BYTES", "Bytes received over PCIe per second", "B/s", ioRate, link, "pcie", semconv.AttrNetworkIODirection, "receive").standard().note(hopper),

	active("DCGM_FI_PROF_SM_ACTIVE", "Activity of the SMs", "sm"),
	active("DCGM_FI_PROF_SM_OCCUPANCY", "Occupancy of the SMs", "sm_occupancy"),
	active("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "Activity of the FP64 units", "fp64"),
	active("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "Activity of the FP32 units", "fp32"),
	active("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "Activity of the FP16 units", "fp16"),
	value("DCGM_FI_PROF_NVLINK_TX_BYTES", "Bytes sent over NVLink per second", "B/s", ioRate, link, "nvlink", semconv.AttrNetworkIODirection, "transmit").note(hopper),
	value("DCGM_FI_PROF_NVLINK_RX_BYTES", "Bytes received over NVLink per second", "B/s", ioRate, link, "nvlink", semconv.AttrNetworkIODirection, "receive").note(hopper),
	value("DCGM_FI_DEV_FB_TOTAL", "Size of the memory", "MiB", semconv.MetricGPUMemoryLimit),
	held("DCGM_FI_DEV_POWER_VIOLATION", "Time held down by power", "power"),
	held("DCGM_FI_DEV_THERMAL_VIOLATION", "Time held down by heat", "thermal"),
	held("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", "Time held down by sync boost", "sync_boost"),
	held("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", "Time held down by the board's limit", "board_limit"),
	held("DCGM_FI_DEV_LOW_UTIL_VIOLATION", "Time held down by low utilization", "low_utilization"),
	held("DCGM_FI_DEV_RELIABILITY_VIOLATION", "Time held down for reliability", "reliability"),
	ecc("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Corrected errors since the driver was loaded", "corrected", "volatile"),
	ecc("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Uncorrected errors since the driver was loaded", "uncorrected", "volatile"),
	ecc("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "Corrected errors of the board's life", "corrected", "aggregate"),
	ecc("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "Uncorrected errors of the board's life", "uncorrected", "aggregate"),
	value("DCGM_FI_DEV_RETIRED_SBE", "Pages retired for single-bit errors", "pages", semconv.MetricGPURetiredPages, semconv.AttrCause, "sbe").counter(),
	value("DCGM_FI_DEV_RETIRED_DBE", "Pages retired for double-bit errors", "pages", semconv.MetricGPURetiredPages, semconv.AttrCause, "dbe").counter(),
	value("DCGM_FI_DEV_RETIRED_PENDING", "Whether a page waits to be retired", "1", semconv.MetricGPURetirementPending).counter(),
	linkErrors("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLink retries", "replay"),
	linkErrors("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "NVLink recoveries", "recovery"),
	linkErrors("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVLink CRC errors of flits", "crc_flit"),
	linkErrors("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "NVLink CRC errors of data", "crc_data"),
	value("DCGM_FI_DEV_POWER_MGMT_LIMIT", "Power limit", "W", semconv.MetricGPUPowerLimit, semconv.AttrLimit, "enforced"),
	value("DCGM_FI_DEV_SLOWDOWN_TEMP", "Temperature at which clocks go down", "C", "hw.temperature.limit", semconv.AttrSensorLocation, "gpu", "hw.limit_type", "throttled"),
	value("DCGM_FI_DEV_SHUTDOWN_TEMP", "Temperature at which the GPU shuts down", "C", "hw.temperature.limit", semconv.AttrSensorLocation, "gpu", "hw.limit_type", "critical"),
	value("DCGM_FI_DEV_ROW_REMAP_PENDING", "Whether a row waits to be remapped", "1", "hw.gpu.memory.remap.pending"),
	value("DCGM_FI_DEV_PCIE_LINK_GEN", "Generation of the PCIe link now", "1", semconv.MetricGPUPCIeLinkGeneration, semconv.AttrKind, "current"),
	value("DCGM_FI_DEV_PCIE_LINK_WIDTH", "Lanes of the PCIe link now", "lanes", semconv.MetricGPUPCIeLinkWidth, semconv.AttrKind, "current"),
	missing("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "`DCGM_FI_PROF_PCIE_TX_BYTES`, `hw.gpu.io`"),
	missing("DCGM_FI_DEV_PCIE_RX_THROUGHPUT", "`DCGM_FI_PROF_PCIE_RX_BYTES`, `hw.gpu.io`"),
	missing("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "a bit mask: `hw.gpu.throttle.active`"),
	missing("DCGM_EXP_XID_ERRORS_COUNT", "`increase(hw_gpu_xid_events_total[5m])`"),
	missing("DCGM_EXP_CLOCK_EVENTS_COUNT", "`hw.gpu.throttle.active`"),
	missing("DCGM_EXP_GPU_HEALTH_STATUS", "`hw.gpu.health.reason`"),
	missing("DCGM_EXP_P2P_STATUS", "not read"),
}

// Compute is the name's value of what its points add up to. A product's last digits are
// those of the factor's rounding, not of the reading.
func (n *Name) Compute(sum float64) float64 {
	if n.Factor == 1 {
		return sum
	}
	v, _ := strconv.ParseFloat(strconv.FormatFloat(sum*n.Factor, 'g', 15, 64), 64) // never refused
	return v
}
