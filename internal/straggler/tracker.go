// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"math"
	"time"
)

// The sums that gather what speaks against a node: one for large losses, one for
// the smallest loss worth an alert, one for less.
const (
	loud = iota
	mid
	low
	numSums
	unflagged = numSums // of Tracker.by
)

// Sum holds the constants of one bounded cumulative sum (Page, Biometrika 1954).
type Sum struct {
	// Loss that the sum is for, a share of the smallest gap worth an alert. Half of
	// it is taken off at each tick: there a sum finds that loss soonest.
	Loss float64 `mapstructure:"loss"`
	// MinKappa is the least that is taken off, in units of the spread.
	MinKappa float64 `mapstructure:"min_kappa"`
	// Reach bounds what one tick adds: one glitch may not fill the sum.
	Reach float64 `mapstructure:"reach"`
	// MinLimit is the least limit, just over two ticks with all that Reach allows.
	MinLimit float64 `mapstructure:"min_limit"`
	// Wander is taken off per unit of what healthy nodes drift by within an hour.
	Wander float64 `mapstructure:"wander"`

	_ struct{}
}

// CUSUM holds the constants of the sums that every node runs per signal.
type CUSUM struct {
	Loud Sum `mapstructure:"loud"`
	Mid  Sum `mapstructure:"mid"`
	Low  Sum `mapstructure:"low"`
	// ClipLow bounds one tick's deviation in units of the spread: one good tick may
	// not empty a sum.
	ClipLow float64 `mapstructure:"clip_low"`
	// EnterTicks since a sum was empty are needed besides a full sum. LeaveAfter of
	// a mean that is well again ends the verdict.
	EnterTicks int           `mapstructure:"enter_ticks"`
	LeaveAfter time.Duration `mapstructure:"leave_after"`
	// BiasWindow is the time constant of learning how a node always differs, NoiseWindow
	// that of learning how restless it is.
	BiasWindow  time.Duration `mapstructure:"bias_window"`
	NoiseWindow time.Duration `mapstructure:"noise_window"`
	// MaxNoise bounds the spread that a restless node is granted, in units of its peers'.
	MaxNoise float64 `mapstructure:"max_noise"`

	_ struct{}
}

// DefaultCUSUM returns the constants that the families of test/scenarios measured.
func DefaultCUSUM() CUSUM {
	return CUSUM{
		Loud:    Sum{Loss: 2.4, MinKappa: 3, Reach: 5, MinLimit: 10.1, Wander: 2.5},
		Mid:     Sum{Loss: 1, MinKappa: 1, Reach: 4, MinLimit: 9, Wander: 2.5},
		Low:     Sum{Loss: 0.4, MinKappa: 0.35, Reach: 2.5, MinLimit: 12, Wander: 2.5},
		ClipLow: -3, EnterTicks: 3, LeaveAfter: 3 * time.Minute, BiasWindow: 12 * time.Hour, NoiseWindow: time.Hour, MaxNoise: 4,
	}
}

func (c *CUSUM) sums() [numSums]*Sum { return [numSums]*Sum{&c.Loud, &c.Mid, &c.Low} }

// Params are what one tick of a group says about one signal: all that a
// Tracker needs besides the node's own value. They travel to the nodes, and
// both sides step by what Round leaves of them: a sum that is just at a limit
// on one side and just below it on the other is another verdict.
//
// The level of a value is its logarithm where the signal is relative, else the value
// itself. Spreads, losses and biases are differences of levels.
type Params struct {
	// Centre is the peers' middle in the unit of the signal.
	Centre float64
	// Relative says what a level is, High that more is worse.
	Relative, High bool
	// MinGap is the smallest loss worth an alert.
	MinGap float64
	// Scale is the peers' spread, > 0; Burst says that it is far beyond the usual.
	Scale float64
	Burst bool
	// Wander is what healthy nodes drift by, Step that of a coarse resolution.
	Wander, Step float64
	// Change is the mean square of the peers' change from one tick to the next; 0 is not
	// known.
	Change float64
	// Offset is the middle of the nodes' biases; none is further from it than MaxBias.
	Offset, MaxBias float64
	// Limits of the sums, in units of Scale; negative for a sum that accuses nobody yet.
	Limits [numSums]float64
	// Elapsed is the time since the tick before.
	Elapsed time.Duration
	// Born is the first tick of the peers' memory: of other peers nothing that a node
	// learnt counts.
	Born time.Time
}

// minScale keeps a deviation in units of the scale finite, maxSum a sum; Round
// may leave less. minCentre is the smallest level that losses can be shares of: Round
// keeps none below it, and its inverse is finite.
const minScale, maxSum, minCentre = 1e-9, 1e9, math.SmallestNonzeroFloat32

// Valid reports whether a node can be judged by p.
func (p *Params) Valid() bool {
	for _, h := range p.Limits {
		if !(math.Abs(h) >= minLimit && math.Abs(h) <= maxSum) {
			return false
		}
	}
	return p.Centre-p.Centre == 0 && (p.Centre >= minCentre || !p.Relative) && p.Scale >= minScale/2 && p.Scale <= maxSum &&
		p.MinGap > 0 && p.MinGap <= 1 && p.Wander >= 0 && p.Wander <= maxSum && p.Step >= 0 && p.Step <= maxSum && p.Change >= 0 && p.Change <= maxSum &&
		math.Abs(p.Offset) <= maxSum && p.MaxBias >= 0 && p.MaxBias <= maxSum && p.Elapsed >= 0 && p.Elapsed <= maxElapsed
}

// Check says why a node cannot be judged by p, nil when it can.
func (p *Params) Check() error {
	for _, c := range [...]struct {
		name     string
		x, least float64
	}{
		{"spread", p.Scale, minScale / 2},
		{"drift", p.Wander, 0},
		{"step", p.Step, 0},
		{"change", p.Change, 0},
		{"bias", p.MaxBias, 0},
		{"limit of the loud sum", math.Abs(p.Limits[loud]), minLimit},
		{"limit of the mid sum", math.Abs(p.Limits[mid]), minLimit},
		{"limit of the low sum", math.Abs(p.Limits[low]), minLimit},
	} {
		if !(c.x >= c.least && c.x <= maxSum) {
			return fmt.Errorf("%s %v is not in [%v,%v]", c.name, c.x, c.least, maxSum)
		}
	}
	switch {
	case p.Centre-p.Centre != 0 || p.Relative && p.Centre < minCentre:
		return fmt.Errorf("centre %v is not finite, or not > 0 though losses are shares of it", p.Centre)
	case !(p.MinGap > 0 && p.MinGap <= 1):
		return fmt.Errorf("least gap %v is not in (0,1]", p.MinGap)
	case !(math.Abs(p.Offset) <= maxSum):
		return fmt.Errorf("middle of the biases %v is not finite", p.Offset)
	case p.Elapsed < 0 || p.Elapsed > maxElapsed:
		return fmt.Errorf("time since the tick before %s is not in [0s,%s]", p.Elapsed, maxElapsed)
	}
	return nil
}

// minLimit and maxElapsed bound what is believed.
const minLimit, maxElapsed = 1e-3, 24 * time.Hour

// Round keeps of every number what a float32 holds, which nine decimal digits
// tell without loss (IEEE 754-2019, 5.12.2), and of a time whole milliseconds.
func (p *Params) Round() {
	for _, f := range [...]*float64{
		&p.Centre, &p.MinGap, &p.Scale, &p.Wander, &p.Step, &p.Change, &p.Offset, &p.MaxBias, &p.Limits[loud], &p.Limits[mid], &p.Limits[low],
	} {
		*f = float64(float32(*f))
	}
	p.Elapsed = p.Elapsed.Truncate(time.Millisecond)
}

// levelOf a value, greater is better: differences of levels are losses.
func levelOf(x float64, relative, high bool) float64 {
	if relative {
		x = math.Log(max(x, math.SmallestNonzeroFloat64))
	}
	if high {
		return -x
	}
	return x
}

func (p *Params) level(x float64) float64 { return levelOf(x, p.Relative, p.High) }

// value of a level.
func (p *Params) value(level float64) float64 {
	if p.High {
		level = -level
	}
	if p.Relative {
		return math.Exp(level)
	}
	return level
}

// Deviation of a value from the peers' centre: a fraction, of their level if the
// signal is relative, positive where it is worse.
func (p *Params) Deviation(x float64) float64 {
	d := p.Centre - x
	if p.Relative {
		d /= p.Centre
	}
	if p.High {
		d = -d
	}
	return clamp(d, -maxGap, maxGap)
}

// gap is Deviation for all nodes of a tick.
func (s *steps) gap(x float64) float64 { return clamp((s.p.Centre-x)*s.perUnit, -maxGap, maxGap) }

// maxGap bounds a deviation: ten times the level is as bad as any more.
const maxGap = 10

// threshold is the value, in the signal's unit, from which on evidence against a
// node gathers in the sum for the smallest loss worth an alert. A node's own bias
// shifts it.
func (s *steps) threshold() float64 {
	p := s.p
	off := float64(s.kappa[mid]) * p.Scale
	if p.High {
		off = -off
	}
	if p.Relative {
		return p.Centre * math.Exp(-off)
	}
	return p.Centre - off
}

// steps are what a tick derives from Params once for all nodes.
type steps struct {
	p                   *Params
	c                   *CUSUM
	perScale, perUnit   float64 // 1/Scale, and 1 over what a gap is a fraction of
	centre              float64 // level of a node without bias
	lowBias, highBias   float64 // bounds of a bias
	clipLow             float32
	silent              bool // only a great loss accuses, if any: what a node differs by then is its bias, up to the bounds
	allowances               // of a node that is as restless as its peers
	minKappa, lossKappa [numSums]float64
	// change is the peers' mean square of a change, perChange 0 where that is not known.
	change, perChange float32
	// Weights of this tick in bias, noise and the two means.
	slow, noise, short, long float32
	// weight and noiseWeight are those of a tick for a node that has learnt for so many.
	learnt              uint16
	weight, noiseWeight float32
	ms, longMs          uint32
	before              uint32 // the tick before, unix seconds
}

// allowances are what is taken off a deviation for each sum, the most that a deviation
// counts for, and the bound of a sum. perLimit is 0 for a sum that accuses nobody.
type allowances struct{ kappa, top, bound, perLimit [numSums]float32 }

func (a *allowances) of(j int, kappa, limit float64, sum *Sum) {
	a.kappa[j], a.top[j] = float32(kappa), float32(kappa+sum.Reach)
	a.bound[j] = float32(maxFull * (1 + 1e-6) * math.Abs(limit)) // its share is maxFull all the same
	if limit > 0 {
		a.perLimit[j] = float32(1 / limit)
	}
}

// stepKappa is the share of one step of a coarse resolution that is taken off: a tenth
// is left, for a node that is off by one step for minutes.
const stepKappa = 0.9

// burstKappa is the least that the sums for small losses take off in a burst.
const burstKappa = 2.5

// Windows of a node's two means.
const shortMean, longMean = 2 * time.Minute, 15 * time.Minute

func (p *Params) steps(c *CUSUM, at int64) steps {
	weight := func(window time.Duration) float32 { return float32(min(1, float64(p.Elapsed)/float64(window))) }
	s := steps{
		p: p, c: c, perScale: 1 / p.Scale, centre: p.level(p.Centre) - p.Offset,
		lowBias: p.Offset - p.MaxBias, highBias: p.Offset + p.MaxBias,
		slow: weight(c.BiasWindow), noise: weight(c.NoiseWindow), short: weight(shortMean), long: weight(longMean),
		ms: uint32(min(p.Elapsed/time.Millisecond, math.MaxInt32)), longMs: uint32(longMean / time.Millisecond), clipLow: float32(c.ClipLow),
		before: uint32(max(at-p.Elapsed.Milliseconds(), 0) / 1000),
	}
	s.silent = p.Limits[mid] < 0
	s.weigh(0)
	s.perUnit = 1
	if p.Relative {
		s.perUnit = 1 / p.Centre
	}
	if p.High {
		s.perUnit = -s.perUnit
	}
	s.change = float32(2 * p.Scale * p.Scale) // of noise that does not last
	if p.Change > 0 {
		s.change = float32(p.Change)
		s.perChange = float32(1 / p.Change)
	}
	for j, sum := range c.sums() {
		s.minKappa[j] = sum.MinKappa
		if p.Burst && j != loud {
			s.minKappa[j] = max(sum.MinKappa, burstKappa)
		}
		s.lossKappa[j] = max(sum.Loss*p.MinGap/2, sum.Wander*p.Wander, stepKappa*p.Step) / p.Scale
		s.of(j, max(s.minKappa[j], s.lossKappa[j]), p.Limits[j], sum)
	}
	return s
}

// weigh is for a node that has learnt for so many ticks. The first weigh more.
func (s *steps) weigh(learnt uint16) {
	ticks := float32(learnt)
	s.learnt, s.weight, s.noiseWeight = learnt, max(s.slow, 1/max(ticks, 1)), max(s.noise, 1/(priorNoise+ticks))
}

// calmer is for a node whose changes are ratio times as great as its peers', squared.
// Its own spread counts. In units of that less is taken off for a loss, and the sum of
// noise reaches as much more: the tail of a sum falls by twice what is taken off a tick
// (Siegmund, Sequential Analysis, 1985).
func (s *steps) calmer(ratio float32) (perScale float64, a allowances) {
	wider := math.Sqrt(math.Min(float64(ratio), s.c.MaxNoise*s.c.MaxNoise))
	for j, sum := range s.c.sums() {
		kappa := max(s.minKappa[j], s.lossKappa[j]/wider)
		a.of(j, kappa, s.p.Limits[j]*float64(s.kappa[j])/kappa, sum)
	}
	return s.perScale / wider, a
}

// restless is the ratio of mean squares from which a node's own noise counts: nearly none
// of the nodes that are like the others comes to it by chance, and no fault by a few losses.
const restless = 1.6

// priorNoise is the weight in ticks of the peers' noise in that of a node, and
// maxChange what one change counts for, in units of the mean.
const priorNoise, maxChange = 60, 3 * 3

// maxFull bounds a sum as a share of its limit.
const maxFull = 1.5

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
func below(x, most float32) float32 {
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
	// bias is how the node's level always differs from its peers', raw the same
	// without bounds and whether or not it is suspect.
	bias, raw float32
	sum       [numSums]float32
	gap       float32         // moving average of the gap, a fraction
	recent    float32         // mean loss over shortMean
	lasting   float32         // mean loss over longMean
	last      float32         // loss of the last tick
	change    float32         // mean square of its changes while calm
	worst     float32         // the greatest recent since the verdict
	full      float32         // the fullest sum's share of its limit
	lived     uint32          // milliseconds
	since     [numSums]uint32 // unix seconds of the last tick at which the sum was empty before it grew
	peak      [numSums]uint16 // of the sum since, in parts of peakUnit
	learnt    uint16          // ticks in the bias
	calm      uint16          // seconds since the node is well again
	age       [numSums]uint8
	straggler bool
	by        uint8 // the sum that made it one
	at        marks // of its last tick
}

// marks are what was so at a node's last tick, in one byte: there is a tracker for each
// node and signal.
type marks uint8

const (
	markKnown  marks = 1 << iota // there is a last
	markSilent                   // no usual loss accused
)

func (m marks) has(x marks) bool { return m&x != 0 }

func (m *marks) set(x marks, on bool) {
	*m &^= x
	if on {
		*m |= x
	}
}

// peakUnit is how many parts a unit of a sum has in a peak.
const peakUnit = 32

// Step takes the node's value at a tick, in unix milliseconds, and reports
// whether Straggler changed. A value that is no number, or parameters that are
// not valid, change nothing.
func (t *Tracker) Step(c *CUSUM, p *Params, x float64, at int64) (changed bool) {
	if x-x != 0 || !p.Valid() {
		return false
	}
	s := p.steps(c, at)
	return t.step(&s, p.level(x), s.gap(x), nil)
}

// maxLoss bounds what a tick says in levels.
const maxLoss = 3

// A node slow from its start is looked at once, when its mean can be trusted.
const fromStart, fromStartEnd = 30 * 60 * 1000, 45 * 60 * 1000

// step is Step for a level y and a gap d. w learns from healthy nodes, if there is one.
func (t *Tracker) step(s *steps, y, d float64, w *watch) (changed bool) {
	p := s.p
	if t.lived == 0 {
		t.bias = float32(p.Offset)
	}
	if t.lived < math.MaxInt32 {
		t.lived += s.ms
	}
	bias := clamp(float64(t.bias), s.lowBias, s.highBias)
	r := clamp(s.centre-y+bias, -maxLoss, maxLoss)
	z, off := float32(r*s.perScale), &s.allowances
	if ratio := t.change * s.perChange; ratio > restless {
		perScale, own := s.calmer(ratio)
		z, off = float32(r*perScale), &own
		w = nil // the peers' limits are not read off it
	}
	if z < s.clipLow {
		z = s.clipLow
	}
	if t.at.has(markSilent) && !s.silent { // what spoke against it meanwhile may be what it always differs by
		t.sum, t.peak, t.age = [numSums]float32{}, [numSums]uint16{}, [numSums]uint8{}
	}
	t.at.set(markSilent, s.silent)
	full, fullest := float32(0), uint8(unflagged)
	for j := range t.sum {
		x := below(z, off.top[j]) - off.kappa[j]
		if w != nil && j == w.counts && !t.straggler {
			w.step(j, x)
		}
		sum := t.sum[j]
		if sum == 0 {
			if x <= 0 {
				continue
			}
			if t.since[j] = s.before; t.lived <= s.ms {
				t.since[j] = 0 // slow from its first tick on
			}
		}
		if sum += x; sum <= 0 {
			if w != nil && t.peak[j] > 0 {
				w.peak(j, t.peak[j])
			}
			t.sum[j], t.peak[j], t.age[j] = 0, 0, 0
			continue
		}
		sum = below(sum, off.bound[j])
		t.sum[j] = sum
		if w != nil && sum > w.level[j] && !t.straggler {
			w.above(j, sum)
		}
		if high := below(sum*peakUnit, math.MaxUint16); high > float32(t.peak[j]) {
			t.peak[j] = uint16(high)
		}
		if t.age[j] < math.MaxUint8 {
			t.age[j]++
		}
		share := below(sum*off.perLimit[j], maxFull)
		if share > full {
			full = share
		}
		if share >= 1 && int(t.age[j]) >= s.c.EnterTicks && z > 0 && fullest == unflagged {
			fullest = uint8(j)
		}
	}
	t.full = full
	t.learn(s, r, bias)
	if t.sum[mid] == 0 && t.sum[loud] == 0 {
		t.gap += (float32(d) - t.gap) * (1.0 / gapTicks)
	} else {
		t.gap += (float32(d) - t.gap) / float32(min(max(t.age[mid], t.age[loud]), gapTicks))
	}
	if t.straggler {
		return t.leave(s, w)
	}
	if t.lived >= fromStart && t.lived < fromStartEnd && p.Limits[mid] > 0 && p.Offset-float64(t.raw) > p.MaxBias+p.MinGap/2 && float64(t.recent) > 0.4*p.MinGap {
		// It was slow since it came: its bias holds what it can of that.
		t.since[mid] = 0
		fullest = mid
	}
	if fullest != unflagged {
		t.straggler, t.by, t.calm, t.worst = true, fullest, 0, t.recent
		return true
	}
	return false
}

// learn follows what the node differs by and how restless it is. The bias, as the sums
// have it, stands still while the node is suspect. The noise does too: a fault that comes
// and goes makes few changes, each bounded, and a steady fault makes none.
func (t *Tracker) learn(s *steps, r, bias float64) {
	short, long := s.short, s.long
	if t.lived < s.longMs { // its means are younger than their windows
		first := float32(1)
		if t.lived > s.ms {
			first = float32(s.ms) / float32(t.lived)
		}
		short, long = max(short, first), max(long, first)
	}
	r32 := float32(r)
	t.recent += (r32 - t.recent) * short
	t.lasting += (r32 - t.lasting) * long
	calm := t.full < 0.5 && !t.straggler
	if calm && t.learnt < math.MaxUint16 {
		t.learnt++
	}
	if t.learnt != s.learnt { // most nodes of a cohort have learnt for as long
		s.weigh(t.learnt)
	}
	weight := s.weight
	if !t.straggler || t.lived < fromStartEnd {
		t.raw += (float32(bias) - r32 - t.raw) * weight
	}
	if calm {
		if t.learnt == 1 {
			t.change = s.change
		} else if t.at.has(markKnown) {
			change := r32 - t.last
			most := s.change
			if t.change > most {
				most = t.change
			}
			t.change += (below(change*change, maxChange*most) - t.change) * s.noiseWeight
		}
		most := 4 * s.p.Scale
		bias = clamp(bias-clamp(r, -most, most)*float64(weight), s.lowBias, s.highBias)
	}
	if s.silent {
		bias = clamp(float64(t.raw), s.lowBias, s.highBias)
	}
	t.bias, t.last = float32(bias), r32
	t.at.set(markKnown, true)
}

// leave ends the verdict on a node whose mean has been well for long enough.
func (t *Tracker) leave(s *steps, w *watch) (changed bool) {
	if t.recent > t.worst {
		t.worst = t.recent
	}
	well := max(min(t.worst/3, float32(s.p.MinGap)), float32(s.p.Scale/2))
	if t.by == low {
		well = float32(0.2 * s.p.MinGap)
	}
	if t.recent >= well {
		t.calm = 0
		return false
	}
	t.calm = uint16(min(uint32(t.calm)+max(s.ms/1000, 1), math.MaxUint16))
	if time.Duration(t.calm)*time.Second < s.c.LeaveAfter {
		return false
	}
	if w != nil {
		for j, peak := range t.peak {
			if peak > 0 {
				w.peak(j, peak)
			}
		}
	}
	t.rest()
	return true
}

// rest empties the sums. A node in good standing stays with what it always differs by.
func (t *Tracker) rest() {
	t.sum, t.peak, t.age = [numSums]float32{}, [numSums]uint16{}, [numSums]uint8{}
	t.full, t.worst, t.calm, t.straggler = 0, 0, 0, false
	t.at.set(markKnown, false)
}

// Rest is for a node that was away: its sums are empty then, and it keeps its bias.
// Rest reports whether Straggler changed.
func (t *Tracker) Rest() (changed bool) {
	changed = t.straggler
	t.rest()
	return changed
}

// Miss is for a tick without a value: the next one tells of no change.
func (t *Tracker) Miss() { t.at.set(markKnown, false) }

// Skip takes back the last step, since nobody measured it: before is the state before.
func (t *Tracker) Skip(before *Tracker) {
	on := before.at.has(markKnown) && t.Calm()
	*t = *before
	t.at.set(markKnown, on)
}

// Suspicion is the fullest sum as a share of its limit, in [0,1.5]; from 1 on the
// node is a straggler if that lasts. A straggler's is at least 1 until it is about to
// be well.
func (t *Tracker) Suspicion() float64 { return float64(t.suspicion()) }

func (t *Tracker) suspicion() float32 {
	if t.straggler && t.calm == 0 && t.full < 1 {
		return 1
	}
	return t.full
}

// Suspect reports whether a sum is half full, from where on nothing is learnt.
func (t *Tracker) Suspect() bool { return t.full >= 0.5 || t.straggler }

// Calm reports whether nothing but small losses speaks against the node.
func (t *Tracker) Calm() bool { return t.sum[loud] == 0 && t.sum[mid] == 0 && !t.straggler }

// MoreThan reports whether more speaks against the node than before, when it was calm.
func (t *Tracker) MoreThan(before *Tracker) bool { return !t.Calm() || t.sum[low] > before.sum[low] }

// Straggler is the verdict.
func (t *Tracker) Straggler() bool { return t.straggler }

// Since is the last tick at which the sum that accuses a node was empty: the change-point
// estimate of a cumulative sum. It is zero when nothing spoke against the node yet.
func (t *Tracker) Since() time.Time {
	at := t.sinceMs()
	if at == 0 {
		return time.Time{}
	}
	return time.UnixMilli(at).UTC()
}

func (t *Tracker) sinceMs() int64 {
	if t.straggler {
		return int64(t.since[t.by]) * 1000
	}
	return int64(t.since[mid]) * 1000
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
