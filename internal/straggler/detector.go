// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/robust"
)

// The detector's constants are in seconds, in ticks, in MADs, or in shares of the
// signal's `min_gap` (5 % for throughput). `make eval` measures what they do together.
const (
	windows = 4
	nature  = windows - 1 // the window that holds how a node always differs

	// floor is the least spread that nodes are taken to have: counters differ by as much.
	floor = 0.1
	// clip bounds what one tick adds, in spreads: one glitch is no loss. surge bounds what
	// one tick adds to the spread: a fault of many is no noise.
	clip, surge = 3.5, 4
	// spreadWindow is the EMA of a tick's spread.
	spreadWindow = 30 * 60
	// One of a thousand deviations is above the level u. For normal noise that is
	// 3.3 MADs. Heavier tails raise the limit, from leastTail to mostTail times u.
	tailShare, normalTail, leastTail, mostTail = 0.001, 3.3, 1.5, 2.5
	// holdTicks above the limit make an onset: two glitches in a row are none.
	holdTicks = 3
	// leaveAfter of calm ends a verdict.
	leaveAfter = 3 * 60
	// A node is compared after warmTicks, and after lateAge where it came to a group that
	// is older than settled: its caches are cold while those of the others are not.
	warmTicks, lateAge, settled = 6, 5 * 60, 15 * 60
)

var (
	// window is the time constant of each EMA: the first finds large losses in three
	// ticks, each longer one finds smaller losses.
	window = [windows]float64{20, 2 * 60, 10 * 60, 60 * 60}
	// leastLoss is the smallest loss that counts in each window.
	leastLoss = [windows]float64{1.2, 0.6, 0.3, 0.3}
	// mads is how many MADs of the peers' equally smoothed deviations a loss exceeds: a
	// tenth above what gives one false look in 10,000 node-days of normal noise.
	mads = [windows]float64{6, 5.8, 5.5, 5}
)

// track is what is kept of one node and signal. A level is the logarithm of a rate, or a
// fraction as it is; less of it is worse. A deviation is of levels, > 0 is a loss.
type track struct {
	x, y    float64          // value in the signal's unit, and its level
	r       float32          // deviation from the peers' median at this tick
	e       [windows]float32 // its EMAs
	fast    float32          // its 2 min mean, hardly clipped
	mean    float32          // 15 min mean of y
	age     float32          // seconds in which it was told
	loss    float32          // mean of r without the nature, since it went over a limit
	peak    float32          // of the deviation that made it a straggler
	calm    float32          // seconds that it has been well since
	hot     [windows]float32 // share of two hours above the level u
	quiet   [windows]uint32  // when it was last below a third of the limit, unix seconds
	over    [windows]uint8   // ticks running above the limit
	run     uint8            // ticks running above any limit
	ticks   uint8            // told since it came
	ahead   uint8            // ticks above its own mean while the others stayed
	same    uint8            // ticks with the very same value
	stale   float32          // seconds without news
	by      uint8            // the window that flagged it
	flagged bool
	met     bool // the mean has begun
}

// deviation in one window: what the longest holds is taken off the shorter ones.
func (t *track) deviation(w int) float64 {
	if w == nature {
		return float64(t.e[nature])
	}
	return float64(t.e[w] - t.e[nature])
}

// beyond is how far something is beyond the node's nature, once a window flagged it.
func (t *track) beyond(r float32) float64 {
	if t.by == nature {
		return float64(r)
	}
	return float64(r - t.e[nature])
}

// rest is for a node that was away: its nature stays, since it is still that node.
func (t *track) rest() {
	n := t.e[nature]
	*t = track{x: t.x, y: t.y, e: [windows]float32{n, n, n, n}, fast: n, mean: t.mean, age: t.age, hot: t.hot, same: t.same, met: t.met}
}

// normal is what is usual in one signal among nodes whose levels can be compared.
type normal struct {
	n         int              // nodes compared, 0 where they are too few
	centre    float64          // median level of the reference
	s         float64          // EMA of a tick's spread
	moves     float64          // EMA of what the centre moves by in a tick
	age       float64          // seconds
	lacks     float64          // seconds with too few nodes
	ticks     int              //
	d, filled [windows]float64 // mean spread of equally smoothed deviations, and the seconds in it
	u         [windows]float64 // level that one of a thousand exceeds
	limit     [windows]float64
	part      part
}

// hear follows the means of a signal, and for how long it is told.
func (e *Engine) hear(g *group, s nodesignal.Signal) {
	for i := range g.members {
		m, t := &g.members[i], &g.tracks[s][i]
		switch {
		case m.state != nodesignal.StateActive || !m.known.Has(s):
			continue
		case !m.fresh.Has(s):
			e.outdated(g, i, s)
			continue
		case t.met:
			t.age += float32(e.dt)
		default:
			t.mean, t.met = float32(t.y), true
		}
		t.stale, t.ticks = 0, max(t.ticks, t.ticks+1)
		if !t.flagged {
			t.mean += float32(e.dt) / clamp(t.age, 1, 900) * clamp(float32(t.y)-t.mean, -3, 3)
		}
	}
}

// warm reports whether a node can be compared.
func (g *group) warm(t *track) bool {
	return t.ticks >= warmTicks && (g.age <= settled || t.age >= lateAge)
}

// compare is one tick of one signal among the nodes of one level.
func (e *Engine) compare(g *group, s nodesignal.Signal, level uint8) {
	l, tracks, gap := g.levels[level].of(s), g.tracks[s], e.cfg.Signals[s].MinGap
	e.gather(g, s, level)
	if l.n = len(e.slots); l.n < e.cfg.MinPeers {
		l.n = 0
		l.lacks += e.dt
		for _, i := range e.slots {
			if t := &tracks[i]; l.lacks > e.cfg.TTL.Seconds() {
				t.flagged = false
				g.members[i].flags |= flagFewPeers
			} else {
				e.stands(g, int(i), s) // one late push is no news
			}
		}
		return
	}
	l.lacks = 0
	ref := e.reference(tracks, l)

	// The peers' middle, and their spread at this tick.
	before := l.centre
	e.values = e.values[:0]
	for _, i := range ref {
		e.values = append(e.values, tracks[i].y)
	}
	l.centre = e.sample.Level(e.values)
	small := robust.MADToSigma * robust.SmallSample(len(ref))
	tick := small * e.sample.MAD(e.values, l.centre)
	l.ticks++
	l.age += e.dt
	weight := max(e.dt/spreadWindow, 1/float64(l.ticks))
	l.s += weight * (min(tick, surge*max(l.s, floor*gap)) - l.s)
	if l.ticks > 1 {
		l.moves += weight * (min(math.Abs(l.centre-before), gap) - l.moves)
	}
	spread := max(l.s, floor*gap, tick)

	// Each node's deviation, smoothed over the windows.
	for _, i := range e.slots {
		t := &tracks[i]
		r := l.centre - t.y
		t.r = float32(r)
		for w := range windows {
			if w == nature && t.flagged {
				continue // a loss is not the node's nature
			}
			bound := max(clip*spread, 2*leastLoss[w]*gap)
			if l.age < window[nature] { // a young limit may be high: what exceeds it must fit
				bound = max(bound, 1.5*l.limit[w])
			}
			t.e[w] += float32(e.weight[w] * (clamp(r, -bound, bound) - float64(t.e[w])))
		}
		t.fast += float32(e.weight[1] * (clamp(r, -3, 3) - float64(t.fast)))
	}
	for w := range windows {
		e.limit(l, tracks, ref, w, small, gap)
	}
	for _, i := range e.slots {
		e.judge(g, int(i), s, l, spread)
	}
	e.follow(&l.part, tracks, l.centre, gap)
}

// limit learns what the peers' equally smoothed deviations do, and what exceeds them.
func (e *Engine) limit(l *normal, tracks []track, ref []int32, w int, small, gap float64) {
	e.values = e.values[:0]
	over := 0.0
	for _, i := range ref {
		t := &tracks[i]
		x := t.deviation(w)
		e.values = append(e.values, x)
		hot := 0.0
		if math.Abs(x) > l.u[w] && t.over[w] == 0 {
			hot = 1
		}
		if t.hot[w] < 0.01 { // who is above it for a minute of two hours counts no more
			over += hot
		}
		t.hot[w] += float32(e.dt / 7200 * (hot - float64(t.hot[w])))
	}
	d := small * e.sample.MAD(e.values, 0)
	if l.age < 1.5*window[w] || l.ticks < 2*warmTicks {
		// Too young to tell: what a tick's spread is in a mean of independent ticks.
		l.d[w] = max(d, 1.5*max(l.s, floor*gap)*math.Sqrt(min(1, (e.dt+1)/window[w])))
		l.u[w] = normalTail * l.d[w]
	} else {
		l.filled[w] += e.dt
		l.d[w] += e.dt / clamp(l.filled[w], 60, max(3600, 6*window[w])) * (min(d, surge*l.d[w]) - l.d[w])
		excess := clamp(over/float64(len(ref))/tailShare-1, -1, 30)
		l.u[w] *= math.Exp(min(1, e.dt/clamp(l.age, 3600, 6*3600)) * excess)
	}
	l.u[w] = max(l.u[w], 2*l.d[w])
	tail := clamp(1.6+(l.u[w]/l.d[w]-normalTail)/4, leastTail, mostTail)
	l.limit[w] = max(leastLoss[w]*gap, mads[w]*max(l.d[w], d), tail*l.u[w])
}

// judge begins and ends the verdict on one node by one signal.
func (e *Engine) judge(g *group, i int, s nodesignal.Signal, l *normal, spread float64) {
	m, t, spec := &g.members[i], &g.tracks[s][i], &e.cfg.Signals[s]
	hit, above, suspicion := -1, false, 0.0
	for w := range windows {
		x, lived := t.deviation(w), float64(t.age) >= 1.5*window[w]
		if !lived || x <= l.limit[w] || t.r <= 0 {
			t.over[w] = 0
		} else {
			above = true
			if t.over[w] = min(t.over[w]+1, holdTicks); t.over[w] == holdTicks {
				hit = w
			}
		}
		if lived {
			suspicion = max(suspicion, x/l.limit[w])
		}
		if x < l.limit[w]/3 {
			t.quiet[w] = uint32(e.at / 1000)
		}
	}
	switch {
	case l.lockstep(spec.MinGap):
		m.flags |= flagLockstep
		hit, suspicion = -1, 0
	case g.split.silent():
		hit, suspicion = -1, 0
	case s == nodesignal.Throughput && t.same >= stuckTicks && !t.flagged:
		m.flags |= flagJudged // it is the peers that moved: nobody measures this one
		if hit >= 0 && t.run == holdTicks-1 {
			e.counters.Stuck++
		}
		hit, suspicion = -1, 0
	default:
		m.flags |= flagJudged
	}
	if !above && !t.flagged {
		t.run, t.by, t.loss = 0, 0, t.fast-t.e[nature]
	} else {
		t.run = max(t.run, t.run+1)
		t.loss += float32(max(e.dt/window[1], 1/float64(t.run)) * (t.beyond(t.r) - float64(t.loss)))
	}
	if !t.flagged && hit >= 0 {
		t.flagged, t.by, t.calm, t.peak = true, uint8(hit), 0, float32(t.deviation(hit))
		if hit == nature {
			t.loss = t.fast
		}
	} else if t.flagged {
		t.peak = max(t.peak, float32(t.deviation(int(t.by))))
		t.calm += float32(e.dt)
		if t.beyond(t.fast) >= max(float64(t.peak)/3, spread/2) {
			t.calm = 0
		}
		if t.calm >= leaveAfter {
			t.flagged, t.over, t.run = false, [windows]uint8{}, 0
			t.e[nature] = min(t.e[nature], t.fast)
			for w := range nature { // what is left of the loss is none
				t.e[w] = min(t.e[w], t.e[nature])
			}
		}
	}
	m.suspect(s, min(suspicion, 2), t, spec)
}

// suspect keeps the signal that speaks most against a member: a verdict before none,
// then the greatest loss in terms of what is worth an alert.
func (m *member) suspect(s nodesignal.Signal, suspicion float64, t *track, spec *nodesignal.Spec) {
	gap := spec.Loss(float64(t.loss))
	weight := float32(gap / spec.MinGap)
	if t.flagged {
		m.flags |= flagSlow
		weight += 1e6
	} else if suspicion == 0 {
		return
	}
	if m.signal == nodesignal.Score || weight > m.weight {
		m.signal, m.gap, m.weight = s, float32(gap), weight
	}
	m.suspicion = max(m.suspicion, float32(suspicion))
}

// lockstep reports whether all nodes wait for the slowest: they differ by less than
// clocks do, 0.1 %, and by less than a fifth of what they move together. Then nobody
// stands out, whoever is slow.
func (l *normal) lockstep(gap float64) bool {
	return l.age >= window[2] && l.s < gap/50 && l.s < l.moves/5
}

// detectable is the smallest deviation that some window exceeds within an hour. A window
// holds at most reach of a loss, since the nature follows it.
func (l *normal) detectable() float64 {
	best := l.limit[nature] / (1 - math.Exp(-1))
	for w := range nature {
		ratio := window[nature] / window[w]
		reach := (1 - 1/ratio) * math.Pow(ratio, -1/(ratio-1))
		best = min(best, l.limit[w]/reach)
	}
	return best
}

func clamp[T float32 | float64](x, low, high T) T { return min(max(x, low), high) }
