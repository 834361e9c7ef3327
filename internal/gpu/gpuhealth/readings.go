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

// MaxSlices bounds the slices of a GPU: a board has at most 7 of each kind.
const MaxSlices = 64

// Flag is yes or no as a number of Readings.Numbers.
func Flag(on bool) Opt[float64] {
	if on {
		return Some(1.0)
	}
	return Some(0.0)
}

// On is a number of Readings.Numbers that is a flag.
func (r *Readings) On(f reading.Field) Opt[bool] {
	return Opt[bool]{r.Numbers[f].V > 0, r.Numbers[f].OK}
}

// YesNo is what the driver reports with 0 or 1. Anything else is garbage and no
// answer: Validate reports the field.
func (r *Readings) YesNo(f Field, raw uint32) Opt[bool] {
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
	// ECCLocation) are those of an earlier poll.
	Cached bool
	// Numbers are the readings that need no more than a row of the catalogue, by its fields
	// and in its units.
	Numbers [reading.EndNumbers]Opt[float64]
	// PerformanceState is NVML's P state: 0 is full speed, 15 is idle.
	PerformanceState Opt[uint32]
	// ECC counts memory errors, ECCLocation by where.
	ECC         [NumECCErrors][NumECCCounters]Opt[uint64]
	ECCLocation [NumECCErrors][NumECCCounters][NumECCLocations]Opt[uint64]
	// RepairPending is a repair that waits for a reset.
	RepairPending  [NumRepairs]Opt[bool]
	RecoveryAction Opt[RecoveryAction]
	// Throttle is a set of ThrottleReason bits.
	Throttle Opt[uint64]
	// IO is bytes, cumulative.
	IO [NumLinks][NumDirections]Opt[uint64]
	// IORate is bytes per second between two GPM samples.
	IORate [NumLinks][NumDirections]Opt[float64]
	NVLink NVLinks
	Fabric Fabric
	// PIDs are of compute processes. They leave the receiver by no metric of a GPU.
	PIDs []uint32
	// SliceCapacity is how many slices the GPU may be cut into.
	SliceCapacity Opt[uint32]
}
