// SPDX-License-Identifier: Apache-2.0

package replay

import semconv "github.com/gpu-collector/gpu-collector/internal/gpusemconv"

// dcgmField maps one DCGM field to a point. Units are those of dcgm-exporter's
// etc/default-counters.csv and etc/dcp-metrics-included.csv and of DCGM's
// dcgm_fields.h.
type dcgmField struct {
	name string
	// min and max bound the raw value; what lies outside is no reading.
	min, max float64
	// zeroIsBlank is set where an unsupported sensor reads 0.
	zeroIsBlank bool
	// factor takes the raw value to the metric's unit.
	factor float64
	// metric is nil for fields that only enter derived points.
	metric *Metric
	attrs  []Attribute
}

const (
	mebi     = 1 << 20
	anyCount = 1 << 53 // the largest range in which a float64 counts without gaps
)

var (
	metricTemperature  = &Metric{Name: semconv.MetricTemperature, Description: "Temperature of a sensor.", Unit: "Cel"}
	metricPower        = &Metric{Name: semconv.MetricPower, Description: "Power draw.", Unit: "W"}
	metricPowerLimit   = &Metric{Name: semconv.MetricGPUPowerLimit, Description: "Power limit.", Unit: "W"}
	metricEnergy       = &Metric{Name: semconv.MetricEnergy, Description: "Energy used.", Unit: "J", Kind: KindSum}
	metricUtilization  = &Metric{Name: semconv.MetricGPUUtilization, Description: "Fraction of time the GPU was busy with the task.", Unit: "1"}
	metricActivity     = &Metric{Name: semconv.MetricGPUActivity, Description: "Fraction of cycles a unit of the GPU was active.", Unit: "1"}
	metricClock        = &Metric{Name: semconv.MetricGPUClock, Description: "Clock frequency.", Unit: "Hz", Integer: true}
	metricErrors       = &Metric{Name: semconv.MetricErrors, Description: "Errors of the hardware.", Unit: "{error}", Kind: KindSum, Integer: true}
	metricPCIeReplays  = &Metric{Name: semconv.MetricGPUPCIeReplays, Description: "PCIe replays.", Unit: "{replay}", Kind: KindSum, Integer: true}
	metricPCIeWidth    = &Metric{Name: semconv.MetricGPUPCIeLinkWidth, Description: "Width of the PCIe link.", Unit: "{lane}", Integer: true}
	metricPCIeGen      = &Metric{Name: semconv.MetricGPUPCIeLinkGeneration, Description: "Generation of the PCIe link.", Unit: "1", Integer: true}
	metricRetiredPages = &Metric{Name: semconv.MetricGPURetiredPages, Description: "Retired memory pages.", Unit: "{page}", Integer: true}
	metricRemappedRows = &Metric{Name: semconv.MetricGPURemappedRows, Description: "Remapped memory rows.", Unit: "{row}", Integer: true}
	metricRemapPending = &Metric{Name: semconv.MetricGPURemapPending, Description: "Whether a row remap waits for a reset.", Unit: "1", Integer: true}
	metricRemapFailed  = &Metric{Name: semconv.MetricGPURemapFailed, Description: "Whether a row remap has failed.", Unit: "1", Integer: true}
	metricNVLinkErrors = &Metric{Name: semconv.MetricGPUNVLinkErrors, Description: "NVLink errors of all links.", Unit: "{error}", Kind: KindSum, Integer: true}
	metricMemoryUsage  = &Metric{Name: semconv.MetricGPUMemoryUsage, Description: "Memory in use.", Unit: "By", Kind: KindUpDownCounter, Integer: true}
	metricMemoryLimit  = &Metric{Name: semconv.MetricGPUMemoryLimit, Description: "Size of the memory.", Unit: "By", Kind: KindUpDownCounter, Integer: true}
	metricMemoryUtil   = &Metric{Name: semconv.MetricGPUMemoryUtil, Description: "Fraction of the memory in use.", Unit: "1"}
	metricThrottle     = &Metric{Name: semconv.MetricGPUThrottleActive, Description: "Whether the clock is held down for the reason.", Unit: "1", Integer: true}
	metricXIDEvents    = &Metric{Name: semconv.MetricGPUXIDEvents, Description: "Xid events seen since the start.", Unit: "{event}", Kind: KindSum, Integer: true, FromZero: true}
	metricInfo         = &Metric{Name: semconv.MetricGPUInfo, Description: "Static facts of the GPU; always 1.", Unit: "1", Integer: true}
	hwTypeGPU          = Attribute{Key: semconv.AttrHWType, Text: "gpu"}
	hwTypeOnly         = []Attribute{hwTypeGPU}
)

func eccAttributes(errorType, counter string) []Attribute {
	return []Attribute{
		hwTypeGPU,
		{Key: semconv.AttrErrorType, Text: errorType},
		{Key: semconv.AttrECCCounter, Text: counter},
		{Key: semconv.AttrMemoryLocation, Text: "all"},
	}
}

func attr(key, text string) []Attribute { return []Attribute{{Key: key, Text: text}} }

// Fields of one metric are adjacent, see Node.Points.
//
// Left out on purpose: the violation times (DCGM_FI_DEV_*_VIOLATION), which
// public sources give in us as well as in ns; PCIe and NVLink throughput, which
// are rates or undocumented sums where hw.gpu.io is a byte count; and
// DCGM_FI_DEV_MEM_COPY_UTIL, time the memory was busy, which is neither a
// fraction of memory used nor one of cycles.
var dcgmFields = []dcgmField{
	{name: "DCGM_FI_DEV_GPU_TEMP", min: -50, max: 200, factor: 1, metric: metricTemperature, attrs: attr(semconv.AttrSensorLocation, "gpu")},
	// GPUs without the sensor report a memory temperature of 0.
	{name: "DCGM_FI_DEV_MEMORY_TEMP", min: -50, max: 200, zeroIsBlank: true, factor: 1, metric: metricTemperature, attrs: attr(semconv.AttrSensorLocation, "memory")},
	{name: "DCGM_FI_DEV_POWER_USAGE", max: 1e5, factor: 1, metric: metricPower, attrs: hwTypeOnly},
	{name: "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", max: 1e5, zeroIsBlank: true, factor: 1, metric: metricPowerLimit, attrs: attr(semconv.AttrLimit, "enforced")},
	{name: "DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", max: 1e5, zeroIsBlank: true, factor: 1, metric: metricPowerLimit, attrs: attr(semconv.AttrLimit, "max")},
	{name: "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", max: anyCount, factor: 1e-3, metric: metricEnergy, attrs: hwTypeOnly},
	{name: "DCGM_FI_DEV_GPU_UTIL", max: 100, factor: 1e-2, metric: metricUtilization, attrs: attr(semconv.AttrGPUTask, "general")},
	{name: "DCGM_FI_DEV_ENC_UTIL", max: 100, factor: 1e-2, metric: metricUtilization, attrs: attr(semconv.AttrGPUTask, "encoder")},
	{name: "DCGM_FI_DEV_DEC_UTIL", max: 100, factor: 1e-2, metric: metricUtilization, attrs: attr(semconv.AttrGPUTask, "decoder")},
	activityField("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "graphics_engine"),
	activityField("DCGM_FI_PROF_SM_ACTIVE", "sm"),
	activityField("DCGM_FI_PROF_SM_OCCUPANCY", "sm_occupancy"),
	activityField("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor"),
	activityField("DCGM_FI_PROF_DRAM_ACTIVE", "dram"),
	activityField("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "fp64"),
	activityField("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "fp32"),
	activityField("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "fp16"),
	{name: "DCGM_FI_DEV_SM_CLOCK", max: 1e5, factor: 1e6, metric: metricClock, attrs: attr(semconv.AttrClock, "sm")},
	{name: "DCGM_FI_DEV_MEM_CLOCK", max: 1e5, factor: 1e6, metric: metricClock, attrs: attr(semconv.AttrClock, "memory")},
	{name: "DCGM_FI_DEV_VIDEO_CLOCK", max: 1e5, factor: 1e6, metric: metricClock, attrs: attr(semconv.AttrClock, "video")},
	countField("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", metricErrors, eccAttributes("corrected", "volatile")),
	countField("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", metricErrors, eccAttributes("uncorrected", "volatile")),
	countField("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", metricErrors, eccAttributes("corrected", "aggregate")),
	countField("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", metricErrors, eccAttributes("uncorrected", "aggregate")),
	countField("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", metricPCIeReplays, attr(semconv.AttrKind, "replay")),
	{name: "DCGM_FI_DEV_PCIE_LINK_WIDTH", min: 1, max: 32, factor: 1, metric: metricPCIeWidth, attrs: attr(semconv.AttrKind, "current")},
	{name: "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", min: 1, max: 32, factor: 1, metric: metricPCIeWidth, attrs: attr(semconv.AttrKind, "max")},
	{name: "DCGM_FI_DEV_PCIE_LINK_GEN", min: 1, max: 16, factor: 1, metric: metricPCIeGen, attrs: attr(semconv.AttrKind, "current")},
	{name: "DCGM_FI_DEV_PCIE_MAX_LINK_GEN", min: 1, max: 16, factor: 1, metric: metricPCIeGen, attrs: attr(semconv.AttrKind, "max")},
	countField("DCGM_FI_DEV_RETIRED_SBE", metricRetiredPages, attr(semconv.AttrCause, "sbe")),
	countField("DCGM_FI_DEV_RETIRED_DBE", metricRetiredPages, attr(semconv.AttrCause, "dbe")),
	countField("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", metricRemappedRows, attr(semconv.AttrCause, "corrected")),
	countField("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", metricRemappedRows, attr(semconv.AttrCause, "uncorrected")),
	{name: "DCGM_FI_DEV_ROW_REMAP_PENDING", max: 1, factor: 1, metric: metricRemapPending},
	{name: "DCGM_FI_DEV_ROW_REMAP_FAILURE", max: 1, factor: 1, metric: metricRemapFailed},
	countField("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", metricNVLinkErrors, attr(semconv.AttrErrorType, "crc_flit")),
	countField("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", metricNVLinkErrors, attr(semconv.AttrErrorType, "crc_data")),
	countField("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", metricNVLinkErrors, attr(semconv.AttrErrorType, "replay")),
	countField("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", metricNVLinkErrors, attr(semconv.AttrErrorType, "recovery")),
	{name: fbUsed, max: 1 << 30, factor: mebi, metric: metricMemoryUsage},
	{name: fbFree, max: 1 << 30, factor: mebi},
	{name: fbReserved, max: 1 << 30, factor: mebi},
	{name: fbTotal, max: 1 << 30, zeroIsBlank: true, factor: mebi},
	{name: throttleReasons, max: anyCount, factor: 1},
	{name: xidErrors, max: 1 << 16, factor: 1},
}

func activityField(name, unit string) dcgmField {
	// Counters of one interval are read one after the other, so a ratio may come out a little over 1.
	return dcgmField{name: name, max: 1.01, factor: 1, metric: metricActivity, attrs: attr(semconv.AttrActivityUnit, unit)}
}

func countField(name string, m *Metric, attrs []Attribute) dcgmField {
	return dcgmField{name: name, max: anyCount, factor: 1, metric: m, attrs: attrs}
}

const (
	fbUsed          = "DCGM_FI_DEV_FB_USED"
	fbFree          = "DCGM_FI_DEV_FB_FREE"
	fbReserved      = "DCGM_FI_DEV_FB_RESERVED"
	fbTotal         = "DCGM_FI_DEV_FB_TOTAL"
	throttleReasons = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
	xidErrors       = "DCGM_FI_DEV_XID_ERRORS"
)

// dcgmIndex finds a field by name; DCGM renamed one and keeps the old name as an alias.
var dcgmIndex = func() map[string]int {
	index := make(map[string]int, len(dcgmFields)+1)
	for i, f := range dcgmFields {
		index[f.name] = i
	}
	index["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"] = index[throttleReasons]
	return index
}()

var (
	iUsed     = dcgmIndex[fbUsed]
	iFree     = dcgmIndex[fbFree]
	iReserved = dcgmIndex[fbReserved]
	iTotal    = dcgmIndex[fbTotal]
	iThrottle = dcgmIndex[throttleReasons]
	iXID      = dcgmIndex[xidErrors]
)

// throttleBits are DCGM_CLOCKS_EVENT_REASON_* of dcgm_fields.h. Idle, the
// application clock setting and display clocks are no throttling.
var throttleBits = []struct {
	bit   uint64
	attrs []Attribute
}{
	{0x04, attr(semconv.AttrReason, "power_cap")},
	{0x08, attr(semconv.AttrReason, "hw_slowdown")},
	{0x10, attr(semconv.AttrReason, "sync_boost")},
	{0x20, attr(semconv.AttrReason, "sw_thermal")},
	{0x40, attr(semconv.AttrReason, "hw_thermal")},
	{0x80, attr(semconv.AttrReason, "power_brake")},
}

// dcgmBlank reports whether the value is one of those by which DCGM says that
// it has none: DCGM_INT64_BLANK and DCGM_FP64_BLANK (2^47) with up to 15 above
// for not found, not supported and not permitted (dcgm_structs.h).
func dcgmBlank(v float64) bool {
	const int64Blank, fp64Blank = 0x7ffffffffffffff0, 1 << 47
	return v >= int64Blank || (v >= fp64Blank && v < fp64Blank+16)
}
