// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"time"
)

// together follows whether all nodes of a cohort move as one. In synchronous training all
// wait for the slowest, so every tick moves their steps' time alike. Then nobody stands
// out, whoever is slow. What is left between the nodes is the error of their clocks.
type together struct {
	centre       float64 // level at the tick before
	apart, moves float64 // means of the nodes' spread, and of the centre's change
	known        bool    // there is a tick before
	lasts        time.Duration
}

const (
	// A clock is off by a millisecond, a ten thousandth of 10 s. By wall time the nodes of
	// the run in test/scenarios differ by 0.02 %, by compute time by 0.2 to 0.5 %.
	mostApart = 0.001
	// They differ then by a thirtieth of what they move together, and else by as much.
	mostShare = 0.2
	// togetherWindow is the time constant of the means, togetherAfter when they count.
	togetherWindow, togetherAfter = 30 * time.Minute, 10 * time.Minute
)

// follow takes the centre and the spread of a tick. A pause of all is one tick of many.
func (f *together) follow(centre, spread float64, elapsed time.Duration) {
	if !f.known {
		*f = together{centre: centre, known: true}
		return
	}
	moved := math.Abs(centre - f.centre)
	if f.lasts > time.Minute {
		moved = min(moved, maxSurge*f.moves)
	}
	f.lasts += elapsed
	weight := 1.0
	if f.lasts > elapsed {
		weight = max(float64(elapsed)/float64(togetherWindow), float64(elapsed)/float64(f.lasts))
	}
	f.moves += weight * (moved - f.moves)
	f.apart += weight * (spread - f.apart)
	f.centre = centre
}

// lockstep reports whether the cohort's nodes all wait for the slowest.
func (t *estimator) lockstep() bool {
	f := &t.together
	return f.lasts >= togetherAfter && f.apart < mostApart && f.apart < mostShare*f.moves
}
