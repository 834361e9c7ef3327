// SPDX-License-Identifier: Apache-2.0

package replay

import (
	semconv "github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// dcgmField maps one DCGM field to a point. Units are those of dcgm-exporter's
// etc/default-counters.csv and etc/dcp-metrics-included.csv and of DCGM's
// dcgm_fields.h.
type dcgmField struct {
	name string
	// min and max bound the raw value; what lies outside is no reading. Those of a
	// metric are the catalogue's.
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
	metricTemperature  = known(semconv.MetricTemperature)
	metricPower        = known(semconv.MetricPower)
	metricPowerLimit   = known(semconv.MetricGPUPowerLimit)
	metricEnergy       = known(semconv.MetricEnergy)
	metricUtilization  = known(semconv.MetricGPUUtilization)
	metricActivity     = known(semconv.MetricGPUActivity)
	metricClock        = known(semconv.MetricGPUClock)
	metricErrors       = known(semconv.MetricErrors)
	metricPCIeReplays  = known(semconv.MetricGPUPCIeReplays)
	metricPCIeWidth    = known(semconv.MetricGPUPCIeLinkWidth)
	metricPCIeGen      = known(semconv.MetricGPUPCIeLinkGeneration)
	metricRetiredPages = known(semconv.MetricGPURetiredPages)
	metricRemappedRows = known(semconv.MetricGPURemappedRows)
	metricRemapPending = known(semconv.MetricGPURemapPending)
	metricRemapFailed  = known(semconv.MetricGPURemapFailed)
	metricNVLinkErrors = known(semconv.MetricGPUNVLinkErrors)
	metricMemoryUsage  = known(semconv.MetricGPUMemoryUsage)
	metricMemoryLimit  = known(semconv.MetricGPUMemoryLimit)
	metricMemoryUtil   = known(semconv.MetricGPUMemoryUtil)
	metricThrottle     = known(semconv.MetricGPUThrottleActive)
	metricXIDEvents    = fromZero(known(semconv.MetricGPUXIDEvents))
	metricInfo         = known(semconv.MetricGPUInfo)
	hwTypeGPU          = Attribute{Key: semconv.AttrHWType, Text: "gpu"}
	hwTypeOnly         = []Attribute{hwTypeGPU}
)

// known describes a metric as the catalogue does.
func known(name string) *Metric {
	m := reading.ByName(name)
	kind := map[reading.Kind]Kind{reading.Counter: KindSum, reading.UpDownCounter: KindUpDownCounter}[m.Kind]
	return &Metric{Name: name, Description: m.About, Unit: m.Unit, Kind: kind, Integer: m.Integer}
}

func fromZero(m *Metric) *Metric {
	m.FromZero = true
	return m
}

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
var dcgmFields = bounded([]dcgmField{
	{name: "DCGM_FI_DEV_GPU_TEMP", factor: 1, metric: metricTemperature, attrs: attr(semconv.AttrSensorLocation, "gpu")},
	// GPUs without the sensor report a memory temperature of 0.
	{name: "DCGM_FI_DEV_MEMORY_TEMP", zeroIsBlank: true, factor: 1, metric: metricTemperature, attrs: attr(semconv.AttrSensorLocation, "memory")},
	{name: "DCGM_FI_DEV_POWER_USAGE", factor: 1, metric: metricPower, attrs: hwTypeOnly},
	{name: "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", zeroIsBlank: true, factor: 1, metric: metricPowerLimit, attrs: attr(semconv.AttrLimit, "enforced")},
	{name: "DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", zeroIsBlank: true, factor: 1, metric: metricPowerLimit, attrs: attr(semconv.AttrLimit, "max")},
	{name: "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", factor: 1e-3, metric: metricEnergy, attrs: hwTypeOnly},
	{name: "DCGM_FI_DEV_GPU_UTIL", factor: 1e-2, metric: metricUtilization, attrs: attr(semconv.AttrGPUTask, "general")},
	{name: "DCGM_FI_DEV_ENC_UTIL", factor: 1e-2, metric: metricUtilization, attrs: attr(semconv.AttrGPUTask, "encoder")},
	{name: "DCGM_FI_DEV_DEC_UTIL", factor: 1e-2, metric: metricUtilization, attrs: attr(semconv.AttrGPUTask, "decoder")},
	activityField("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "graphics_engine"),
	activityField("DCGM_FI_PROF_SM_ACTIVE", "sm"),
	activityField("DCGM_FI_PROF_SM_OCCUPANCY", "sm_occupancy"),
	activityField("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor"),
	activityField("DCGM_FI_PROF_DRAM_ACTIVE", "dram"),
	activityField("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "fp64"),
	activityField("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "fp32"),
	activityField("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "fp16"),
	{name: "DCGM_FI_DEV_SM_CLOCK", factor: 1e6, metric: metricClock, attrs: attr(semconv.AttrClock, "sm")},
	{name: "DCGM_FI_DEV_MEM_CLOCK", factor: 1e6, metric: metricClock, attrs: attr(semconv.AttrClock, "memory")},
	{name: "DCGM_FI_DEV_VIDEO_CLOCK", factor: 1e6, metric: metricClock, attrs: attr(semconv.AttrClock, "video")},
	countField("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", metricErrors, eccAttributes("corrected", "volatile")),
	countField("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", metricErrors, eccAttributes("uncorrected", "volatile")),
	countField("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", metricErrors, eccAttributes("corrected", "aggregate")),
	countField("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", metricErrors, eccAttributes("uncorrected", "aggregate")),
	countField("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", metricPCIeReplays, attr(semconv.AttrKind, "replay")),
	{name: "DCGM_FI_DEV_PCIE_LINK_WIDTH", min: 1, factor: 1, metric: metricPCIeWidth, attrs: attr(semconv.AttrKind, "current")},
	{name: "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", min: 1, factor: 1, metric: metricPCIeWidth, attrs: attr(semconv.AttrKind, "max")},
	{name: "DCGM_FI_DEV_PCIE_LINK_GEN", min: 1, factor: 1, metric: metricPCIeGen, attrs: attr(semconv.AttrKind, "current")},
	{name: "DCGM_FI_DEV_PCIE_MAX_LINK_GEN", min: 1, factor: 1, metric: metricPCIeGen, attrs: attr(semconv.AttrKind, "max")},
	countField("DCGM_FI_DEV_RETIRED_SBE", metricRetiredPages, attr(semconv.AttrCause, "sbe")),
	countField("DCGM_FI_DEV_RETIRED_DBE", metricRetiredPages, attr(semconv.AttrCause, "dbe")),
	countField("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", metricRemappedRows, attr(semconv.AttrCause, "corrected")),
	countField("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", metricRemappedRows, attr(semconv.AttrCause, "uncorrected")),
	{name: "DCGM_FI_DEV_ROW_REMAP_PENDING", factor: 1, metric: metricRemapPending},
	{name: "DCGM_FI_DEV_ROW_REMAP_FAILURE", factor: 1, metric: metricRemapFailed},
	countField("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", metricNVLinkErrors, attr(semconv.AttrErrorType, "crc_flit")),
	countField("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", metricNVLinkErrors, attr(semconv.AttrErrorType, "crc_data")),
	countField("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", metricNVLinkErrors, attr(semconv.AttrErrorType, "replay")),
	countField("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", metricNVLinkErrors, attr(semconv.AttrErrorType, "recovery")),
	{name: fbUsed, factor: mebi, metric: metricMemoryUsage},
	{name: fbFree, max: 1 << 30, factor: mebi},
	{name: fbReserved, max: 1 << 30, factor: mebi},
	{name: fbTotal, max: 1 << 30, zeroIsBlank: true, factor: mebi},
	{name: throttleReasons, max: anyCount, factor: 1},
	{name: xidErrors, max: 1 << 16, factor: 1},
})

// bounded gives the fields of a metric its range in the catalogue.
func bounded(fields []dcgmField) []dcgmField {
	for i := range fields {
		if f := &fields[i]; f.metric != nil {
			r := reading.ByName(f.metric.Name).Range
			f.max = r.Max / f.factor
			if f.min == 0 {
				f.min = r.Min / f.factor
			}
		}
	}
	return fields
}

func activityField(name, unit string) dcgmField {
	return dcgmField{name: name, factor: 1, metric: metricActivity, attrs: attr(semconv.AttrActivityUnit, unit)}
}

func countField(name string, m *Metric, attrs []Attribute) dcgmField {
	return dcgmField{name: name, factor: 1, metric: m, attrs: attrs}
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
