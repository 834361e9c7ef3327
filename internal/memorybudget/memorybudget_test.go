// SPDX-License-Identifier: Apache-2.0

package memorybudget

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPartsAreNoMoreThanTheWhole(t *testing.T) {
	for tier, parts := range map[string][]Part{
		"gateway": {Pushes, Table, History, Views},
		"shard":   {Pushes, Table, Pending},
	} {
		for _, limit := range []int64{400 << 20, 1638 << 20, 64 << 30} {
			var sum int64
			for _, p := range parts {
				sum += p.Of(limit)
			}
			assert.LessOrEqual(t, sum, limit, tier)
			assert.Greater(t, sum, limit/10*9, tier)
		}
	}
}

func TestLimit(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	assert.EqualValues(t, 2<<30, Limit(), "nobody has set one")
	assert.EqualValues(t, (2<<30)/4, Table.Bytes())
	debug.SetMemoryLimit(800 << 20)
	assert.EqualValues(t, 800<<20, Limit())
	assert.EqualValues(t, 400<<20, Pushes.Bytes())
	assert.EqualValues(t, 1<<20, Table.Of(1000), "enough to work at all")
}
