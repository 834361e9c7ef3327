// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"errors"
	"math"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
)

// Band is how far the value that the next hop has may be from the true one, for the metrics
// whose name matches: by Absolute, or by Relative times the true value, whichever is more.
// The zero Band allows no difference at all.
//
// A value is compared with the last one forwarded, so the error cannot grow
// from report to report. Coming to zero and leaving it is always a change, because
// zero is where idle ends; so are NaN, the infinities, and a change of type.
type Band struct {
	// The metric's name; `*` stands for any text.
	Metric string `mapstructure:"metric"`
	// Absolute is in the metric's unit, Relative a share of the true value's magnitude, 0.01
	// for a percent.
	Absolute float64 `mapstructure:"absolute"`
	Relative float64 `mapstructure:"relative"`

	_ struct{}
}

// Validate implements xconfmap.Validator: it reports every mistake.
func (b *Band) Validate() error {
	return errors.Join(
		mistake.If(b.Metric == "", "`metric` is empty: must be the name of a metric, with `*` for any text"),
		mistake.If(!(b.Absolute >= 0 && b.Absolute <= math.MaxFloat64),
			"`absolute` is %v: must be a number of at least 0, in the metric's unit", b.Absolute),
		mistake.If(!(b.Relative >= 0 && b.Relative < 1),
			"`relative` is %v: must be at least 0 and below 1, 0.01 for a percent", b.Relative),
		mistake.If(b.Absolute == 0 && b.Relative == 0, "`absolute` and `relative` are both 0: one must be more"))
}

// bandOf returns the first band that matches a name, nil for none.
func bandOf(bands []Band, name string) *Band {
	for i := range bands {
		if matches(bands[i].Metric, name) {
			return &bands[i]
		}
	}
	return nil
}

// matches reports whether name is like pattern, in which `*` stands for any text.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	for i, part := range parts[:last] {
		at := strings.Index(name, part)
		if at < 0 || i == 0 && at > 0 {
			return false
		}
		name = name[at+len(part):]
	}
	return strings.HasSuffix(name, parts[last]) && (last > 0 || name == pattern)
}

// within reports whether old will do for value. Both are of the same kind.
func (b *Band) within(kind Kind, old, value uint64) bool {
	if b == nil || kind == KindHash {
		return false
	}
	o, v, most := kind.float(old), kind.float(value), math.MaxFloat64
	distance := math.Abs(o - v)
	if kind == KindInt {
		// Beyond 2^53 a float64 does not distinguish neighbours. The distance is exact, modulo 2^64.
		distance, most = float64(uint64(max(int64(old), int64(value)))-uint64(min(int64(old), int64(value)))), 1<<53
	}
	// False for NaN, and for infinities by most.
	return (o == 0) == (v == 0) && distance <= max(b.Absolute, b.Relative*math.Abs(v)) && distance <= most
}

// float is the number that a value is, not for KindHash.
func (k Kind) float(value uint64) float64 {
	if k == KindInt {
		return float64(int64(value))
	}
	return math.Float64frombits(value)
}
