// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"math"
	"strings"
)

// Field names a reading in what Validate reports.
type Field string

// The fields that Validate may reject.
const (
	FieldUUID              Field = "uuid"
	FieldMemoryTotal       Field = "memory.total"
	FieldMemoryUsed        Field = "memory.used"
	FieldUtilization       Field = "utilization.general"
	FieldEncoder           Field = "utilization.encoder"
	FieldDecoder           Field = "utilization.decoder"
	FieldMemoryCopy        Field = "utilization.memory"
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
	FieldModule            Field = "module.id"
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
)

// Bounds of what can be true, wide on purpose: no board works outside -50 to
// 200 Celsius, draws 10 kW or clocks at 100 GHz, while garbage from a dying
// board is usually near 2^32.
const (
	minTemperatureCelsius = -50
	maxTemperatureCelsius = 200
	maxPowerWatts         = 10_000
	maxClockHertz         = 100e9
	maxMarginCelsius      = 200
	// NVML's P states end at 15; 32 is NVML_PSTATE_UNKNOWN.
	maxPerformanceState = 15
	// A board retires at most 64 pages or remaps 512 rows (NVIDIA GPU memory
	// error management), a node runs at most 4 million processes (kernel.pid_max).
	maxRows      = 1 << 16
	maxProcesses = 1 << 22
	maxInstance  = 1 << 10
	maxModule    = 1 << 10 // a rack of today has 72 GPUs
	// 50 years. No driver stays loaded as long.
	maxThrottleSeconds = 50 * 365 * 24 * 3600
	maxEnergyJoules    = maxPowerWatts * maxThrottleSeconds
	// Each uncorrectable error ends what runs on the GPU, so that a board
	// cannot have had two billion.
	maxUncorrected = 1 << 31
	// lastNegative32 is -256: what is above is a small negative number in 32 bits.
	lastNegative32      = 1<<32 - 256
	maxPCIeGeneration   = 7
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

	v.within(FieldTemperature, &s.Temperature, minTemperatureCelsius, maxTemperatureCelsius)
	v.within(FieldMemoryTemperature, &s.MemoryTemperature, minTemperatureCelsius, maxTemperatureCelsius)
	v.within(FieldUtilization, &s.Utilization, 0, 1)
	v.within(FieldEncoder, &s.Encoder, 0, 1)
	v.within(FieldDecoder, &s.Decoder, 0, 1)
	v.within(FieldMemoryCopy, &s.MemoryCopy, 0, 1)
	v.within(FieldPower, &s.Power, 0, maxPowerWatts)
	v.within(FieldPowerLimit, &s.PowerLimit, 0, maxPowerWatts)
	v.within(FieldPowerLimitMax, &s.PowerLimitMax, 0, maxPowerWatts)
	v.within(FieldEnergy, &s.Energy, 0, maxEnergyJoules)
	for c := range NumClocks {
		v.within(FieldClock, &s.Clocks[c], 0, maxClockHertz)
		v.within(FieldClockLimit, &s.ClockLimits[c], 0, maxClockHertz)
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

// ValidUUID reports whether the text has the shape of a GPU's or a MIG
// slice's UUID.
func ValidUUID(uuid string) bool {
	rest, ok := strings.CutPrefix(uuid, "GPU-")
	if !ok {
		rest, ok = strings.CutPrefix(uuid, "MIG-")
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

func (v *validator) within(f Field, o *Opt[float64], low, high float64) {
	// The comparison is false for NaN too.
	if o.OK && !(o.V >= low && o.V <= high) {
		*o = Opt[float64]{}
		v.rejected = append(v.rejected, f)
	}
}

// count keeps counts inside the range of a metric point. NVML says -1 for a
// missing value, and some drivers widen the negative number of a 32-bit field.
func (v *validator) count(f Field, o *Opt[uint64]) {
	if o.OK && (o.V > math.MaxInt64 || o.V >= lastNegative32 && o.V <= notAvailable32) {
		*o = Opt[uint64]{}
		v.rejected = append(v.rejected, f)
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
