// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"time"
)

// CUSUM holds the constants of the cumulative sum (Page, Biometrika 1954) that
// every node runs per signal.
type CUSUM struct {
	// ClipLow and ClipHigh bound one tick's deviation in units of the scale:
	// one glitch may not fill the sum, one good tick may not empty it.
	ClipLow  float64 `mapstructure:"clip_low"`
	ClipHigh float64 `mapstructure:"clip_high"`
	// EnterTicks in a row above kappa are needed besides a full sum, LeaveTicks
	// in a row with an empty one end the verdict.
	EnterTicks int `mapstructure:"enter_ticks"`
	LeaveTicks int `mapstructure:"leave_ticks"`
	// BiasShare of the smallest gap worth an alert is what a node may differ
	// from its peers for good; BiasTicks is the time constant of learning it.
	BiasShare float64 `mapstructure:"bias_share"`
	BiasTicks float64 `mapstructure:"bias_ticks"`

	_ struct{}
}

// DefaultCUSUM returns the constants that the scenarios of test/scenarios were
// measured with: three ticks against glitches, three minutes to be well again,
// a bias of 0.025 at a gap of 0.05 learnt over six hours of 10 s ticks.
func DefaultCUSUM() CUSUM {
	return CUSUM{ClipLow: -3, ClipHigh: 8, EnterTicks: 3, LeaveTicks: 18, BiasShare: 0.5, BiasTicks: 2160}
}

// Params are what one tick of a group says about one signal: all that a
// Tracker needs besides the node's own value. They travel to the nodes, and
// both sides step by what Round leaves of them: a sum that is just at a limit
// on one side and just below it on the other is another verdict.
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

// minScale keeps a deviation in units of the scale finite; Round may leave less.
const minScale = 1e-9

// Valid reports whether a node can be judged by p.
func (p *Params) Valid() bool {
	perLevel := 1 / p.Level
	return p.Level-p.Level == 0 && perLevel-perLevel == 0 && p.Centre-p.Centre == 0 &&
		p.Scale >= minScale/2 && p.Kappa > 0 && p.Limit > 0 && p.MaxBias >= 0
}

// maxGap bounds a deviation: ten times the level is as bad as any more.
const maxGap = 10

// Round keeps of every number what a float32 holds, which nine decimal digits
// tell without loss (IEEE 754-2019, 5.12.2).
func (p *Params) Round() {
	for _, f := range [...]*float64{&p.Centre, &p.Level, &p.Scale, &p.Kappa, &p.Limit, &p.MaxBias} {
		*f = float64(float32(*f))
	}
}

// Deviation of a value from the peers' centre: a fraction of their level,
// positive where it is worse.
func (p *Params) Deviation(x float64) float64 { return p.deviation(x, 1/p.Level) }

func (p *Params) deviation(x, perLevel float64) float64 {
	return clamp((p.Centre-x)*perLevel, -maxGap, maxGap)
}

// clamp bounds x. The builtin min and max also care for NaN and -0, which there
// are none of here: without that a tick is a tenth shorter.
func clamp(x, lo, hi float64) float64 {
	if x < lo {
		return lo
	}
	if x > hi {
		return hi
	}
	return x
}

// gapTicks is how many ticks a node's gap is averaged over.
const gapTicks = 6

// Tracker is the state machine of one node and one signal. Gateway and node
// run the same one, so that with the same parameters they agree. The zero
// value is a node in good standing.
type Tracker struct {
	sum, bias float64
	gap       float64 // moving average of the gap, a fraction
	since     int64   // tick of the last empty sum
	run, calm uint16
	learnt    uint16 // ticks in the bias
	age       uint8  // ticks since the last empty sum, at most gapTicks
	straggler bool
}

// Step takes the node's value at a tick, in unix milliseconds, and reports
// whether Straggler changed. A value that is no number, or parameters that are
// not valid, change nothing.
func (t *Tracker) Step(c *CUSUM, p *Params, x float64, at int64) (changed bool) {
	if x-x != 0 || !p.Valid() {
		return false
	}
	return t.step(c, p, p.Deviation(x), 1/p.Scale, at)
}

// step is Step for a deviation d and 1/p.Scale.
func (t *Tracker) step(c *CUSUM, p *Params, d, perScale float64, at int64) (changed bool) {
	z := clamp((d-t.bias)*perScale, c.ClipLow, c.ClipHigh)
	t.sum = clamp(t.sum+z-p.Kappa, 0, 2*p.Limit)
	if z > p.Kappa {
		t.run = min(t.run+1, maxTicks)
	} else {
		t.run = 0
	}
	// Frozen while suspect, and bounded: what is beyond the bound always counts.
	// The first ticks weigh more, so that a node that was always a little slower
	// is not taken for one that became so.
	if t.sum < p.Limit/2 {
		t.learnt = min(t.learnt, math.MaxUint16-1) + 1
		t.bias += min(max(d-t.bias, -p.Scale), p.Scale) / min(c.BiasTicks, float64(t.learnt))
	}
	t.bias = clamp(t.bias, -p.MaxBias, p.MaxBias)
	if t.sum == 0 {
		t.since, t.age = at, 0
		t.gap += (d - t.gap) / gapTicks
		t.calm = min(t.calm+1, maxTicks)
		if t.straggler && int(t.calm) >= c.LeaveTicks {
			t.straggler = false
			return true
		}
		return false
	}
	t.calm = 0
	t.age = min(t.age+1, gapTicks)
	t.gap += (d - t.gap) / float64(t.age)
	if !t.straggler && t.sum >= p.Limit && int(t.run) >= c.EnterTicks {
		t.straggler = true
		return true
	}
	return false
}

// Suspicion is the sum as a share of its limit, in [0,2]; from 1 on the node
// is a straggler if that lasts.
func (t *Tracker) Suspicion(p *Params) float64 {
	if p.Limit <= 0 {
		return 0
	}
	return float64(t.suspicion(1 / p.Limit))
}

// suspicion bounds what the sum is: one that stands still, of a node that tells
// nothing new, stays behind a limit that falls.
func (t *Tracker) suspicion(perLimit float64) float32 { return min(float32(t.sum*perLimit), 2) }

// Straggler is the verdict.
func (t *Tracker) Straggler() bool { return t.straggler }

// Since is the last tick at which nothing spoke against the node, the
// change-point estimate of a cumulative sum; zero when there was none.
func (t *Tracker) Since() time.Time {
	if t.since == 0 {
		return time.Time{}
	}
	return time.UnixMilli(t.since).UTC()
}

// Gap is the mean loss since then, over a minute of 10 s ticks at most: a
// fraction of the peers' level.
func (t *Tracker) Gap() float64 { return t.gap }

// Reset makes the node one in good standing of which nothing is known, and
// reports whether Straggler changed.
func (t *Tracker) Reset() (changed bool) {
	changed = t.straggler
	*t = Tracker{}
	return changed
}
