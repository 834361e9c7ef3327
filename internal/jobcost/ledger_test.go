// SPDX-License-Identifier: Apache-2.0

package jobcost

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestSlowdown(t *testing.T) {
	for gap, want := range map[float64]float64{0: 1, -0.1: 1, 0.1: 1 / 0.9, 0.5: 2, 1: 100, 7: 100} {
		assert.InEpsilon(t, want, Slowdown(gap), 1e-9, "gap %v", gap)
	}
}

func TestHours(t *testing.T) {
	assert.InEpsilon(t, 4.0, Hours(0.25, 8, 2*time.Hour), 1e-9)
	assert.Zero(t, Hours(-1, 8, time.Hour))
	assert.Zero(t, Hours(0.5, 8, -time.Hour))
	assert.InEpsilon(t, 8.0, Hours(3, 8, time.Hour), 1e-9, "nobody loses more than all")
}

func TestLedger(t *testing.T) {
	midnight := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	var l Ledger
	l.Add(midnight.Add(-10*time.Minute), 10*time.Minute, 0.5, 6)
	assert.InEpsilon(t, 0.5, l.Today, 1e-9)
	assert.InEpsilon(t, 2.0, l.S, 1e-9)
	// Of a tick over midnight, the new day has its own part.
	l.Add(midnight.Add(10*time.Minute), 20*time.Minute, 0.5, 6)
	assert.InEpsilon(t, 0.5, l.Today, 1e-9)
	// A pause of over an hour is no loss that anybody saw.
	l.Add(midnight.Add(3*time.Hour), 2*time.Hour, 0.5, 6)
	assert.InEpsilon(t, 0.5, l.Today, 1e-9)
}

// However ticks fall, a day's loss is the time in it times the part that is lost.
func TestALedgerLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.Date(2026, 3, 2, rapid.IntRange(0, 23).Draw(t, "hour"), 0, 0, 0, time.UTC)
		gap, gpus := rapid.Float64Range(0, 1).Draw(t, "gap"), rapid.IntRange(0, 512).Draw(t, "gpus")
		var l Ledger
		l.Add(at, 0, gap, gpus)
		begin := at
		for range rapid.IntRange(1, 200).Draw(t, "ticks") {
			d := time.Duration(rapid.Int64Range(0, int64(maxSilence)).Draw(t, "tick"))
			at = at.Add(d)
			l.Add(at, d, gap, gpus)
		}
		day := at.Truncate(24 * time.Hour)
		if begin.After(day) {
			day = begin
		}
		want := at.Sub(day).Hours() * gap * float64(gpus)
		assert.LessOrEqual(t, math.Abs(want-l.Today), 1e-6*(1+want))
	})
}
