// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A table that fills in the first third is no leak; later growth is.
func TestGrowth(t *testing.T) {
	assert.InDelta(t, 0, growth([]float64{1, 50, 90, 100, 100, 100, 100, 100, 100}), 0)
	assert.InDelta(t, 0.25, growth([]float64{1, 50, 90, 100, 104, 108, 125, 130, 135}), 1e-9)
	assert.InDelta(t, 0, growth([]float64{1, 50, 90, 100, 140, 140, 100, 150, 160}), 0, "what is there whatever is on its way")
}
