// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// parting is how a large part of a cohort left the rest. The side that stayed where all
// were before is the yardstick for both: the upper one when a part fell, the lower one
// when a part became faster, which is no fault.
type parting struct {
	on, lower bool          // lower: the yardstick is the lower side
	lasts     time.Duration // for how long there were parts, less the time without
	since     int64         // it is on, unix milliseconds
	cut       float64       // between the sides, as of when they were seen last
	back      bool          // all had fallen before there were parts: a part comes back
}

// A part that left is leastLeft to mostLeft of the nodes: less is found by the median,
// and of more too few are left to tell by.
const leastLeft, mostLeft = 0.3, 0.75

// leastYard nodes can be a yardstick.
const leastYard = 2

// partedBy is how many times the spread on either side must lie between the sides'
// medians: the halves of a normal distribution are 2.2 apart, those of a uniform one 2.7.
const partedBy = 4

// inTwo returns how many of the sorted values are on the lower side, when they are cut
// where the variance between the sides is greatest (Otsu 1979).
func inTwo(sorted []float64) (lower int) {
	total, n := 0.0, float64(len(sorted))
	for _, v := range sorted {
		total += v
	}
	sum, most := 0.0, 0.0
	for k, v := range sorted[:len(sorted)-1] {
		sum += v
		a := float64(k + 1)
		apart := sum/a - (total-sum)/(n-a)
		if between := a * (n - a) * apart * apart; between > most {
			lower, most = k+1, between
		}
	}
	return lower
}

// middle of sorted values.
func middle(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// apart reports whether sorted values, the first k of them on the lower side, lie in two
// sides. They are greater where they are better; gap and floor are the least distance of
// the sides and spread of either. It returns the sides' middles. The values of few may
// lie so by chance, but not with as much of nothing between the sides as they spread:
// empty is the share of that which is needed.
func (b *scratch) apart(sorted []float64, k int, gap, floor, empty float64) (bottom, top float64, ok bool) {
	if k == 0 || k == len(sorted) {
		return 0, 0, false
	}
	low, high := sorted[:k], sorted[k:]
	bottom, top = middle(low), middle(high)
	spread := max(b.around(low, bottom), b.around(high, top), floor)
	return bottom, top, top-bottom > max(gap, partedBy*spread) && high[0]-low[k-1] > empty*spread
}

// look follows the sides of sorted values; usual is where all were before.
func (p *parting) look(b *scratch, sorted []float64, usual, gap, floor float64, after, elapsed time.Duration, at int64) {
	n, seen := len(sorted), false
	if p.on && n > 0 {
		// Sides that are told apart stay so in another phase of the work, and whatever
		// a few of their nodes do.
		k, _ := slices.BinarySearch(sorted, p.cut)
		if _, _, seen = b.apart(sorted, k, gap, floor, 0); !seen {
			k = inTwo(sorted)
			_, _, seen = b.apart(sorted, k, gap, floor, 1)
		}
		if seen = seen && p.large(k, n); seen {
			p.cut = (sorted[k-1] + sorted[k]) / 2
		}
	} else if n > 0 {
		k := inTwo(sorted)
		bottom, top, ok := b.apart(sorted, k, gap, floor, 1)
		near, far := math.Abs(top-usual), math.Abs(bottom-usual)
		lower := far < near
		if lower != p.lower {
			p.lower, p.lasts = lower, 0
		}
		if seen = ok && p.large(k, n) && min(near, far) < max(near, far)/2; seen {
			p.cut = (sorted[k-1] + sorted[k]) / 2
		}
	}
	if seen {
		p.lasts = min(p.lasts+elapsed, after)
		if p.lower {
			p.lasts = after // nobody may be blamed for it meanwhile
		}
	} else {
		p.lasts = max(p.lasts-elapsed, 0)
	}
	switch {
	case p.on && p.lasts == 0:
		*p = parting{}
	case !p.on && p.lasts >= after:
		p.on, p.since = true, at
	}
}

// large reports whether the part that left, with k of n values on the lower side, is one
// of many nodes, and enough stayed.
func (p *parting) large(k, n int) bool {
	if p.lower {
		k = n - k
	}
	share := float64(k) / float64(n)
	return share >= leastLeft && share <= mostLeft && n-k >= leastYard
}

// around is the robust standard deviation of values around a centre.
func (b *scratch) around(x []float64, centre float64) float64 {
	b.bits = deviations(b.bits[:0], x, centre)
	return MADToSigma * median(b.bits) * smallSample(len(x))
}

// part looks whether a large part of the gathered members of a cohort left the rest,
// and gathers the values and biases of the yardstick then.
func (e *Engine) part(g *group, s nodesignal.Signal, t *estimator) {
	spec, p, tracks := &e.cfg.Signals[s], &t.parting, g.signals[s].tracks
	e.yard = e.yard.none()
	level := e.unit(s, t.usual)
	if t.usualTicks < LeastWarmTicks || len(e.slots) < e.cfg.MinPeers || !(level > minScale) {
		*p = parting{}
		return
	}
	unit, offset := float64(spec.Direction)/level, t.offset
	e.rest = e.rest[:0]
	away := 0
	for _, i := range e.slots {
		v := float64(tracks[i].short)*unit - float64(tracks[i].bias) + offset
		e.rest = append(e.rest, v)
		if math.Abs(v-t.usual*unit) > spec.MinGap/2 {
			away++
		}
	}
	if float64(away) < leastLeft/2*float64(len(e.rest)) {
		e.rest = e.rest[:0] // to sort them all at each tick takes too long
	}
	slices.Sort(e.rest)
	after := e.cfg.Incident.PartAfter
	if p.lasts == 0 {
		p.back = t.low > 0 && e.at-t.lowSince >= after.Milliseconds()
	}
	if p.back {
		after *= 4
	}
	p.look(&e.scratch, e.rest, t.usual*unit, spec.MinGap, e.cfg.Estimator.MinScale*spec.MinGap, after, e.elapsed, e.at)
	if !p.on {
		return
	}
	for _, i := range e.slots {
		v := float64(tracks[i].short)*unit - float64(tracks[i].bias) + offset
		if (v < p.cut) == p.lower && g.members[i].fresh.has(s) {
			e.yard.x, e.yard.y = append(e.yard.x, g.signals[s].x[i]), append(e.yard.y, g.signals[s].y[i])
			e.yard.bias = append(e.yard.bias, float64(tracks[i].bias))
		}
	}
}
