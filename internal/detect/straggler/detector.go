// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"cmp"
	"math"

	"github.com/gpu-collector/gpu-collector/internal/detect/robust"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

// The detector's constants are in seconds, in ticks, in MADs, or in shares of the
// signal's `min_gap` (5 % for throughput). `make eval` measures what they do together.
const (
	windows  = 4
	baseline = windows - 1 // the window that holds how a node always differs

	// floor is the least spread that nodes are taken to have: counters differ by as much.
	floor = 0.1
	// clip bounds what one tick adds, in spreads: one glitch is no loss. surge bounds what
	// one tick adds to the spread: a fault of many is no noise.
	clip, surge = 3.5, 4
	// room is how many of the smallest losses one tick may add where nodes hardly differ.
	room = 4
	// hold is by how much more than its limit a window can hold. Where nodes always differ,
	// the limit is above what clip lets in until their baseline is known.
	hold = 1.1
	// One of a thousand deviations is above the level u, for normal noise 3.3 MADs. A loss is
	// above beyondTail times that level.
	tailShare, normalTail, beyondTail = 0.001, 3.3, 1.75
	// holdTicks above the limit make an onset: two glitches in a row are none.
	holdTicks = 3
	// leaveAfter of calm ends a verdict.
	leaveAfter = 3 * 60
	// The limits of a group are guessed for twice warmTicks. A node that comes later waits
	// warmTicks, and lateAge in a group older than settled: only its own caches are cold.
	warmTicks, lateAge, settled = 6, 5 * 60, 15 * 60
	// A node has limits of its own if it leaps ahead by 2.5 MADs in more than this part of its
	// time. A node with its peers' normal noise does so in less than 1 %.
	restless = 0.015
)

var (
	// window is the time constant of each EMA: each longer one finds smaller losses.
	window = [windows]float64{20, 2 * 60, 10 * 60, 60 * 60}
	// leastLoss is the smallest loss that counts in each window, twice that in a young group.
	leastLoss = [windows]float64{0.6, 0.4, 0.3, 0.3}
	// mads is how many MADs of the peers' equally smoothed deviations a loss exceeds:
	// about what gives one false look in 10,000 node-days of normal noise.
	mads = [windows]float64{5.6, 5.2, 5, 5}
)

// track is what is kept of one node and signal. A level is the logarithm of a rate, or a
// fraction as it is; less of it is worse. A deviation is of levels, > 0 is a loss.
type track struct {
	X, Y     float64          // value in the signal's unit, and its level
	R        float32          // deviation from the peers' median at this tick
	E        [windows]float32 // its EMAs
	Fast     float32          // its 2 min mean, hardly clipped
	Mean     float32          // 15 min mean of y
	Age      float32          // seconds with a report
	Loss     float32          // mean of r without the baseline, since it went over a limit
	Peak     float32          // of the deviation that made it a straggler
	Suspect  float32          // deviation by the limit, in [0,2], at its last value
	Calm     float32          // seconds that it has been well since
	Hot      [windows]float32 // share of two hours above the level u
	Sum      [windows]uint16  // by how much it was lately above half the limit, see rises
	LastZero [windows]uint32  // when that was last nothing, unix seconds
	Over     [windows]uint8   // ticks running above the limit
	Run      uint8            // ticks running above any limit
	Ticks    uint8            // ticks with a report since it came
	Ahead    uint8            // ticks above its own mean while the others stayed
	Same     uint8            // ticks with the very same value
	Fell     bool             // with that value the node was behind at once
	Stale    float32          // seconds without a report
	By       uint8            // the window that flagged it
	Flagged  bool
	Met      bool    // the mean has begun
	Climbed  bool    // counted in Climbers
	Leaps    float32 // share of the last six hours in which it leapt ahead
}

// deviation in one window: what the longest holds is taken off the shorter ones.
func (t *track) deviation(w int) float64 {
	if w == baseline {
		return float64(t.E[baseline])
	}
	return float64(t.E[w] - t.E[baseline])
}

// beyond is how far something is beyond the node's baseline, once a window flagged it.
func (t *track) beyond(r float32) float64 {
	if t.By == baseline {
		return float64(r)
	}
	return float64(r - t.E[baseline])
}

// rest is for a node that was away: its baseline stays, since it is still that node.
func (t *track) rest() {
	n := t.E[baseline]
	*t = track{X: t.X, Y: t.Y, E: [windows]float32{n, n, n, n}, Fast: n, Mean: t.Mean, Age: t.Age, Hot: t.Hot, Leaps: t.Leaps, Same: t.Same, Fell: t.Fell, Met: t.Met}
}

// forget is for a signal that has ended: if it comes back low, that began then.
func (t *track) forget(at int64) {
	q := uint32(at / 1000)
	*t = track{LastZero: [windows]uint32{q, q, q, q}}
}

// rises follows when a loss began: when the sum of what exceeds half the limit was last
// nothing (Page, Biometrika 41, 1954). A glitch counts for as long as the window at most.
func (t *track) rises(limit *[windows]float64, at int64, dt float64) {
	for w := range windows {
		x := float64(t.R)
		if w != baseline {
			x -= float64(t.E[baseline])
		}
		sum := float64(t.Sum[w]) + (2*x/limit[w]-1)*dt/window[w]*math.MaxUint16
		if sum <= 0 && 2*x <= limit[w] {
			t.LastZero[w] = uint32(at / 1000)
		}
		t.Sum[w] = uint16(clamp(sum+0.5, 0, math.MaxUint16))
	}
}

// normal is what is usual in one signal among nodes whose levels can be compared.
type normal struct {
	N        int              // nodes compared, 0 where they are too few
	Centre   float64          // median level of the reference
	S        float64          // EMA of a tick's spread
	Moves    float64          // EMA of what the centre moves by in a tick
	Age      float64          // seconds
	TooFew   float64          // seconds with too few nodes
	Ticks    int              //
	Skipped  uint8            // ticks running that were left out
	Step     float64          // the smallest rise of a value while most values were equal
	Climbers int              // nodes whose values rose so
	Shift    [windows]float64 // median of the peers' deviations: what moved all is no loss
	D        [windows]float64 // mean spread of equally smoothed deviations
	U        [windows]float64 // level that one of a thousand exceeds
	Limit    [windows]float64
	Part     part
}

// takeValues follows the means of a signal, and for how long it is reported.
func (e *Engine) takeValues(g *group, s nodesignal.Signal) {
	for i := range g.members {
		m, t := &g.members[i], &g.tracks[s][i]
		switch {
		case m.state != nodesignal.StateActive || !m.known.Has(s):
			continue
		case !m.fresh.Has(s):
			e.outdated(g, i, s)
			continue
		case t.Met:
			t.Age += float32(e.dt)
		default:
			t.Mean, t.Met = float32(t.Y), true
			if e.pop.alike && g.age <= lookEach { // all are cold together
				t.Ticks = warmTicks
			}
		}
		t.Stale, t.Ticks = 0, max(t.Ticks, t.Ticks+1)
		if !t.Flagged {
			t.Mean += float32(e.dt) / clamp(t.Age, 1, 900) * clamp(float32(t.Y)-t.Mean, -3, 3)
		}
	}
}

// wait is the seconds until a node can be compared.
func (e *Engine) wait(g *group, t *track) float64 {
	left := float64(e.pop.warmTicks-min(t.Ticks, e.pop.warmTicks)) * max(e.dt, 1)
	if g.age > settled {
		left = max(left, lateAge-float64(t.Age))
	}
	return max(left, 0)
}

// compare is one tick of one signal among the nodes of one level.
func (e *Engine) compare(g *group, s nodesignal.Signal, level uint8) {
	l, tracks := &g.levels[level].Signals[s], g.tracks[s]
	gap := e.cfg.Signals[s].MinGap
	e.gather(g, s, level)
	if l.N = len(e.slots); l.N < e.cfg.MinPeers {
		l.N = 0
		l.TooFew += e.dt
		for _, i := range e.slots {
			if t := &tracks[i]; l.TooFew > e.cfg.TTL.Seconds() {
				t.Flagged = false
				g.members[i].flags |= flagFewPeers
			} else if e.stands(g, int(i), s); g.members[i].flags&flagJudged == 0 { // one late push changes nothing
				g.members[i].flags |= flagFewPeers
			}
		}
		return
	}
	l.TooFew = 0
	ref := e.reference(tracks, l)

	// The peers' middle, and their spread at this tick.
	before := l.Centre
	e.values = e.values[:0]
	for _, i := range ref {
		e.values = append(e.values, tracks[i].Y)
	}
	l.Centre = e.sample.Level(e.values)
	small := robust.MADToSigma * robust.SmallSample(len(ref))
	for k, i := range ref {
		e.values[k] = tracks[i].Y + float64(e.pop.baseline*tracks[i].E[baseline])
	}
	tick := small * e.sample.MAD(e.values, l.Centre)
	if l.Ticks > warmTicks && l.Skipped < e.pop.maxSkipped && tick > surge*max(l.S, floor*gap) {
		l.Skipped++
		for _, i := range e.slots {
			e.stands(g, int(i), s)
		}
		return
	}
	l.Skipped = 0
	l.Ticks++
	l.Age += e.dt
	weight := max(e.dt/1800, 1/float64(l.Ticks)) // half an hour
	l.S += weight * (min(tick, surge*max(l.S, floor*gap)) - l.S)
	if l.Ticks > 1 {
		l.Moves += weight * (min(math.Abs(l.Centre-before), gap) - l.Moves)
	}
	spread := max(l.S, floor*gap, tick)

	// Each node's deviation, smoothed over the windows.
	for _, i := range e.slots {
		t := &tracks[i]
		r := l.Centre - t.Y
		if rise := t.Y - before + float64(t.R); tick == 0 && rise > 1e-6 && !t.Flagged { // a fault falls
			l.Step = min(rise, cmp.Or(l.Step, rise))
			if !t.Climbed {
				t.Climbed = true
				l.Climbers++
			}
		}
		t.R = float32(r)
		known, young := float64(t.E[baseline]), float64(t.Age) < e.pop.young
		for w := range windows {
			if w == baseline && (t.Flagged || young && r > obvious(gap, spread)) {
				continue // a loss is not the node's baseline
			}
			bound := max(clip*spread, room*leastLoss[w]*gap)
			weight := e.weight[w]
			if w < baseline {
				bound = max(bound, hold*l.Limit[w])
			} else { // which one tick of all does not change
				bound = min(bound, clip*surge*max(l.S, floor*gap))
				if young {
					weight, bound, known = e.dt/max(float64(t.Age), e.dt), e.pop.mostBaseline, 0
				}
			}
			t.E[w] += float32(weight * (clamp(r-known, -bound, bound) + known - float64(t.E[w])))
		}
		t.Fast += float32(e.weight[1] * (clamp(r, -3, 3) - float64(t.Fast)))
	}
	for w := range windows {
		e.limit(l, tracks, ref, w, small, gap)
	}
	for _, i := range ref {
		t, leaps := &tracks[i], 0.0
		if float64(t.E[0]-t.E[1]) < -2.5*l.D[0] {
			leaps = 1
		}
		t.Leaps += float32(e.dt / (6 * 3600) * (leaps - float64(t.Leaps)))
	}
	for _, i := range e.slots {
		e.judge(g, int(i), s, l, spread)
	}
	for _, i := range e.cold {
		t := &tracks[i]
		t.R = float32(l.Centre - t.Y)
		t.rises(&l.Limit, e.at, e.dt)
	}
	e.follow(&l.Part, tracks, l.Centre, gap)
}

// limit learns what the peers' equally smoothed deviations do, and what exceeds them.
func (e *Engine) limit(l *normal, tracks []track, ref []int32, w int, small, gap float64) {
	e.values = e.values[:0]
	over := 0.0
	for _, i := range ref {
		e.values = append(e.values, tracks[i].deviation(w))
	}
	if w != baseline {
		l.Shift[w] = e.sample.Level(e.values)
	}
	for k, i := range ref {
		t, x := &tracks[i], e.values[k]-l.Shift[w]
		hot := 0.0
		if math.Abs(x) > l.U[w] && t.Over[w] == 0 {
			hot = 1
		}
		if t.Hot[w] < 0.01 { // a node above it for a minute of two hours counts no more
			over += hot
		}
		t.Hot[w] += float32(e.dt / 7200 * (hot - float64(t.Hot[w])))
	}
	d := small * e.sample.MAD(e.values, l.Shift[w])
	if l.Age < 1.5*window[w] || l.Ticks < 2*warmTicks {
		l.D[w] = max(d, 1.5*max(l.S, floor*gap)*math.Sqrt(min(1, (e.dt+1)/window[w]))) // a mean of independent ticks
		l.U[w] = normalTail * l.D[w]
	} else {
		l.D[w] += e.dt / clamp((l.Age-1.5*window[w])/2, 60, max(3600, 6*window[w])) * (min(d, surge*l.D[w]) - l.D[w])
		excess := clamp(over/float64(len(ref))/tailShare-1, -1, 30)
		l.U[w] *= math.Exp(min(1, e.dt/clamp(l.Age, 3600, 6*3600)) * excess)
		if l.Age < 2*e.pop.young {
			l.U[w] = normalTail * l.D[w] // a job's first minutes are uneven
		}
	}
	l.U[w] = max(l.U[w], 2*l.D[w])
	least, tail := e.pop.leastLoss*leastLoss[w]*gap, beyondTail*l.U[w]
	if l.Age < settled {
		least *= 2
	}
	if l.Climbers >= 3 { // a step more or less is no loss
		least = max(least, 1.25*l.Step)
	}
	if l.Age < window[baseline] { // the first minutes are uneven
		tail = min(tail, max(room*leastLoss[w]*gap, clip*l.S))
	}
	l.Limit[w] = max(least, mads[w]*max(l.D[w], d), tail)
}

// obvious is the loss that one tick shows, before the 20 s average has begun.
func obvious(gap, spread float64) float64 { return max(2*gap, mads[0]*spread) }

// weigh returns a node's deviation in a window, 0 where it is not known for long enough, and its limit.
func (e *Engine) weigh(t *track, l *normal, w int, gap, spread float64) (x, limit float64) {
	x, limit = t.deviation(w)-l.Shift[w], l.Limit[w]
	switch age := float64(t.Age); {
	case age < 1.5*window[0] && w == 0:
		return float64(t.R), obvious(gap, spread)
	case age < 1.5*window[w]:
		return 0, limit
	case e.pop.alike && age < 1.5*window[baseline]:
		limit = max(limit, l.Limit[baseline]) // its usual difference is not known yet
	}
	if e.pop.alike && w == baseline { // how nodes differ is no loss
		x = min(x, max(clip*spread, 2*leastLoss[w]*gap), float64(t.E[1]))
	}
	if t.Leaps > restless {
		limit *= 1 + 4*math.Sqrt(float64(t.Leaps))
	}
	if float64(min(t.R, t.E[w])) <= e.pop.behind*limit { // it fell, but to where its peers are
		x = min(x, limit)
	}
	return x, limit
}

// judge begins and ends the verdict on one node by one signal.
func (e *Engine) judge(g *group, i int, s nodesignal.Signal, l *normal, spread float64) {
	m, t, spec := &g.members[i], &g.tracks[s][i], &e.cfg.Signals[s]
	hit, suspicion := -1, 0.0
	for w := range windows {
		x, limit := e.weigh(t, l, w, spec.MinGap, spread)
		suspicion = max(suspicion, x/limit)
		if x <= limit {
			t.Over[w] = 0
		} else if t.Over[w] = min(t.Over[w]+1, holdTicks); t.Over[w] == holdTicks {
			hit = w
		}
	}
	if !t.Flagged {
		t.rises(&l.Limit, e.at, e.dt)
	}
	if t.Same == 0 {
		t.Fell = float64(t.R-t.E[baseline]) > clip*spread
	}
	switch {
	case e.pop.alike && hit < 0 && !t.Flagged && l.lockstep(spec.MinGap):
		m.flags |= flagLockstep
		hit, suspicion = -1, 0
	case g.split.unstable():
		hit, suspicion = -1, 0
	case e.pop.alike && !t.Flagged && e.ahead(g, i, s):
		m.flags |= flagJudged
		hit, suspicion, t.Over = -1, 0, [windows]uint8{}
	case s == nodesignal.Throughput && t.Same >= stuckTicks && !t.Fell && !t.Flagged:
		m.flags |= flagJudged // the peers moved since: the exporter is stuck
		if hit >= 0 && t.Run == holdTicks-1 {
			e.counters.Stuck++
		}
		hit, suspicion = -1, 0
	default:
		m.flags |= flagJudged
		if t.deviation(1) >= spec.MinGap && t.deviation(2) >= spec.MinGap/2 { // for some minutes
			m.flags |= flagNoise
		}
	}
	if !t.Flagged && t.Over == [windows]uint8{} {
		t.Run, t.By, t.Loss = 0, 0, t.Fast-t.E[baseline]
	} else {
		t.Run = max(t.Run, t.Run+1)
		t.Loss += float32(max(e.dt/window[1], 1/float64(t.Run)) * (t.beyond(t.R) - float64(t.Loss)))
	}
	if !t.Flagged && hit >= 0 {
		t.Flagged, t.By, t.Calm, t.Peak = true, uint8(hit), 0, float32(t.deviation(hit))
		if hit == baseline { // which is a part of this loss
			t.Loss = t.Fast
		}
		for w := range t.By { // the fastest window that exceeds its limit knows best since when
			if float64(t.Loss) >= l.Limit[w] {
				t.LastZero[t.By] = t.LastZero[w]
				break
			}
		}
	} else if t.Flagged {
		t.Peak = max(t.Peak, float32(t.deviation(int(t.By))))
		t.Calm += float32(e.dt)
		left := t.Fast
		if t.By == 0 {
			left = t.E[0] // the shortest window that saw the loss sees soonest that it is over
		}
		if t.beyond(left) >= max(float64(t.Peak)/3, spread/2) {
			t.Calm = 0
		}
		if t.Calm >= leaveAfter {
			t.Flagged, t.Over, t.Sum, t.Run = false, [windows]uint8{}, [windows]uint16{}, 0
			t.Met = false // its mean is of before
			t.E[baseline] = min(t.E[baseline], t.Fast)
			for w := range baseline { // what is left of the loss is none
				t.E[w] = min(t.E[w], t.E[baseline])
			}
		}
	}
	t.Suspect = float32(min(suspicion, 2))
	m.suspect(s, t, spec)
}

// ahead reports whether a node does more work than its peers: then no other signal accuses it.
func (e *Engine) ahead(g *group, i int, s nodesignal.Signal) bool {
	tracks, gap := g.tracks[nodesignal.Throughput], e.cfg.Signals[nodesignal.Throughput].MinGap
	return s != nodesignal.Throughput && g.members[i].known.Has(nodesignal.Throughput) && float64(min(tracks[i].E[0], tracks[i].E[1])) < -floor*gap
}

// suspect keeps the signal by which a member is worst: first a verdict, then the gap in min_gaps.
func (m *member) suspect(s nodesignal.Signal, t *track, spec *nodesignal.Spec) {
	gap := spec.Loss(float64(t.Loss))
	weight := float32(gap / spec.MinGap)
	if t.Flagged {
		m.flags |= flagSlow
		weight += 1e6
	} else if t.Suspect == 0 {
		return
	}
	if m.signal == nodesignal.Score || weight > m.weight {
		m.signal, m.gap, m.weight = s, float32(gap), weight
	}
	m.suspicion = max(m.suspicion, t.Suspect)
}

// lockstep reports whether all wait for the slowest: nodes differ by less
// than clocks do, 0.1 %, and by less than a fifth of what they move together.
func (l *normal) lockstep(gap float64) bool {
	return l.Age >= window[2] && l.S < gap/50 && l.S < l.Moves/5
}

// detectable is the smallest deviation that some window exceeds within an hour: the baseline
// follows a loss, so that a window holds at most reach of it.
func (l *normal) detectable() float64 {
	best := l.Limit[baseline] / (1 - math.Exp(-1))
	for w := range baseline {
		ratio := window[baseline] / window[w]
		reach := (1 - 1/ratio) * math.Pow(ratio, -1/(ratio-1))
		best = min(best, l.Limit[w]/reach)
	}
	return best
}

func clamp[T float32 | float64](x, low, high T) T { return min(max(x, low), high) }
