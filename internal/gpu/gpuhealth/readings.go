// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import "github.com/gpu-collector/gpu-collector/internal/reading"

// ECCLocation is where in the GPU a memory error was counted.
type ECCLocation int

// The locations. Readings.ECC is their sum as the driver counts it.
const (
	ECCDRAM ECCLocation = iota
	ECCSRAM
	NumECCLocations
)

// RetirementCause is why a page was retired, on GPUs up to Volta.
type RetirementCause int

// The causes, in NVML's order (nvmlPageRetirementCause).
const (
	RetiredSBE RetirementCause = iota
	RetiredDBE
	NumRetirementCauses
)

// RemappedRows is the state of row remapping, on Ampere and newer.
type RemappedRows struct {
	// Corrected and Uncorrected count rows by the error that made them go.
	Corrected, Uncorrected Opt[uint64]
	// Pending: a remapping waits for a reset. Failed: a remapping failed.
	Pending, Failed Opt[bool]
}

// Repair is a repair of the GPU by itself that takes a reset to be done
// (nvmlDeviceGetRepairStatus, Ampere and newer).
type Repair int

// The repairs.
const (
	// RepairChannel is of a channel of the memory.
	RepairChannel Repair = iota
	// RepairTPC is of a texture processing cluster, a group of SMs.
	RepairTPC
	NumRepairs
)

// RecoveryAction is what the driver asks for (field 230, nvmlDeviceGpuRecoveryAction).
type RecoveryAction int

// The recovery actions, in NVML's order.
const (
	RecoveryNone RecoveryAction = iota
	RecoveryReset
	RecoveryReboot
	RecoveryDrainP2P
	RecoveryDrainReset
	RecoveryIMEX
	NumRecoveryActions
)

// TemperatureLimit is a temperature at which something happens.
type TemperatureLimit int

// The limits.
const (
	// LimitSlowdown: the hardware slows down (hw.limit_type throttled, sensor gpu).
	LimitSlowdown TemperatureLimit = iota
	// LimitShutdown: the hardware shuts down (critical, gpu).
	LimitShutdown
	// LimitGPUMax: the software slows down (max, gpu).
	LimitGPUMax
	// LimitMemoryMax: the software slows down (max, memory).
	LimitMemoryMax
	NumTemperatureLimits
)

// ThrottleTime is a cumulative clock of lowered clocks.
type ThrottleTime int

// The clocks: fields 74 to 78, 269 to 271 of nvml.h.
const (
	ThrottleTimePower ThrottleTime = iota
	ThrottleTimeThermal
	ThrottleTimeSyncBoost
	ThrottleTimeBoardLimit
	ThrottleTimeLowUtilization
	ThrottleTimeReliability
	ThrottleTimeSWThermal
	ThrottleTimeHWThermal
	ThrottleTimePowerBrake
	NumThrottleTimes
)

// Link is a bus that bytes go over.
type Link int

// The links.
const (
	LinkPCIe Link = iota
	// LinkNVLink is the payload that goes over all NVLinks.
	LinkNVLink
	// LinkNVLinkRaw is the same with what the protocol adds.
	LinkNVLinkRaw
	NumLinks
)

// Direction is seen from the GPU.
type Direction int

// The directions.
const (
	Transmit Direction = iota
	Receive
	NumDirections
)

// PCIe is the GPU's PCIe link. Width is in lanes.
type PCIe struct {
	Width, WidthMax, Generation, GenerationMax Opt[uint32]
	// Replays counts retransmissions, Rollovers how often that counter in the hardware wrapped.
	Replays, Rollovers Opt[uint64]
}

// NVLinkError is a kind of NVLink error.
type NVLinkError int

// The kinds. Replays and CRC counts exist up to Hopper, symbol and effective
// errors and failed recoveries from NVLink 5 (Blackwell) on.
const (
	NVLinkReplay NVLinkError = iota
	// NVLinkRecovery counts recoveries whatever their result.
	NVLinkRecovery
	// NVLinkCRCFlit and NVLinkCRCData are the two counters up to Ampere; later
	// GPUs have NVLinkCRC instead.
	NVLinkCRCFlit
	NVLinkCRCData
	NVLinkCRC
	NVLinkSymbol
	NVLinkEffective
	NVLinkRecoveryFailed
	NumNVLinkErrors
)

// BitErrors is a kind of bit errors that NVLink 5 gives a rate of.
type BitErrors int

// The kinds: symbol errors are before the correction of the link, effective
// errors are what is left after it.
const (
	BitErrorsSymbol BitErrors = iota
	BitErrorsEffective
	NumBitErrors
)

// NVLinks is the state of a GPU's NVLinks.
type NVLinks struct {
	// Up and Down count the links that the driver knows of, by state.
	Up, Down Opt[uint32]
	// Errors are sums over the links: the driver's, else Validate's.
	Errors [NumNVLinkErrors]Opt[uint64]
	// BitErrorRate is of the worst link: errors per bit.
	BitErrorRate [NumBitErrors]Opt[float64]
	// PerLink is by link id. It belongs to this sample alone: Validate writes to it.
	PerLink []NVLink
	// SumsOnly lets Validate drop PerLink once it is summed up.
	SumsOnly bool
}

// NVLink is one link.
type NVLink struct {
	Up     Opt[bool]
	Errors [NumNVLinkErrors]Opt[uint64]
	// IO is bytes, cumulative.
	IO [NumDirections]Opt[uint64]
}

// MaxNVLinks bounds link ids (NVML_NVLINK_MAX_LINKS is 36 in NVML 13).
const MaxNVLinks = 36

// FabricState is how far a GPU got in joining its NVLink fabric.
type FabricState int

// The states, in NVML's order (NVML_GPU_FABRIC_STATE_*).
const (
	FabricNotSupported FabricState = iota
	FabricNotStarted
	FabricInProgress
	FabricCompleted
	NumFabricStates
)

// FabricSummary is the driver's summary of the fabric's health.
type FabricSummary int

// The summaries, in NVML's order (NVML_GPU_FABRIC_HEALTH_SUMMARY_*).
const (
	FabricSummaryNotSupported FabricSummary = iota
	FabricSummaryHealthy
	FabricSummaryUnhealthy
	FabricSummaryLimitedCapacity
	NumFabricSummaries
)

// FabricCondition is a bit field of the fabric's health mask, true while it is bad.
type FabricCondition int

// The conditions (NVML_GPU_FABRIC_HEALTH_MASK_*).
const (
	FabricDegradedBandwidth FabricCondition = iota
	FabricRouteRecovery
	FabricRouteUnhealthy
	FabricAccessTimeout
	FabricIncorrectConfiguration
	FabricNoPartition
	NumFabricConditions
)

// Fabric is the GPU's state in the NVLink fabric, on Hopper and newer.
type Fabric struct {
	State Opt[FabricState]
	// Failed: the GPU joined with an error. It is absent before the GPU has joined.
	Failed Opt[bool]
	// Summary is there with the third version of the call only (driver 570 or so).
	Summary Opt[FabricSummary]
	// Conditions are absent where the driver does not support the one.
	Conditions [NumFabricConditions]Opt[bool]
}

// ProcessType is what a process uses the GPU for.
type ProcessType int

// The types.
const (
	ProcessCompute ProcessType = iota
	ProcessGraphics
	NumProcessTypes
)

// Mode is a setting of the GPU that may drift unnoticed.
type Mode int

// The modes; a reading is true while the mode is on.
const (
	ModePersistence Mode = iota
	ModeECC
	ModeMIG
	ModeGSP
	ModeConfidentialCompute
	NumModes
)

// Activity is a unit of the GPU whose use GPM measures, on Hopper and newer.
type Activity int

// The units.
const (
	ActivityGraphics Activity = iota
	ActivitySM
	ActivitySMOccupancy
	ActivityTensor
	ActivityDRAM
	ActivityFP64
	ActivityFP32
	ActivityFP16
	NumActivities
)

// MaxSlices bounds the slices of a GPU: a board has at most 7 of each kind.
const MaxSlices = 64

// Flag is what the driver reports with 0 or 1. Anything else is garbage and no
// flag: Validate reports the field.
func (r *Readings) Flag(f Field, raw uint32) Opt[bool] {
	if raw > 1 {
		r.Garbage = append(r.Garbage, f)
		return Opt[bool]{}
	}
	return Some(raw == 1)
}

// Readings is what one poll read, in base units. It is raw until Validate.
type Readings struct {
	// Garbage are the fields of values that fit no reading, in
	// the order read. It belongs to this sample alone.
	Garbage []Field `json:"-"`
	// Cached: the slow readings (limits, modes, memory health,
	// ECCLocation) are those of an
	// earlier poll.
	Cached bool
	// Numbers are the readings that need no more than a row of the catalogue, by its fields
	// and in its units.
	Numbers [reading.EndNumbers]Opt[float64]
	// Activity is fractions of peak between two GPM samples.
	Activity [NumActivities]Opt[float64]
	// TemperatureLimits are degrees Celsius.
	TemperatureLimits [NumTemperatureLimits]Opt[float64]
	// MarginLimits are the margins at which something happens (fields 193 to 196, Ada and
	// newer; slowdown is -2 on H100, -3 on B200).
	MarginLimits [NumTemperatureLimits]Opt[float64]
	// Clocks and ClockLimits are hertz.
	Clocks, ClockLimits [NumClocks]Opt[float64]
	// PerformanceState is NVML's P state: 0 is full speed, 15 is idle.
	PerformanceState Opt[uint32]
	// ECC counts memory errors, ECCLocation by where.
	ECC         [NumECCErrors][NumECCCounters]Opt[uint64]
	ECCLocation [NumECCErrors][NumECCCounters][NumECCLocations]Opt[uint64]
	// SRAMThresholdExceeded is NVIDIA's criterion for replacing the board.
	SRAMThresholdExceeded Opt[bool]
	// RetiredPages counts pages by cause. RetirementPending: a page waits for a reset.
	RetiredPages      [NumRetirementCauses]Opt[uint64]
	RetirementPending Opt[bool]
	RemappedRows      RemappedRows
	// RepairPending is a repair that waits for a reset.
	RepairPending  [NumRepairs]Opt[bool]
	RecoveryAction Opt[RecoveryAction]
	// Throttle is a set of ThrottleReason bits.
	Throttle Opt[uint64]
	// ThrottleTime is seconds since the driver was loaded.
	ThrottleTime [NumThrottleTimes]Opt[float64]
	// IO is bytes, cumulative.
	IO [NumLinks][NumDirections]Opt[uint64]
	// IORate is bytes per second between two GPM samples.
	IORate [NumLinks][NumDirections]Opt[float64]
	PCIe   PCIe
	NVLink NVLinks
	Fabric Fabric
	// Processes counts processes; their names are private.
	Processes [NumProcessTypes]Opt[uint64]
	// PIDs are of compute processes. They leave the receiver by no metric of a GPU.
	PIDs  []uint32
	Modes [NumModes]Opt[bool]
	// SliceCapacity is how many slices the GPU may be cut into.
	SliceCapacity Opt[uint32]
}
