// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestFprint(t *testing.T) {
	for _, tt := range []struct {
		name         string
		value, limit float64
		atMost       bool
		want         string
	}{
		{"below", 1.23456789, 3, true, "figure x 1.235 ms limit 3 pass"},
		{"above", 3.001, 3, true, "figure x 3.001 ms limit 3 short"},
		{"at least: above", 7, 0.5, false, "figure x 7 ms limit 0.5 pass"},
		{"not a number", math.NaN(), 3, true, "figure x NaN ms limit 3 short"},
		{"no exponent", 0.000012345678, 3, true, "figure x 0.00001235 ms limit 3 pass"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			Fprint(&out, "x", tt.value, "ms", tt.limit, tt.atMost)
			assert.Equal(t, tt.want+"\n", out.String())
		})
	}
	var out bytes.Buffer
	FprintOnly(&out, "points", 531, "points")
	assert.Equal(t, "figure points 531 points\n", out.String())
}
