// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestBand(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for name, tt := range map[string]struct {
		band      Band
		old, then float64
		want      bool
	}{
		"none":                    {Band{}, 1, 1.1, false},
		"at the edge":             {Band{Absolute: 2}, 60, 62, true},
		"beyond":                  {Band{Absolute: 2}, 60, 63, false},
		"below":                   {Band{Absolute: 2}, 60, 57, false},
		"share of the new value":  {Band{Relative: 0.5}, 5, 10, true},
		"and not of the old":      {Band{Relative: 0.5}, 10, 5, false},
		"the larger counts":       {Band{Absolute: 1, Relative: 0.1}, 100, 110, true},
		"the larger, small":       {Band{Absolute: 1, Relative: 0.1}, 2, 3, true},
		"negative":                {Band{Relative: 0.1}, -100, -105, true},
		"through zero":            {Band{Absolute: 2}, -1, 1, true},
		"to zero":                 {Band{Absolute: 2}, 1, 0, false},
		"from zero":               {Band{Absolute: 2}, 0, 1, false},
		"zero stays":              {Band{Absolute: 2}, 0, math.Copysign(0, -1), true},
		"to NaN":                  {Band{Absolute: 2}, 1, nan, false},
		"from NaN":                {Band{Absolute: 2}, nan, 1, false},
		"to infinity":             {Band{Absolute: 2, Relative: 0.5}, 1, inf, false},
		"from infinity":           {Band{Absolute: 2, Relative: 0.5}, inf, 1, false},
		"other infinity":          {Band{Relative: 0.5}, inf, -inf, false},
		"too far for a float":     {Band{Absolute: math.MaxFloat64}, -math.MaxFloat64, math.MaxFloat64, false},
		"farther than any number": {Band{Absolute: 1e300}, math.MinInt64, math.MaxInt64, true},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, tt.band.within(KindDouble, math.Float64bits(tt.old), math.Float64bits(tt.then)))
			if o, v := int64(tt.old), int64(tt.then); float64(o) == tt.old && float64(v) == tt.then && v < 1e9 {
				assert.Equal(t, tt.want, tt.band.within(KindInt, uint64(o), uint64(v)), "int")
			}
		})
	}
	wide := Band{Absolute: 1e300}
	lowest := int64(math.MinInt64)
	assert.False(t, wide.within(KindInt, uint64(lowest), math.MaxInt64), "a float64 does not distinguish them")
	assert.False(t, wide.within(KindHash, 1, 2), "a hash has no distance")
}

// The error does not grow from report to report, and the first band that matches counts.
func TestABandIsAroundWhatTheNextHopHas(t *testing.T) {
	p := push{Table: newTable(func(s *Settings) { s.Bands = []Band{{Metric: "m*", Absolute: 2}, {Metric: "m", Absolute: 9}} })}
	for value, want := range []Verdict{Pass, Pass, Drop, Drop, Pass, Drop, Drop, Pass} { // of 0 and its end
		assert.Equal(t, []Verdict{want}, p.send(integer(1, int64(value))).verdicts, value)
	}
}

func TestBandsMatchNames(t *testing.T) {
	for pattern, names := range map[string]map[string]bool{
		"hw.temp":   {"hw.temp": true, "hw.temperature": false, "a.hw.temp": false},
		"hw.*.temp": {"hw.gpu.temp": true, "hw..temp": true, "hw.temp": false, "hw.gpu.temp.x": false},
		"*":         {"": true, "a": true},
		"a*b*c":     {"abc": true, "a1b2b3c": true, "acb": false},
		"a*a":       {"aa": true, "a": false},
	} {
		for name, want := range names {
			assert.Equal(t, want, matches(pattern, name), "%q %q", pattern, name)
		}
	}
}
