// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

import "math"

// Band is how far the value that the next hop has may be from the true one: by
// Absolute, or by Relative times the true value, whichever is more. The zero
// Band allows no difference at all.
//
// A value is compared with the last one forwarded, so the error cannot grow
// from report to report. Coming to zero and leaving it is always news, because
// zero is where idle ends; so are NaN, the infinities, and a change of type.
type Band struct {
	// Absolute is in the metric's unit.
	Absolute float64
	// Relative is a share of the true value's magnitude, 0.01 for a percent.
	Relative float64
}

// holds reports whether old will do for value. Both are of the same kind.
func (b *Band) holds(kind Kind, old, value uint64) bool {
	if b.Absolute == 0 && b.Relative == 0 {
		return false
	}
	switch kind {
	case KindInt:
		o, v := int64(old), int64(value)
		if (o == 0) != (v == 0) {
			return false
		}
		distance := uint64(max(o, v)) - uint64(min(o, v)) // exact, modulo 2^64
		// Beyond 2^53 a float64 does not tell neighbours apart.
		return distance <= 1<<53 && float64(distance) <= b.around(float64(v))
	case KindDouble:
		o, v := math.Float64frombits(old), math.Float64frombits(value)
		if (o == 0) != (v == 0) {
			return false
		}
		distance := math.Abs(o - v)
		// False for NaN, and for infinities by the second.
		return distance <= b.around(v) && distance <= math.MaxFloat64
	case KindHash:
	}
	return false
}

func (b *Band) around(v float64) float64 { return max(b.Absolute, b.Relative*math.Abs(v)) }
