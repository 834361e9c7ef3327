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
	// MinKappa is the least allowance in units of the spread. 1.25 is half of a
	// loss of 5 % under noise of 2 %.
	MinKappa float64 `mapstructure:"min_kappa"`
	// NoiseTicks is the time constant of learning how restless a node is by
	// itself, MaxNoise how much more than its peers it may be: 1 is none.
	NoiseTicks float64 `mapstructure:"noise_ticks"`
	MaxNoise   float64 `mapstructure:"max_noise"`

	_ struct{}
}

// DefaultCUSUM returns the constants that test/scenarios measured: three ticks against
// glitches, and three minutes to be well again. A bias of 0.025 at a gap of 0.05 is
// learnt over six hours of 10 s ticks, and a node's own noise over one hour.
func DefaultCUSUM() CUSUM {
	return CUSUM{ClipLow: -3, ClipHigh: 8, EnterTicks: 3, LeaveTicks: 18, BiasShare: 0.5, BiasTicks: 2160, MinKappa: 1.25, NoiseTicks: 360, MaxNoise: 4}
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
	// Phi is the peers' autocorrelation from one tick to the next, in [0,1).
	Phi float64
}

// minScale keeps a deviation in units of the scale finite, maxSum a sum; Round
// may leave less.
const minScale, maxSum = 1e-9, 1e9

// Valid reports whether a node can be judged by p.
func (p *Params) Valid() bool {
	perLevel := 1 / p.Level
	return p.Level-p.Level == 0 && perLevel-perLevel == 0 && p.Centre-p.Centre == 0 &&
		p.Scale >= minScale/2 && p.Kappa > 0 && p.Kappa <= maxSum && p.Limit > 0 && p.Limit <= maxSum &&
		p.MaxBias >= 0 && p.Phi >= 0 && p.Phi < 1
}

// steps are what a tick derives from Params once for all nodes.
type steps struct {
	perScale float64 // 1/Scale
	// noise is the mean square of the peers' change from one tick to the next:
	// 2*(1-phi)*Scale^2 whatever the noise is made of.
	noise, perNoise float64
}

func (p *Params) steps() steps {
	noise := min(2*(1-p.Phi)*p.Scale*p.Scale, 4*maxGap*maxGap) // no change is greater
	return steps{perScale: 1 / p.Scale, noise: noise, perNoise: 1 / noise}
}

// maxGap bounds a deviation: ten times the level is as bad as any more.
const maxGap = 10

// Round keeps of every number what a float32 holds, which nine decimal digits
// tell without loss (IEEE 754-2019, 5.12.2).
func (p *Params) Round() {
	for _, f := range [...]*float64{&p.Centre, &p.Level, &p.Scale, &p.Kappa, &p.Limit, &p.MaxBias, &p.Phi} {
		*f = float64(float32(*f))
	}
}

// Deviation of a value from the peers' centre: a fraction of their level,
// positive where it is worse.
func (p *Params) Deviation(x float64) float64 { return p.deviation(x, 1/p.Level) }

// Threshold is the value, in the signal's unit, from which on evidence against a
// node gathers: there its deviation is Kappa scales. A node's own bias shifts it.
func (p *Params) Threshold() float64 { return p.Centre - p.Level*p.Scale*p.Kappa }

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

// below is the builtin min as clamp has it.
func below[T float32 | float64](x, most T) T {
	if x > most {
		return most
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
	since     int64   // tick of the last empty sum
	gap       float32 // moving average of the gap, a fraction
	limit     float32 // of the sum at the last tick
	last      float32 // deviation of the last tick
	noise     float32 // mean square of its changes while calm
	run, calm uint16
	learnt    uint16 // ticks in the bias and the noise
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
	s := p.steps()
	return t.step(c, p, &s, p.Deviation(x), at)
}

// step is Step for a deviation d.
func (t *Tracker) step(c *CUSUM, p *Params, s *steps, d float64, at int64) (changed bool) {
	z, kappa := (d-t.bias)*s.perScale, p.Kappa
	if ratio := float64(t.noise) * s.perNoise; ratio > restless {
		// A node that is more restless than its peers needs a longer sum of larger
		// deviations: the limit of a sum grows with the noise's variance over the
		// allowance (Siegmund, Sequential Analysis, 1985).
		ratio = min(ratio, c.MaxNoise*c.MaxNoise)
		wider := math.Sqrt(ratio)
		kappa = max(kappa, c.MinKappa*wider)
		t.limit = float32(p.Limit * ratio * p.Kappa / kappa)
		z = clamp(z, c.ClipLow*wider, c.ClipHigh*wider)
	} else {
		t.limit = float32(p.Limit)
		z = clamp(z, c.ClipLow, c.ClipHigh)
	}
	limit := float64(t.limit)
	t.sum = clamp(t.sum+z-kappa, 0, 2*limit)
	if z > kappa {
		t.run = min(t.run+1, maxTicks)
	} else {
		t.run = 0
	}
	// Frozen while suspect, and bounded: a deviation beyond the bound always counts.
	// The first ticks weigh more: a node that was always a little slower must not
	// look as if it became slower.
	if t.sum < limit/2 {
		t.learnNoise(c, s, d)
		t.learnt = min(t.learnt, math.MaxUint16-1) + 1
		t.bias += clamp(d-t.bias, -p.Scale, p.Scale) / below(c.BiasTicks, float64(t.learnt))
	}
	t.last = float32(d)
	t.bias = clamp(t.bias, -p.MaxBias, p.MaxBias)
	if t.sum == 0 {
		t.since, t.age = at, 0
		t.gap += (float32(d) - t.gap) / gapTicks
		t.calm = min(t.calm+1, maxTicks)
		if t.straggler && int(t.calm) >= c.LeaveTicks {
			t.straggler = false
			return true
		}
		return false
	}
	t.calm = 0
	t.age = min(t.age+1, gapTicks)
	t.gap += (float32(d) - t.gap) / float32(t.age)
	if !t.straggler && t.sum >= limit && int(t.run) >= c.EnterTicks {
		t.straggler = true
		return true
	}
	return false
}

// restless is the share of the peers' noise from which a node's own noise counts.
// Noise that is learnt over an hour varies by 5 %, and most nodes are like the
// others.
const restless = 1.25

// priorNoise is the weight in ticks of the peers' noise in that of a node.
const priorNoise = 60

// learnNoise follows how much a calm node's deviation changes from tick to tick.
// A steady fault, or a fault that grows over hours, makes deviations but no
// changes. A fault that comes and goes makes few changes, each bounded, and none
// while the node is suspect. So no fault excuses itself.
func (t *Tracker) learnNoise(c *CUSUM, s *steps, d float64) {
	if t.learnt == 0 {
		t.noise = float32(s.noise)
		return
	}
	change := float32(d) - t.last
	most := float32(s.noise)
	if t.noise > most {
		most = t.noise
	}
	t.noise += (below(change*change, maxLag*maxLag*most) - t.noise) / below(float32(c.NoiseTicks), priorNoise+float32(t.learnt))
}

// Suspicion is the sum as a share of its limit, in [0,2]; from 1 on the node
// is a straggler if that lasts.
func (t *Tracker) Suspicion() float64 {
	if t.limit <= 0 {
		return 0
	}
	return float64(t.suspicion())
}

// suspicion bounds the sum's share. The sum of a node without news stands still.
func (t *Tracker) suspicion() float32 { return below(float32(t.sum)/t.limit, 2) }

// Suspect reports whether the sum is half full, from where on nothing is learnt.
func (t *Tracker) Suspect() bool { return 2*t.sum > float64(t.limit) }

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
func (t *Tracker) Gap() float64 { return float64(t.gap) }

// Reset forgets all about the node, which is then in good standing. It reports
// whether Straggler changed.
func (t *Tracker) Reset() (changed bool) {
	changed = t.straggler
	*t = Tracker{}
	return changed
}
