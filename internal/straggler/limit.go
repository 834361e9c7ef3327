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
type tails struct {
	of [numSums]tail
	// hist counts the steps of the loud and the mid sum, in bins of binWidth.
	hist [low][bins]float32
	// ticks so far, and node-ticks in the day's memory.
	ticks     int
	nodeTicks float64
}

// tail of one sum: what of its excursions exceeds two levels.
type tail struct {
	level          [2]float64 // exceeded on the shares of shareOver
	excess, number [2]float64 // of the peaks over it, in the day's memory
	theta          float64
}

// shareOver are the shares of node-ticks at which a sum exceeds the two levels, and
// priorPeaks how many peaks of the expected size each level begins with.
var (
	shareOver  = [2]float64{0.01, 0.001}
	priorPeaks = [2]float64{60, 20}
)

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
	falseAlarm  = 10_000 * 24 * time.Hour
	giveMinutes = 60
)

// Bins of the steps of a sum. The middle of one lies on each whole step.
const (
	bins, binWidth, firstBin = 49, 0.25, -6.0
	// priorTicks of normal noise, with a share priorGlitch of glitches, are in the
	// histogram at first.
	priorTicks, priorGlitch = 3000.0, 0.001
)

func binOf(x float64) int { return min(max(int((x-firstBin)/binWidth+0.5), 0), bins-1) }

// watch learns from the steps of one tick.
type watch struct {
	*tails
	sums  [numSums]*Sum
	given *given          // of the node that steps
	over  [numSums][2]int // nodes above the levels
	n     int
}

// tick takes one step of one sum.
func (w *watch) tick(j int, x float64) {
	if j < low {
		w.hist[j][binOf(x)]++
	}
}

// peak takes the greatest value of an excursion that is over. Of a node's peaks within
// an hour the greatest counts: none makes the limit of all.
func (w *watch) peak(j int, peak float64) {
	t, was := &w.of[j], 0.0
	if w.given.minutes[j] > 0 {
		was = float64(w.given.peak[j]) / givenUnit
	}
	if peak <= t.level[0] || peak <= was {
		return
	}
	for k, level := range t.level {
		if peak <= level {
			break
		}
		most := 2 * w.sums[j].Reach
		if t.number[k] > 0 {
			most = max(most, 5*t.excess[k]/t.number[k])
		}
		t.excess[k] += min(peak-level, most)
		if was > level {
			t.excess[k] = max(t.excess[k]-min(was-level, most), 0)
		} else {
			t.number[k]++
		}
	}
	w.given.peak[j] = uint16(min(peak*givenUnit, math.MaxUint16))
	if w.given.minutes[j] == 0 {
		w.given.minutes[j] = giveMinutes
	}
}

// given are the greatest peaks that a node gave the sums' tails within an hour, in parts
// of givenUnit, and the minutes until each hour is over.
type given struct {
	peak    [numSums]uint16
	minutes [numSums]uint8
}

const givenUnit = 32

// node counts a healthy node's sums once they have stepped.
func (w *watch) node(t *Tracker) {
	w.n++
	for j := range numSums {
		s, level := float64(t.sum[j]), &w.of[j].level
		if s > level[0] {
			w.over[j][0]++
			if s > level[1] {
				w.over[j][1]++
			}
		}
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
			e := eta * clamp((share-p)/p, -1, 3)
			level := &w.of[j].level[k]
			*level = max(*level*math.Exp(e), minLevel)
		}
	}
}

// fade forgets what is older than the day.
func (t *tails) fade(elapsed time.Duration) {
	keep := math.Exp(-float64(elapsed) / float64(tailWindow))
	t.nodeTicks *= keep
	for j := range t.of {
		for k := range shareOver {
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
		mu := expected(j, sum, s.kappa[j], grows[j])
		t.of[j].level = [2]float64{mu, 3 * mu}
		if j < low {
			h := &t.hist[j]
			for i := range h {
				x := firstBin + binWidth*float64(i)
				from, to := x-binWidth/2+s.kappa[j], x+binWidth/2+s.kappa[j]
				if i == 0 {
					from = math.Inf(-1)
				}
				if i == bins-1 {
					to = math.Inf(1)
				}
				h[i] = float32(priorTicks * (1 - priorGlitch) * (normal(to) - normal(from)))
			}
			h[binOf(sum.Reach)] += priorTicks * priorGlitch
		}
	}
}

// normal is the distribution function of the normal law.
func normal(z float64) float64 { return math.Erfc(-z/math.Sqrt2) / 2 }

// limits are what the sums of the cohort's nodes reach once in falseAlarm.
func (t *tails) limits(s *steps, grows *[numSums]float64, elapsed time.Duration) (h [numSums]float64) {
	rare := float64(falseAlarm) / float64(elapsed) // in node-ticks
	for j, sum := range s.c.sums() {
		of := &t.of[j]
		mu0 := expected(j, sum, s.kappa[j], grows[j])
		h[j] = sum.MinLimit
		for k, level := range of.level {
			if k > 0 && of.number[k] < enoughPeaks {
				break
			}
			mu := (of.excess[k] + priorPeaks[k]*mu0) / (of.number[k] + priorPeaks[k])
			rate := (of.number[k] + 3) / (t.nodeTicks + 300)
			h[j] = max(h[j], level+mu*max(1, math.Log(rate*rare)))
		}
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
