// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// estimator follows what is normal in one signal of one cohort.
type estimator struct {
	known  bool
	params Params
	n      int
	// scale is the smoothed spread, phi the smoothed autocorrelation.
	// memory is how much of a deviation is in the slow average of those before.
	// before is the scale of before there were parts.
	scale, phi, memory float64
	before             float64
	ticks              int
	// usual is the centre's slow average; it stands still while the centre is low.
	// low counts the low ticks and lowSince is the first; fall is the centre's
	// distance below usual, a fraction.
	usual      float64
	usualTicks int
	usualN     int
	low        int
	lowSince   int64
	fall       float64
	parting    parting
}

// firstPhi is taken for the autocorrelation of a group that is not known yet:
// that of a mean over 60 s told every 10 s. It errs to the slow side.
const firstPhi = 0.8

// update takes the values of this tick and their nodes' biases, from the nodes among
// the cohort's n that show the normal. false means that nobody can be judged. elapsed
// is since the tick before.
func (t *estimator) update(cfg *Config, spec *nodesignal.Spec, b *scratch, n int, x, bias []float64, at int64, elapsed time.Duration) bool {
	t.n, t.known = n, false
	if len(x) < cfg.MinPeers {
		return false
	}
	centre := b.ref
	if b.ref == 0 || !slices.Equal(x, b.throughputs) { // else the group's rule has just found it
		b.bits = bitsOf(b.bits[:0], x)
		centre = median(b.bits)
	}
	level := t.learn(cfg, spec, centre, at, elapsed)
	if len(b.yard) >= leastYard {
		x, bias = b.yard, b.yardBias
		b.bits = bitsOf(b.bits[:0], x)
		centre = median(b.bits)
	}
	p := &t.params
	p.Centre, p.Level = centre, float64(spec.Direction)*level
	if !(level > 0) || math.IsInf(1/level, 1) {
		return false // all of it stands still: nobody is slower than the others
	}
	s := t.spread(&cfg.Estimator, cfg.Estimator.PriorScale*spec.MinGap, b, x, bias)
	e := &cfg.Estimator
	if t.ticks == 0 {
		t.scale, t.phi, t.memory = s, firstPhi, firstMemory
	}
	// The gap between two sides is no spread: once they are parted the one before counts.
	switch {
	case t.parting.lasts == 0:
		t.before = t.scale
	case t.parting.on && t.before > 0:
		t.scale, t.before = min(t.scale, t.before), 0
	}
	t.ticks++
	alpha := e.ScaleAlpha
	if s < t.scale {
		alpha *= float64(len(x)) / (float64(len(x)) + e.ScalePeers)
	}
	t.scale += max(alpha, 1/float64(t.ticks)) * (s - t.scale)
	q := quantum(b, x, e.MaxQuantum*level) / level
	// In proportion to the loss worth an alert: so one tick's deviation, which is
	// bounded in units of the scale, can always be more than the allowance.
	p.Scale = max(t.scale, e.MinScale*spec.MinGap, q/2)
	// Half of the smallest loss worth an alert lies halfway between healthy and
	// faulty: there a cumulative sum finds a fault soonest. One step of a coarse
	// resolution counts for little. The limit keeps the time to a false alarm as with
	// the smallest allowance. It grows with noise that lasts from tick to tick, and
	// shrinks where the noise is below the least scale.
	least := cfg.CUSUM.MinKappa
	p.Kappa = max(least, spec.MinGap/2/p.Scale, stepKappa*q/p.Scale)
	p.Limit = max(e.MinLimit, e.MinLimit*(least/p.Kappa)*(t.scale/p.Scale)*longer(t.lasting(e)))
	p.Phi = t.phi
	p.MaxBias = cfg.CUSUM.BiasShare * spec.MinGap
	p.Round()
	t.known = p.Valid()
	return t.known
}

// stepKappa is the share of one step of a resolution that is taken off: a tenth
// is left, for a node that is off by one step for minutes.
const stepKappa = 0.9

// learn follows the usual level and how long the centre has been below it, and
// returns what a difference is a fraction of.
func (t *estimator) learn(cfg *Config, spec *nodesignal.Spec, centre float64, at int64, elapsed time.Duration) float64 {
	// With a third more nodes, or fewer, it is another set that has another level.
	// While it is low only more are: what takes some may well slow the others.
	lasts := time.Duration(at-t.lowSince)*time.Millisecond >= cfg.Incident.RelearnAfter
	p := &t.parting
	faster := p.on && p.lower && time.Duration(at-p.since)*time.Millisecond >= cfg.Incident.RelearnAfter
	if 3*t.n > 4*t.usualN || (4*t.n < 3*t.usualN && t.low == 0 && !p.on) || (t.low > 0 && lasts && !p.on) || faster {
		t.relearn()
	}
	if t.usualTicks == 0 {
		t.usual, t.usualN = centre, t.n
	}
	level := 1.0
	if spec.Relative {
		// A dip of all must not blow up the gaps between them.
		level = max(centre, t.usual)
	}
	t.fall = 0
	if level > 0 {
		t.fall = float64(spec.Direction) * (t.usual - centre) / level
	}
	if t.fall > max(cfg.Incident.Fall, spec.MinGap) {
		if t.low == 0 {
			t.lowSince = at
		}
		t.low = min(t.low+1, maxTicks)
		return level
	}
	t.low = 0
	if p.on || p.lasts > 0 {
		return level
	}
	t.usualTicks = min(t.usualTicks+1, 1<<20)
	t.usual += min(1, max(float64(elapsed)/float64(cfg.Estimator.LevelWindow), 1/float64(t.usualTicks))) * (centre - t.usual)
	return level
}

// relearn takes what is for what is usual.
func (t *estimator) relearn() { t.usualTicks, t.low, t.parting = 0, 0, parting{} }

// spread is the robust standard deviation of what the biases leave of the
// deviations. Their middle is the centre's: another selection for it would be a
// sixth of a tick.
func (t *estimator) spread(e *Estimator, prior float64, b *scratch, x, bias []float64) float64 {
	n := float64(len(x))
	p := &t.params
	bits := b.bits[:0]
	perLevel := 1 / p.Level
	sum := 0.0
	for i, v := range x {
		r := math.Abs(clamp((p.Centre-v)*perLevel, -maxGap, maxGap) - bias[i])
		sum += clamp(r, 0, e.TiedClip)
		bits = append(bits, math.Float64bits(r))
	}
	b.bits = bits
	s := MADToSigma * median(bits) * smallSample(len(x))
	if s < e.TiedBelow {
		s = max(s, meanToSigma*sum/n)
	}
	return math.Sqrt((n*s*s + e.PriorPeers*prior*prior) / (n + e.PriorPeers))
}

// meanToSigma turns a mean absolute deviation into a standard deviation for
// normal data: sqrt(π/2) (Iglewicz and Hoaglin 1993).
const meanToSigma = 1.2533

// smallSample undoes that the median absolute deviation of few is biased low:
// the factors of Croux and Rousseeuw (1992), n/(n-0.8) from ten on.
func smallSample(n int) float64 {
	factors := [...]float64{1.363, 1.363, 1.363, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107}
	if n < len(factors) {
		return factors[n]
	}
	return float64(n) / (float64(n) - 0.8)
}

// maxDistinct bounds the values that are taken for steps of a resolution.
const maxDistinct = 64

// quantum is the smallest step between the values when they are so few that
// they must be steps, at most limit, else 0.
func quantum(b *scratch, x []float64, limit float64) float64 {
	most := min(max(3, len(x)/4), maxDistinct)
	d := b.distinct[:0]
	for _, v := range x {
		if slices.Contains(d, v) {
			continue
		}
		if len(d) == most {
			return 0
		}
		d = append(d, v) // b.distinct has room for all
	}
	if len(d) < 2 {
		return 0
	}
	slices.Sort(d)
	q := limit
	for i := 1; i < len(d); i++ {
		q = min(q, d[i]-d[i-1])
	}
	return q
}

// lag sums up what the pooled autocorrelation of one tick is made of.
type lag struct{ product, now, before, slow float64 }

// maxLag bounds what one deviation adds, in units of the scale: one faulty node
// is not how the healthy ones vary.
const maxLag = 3

func (l *lag) add(z, before, slow float64) {
	l.slow += z * slow
	l.product += z * before
	l.now += z * z
	l.before += before * before
}

// correlate follows the autocorrelation.
func (t *estimator) correlate(e *Estimator, l *lag) {
	square := l.now * l.before
	if square <= 0 {
		return
	}
	phi := min(max(l.product/math.Sqrt(square), 0), e.MaxPhi)
	t.phi += e.PhiAlpha * (phi - t.phi)
	t.memory += e.PhiAlpha * (clamp(l.slow/l.now, 0, 1) - t.memory)
}

// slowAlpha is the weight of a tick in a node's slow average: eight minutes.
const slowAlpha = 1.0 / 48

// firstMemory is what noise with firstPhi has.
const firstMemory = slowAlpha * firstPhi / (1 - (1-slowAlpha)*firstPhi)

// lasting is the autocorrelation that counts for sums. The lag of one tick hides
// lasting noise beneath short noise. The regression of z on its slow average,
// c = a*phi/(1-(1-a)*phi), gives the phi of the lasting noise; the greater phi
// counts.
func (t *estimator) lasting(e *Estimator) float64 {
	return min(max(t.phi, t.memory/(slowAlpha+(1-slowAlpha)*t.memory)), e.MaxPhi)
}

// longer is how much higher a limit is for autocorrelation. It lies between the
// growth of a short sum's standard deviation and of a long sum's variance,
// (1+phi)/(1-phi). The latter counts once a deviation lasts as long as the sum.
func longer(phi float64) float64 {
	f := (1 + phi) / math.Sqrt(1-phi)
	if phi > longPhi {
		f *= math.Sqrt((1 - longPhi) / (1 - phi))
	}
	return f
}

// longPhi is the autocorrelation of what lasts for ten ticks.
const longPhi = 0.9
