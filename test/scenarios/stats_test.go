// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// TestBounds: published values, and the closed forms of the edges.
func TestBounds(t *testing.T) {
	assert.InDelta(t, 3.0/300, RateUpper(0, 300), 1e-4, "the rule of three")
	assert.InDelta(t, 4.744, RateUpper(1, 1), 1e-3)
	assert.InDelta(t, 16.962, RateUpper(10, 1), 1e-3)
	assert.InDelta(t, 100_000+1.645*math.Sqrt(100_000), RateUpper(100_000, 1), 5, "nearly normal")
	assert.True(t, math.IsInf(RateUpper(1, 0), 1))

	assert.InDelta(t, math.Pow(0.05, 1.0/240), ShareLower(240, 240), 1e-9)
	assert.InDelta(t, 1-math.Pow(0.95, 1.0/20), ShareLower(1, 20), 1e-9)
	assert.InDelta(t, 0.4931, ShareLower(8, 10), 1e-4)
	assert.Zero(t, ShareLower(0, 10))
	assert.Zero(t, ShareLower(0, 0))
}

func TestQuantile(t *testing.T) {
	d := []time.Duration{4, 1, 3, 2}
	assert.Equal(t, time.Duration(2), figure.Quantile(d, 0.5))
	assert.Equal(t, time.Duration(4), figure.Quantile(d, 0.9))
	assert.Zero(t, figure.Quantile(nil, 0.5))
}
