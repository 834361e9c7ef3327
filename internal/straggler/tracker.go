// SPDX-License-Identifier: Apache-2.0

package straggler

// CUSUM holds the constants of the cumulative sum (Page, Biometrika 1954) that
// every node runs per signal.
type CUSUM struct {
	// ClipLow and ClipHigh bound one tick's deviation in units of the scale:
	// one glitch may not fill the sum, one good tick may not empty it.
	ClipLow, ClipHigh float64
	// EnterTicks in a row above kappa are needed besides a full sum, LeaveTicks
	// in a row with an empty one end the verdict.
	EnterTicks, LeaveTicks int
	// BiasShare of the smallest gap worth an alert is what a node may differ
	// from its peers for good; BiasTicks is the time constant of learning it.
	BiasShare float64
	BiasTicks float64
}

// DefaultCUSUM returns the constants that the scenarios of test/scenarios were
// measured with: three ticks against glitches, three minutes to be well again,
// a bias of 0.02 at a gap of 0.05 learnt over an hour of 10 s ticks.
func DefaultCUSUM() CUSUM {
	return CUSUM{ClipLow: -3, ClipHigh: 8, EnterTicks: 3, LeaveTicks: 18, BiasShare: 0.4, BiasTicks: 360}
}

// Params are what one tick of a group says about one signal: all that a
// Tracker needs besides the node's own value. They travel to the nodes.
type Params struct {
	// Centre is the peers' median in the unit of the signal.
	Centre float64
	// Level turns a difference into a fraction: 1 for fractions, the peers'
	// usual median for the others. Negative where more is worse.
	Level float64
	// Scale is the peers' spread, a fraction of Level; > 0.
	Scale float64
	// Kappa is what one tick takes off the sum, Limit the sum that is full;
	// both in units of Scale.
	Kappa, Limit float64
	// MaxBias bounds the learnt bias, a fraction of Level.
	MaxBias float64
}

// Tracker is the state machine of one node and one signal. Gateway and node
// run the same one, so that with the same parameters they agree. The zero
// value is a node in good standing.
type Tracker struct {
	sum, bias float64
	gap       float64 // moving average of the gap, a fraction
	since     int64   // tick of the last empty sum
	run, calm uint16
	straggler bool
}
