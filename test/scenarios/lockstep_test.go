// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/test/scenarios/families"
)

// follower tells a group whose nodes all wait for the slowest from a group whose nodes
// work by themselves. In lockstep every tick moves all nodes alike: what is left between
// them is the error of their clocks.
type follower struct {
	mean  []float64 // of each node's deviation: its bias
	ticks float64
	// centre at the tick before, how much it moves in a tick, and the nodes' spread in
	// a tick less their biases: moving averages, fractions.
	centre, moves, spread float64
}

const (
	// A clock is off by a millisecond, which of 10 s is a ten thousandth: in a real job
	// nodes in lockstep differ by that. Alone they differ by a fifth of a percent at least.
	mostApart = 0.001
	// In lockstep the nodes differ by a fiftieth of what they move together, alone by as much.
	mostShare = 0.2
	// followWindow is how long the averages remember.
	followWindow = 30 * time.Minute
)

// tick takes the values of a group; a node without one is NaN.
func (f *follower) tick(values []float64, interval time.Duration) {
	logs := make([]float64, 0, len(values))
	for _, v := range values {
		if v > 0 {
			logs = append(logs, math.Log(v))
		}
	}
	if len(logs) < 3 {
		return
	}
	if f.mean == nil {
		f.mean = make([]float64, len(values))
	}
	slices.Sort(logs)
	centre := (logs[(len(logs)-1)/2] + logs[len(logs)/2]) / 2
	f.ticks++
	apart := logs[:0]
	for i, v := range values {
		if v > 0 {
			d := math.Log(v) - centre
			f.mean[i] += (d - f.mean[i]) / f.ticks
			apart = append(apart, math.Abs(d-f.mean[i]))
		}
	}
	slices.Sort(apart)
	weight := max(float64(interval)/float64(followWindow), 1/f.ticks)
	// A pause of all is one tick among many, and no sign of lockstep.
	if moved := math.Abs(centre - f.centre); f.ticks > 1 {
		if f.ticks > 6 {
			moved = min(moved, 4*f.moves)
		}
		f.moves += weight * (moved - f.moves)
	}
	f.spread += weight * (1.4826*apart[len(apart)/2] - f.spread)
	f.centre = centre
}

// lockstep reports whether all move as one.
func (f *follower) lockstep() bool {
	return f.ticks > 60 && f.spread < mostApart && f.spread < mostShare*f.moves
}

// TestLockstep: the workers of a real run are in lockstep by their steps' wall time, and
// not by what they computed. No drawn fleet is.
func TestLockstep(t *testing.T) {
	list := slices.Concat(families.All(), families.Cases(), recorded(t))
	for i := range list {
		r := list[i].Play(3, 0, true)
		var f follower
		in, counted := 0, 0
		for r.Next() && r.Tick*int(r.Model.Interval.Seconds()) < int((2*time.Hour).Seconds()) {
			f.tick(r.Values, r.Model.Interval)
			if r.Tick > 60 {
				counted++
				if f.lockstep() {
					in++
				}
			}
		}
		want := 0
		if list[i].Name == "lockstep" {
			want = counted
		}
		t.Logf("%-10s apart %.5f, moves %.5f, share %.3f", list[i].Name, f.spread, f.moves, f.spread/f.moves)
		assert.Equal(t, want, in, "%s: apart %g, moves %g", list[i].Name, f.spread, f.moves)
	}
}

// TestNoLockstep: what all nodes do together is no lockstep as long as each has noise
// of its own that a loss would stand out from. Nor is a fleet that stands still.
func TestNoLockstep(t *testing.T) {
	for name, noise := range map[string][2]float64{"a common swing": {0.2, 0.015}, "at the limit": {0, 0}} {
		rng := random(1, name, 0)
		var f follower
		values := make([]float64, 16)
		for range 500 {
			common := math.Exp(noise[0] * rng.NormFloat64())
			for i := range values {
				values[i] = common * math.Exp(noise[1]*rng.NormFloat64())
			}
			f.tick(values, Interval)
			assert.False(t, f.lockstep(), "%s: apart %g, moves %g", name, f.spread, f.moves)
		}
	}
}
