// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestBand(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	double := func(v float64) (Kind, uint64) { return KindDouble, math.Float64bits(v) }
	integer := func(v int64) (Kind, uint64) { return KindInt, uint64(v) }
	for _, tt := range []struct {
		name      string
		band      Band
		old, then float64
		want      bool
	}{
		{"none", Band{}, 1, 1.1, false},
		{"at the edge", Band{Absolute: 2}, 60, 62, true},
		{"beyond", Band{Absolute: 2}, 60, 63, false},
		{"below", Band{Absolute: 2}, 60, 57, false},
		{"share of the new value", Band{Relative: 0.5}, 5, 10, true},
		{"and not of the old", Band{Relative: 0.5}, 10, 5, false},
		{"the larger counts", Band{Absolute: 1, Relative: 0.1}, 100, 110, true},
		{"the larger counts, small", Band{Absolute: 1, Relative: 0.1}, 2, 3, true},
		{"negative", Band{Relative: 0.1}, -100, -105, true},
		{"through zero", Band{Absolute: 2}, -1, 1, true},
		{"to zero", Band{Absolute: 2}, 1, 0, false},
		{"from zero", Band{Absolute: 2}, 0, 1, false},
		{"zero stays", Band{Absolute: 2}, 0, math.Copysign(0, -1), true},
		{"to NaN", Band{Absolute: 2}, 1, nan, false},
		{"from NaN", Band{Absolute: 2}, nan, 1, false},
		{"to infinity", Band{Absolute: 2, Relative: 0.5}, 1, inf, false},
		{"from infinity", Band{Absolute: 2, Relative: 0.5}, inf, 1, false},
		{"other infinity", Band{Relative: 0.5}, inf, -inf, false},
		{"too far for a float", Band{Absolute: math.MaxFloat64}, -math.MaxFloat64, math.MaxFloat64, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k, old := double(tt.old)
			_, then := double(tt.then)
			assert.Equal(t, tt.want, tt.band.holds(k, old, then))
			if tt.old == math.Trunc(tt.old) && math.Abs(tt.old) < 1e9 && math.Abs(tt.then) < 1e9 {
				k, old = integer(int64(tt.old))
				_, then = integer(int64(tt.then))
				if float64(int64(tt.then)) == tt.then {
					assert.Equal(t, tt.want, tt.band.holds(k, old, then), "int")
				}
			}
		})
	}
	k, lowest := integer(math.MinInt64)
	_, highest := integer(math.MaxInt64)
	wide := Band{Absolute: 1e300}
	assert.False(t, wide.holds(k, lowest, highest))
	assert.False(t, wide.holds(KindHash, 1, 2), "a hash has no distance")
}
