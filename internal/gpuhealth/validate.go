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
	FieldTemperature       Field = "temperature.gpu"
	FieldMemoryTemperature Field = "temperature.memory"
	FieldPower             Field = "power"
	FieldPowerLimit        Field = "power.limit.enforced"
	FieldPowerLimitMax     Field = "power.limit.max"
	FieldEnergy            Field = "energy"
	FieldClock             Field = "clock"
	FieldClockLimit        Field = "clock.limit"
	FieldECC               Field = "ecc"
)

// Bounds of what can be true, wide on purpose: no board works outside -50 to
// 200 Celsius, draws 10 kW or clocks at 100 GHz, while garbage from a dying
// board is usually near 2^32.
const (
	minTemperatureCelsius = -50
	maxTemperatureCelsius = 200
	maxPowerWatts         = 10_000
	maxClockHertz         = 100e9
)

// Validate takes out of the sample what cannot be true and returns the names
// of what it took, nil when all is well. Without a usable UUID the sample has
// no identity: the caller has to drop it when FieldUUID is among the rejected.
func (s *Sample) Validate() []Field {
	v := validator{}
	if !ValidUUID(s.UUID) {
		v.rejected = append(v.rejected, FieldUUID)
	}

	v.within(FieldTemperature, &s.Temperature, minTemperatureCelsius, maxTemperatureCelsius)
	v.within(FieldMemoryTemperature, &s.MemoryTemperature, minTemperatureCelsius, maxTemperatureCelsius)
	v.within(FieldUtilization, &s.Utilization, 0, 1)
	v.within(FieldEncoder, &s.Encoder, 0, 1)
	v.within(FieldDecoder, &s.Decoder, 0, 1)
	v.within(FieldPower, &s.Power, 0, maxPowerWatts)
	v.within(FieldPowerLimit, &s.PowerLimit, 0, maxPowerWatts)
	v.within(FieldPowerLimitMax, &s.PowerLimitMax, 0, maxPowerWatts)
	v.within(FieldEnergy, &s.Energy, 0, math.MaxFloat64)
	for c := range NumClocks {
		v.within(FieldClock, &s.Clocks[c], 0, maxClockHertz)
		v.within(FieldClockLimit, &s.ClockLimits[c], 0, maxClockHertz)
	}
	v.memory(&s.MemoryTotal, &s.MemoryUsed)
	for e := range NumECCErrors {
		for c := range NumECCCounters {
			v.int64(FieldECC, &s.ECC[e][c])
		}
	}
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

// int64 keeps counts inside what a metric point can carry.
func (v *validator) int64(f Field, o *Opt[uint64]) {
	if o.OK && o.V > math.MaxInt64 {
		*o = Opt[uint64]{}
		v.rejected = append(v.rejected, f)
	}
}

// memory rejects a total of zero, and of a pair that does not fit the used
// bytes: the total is a constant of the board and the likelier of the two.
func (v *validator) memory(total, used *Opt[uint64]) {
	v.int64(FieldMemoryTotal, total)
	v.int64(FieldMemoryUsed, used)
	if total.OK && total.V == 0 {
		*total = Opt[uint64]{}
		v.rejected = append(v.rejected, FieldMemoryTotal)
	}
	if total.OK && used.OK && used.V > total.V {
		*used = Opt[uint64]{}
		v.rejected = append(v.rejected, FieldMemoryUsed)
	}
}
