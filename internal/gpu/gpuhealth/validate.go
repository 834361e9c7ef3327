// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Field names a reading in what Validate reports.
type Field string

// The fields that Validate may reject.
const (
	FieldUUID              Field = "uuid"
	FieldMemoryTotal       Field = "memory.total"
	FieldMemoryUsed        Field = "memory.used"
	FieldUtilization       Field = "utilization.general"
	FieldMemoryUtilization Field = "utilization.memory"
	FieldEncoder           Field = "utilization.encoder"
	FieldDecoder           Field = "utilization.decoder"
	FieldTemperature       Field = "temperature.gpu"
	FieldMemoryTemperature Field = "temperature.memory"
	FieldPower             Field = "power"
	FieldPowerLimit        Field = "power.limit.enforced"
	FieldPowerLimitMax     Field = "power.limit.max"
	FieldEnergy            Field = "energy"
	FieldClock             Field = "clock"
	FieldClockLimit        Field = "clock.limit"
	FieldECC               Field = "ecc"
	FieldParent            Field = "parent"
	FieldInstance          Field = "mig.instance"
	FieldMemoryReserved    Field = "memory.reserved"
	FieldActivity          Field = "activity"
	FieldTemperatureLimit  Field = "temperature.limit"
	FieldTemperatureMargin Field = "temperature.margin"
	FieldMarginLimit       Field = "temperature.margin.limit"
	FieldPerformanceState  Field = "performance_state"
	FieldECCLocation       Field = "ecc.location"
	FieldRetiredPages      Field = "retired_pages"
	FieldRemappedRows      Field = "remapped_rows"
	FieldRecoveryAction    Field = "recovery_action"
	FieldThrottle          Field = "throttle"
	FieldThrottleTime      Field = "throttle.time"
	FieldIO                Field = "io"
	FieldIORate            Field = "io.rate"
	FieldPCIeWidth         Field = "pcie.width"
	FieldPCIeWidthMax      Field = "pcie.width.max"
	FieldPCIeGeneration    Field = "pcie.generation"
	FieldPCIeGenerationMax Field = "pcie.generation.max"
	FieldPCIeReplays       Field = "pcie.replays"
	FieldNVLinks           Field = "nvlink.links"
	FieldNVLinkErrors      Field = "nvlink.errors"
	FieldBitErrorRate      Field = "nvlink.bit_error_rate"
	FieldFabric            Field = "fabric"
	FieldProcesses         Field = "processes"
	FieldSRAM              Field = "sram_threshold"
	FieldRepair            Field = "repair"
	FieldMode              Field = "mode"
	FieldMinor             Field = "minor"
)

// limits are, by field, what the catalogue has for the metric that the field becomes.
var limits = func() map[Field]reading.Range {
	m := map[Field]reading.Range{}
	for name, fields := range map[string][]Field{
		gpusemconv.MetricTemperature: {FieldTemperature, FieldMemoryTemperature}, "hw.temperature.limit": {FieldTemperatureLimit},
		"hw.gpu.temperature.margin": {FieldTemperatureMargin}, "hw.gpu.temperature.margin.limit": {FieldMarginLimit},
		gpusemconv.MetricGPUUtilization: {FieldUtilization, FieldMemoryUtilization, FieldEncoder, FieldDecoder}, gpusemconv.MetricGPUActivity: {FieldActivity},
		gpusemconv.MetricPower: {FieldPower}, gpusemconv.MetricGPUPowerLimit: {FieldPowerLimit, FieldPowerLimitMax}, gpusemconv.MetricEnergy: {FieldEnergy},
		gpusemconv.MetricGPUClock: {FieldClock}, gpusemconv.MetricGPUClockLimit: {FieldClockLimit},
		gpusemconv.MetricGPUMemoryLimit: {FieldMemoryTotal}, gpusemconv.MetricGPUMemoryUsage: {FieldMemoryUsed}, "hw.gpu.memory.reserved": {FieldMemoryReserved},
		gpusemconv.MetricErrors: {FieldECC, FieldECCLocation}, gpusemconv.MetricGPURetiredPages: {FieldRetiredPages}, gpusemconv.MetricGPURemappedRows: {FieldRemappedRows},
		gpusemconv.MetricGPUThrottleTime: {FieldThrottleTime}, gpusemconv.MetricGPUProcesses: {FieldProcesses}, "hw.gpu.io": {FieldIO}, "hw.gpu.io.rate": {FieldIORate},
		gpusemconv.MetricGPUPCIeLinkWidth: {FieldPCIeWidth, FieldPCIeWidthMax}, gpusemconv.MetricGPUPCIeReplays: {FieldPCIeReplays},
		gpusemconv.MetricGPUPCIeLinkGeneration: {FieldPCIeGeneration, FieldPCIeGenerationMax},
		gpusemconv.MetricGPUNVLinkErrors:       {FieldNVLinkErrors}, "hw.gpu.nvlink.bit_error_rate": {FieldBitErrorRate},
	} {
		for _, f := range fields {
			m[f] = reading.ByName(name).Range
		}
	}
	return m
}()

// Two bounds that the catalogue lacks: no metric tells the P state, and the range of
// hw.errors is wider, since it is for errors of all sorts.
const (
	// NVML's P states end at 15; 32 is NVML_PSTATE_UNKNOWN.
	maxPerformanceState = 15
	maxInstance         = 1 << 10
	maxMinor            = 1<<20 - 1 // Linux has 20 bits for it
	// Each uncorrected error ends what runs on the GPU, so that a board
	// cannot have had two billion.
	maxUncorrected = 1 << 31
	// lastNegative32 is -256: what is above is a small negative number in 32 bits.
	lastNegative32      = 1<<32 - 256
	throttleReasonsMask = 1<<32 - 1
)

// Validate takes out of the sample what cannot be true and returns the names
// of what it took, nil when all is well. Without a usable UUID the sample has
// no identity: the caller has to drop it when FieldUUID is among the rejected.
func (s *Sample) Validate() []Field {
	v := validator{}
	if !ValidUUID(s.UUID) {
		v.rejected = append(v.rejected, FieldUUID)
	}
	v.rejected = append(v.rejected, s.Garbage...)
	s.Garbage = nil

	within(&v, FieldTemperature, &s.Temperature)
	within(&v, FieldMemoryTemperature, &s.MemoryTemperature)
	within(&v, FieldUtilization, &s.Utilization)
	within(&v, FieldMemoryUtilization, &s.MemoryUtilization)
	within(&v, FieldEncoder, &s.Encoder)
	within(&v, FieldDecoder, &s.Decoder)
	within(&v, FieldPower, &s.Power)
	within(&v, FieldPowerLimit, &s.PowerLimit)
	within(&v, FieldPowerLimitMax, &s.PowerLimitMax)
	within(&v, FieldEnergy, &s.Energy)
	for c := range NumClocks {
		within(&v, FieldClock, &s.Clocks[c])
		within(&v, FieldClockLimit, &s.ClockLimits[c])
	}
	v.memory(&s.MemoryTotal, &s.MemoryUsed, &s.MemoryReserved)
	for e := range NumECCErrors {
		for c := range NumECCCounters {
			v.errors(FieldECC, e, &s.ECC[e][c])
			for l := range NumECCLocations {
				v.errors(FieldECCLocation, e, &s.ECCLocation[e][c][l])
			}
		}
	}
	v.readings(&s.Readings)
	v.slice(s)
	return v.rejected
}

const slicePrefix = "MIG-"

// ValidUUID reports whether the text has the shape of a GPU's or a MIG
// slice's UUID.
func ValidUUID(uuid string) bool {
	rest, ok := strings.CutPrefix(uuid, "GPU-")
	if !ok {
		rest, ok = strings.CutPrefix(uuid, slicePrefix)
	}
	if !ok || rest == "" {
		return false
	}
	for _, r := range rest {
		if r <= ' ' || r > '~' {
			return false
		}
	}
	return true
}

type validator struct{ rejected []Field }

func within[T float64 | uint32 | uint64](v *validator, f Field, o *Opt[T]) {
	unless(v, f, o, func(n T) bool { return limits[f].Holds(float64(n)) })
}

// count is within for counts. NVML says -1 for a missing value, and some drivers
// widen the negative number of a 32-bit field.
func (v *validator) count(f Field, o *Opt[uint64]) {
	if within(v, f, o); o.OK && o.V >= lastNegative32 && o.V <= notAvailable32 {
		reject(v, f, o)
	}
}

// errors is count for memory errors.
func (v *validator) errors(f Field, e ECCError, o *Opt[uint64]) {
	if v.count(f, o); e == ECCUncorrected {
		atMost(v, f, o, maxUncorrected)
	}
}

// memory rejects a total of zero, and of a pair that does not fit the used
// bytes: the total is a constant of the board and the likelier of the two.
func (v *validator) memory(total, used, reserved *Opt[uint64]) {
	v.count(FieldMemoryTotal, total)
	v.count(FieldMemoryUsed, used)
	v.count(FieldMemoryReserved, reserved)
	if total.OK && total.V == 0 {
		reject(v, FieldMemoryTotal, total)
	}
	fits(v, FieldMemoryUsed, used, total)
	fits(v, FieldMemoryReserved, reserved, total)
}

func reject[T any](v *validator, f Field, o *Opt[T]) {
	*o = Opt[T]{}
	v.rejected = append(v.rejected, f)
}
