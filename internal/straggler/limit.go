// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"time"
)

// tails are what the sums of a cohort's healthy nodes do by themselves. The limits are
// read off them: maxima of a sum of bounded evidence have exponential tails (Siegmund,
// Sequential Analysis, 1985), so peaks over a threshold tell of rarer ones (streaming
// POT: Siffer et al., KDD 2017).
//
// No node makes the limits of all. Of each node count so much time over a level, so many
// peaks, and so many great steps an hour. See given.
type tails struct {
	of [numSums]tail
	// hist counts the steps of the loud and the mid sum, in bins of binWidth.
	hist [low][bins]float32
	// ticks so far, and node-ticks in the day's memory.
	ticks     int
	nodeTicks float64
	// mostOver are the seconds of a node over the lower level that count in the day's
	// memory, mostPeaks the peaks over each level, mostGreat the great steps within an hour.
	mostOver  [numSums]uint16
	mostPeaks [numSums][numLevels]uint8
	mostGreat [low]uint8
	// hours since the start, and the part of the next that is over.
	hours int
	hour  time.Duration
}

// tail of one sum: what of its excursions exceeds three levels.
type tail struct {
	// level is exceeded on the shares of shareOver; the last is what one tick can add.
	level          [numLevels]float64
	excess, number [numLevels]float64 // of the peaks over it, in the day's memory
	mean           [numLevels]float64 // of the excesses, with those that were assumed
	theta          float64
}

// shareOver are the shares of node-ticks at which a sum exceeds the two levels, and
// priorPeaks how many peaks of the expected size each level begins with.
var (
	shareOver  = [2]float64{0.01, 0.001}
	priorPeaks = [numLevels]float64{60, 20, 20}
)

// reached is the level of what one tick can add: the peaks over it tell of several ticks.
const reachedLevel, numLevels = 2, 3

const (
	// levelWindow is how fast the levels move, tailWindow how long peaks count.
	levelWindow, tailWindow = 6 * time.Hour, 24 * time.Hour
	// levelTicks is the weight of the levels that a tail begins with.
	levelTicks = 30
	// minLevel keeps a level's logarithm finite.
	minLevel = 0.05
	// enoughPeaks over the higher level make it count.
	enoughPeaks = 20
	// falseAlarm is how rarely the sums of healthy nodes may be full: once in so much
	// time of nodes.
	falseAlarm = 15_000 * 24 * time.Hour
)

// Bins of the steps of a sum. The middle of one lies on each whole step.
const (
	bins, binWidth, firstBin = 49, 0.25, -6.0
	// priorTicks of normal noise, with a share priorGlitch of glitches, are in the
	// histogram at first.
	priorTicks, priorGlitch = 3000.0, 0.001
)

func binOf(x float32) int { return min(max(int((x-firstBin)*(1/binWidth)+0.5), 0), bins-1) }

// watch learns from the steps of one tick.
type watch struct {
	*tails
	given *given       // of the node that steps
	great [low]float32 // steps beyond it are great
	// counts is the sum whose steps are counted at this tick, if any: each at one tick of
	// sampled.
	counts int
	level  [numSums]float32 // the lower one
	most   float64          // excess of a peak that counts, in units of their mean
	time   uint16           // seconds that a tick takes
	over   [numSums][2]int  // nodes above the levels
	n      int
}

// given is what a node gave the tails of its cohort.
type given struct {
	// peaks are those over each level, in the day's memory.
	peaks [numSums][numLevels]uint8
	// over are the seconds over the lower level, in the day's memory.
	over [numSums]uint16
	// great steps within the hour.
	great [low]uint8
}

// sampled is how many ticks the histogram of a sum takes one of.
const sampled = 4

func (t *tails) watch(c *CUSUM, n int, elapsed time.Duration) watch {
	w := watch{tails: t, most: mostExcess(n), time: uint16(clamp(elapsed.Seconds(), 1, math.MaxUint16/2)), counts: numSums}
	if t.ticks%(sampled/low) == 0 {
		w.counts = t.ticks / (sampled / low) % low
	}
	for j, sum := range c.sums() {
		w.level[j] = float32(t.of[j].level[0])
		if j < low {
			w.great[j] = float32(sum.Reach / 2)
		}
	}
	return w
}

// mostExcess is the excess of a peak that counts among the peaks of n nodes, in units of
// their mean. A node that gives so much with each peak moves the mean by less than a
// tenth, even with twice as many peaks as the others: by 2*(c/(1-exp(-c)) - 1)/n, since kept makes up for what healthy nodes lose.
func mostExcess(n int) float64 { return clamp(0.2+0.06*float64(n), 0.5, 3) }

// kept is the share that is left of the mean of exponential excesses when none counts for
// more than c times the mean.
func kept(c float64) float64 { return -math.Expm1(-c) }

// step takes one step of one sum.
func (w *watch) step(j int, x float32) {
	if x > w.great[j] {
		if w.given.great[j] >= w.mostGreat[j] {
			return
		}
		w.given.great[j]++
	}
	w.hist[j][binOf(x)] += sampled
}

// peak takes the greatest value of an excursion that is over.
func (w *watch) peak(j int, parts uint16) {
	t, peak := &w.of[j], float64(parts)/peakUnit
	for k, level := range t.level {
		if peak > level && w.given.peaks[j][k] < w.mostPeaks[j][k] {
			w.given.peaks[j][k]++
			t.number[k]++
			t.excess[k] += min(peak-level, w.most*t.mean[k])
		}
	}
}

// above counts a sum of a healthy node over the lower level.
func (w *watch) above(j int, sum float32) {
	spent := &w.given.over[j]
	if *spent > w.mostOver[j] {
		return
	}
	*spent += min(w.time, math.MaxUint16-*spent)
	w.over[j][0]++
	if float64(sum) > w.of[j].level[1] {
		w.over[j][1]++
	}
}

// end moves the levels by what the tick showed.
func (w *watch) end(elapsed time.Duration) {
	if w.n == 0 {
		return
	}
	w.ticks = min(w.ticks+1, 1<<30)
	w.nodeTicks += float64(w.n)
	eta := max(float64(elapsed)/float64(levelWindow), 1/float64(w.ticks+levelTicks))
	for j := range numSums {
		for k, p := range shareOver {
			share := float64(w.over[j][k]) / float64(w.n)
			level := &w.of[j].level[k]
			*level = max(*level*(1+eta*clamp((share-p)/p, -1, 3)), minLevel)
		}
	}
}

// share bounds what one of the nodes may give.
func (t *tails) share(c *CUSUM, tracks []track, slots []int32, elapsed, tick time.Duration) {
	t.hour += elapsed
	if t.hour >= time.Hour {
		t.hour = 0
		t.hours++
		keep := math.Exp(-float64(time.Hour) / float64(tailWindow))
		for _, i := range slots {
			tracks[i].given.fade(keep)
		}
	}
	for j, sum := range c.sums() {
		all, most := 0, 0
		for _, i := range slots {
			over := int(tracks[i].given.over[j])
			all += over
			most = max(most, over)
		}
		n := len(slots)
		others := float64(all-most) / float64(max(n-1, 1))
		for k := range numLevels {
			t.mostPeaks[j][k] = mostPeaks(tracks, slots, j, k)
		}
		begin := min(float64(t.hours+1)*beginOver, overTimes*beginOver)
		t.mostOver[j] = uint16(min(max(begin, float64(min(n, overTimes))*others), math.MaxUint16-1))
		if j < low {
			t.mostGreat[j] = t.usualGreat(j, sum.Reach/2, float64(time.Hour)/float64(tick)/sampled)
		}
	}
}

// mostPeaks is how many peaks of a node count: one, and twice as many as of the others.
func mostPeaks(tracks []track, slots []int32, j, k int) uint8 {
	all, most := 0, 0
	for _, i := range slots {
		peaks := int(tracks[i].given.peaks[j][k])
		all += peaks
		most = max(most, peaks)
	}
	return uint8(min(1+2*(all-most)/max(len(slots)-1, 1), math.MaxUint8))
}

// A node may be over the lower level overTimes as long as the others are, and at first
// beginOver seconds an hour.
const overTimes, beginOver = 10, 36

// usualGreat is how many great steps of a node count within an hour of so many ticks:
// twice what is usual, and a few.
func (t *tails) usualGreat(j int, great, ticks float64) uint8 {
	all, many := 0.0, 0.0
	for i, n := range t.hist[j] {
		all += float64(n)
		if firstBin+binWidth*float64(i) > great {
			many += float64(n)
		}
	}
	return uint8(clamp(2*many/max(all, 1)*ticks+fewGreat, 0, math.MaxUint8))
}

const fewGreat = 3

// fade begins a new hour.
func (g *given) fade(keep float64) {
	for j := range g.over {
		g.over[j] = uint16(float64(g.over[j]) * keep)
		for k := range g.peaks[j] {
			g.peaks[j][k] = uint8(float64(g.peaks[j][k]) * keep)
		}
	}
	g.great = [low]uint8{}
}

// fade forgets what is older than the day.
func (t *tails) fade(elapsed time.Duration) {
	keep := math.Exp(-float64(elapsed) / float64(tailWindow))
	t.nodeTicks *= keep
	for j := range t.of {
		for k := range numLevels {
			t.of[j].excess[k] *= keep
			t.of[j].number[k] *= keep
		}
	}
	for j := range t.hist {
		for i := range t.hist[j] {
			t.hist[j][i] *= float32(keep)
		}
	}
}

// expected is the mean of the peaks' excesses before any was seen: grows is by how
// much a sum's variance grows as its noise lasts.
func expected(j int, s *Sum, kappa, grows float64) float64 {
	mu := grows / (2 * kappa)
	switch j {
	case loud:
		return clamp(mu, s.Reach/2, 3*s.Reach)
	case mid:
		return max(mu, s.Reach/2)
	}
	return mu
}

// start is for a cohort that nothing is known of.
func (t *tails) start(s *steps, grows *[numSums]float64) {
	for j, sum := range s.c.sums() {
		mu := expected(j, sum, float64(s.kappa[j]), grows[j])
		t.of[j].level, t.of[j].mean = [numLevels]float64{mu, 3 * mu, sum.Reach}, [numLevels]float64{mu, mu, mu}
		if j < low {
			h := &t.hist[j]
			for i := range h {
				x := firstBin + binWidth*float64(i)
				from, to := x-binWidth/2+float64(s.kappa[j]), x+binWidth/2+float64(s.kappa[j])
				if i == 0 {
					from = math.Inf(-1)
				}
				if i == bins-1 {
					to = math.Inf(1)
				}
				h[i] = float32(priorTicks * (1 - priorGlitch) * (normal(to) - normal(from)))
			}
			h[binOf(float32(sum.Reach))] += priorTicks * priorGlitch
		}
	}
}

// normal is the distribution function of the normal law.
func normal(z float64) float64 { return math.Erfc(-z/math.Sqrt2) / 2 }

// limits are what the sums of the cohort's n nodes reach once in falseAlarm.
func (t *tails) limits(s *steps, grows *[numSums]float64, n int, elapsed time.Duration) (h [numSums]float64) {
	left := kept(mostExcess(n))
	few := clamp(float64(n)/16, 0.3, 1)
	rare := float64(falseAlarm) / float64(elapsed) // in node-ticks
	for j, sum := range s.c.sums() {
		of := &t.of[j]
		mu0 := expected(j, sum, float64(s.kappa[j]), grows[j])
		rarely := [numLevels]float64{}
		for k, level := range of.level {
			prior := priorPeaks[k] * few
			of.mean[k] = (of.excess[k]/left + prior*mu0) / (of.number[k] + prior)
			rate := (of.number[k] + 3) / (t.nodeTicks + 300)
			rarely[k] = level + of.mean[k]*max(1, math.Log(rate*rare))
		}
		if of.number[1] >= enoughPeaks {
			rarely[0] = max(rarely[0], rarely[1])
		}
		if j == loud && of.level[reachedLevel] > of.level[0] {
			// Glitches of one tick are all alike: they say little of what several ticks reach.
			rarely[0] = min(rarely[0], rarely[reachedLevel])
		}
		h[j] = max(sum.MinLimit, rarely[0])
		if j < low {
			of.theta = root(&t.hist[j], of.theta)
			h[j] = max(h[j], math.Log(rare)/of.theta)
		}
		h[j] = min(h[j], maxLimit)
	}
	return h
}

// maxLimit is beyond what any fault needs, and minTheta what it comes from.
const maxLimit, minTheta, maxTheta = 1000.0, 0.01, 20.0

// root is the theta > 0 at which the mean of exp(theta*x) is 1: a sum's maxima fall by
// exp(-theta) a unit (Wald's identity). near is where to look first.
func root(h *[bins]float32, near float64) float64 {
	total, sum := 0.0, 0.0
	for i, n := range h {
		total += float64(n)
		sum += float64(n) * (firstBin + binWidth*float64(i))
	}
	if !(total > 0) || sum >= 0 {
		return minTheta
	}
	// g is the logarithm of the mean, which is convex: 0 at 0, then below, then above.
	g := func(theta float64) (value, slope float64) {
		q := math.Exp(theta * binWidth)
		f, d := 0.0, 0.0
		for i := bins - 1; i >= 0; i-- {
			f = f*q + float64(h[i])
			d = d*q + float64(h[i])*(firstBin+binWidth*float64(i))
		}
		return math.Log(f/total) + theta*firstBin, d / f
	}
	theta := clamp(near, 0.5, maxTheta)
	value, slope := g(theta)
	for range 8 {
		if value >= 0 || theta >= maxTheta {
			break
		}
		theta = min(2*theta, maxTheta)
		value, slope = g(theta)
	}
	for range 12 { // from above, Newton's steps never pass it
		if value <= 1e-4 || slope <= 0 {
			break
		}
		theta -= value / slope
		value, slope = g(theta)
	}
	return clamp(theta, minTheta, maxTheta)
}
