// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// Band is how far the value that the next hop has may be from the true one, for the metrics
// whose name matches: by Absolute, or by Relative times the true value, whichever is more.
// The zero Band allows no difference at all.
//
// A value is compared with the last one forwarded, so the error cannot grow
// from report to report. Coming to zero and leaving it is always news, because
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
	var errs []error
	if b.Metric == "" {
		errs = append(errs, errors.New("`metric` is empty: must be the name of a metric, with `*` for any text"))
	}
	if !(b.Absolute >= 0 && b.Absolute <= math.MaxFloat64) {
		errs = append(errs, fmt.Errorf("`absolute` is %v: must be a number of at least 0, in the metric's unit", b.Absolute))
	}
	if !(b.Relative >= 0 && b.Relative < 1) {
		errs = append(errs, fmt.Errorf("`relative` is %v: must be at least 0 and below 1, 0.01 for a percent", b.Relative))
	}
	if b.Absolute == 0 && b.Relative == 0 {
		errs = append(errs, errors.New("`absolute` and `relative` are both 0: one must be more"))
	}
	return errors.Join(errs...)
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

// matches reports whether name is like pattern.
func matches(pattern, name string) bool {
	head, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return name == pattern
	}
	if !strings.HasPrefix(name, head) {
		return false
	}
	name = name[len(head):]
	for {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(name, part)
		}
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name, rest = name[i+len(part):], after
	}
}

// holds reports whether old will do for value. Both are of the same kind.
func (b *Band) holds(kind Kind, old, value uint64) bool {
	if b == nil {
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
