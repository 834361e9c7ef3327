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
	// threshold is that of the report.
	threshold float64
	// scale is the smoothed spread, phi the smoothed autocorrelation from one tick to
	// the next. age is how long the cohort is known.
	scale, phi float64
	ticks      int
	age        time.Duration
	// wander is the variance that nodes drift by within an hour. offset and maxBias
	// are those of the parameters, grows is by how much a sum's variance grows as
	// its noise lasts. All are of the last review, which was at reviewed.
	wander, offset, maxBias float64
	change                  float64 // the middle of the nodes' mean square of a change
	fast, lasting           float64 // by how much the variance of the nodes' means is greater than of noise that does not last
	step                    float64 // of a coarse resolution, a fraction
	grows                   [numSums]float64
	limits                  [numSums]float64
	detectable              float64 // the smallest loss found within detectableWithin, a fraction
	reviewed                time.Duration
	tails                   *tails
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
	together   together
	wavers     *wavers // of a signal whose nodes wait for one another; nil before its first tick
	before     float64 // the scale of before there were parts
}

// peers are the values of one tick, their levels, and their nodes' biases.
type peers struct{ x, y, bias []float64 }

func (p peers) none() peers { return peers{p.x[:0], p.y[:0], p.bias[:0]} }

// update takes the values of this tick from the nodes among the cohort's n that show the
// normal. false means that nobody can be judged. elapsed is since the tick before.
func (t *estimator) update(cfg *Config, spec *nodesignal.Spec, b *scratch, n int, from peers, at int64, elapsed time.Duration) bool {
	t.n, t.known = n, false
	if len(from.x) < cfg.MinPeers {
		return false
	}
	p := &t.params
	p.Relative, p.High, p.MinGap = spec.Relative, spec.Direction == nodesignal.High, spec.MinGap
	p.Offset, p.Elapsed = t.offset, min(elapsed, maxElapsed)
	// Each less its bias before the median: else it moves with those that are silent.
	c := b.centre(from)
	p.Centre = p.value(c + t.offset)
	t.learn(cfg, spec, p.Centre, at, elapsed)
	if len(b.yard.x) >= leastYard {
		from = b.yard
		c = b.centre(from)
		p.Centre = p.value(c + t.offset)
	}
	unit := 1.0
	if p.Relative {
		unit = p.Centre
	}
	if !(unit > leastLevel) {
		return false // all of it stands still: nobody is slower than the others
	}
	e := &cfg.Estimator
	s := e.spread(b, c)
	t.together.follow(c, s, elapsed)
	t.ticks = min(t.ticks+1, 1<<30)
	t.age += elapsed
	if t.ticks == 1 {
		p.Born = time.UnixMilli(at).UTC()
		t.scale = s
		t.maxBias = e.MinBias * spec.MinGap
	}
	// The gap between two sides is no spread: once they are parted the one before counts.
	switch {
	case t.parting.lasts == 0:
		t.before = t.scale
	case t.parting.on && t.before > 0:
		t.scale, t.before = min(t.scale, t.before), 0
	}
	t.scale += max(min(1, float64(elapsed)/float64(e.ScaleWindow)), 1/float64(t.ticks)) * (min(s, maxSurge*t.scale) - t.scale)
	least := e.MinScale * spec.MinGap
	t.scale = max(t.scale, least/maxSurge) // it must be able to grow
	// The spread of this very tick is the shield when all nodes differ more than usual.
	p.Scale = max(t.scale, least, s/(1+peersToTrust/math.Sqrt(float64(len(from.x)))))
	p.Burst = p.Scale > burst*max(t.scale, least)
	if q, ok := quantum(b, from.x, e.MaxQuantum*unit); ok {
		t.step = q / unit
	}
	p.Step = t.step
	p.Scale = max(p.Scale, p.Step*stepSpread)
	p.Wander, p.MaxBias = math.Sqrt(t.wander), t.maxBias
	p.Change = t.change
	return true
}

// centre is the middle of the levels less their nodes' biases, which stay in b.places.
func (b *scratch) centre(from peers) float64 {
	b.places, b.bits = b.places[:0], b.bits[:0]
	for i, y := range from.y {
		y -= from.bias[i]
		b.places = append(b.places, y)
		b.bits = append(b.bits, math.Float64bits(y+levelShift))
	}
	return median(b.bits) - levelShift
}

const (
	// levelShift makes levels positive: their bits are in order then.
	levelShift = 1024
	// leastLevel is what counts as standing still.
	leastLevel = 1e-300
	// maxSurge bounds what one tick adds to the smoothed spread, in units of it.
	maxSurge = 4
	// peersToTrust weighs the spread of one tick, which varies with few peers.
	peersToTrust = 1.5
	// stepSpread is the standard deviation of rounding to whole steps: 1/sqrt(12).
	stepSpread = 0.2887
	// burst is how far beyond the usual spread a tick is one.
	burst = 1.5
)

// learn follows the usual level and how long the centre has been below it.
func (t *estimator) learn(cfg *Config, spec *nodesignal.Spec, centre float64, at int64, elapsed time.Duration) {
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
		return
	}
	t.low = 0
	if p.on || p.lasts > 0 {
		return
	}
	t.usualTicks = min(t.usualTicks+1, 1<<20)
	t.usual += min(1, max(float64(elapsed)/float64(cfg.Estimator.LevelWindow), 1/float64(t.usualTicks))) * (centre - t.usual)
}

// relearn takes what is for what is usual.
func (t *estimator) relearn() { t.usualTicks, t.low, t.parting = 0, 0, parting{} }

// spread is the robust standard deviation of b.places around their middle.
func (e *Estimator) spread(b *scratch, c float64) float64 {
	n := len(b.places)
	sum := 0.0
	b.bits = b.bits[:0]
	for _, y := range b.places {
		r := math.Abs(y - c)
		sum += clamp(r, 0, e.TiedClip)
		b.bits = append(b.bits, math.Float64bits(r))
	}
	s := MADToSigma * median(b.bits) * smallSample(n)
	if s < e.TiedBelow {
		s = max(s, meanToSigma*sum/float64(n))
	}
	return s
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

// quantum is the smallest step between the values when they are so few that they must
// be steps, at most limit, and 0 when they are many. A value that only one node has is
// none, and without two others nothing is known.
func quantum(b *scratch, x []float64, limit float64) (step float64, known bool) {
	most := min(max(3, len(x)/4), maxDistinct)
	d, n := b.distinct[:0], 0
	for _, v := range x {
		if k := slices.Index(d, v); k >= n {
			d[k], d[n] = d[n], v // those of several nodes come first
			n++
		} else if k < 0 {
			if len(d) == most {
				return 0, true
			}
			d = append(d, v) // b.distinct has room for all
		}
	}
	if d = d[:n]; n < 2 {
		return 0, false
	}
	slices.Sort(d)
	step = limit
	for i := 1; i < len(d); i++ {
		step = min(step, d[i]-d[i-1])
	}
	return step, true
}

// lag sums up what the pooled autocorrelation of one tick is made of.
type lag struct{ product, now, before float64 }

// maxLag bounds what one deviation adds, in units of the scale: one faulty node
// is not how the healthy ones vary.
const maxLag = 2

func (l *lag) add(z, before float64) {
	l.product += z * before
	l.now += z * z
	l.before += before * before
}

// correlate follows the autocorrelation.
func (t *estimator) correlate(e *Estimator, l *lag, elapsed time.Duration) {
	square := l.now * l.before
	if square <= 0 {
		return
	}
	phi := min(max(l.product/math.Sqrt(square), 0), maxPhi)
	t.phi += min(1, float64(elapsed)/float64(e.ScaleWindow)) * (phi - t.phi)
}

// maxPhi bounds the autocorrelation.
const maxPhi = 0.98

const (
	// reviewAfter is how often limits, bias bound and wander of a young cohort are looked
	// at anew, reviewLater those of one that is settled. wanderWindow is the memory of
	// the wander.
	reviewAfter, reviewLater, wanderWindow = time.Minute, 5 * time.Minute, 30 * time.Minute
	// The sum of the smallest losses accuses after lowAfter, and lowNodes of all nodes
	// together: each gives a peak an hour, and then they outweigh what was assumed.
	lowAfter, lowNodes = 2 * time.Hour, 60 * time.Hour
)

// due reports whether the review is. Not all groups are looked at on the same tick.
func (t *estimator) due(phase time.Duration) bool {
	after := reviewAfter
	if t.age > settledAfter {
		after = reviewLater
	}
	if t.wavers.silent() && !t.wavers.overlaps() {
		return true // by then it must be known how much they always differ
	}
	return t.tails == nil || (t.age+phase)/after > (t.reviewed+phase)/after
}

// review reads the limits, the bound of the biases and how nodes drift off the
// trackers of the cohort's members in slots.
func (t *estimator) review(cfg *Config, spec *nodesignal.Spec, b *scratch, tracks []track) {
	e := &cfg.Estimator
	since := t.age - t.reviewed
	t.reviewed = t.age
	if n, sigma := b.spreadOf(tracks, func(t *track) float64 { return float64(t.raw) }); n > 0 && !t.parting.on {
		t.maxBias = max(e.MinBias*spec.MinGap, e.BiasSpreads*(1+4/float64(n))*sigma)
		if spec.Coupled {
			t.maxBias = max(t.maxBias, alone*b.others())
		}
		_, t.offset = b.middleOf(tracks, func(t *track) float64 { return float64(t.bias) })
	}
	least := e.MinScale * spec.MinGap
	if n, change := b.middleOf(tracks, func(t *track) float64 { return float64(t.change) }); n > 0 && !t.parting.on {
		t.change = max(change, least*least)
	}
	square := max(t.scale, least)
	square *= square
	phi := t.phi
	t.grows[loud] = (1 + phi) / (1 - phi)
	_, recent := b.spreadOf(tracks, func(t *track) float64 { return float64(t.recent) })
	_, lasting := b.spreadOf(tracks, func(t *track) float64 { return float64(t.lasting) })
	elapsed := max(t.params.Elapsed, time.Second) // nobody ticks faster for long
	short, long := t.shrinks(shortMean, elapsed), t.shrinks(longMean, elapsed)
	weight := 1.0 // at first
	if since > 0 {
		weight = min(1, float64(since)/float64(min(t.age, wanderWindow)))
	}
	t.fast += weight * (recent*recent/square/short - t.fast)
	t.lasting += weight * (lasting*lasting/square/long - t.lasting)
	t.grows[mid], t.grows[low] = max(t.fast, t.lasting, 1), max(t.lasting, 1)
	if !t.params.Burst && !t.parting.on {
		left := max(0, lasting*lasting-1.5*square*min(max(t.fast, 1), 40)*long)
		t.wander += min(1, float64(since)/float64(wanderWindow)) * (left - t.wander)
	}
	p := t.params
	p.Burst, p.Wander, p.Scale = false, math.Sqrt(t.wander), math.Sqrt(square)
	s := p.steps(&cfg.CUSUM, 0)
	if t.tails == nil {
		t.tails = &tails{}
		t.tails.start(&s, &t.grows)
	}
	t.tails.fade(since)
	t.limits = t.tails.limits(&s, &t.grows, len(b.slots), elapsed)
	if t.age < lowAfter || t.tails.nodeTicks*float64(elapsed) < float64(lowNodes) {
		t.limits[low] = -t.limits[low]
	}
	p.Limits = t.limits
	t.detectable = p.Detectable(&cfg.CUSUM, float64(detectableWithin)/float64(elapsed))
	t.tails.share(&cfg.CUSUM, tracks, b.slots, since, elapsed)
}

// alone is how far a node that the others wait for is from their middle, in units of what
// any other is. Where nobody waits the most behind is one of many that are.
const alone = 2

// others is how far from the middle of b.places any is but for the lowest.
func (b *scratch) others() float64 {
	slices.Sort(b.places)
	n := len(b.places)
	if n < 3 {
		return 0
	}
	middle := (b.places[(n-1)/2] + b.places[n/2]) / 2
	return max(middle-b.places[1], b.places[n-1]-middle)
}

// shrinks is the variance of a mean over a window for noise that does not last.
func (t *estimator) shrinks(window, elapsed time.Duration) float64 {
	if t.age < window {
		return min(1, float64(elapsed)/float64(max(t.age, elapsed)))
	}
	a := min(1, float64(elapsed)/float64(window))
	return a / (2 - a)
}

// middleOf is the median of something of the healthy members in slots, and how many there
// are. The values stay in b.places.
func (b *scratch) middleOf(tracks []track, of func(*track) float64) (n int, middle float64) {
	b.places, b.bits = b.places[:0], b.bits[:0]
	for _, i := range b.slots {
		if t := &tracks[i]; t.lived > 0 && !t.straggler {
			x := of(t)
			b.places = append(b.places, x)
			b.bits = append(b.bits, math.Float64bits(x+levelShift))
		}
	}
	if n = len(b.places); n == 0 {
		return 0, 0
	}
	return n, median(b.bits) - levelShift
}

// spreadOf is the robust standard deviation around middleOf.
func (b *scratch) spreadOf(tracks []track, of func(*track) float64) (n int, sigma float64) {
	n, middle := b.middleOf(tracks, of)
	if n == 0 {
		return 0, 0
	}
	b.bits = deviations(b.bits[:0], b.places, middle)
	return n, MADToSigma * median(b.bits) * smallSample(n)
}
