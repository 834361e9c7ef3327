// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// maxCohorts a group is split into at most.
const maxCohorts = 8

// noCohort is of a node that does not show yet what work it does.
const noCohort = maxCohorts

// splitState splits a group whose nodes lack some label and so may do different
// work: the nodes' means of one signal lie in clumps.
type splitState struct {
	on   bool
	held bool // the means stand still, as the group is in an incident
	// signal splits the group; in an unsplit group it is the first to be looked at.
	signal nodesignal.Signal
	means  [nodesignal.Count]*splitMeans // nil until somebody reports it
	// edges between the cohorts, ascending.
	edges  []float64
	looked time.Time
	came   int // nodes that are new since the last look
	// settled nodes were there before the last tick.
	settled int
	// reports are the cohorts' of this tick.
	reports []CohortReport
	// turn is true while nodes may go to a lower cohort.
	turn bool
	turning
}

// splitMeans are the nodes' means of one signal, parallel to the members; n
// counts the ticks in them.
type splitMeans struct {
	mean, hour []float64
	n          []uint8
}

func (p *splitMeans) add() {
	p.mean, p.hour, p.n = append(p.mean, 0), append(p.hour, 0), append(p.n, 0)
}

func (p *splitState) add() {
	for _, m := range p.means {
		if m != nil {
			m.add()
		}
	}
}

func (p *splitState) pick(order []int) {
	for _, m := range p.means {
		if m != nil {
			m.mean, m.hour, m.n = pick(m.mean, order), pick(m.hour, order), pick(m.n, order)
		}
	}
}

func (p *splitState) forget(i int) {
	for _, m := range p.means {
		if m != nil {
			m.n[i] = 0
		}
	}
}

// cohorts follows the nodes' means and looks, now and then, at how they lie.
func (e *Engine) cohorts(g *group, now time.Time) {
	p := &g.split
	if !p.on || e.cfg.Split.Interval == 0 {
		return
	}
	if s := e.splitSignal(g); p.looked.IsZero() || (len(p.edges) == 0 && s != p.signal) {
		p.signal = s
		p.looked = now.Add(-(g.phase % e.cfg.Split.Interval)) // not all groups on the same tick
		e.regroup(g, true)
	}
	e.means(g)
	e.turns(g)
	if now.Sub(p.looked) >= e.cfg.Split.Interval || p.came >= e.cfg.Split.MinSide {
		p.looked, p.came = now, 0
		e.look(g)
	}
}

// splits reports whether different work may be seen in a signal: not in what
// the links can do, that is the same for any. The score tells of those nodes
// that tell nothing else.
func (e *Engine) splits(g *group, s nodesignal.Signal) bool {
	if s == nodesignal.Score {
		return e.splitSignal(g) == s
	}
	return e.deciding.has(s) && s != nodesignal.Interconnect && g.signals[s] != nil
}

// splitSignal is the first relative signal that the group has, else its score:
// fractions are much the same whatever the work.
func (e *Engine) splitSignal(g *group) nodesignal.Signal {
	for s := range nodesignal.Score {
		if e.deciding.has(s) && e.cfg.Signals[s].Relative && g.signals[s] != nil {
			return s
		}
	}
	return nodesignal.Score
}

// means follows each node's means. A mean stands still while its node is suspect or the
// group is in an incident: to be slow is no other work. One that is young, or waits, is none yet.
func (e *Engine) means(g *group) {
	p := &g.split
	p.held = g.incident.on
	short := float64(e.elapsed) / float64(e.cfg.Split.Window)
	long := float64(e.elapsed) / float64(e.cfg.Split.FallWindow)
	warm := uint8(LeastWarmTicks)
	for s := range nodesignal.Count {
		if !e.splits(g, s) || g.signals[s] == nil {
			continue
		}
		ms := p.means[s]
		if ms == nil {
			ms = &splitMeans{}
			for range g.members {
				ms.add()
			}
			p.means[s] = ms
		}
		for i := range g.members {
			m := &g.members[i]
			if m.state != StateActive || !m.fresh.has(s) || m.flags&(flagWasSlow|flagContested) != 0 || g.signals[s].tracks[i].Suspect() ||
				(p.held && ms.n[i] >= warm && m.cohort != noCohort) {
				continue
			}
			x := g.signals[s].x[i]
			ms.n[i] = min(ms.n[i]+1, 254)
			weight := 1 / float64(ms.n[i])
			ms.mean[i] += min(1, max(short, weight)) * (x - ms.mean[i])
			ms.hour[i] += min(1, max(long, weight)) * (x - ms.hour[i])
		}
	}
	ms := p.means[p.signal]
	if ms == nil {
		return
	}
	settled := 0
	for i := range g.members {
		m := &g.members[i]
		switch {
		case m.state != StateActive || !m.fresh.has(p.signal) || m.flags&flagWasSlow != 0:
		case ms.n[i] == warm:
			p.came++
			if m.cohort = p.cohortOf(i, warm); p.settled >= e.cfg.MinPeers && !e.gathers(g) && e.strange(g, i) {
				m.cohort = noCohort
			}
		case m.cohort == noCohort && !e.waits(ms.n[i]):
			m.cohort = p.cohortOf(i, warm)
		}
		if ms.n[i] > warm {
			settled++
		}
	}
	p.settled = settled
}

// gathers reports whether a group has come so lately that its nodes still come one by one:
// then one that is apart did not come alone, and is sooner slow.
func (e *Engine) gathers(g *group) bool { return e.at-g.since < e.cfg.Split.Interval.Milliseconds() }

// waits reports whether a node of whose mean there are so many ticks is given
// time for others that work as it does.
func (e *Engine) waits(n uint8) bool {
	return n < 254 && time.Duration(n)*e.elapsed < e.cfg.Split.Interval
}

// strange reports whether a node that has come to a settled group does other
// work than its cohort by any of the signals that tell.
func (e *Engine) strange(g *group, i int) bool {
	k := g.members[i].cohort
	if k == noCohort {
		return true
	}
	for s, ms := range g.split.means {
		if ms == nil || ms.n[i] == 0 {
			continue
		}
		if t := &g.signals[s].cohorts[k]; t.known &&
			math.Abs(ms.mean[i]-t.params.Centre) > e.splitGap(nodesignal.Signal(s), t.params.Centre) {
			return true
		}
	}
	return false
}

// splitGap is what nodes that do the same work do not differ by at x.
func (e *Engine) splitGap(s nodesignal.Signal, x float64) float64 {
	return max(e.cfg.Split.MinGap, e.cfg.Signals[s].MinGap) * e.unit(s, x)
}

// unit is what a gap at x is a fraction of.
func (e *Engine) unit(s nodesignal.Signal, x float64) float64 {
	if e.cfg.Signals[s].Relative {
		return x
	}
	return 1
}

// newcomer is the cohort of a node without a mean.
func (p *splitState) newcomer() uint8 {
	if len(p.edges) > 0 {
		return noCohort
	}
	return 0
}

func (p *splitState) cohortOf(i int, warm uint8) uint8 {
	ms := p.means[p.signal]
	if ms == nil || ms.n[i] < warm {
		return p.newcomer()
	}
	k := uint8(0)
	for _, edge := range p.edges {
		if ms.mean[i] >= edge {
			k++
		}
	}
	return k
}

// look finds the edges anew: by the signal that splits the group already, as long
// as it does, else by the first signal that splits it.
func (e *Engine) look(g *group) {
	p := &g.split
	was := len(p.edges)
	e.lookBy(g, p.signal)
	for s := nodesignal.Signal(0); len(p.edges) == 0 && s < nodesignal.Count; s++ {
		if p.means[s] != nil && s != p.signal && e.splits(g, s) {
			e.lookBy(g, s)
		}
	}
	switch {
	case len(p.edges) > 0:
		p.trial = nil
		if was != len(p.edges) {
			p.known = false
		}
	default:
		e.lookAtTurns(g)
	}
	e.regroup(g, len(p.edges) != was)
}

func (e *Engine) lookBy(g *group, s nodesignal.Signal) {
	p, cfg := &g.split, &e.cfg.Split
	ms := p.means[s]
	if ms == nil {
		return
	}
	list := e.clumps[:0]
	for i := range g.members {
		if m := &g.members[i]; m.state == StateActive && int(ms.n[i]) >= LeastWarmTicks {
			rose := (ms.mean[i] - ms.hour[i]) / e.unit(s, ms.hour[i])
			list = append(list, clumped{e.place(s, ms.mean[i]), rose < -cfg.FallBy, rose > cfg.FallBy, m.flags&flagWasSlow != 0})
		}
	}
	e.clumps = list
	e.edges = e.edges[:0]
	for _, edge := range p.edges {
		e.edges = append(e.edges, e.place(s, edge))
	}
	p.edges = e.edgesOf(s, list, e.edges, p.edges[:0], p.known || len(p.rises) > 0)
	if len(p.edges) > 0 {
		p.signal = s
	}
}

// place is where a value lies among others: differences of places are fractions.
func (e *Engine) place(s nodesignal.Signal, x float64) float64 {
	if e.cfg.Signals[s].Relative {
		return math.Log(max(x, minScale))
	}
	return x
}

// regroup puts each node into its cohort. Nothing counts that a node learnt among others:
// a straggler alone stays so until it shows that it is none. A cohort that has nearly all
// nodes of a former one, and few besides, is that one: it goes on.
func (e *Engine) regroup(g *group, anew bool) {
	p := &g.split
	var from cohortMoves
	for i := range g.members {
		m := &g.members[i]
		if m.cohort == noCohort && !anew && p.means[p.signal] != nil && e.waits(p.means[p.signal].n[i]) {
			continue
		}
		k := p.cohortOf(i, LeastWarmTicks)
		from[k][m.cohort]++
		if k == m.cohort && !anew {
			continue
		}
		m.was, m.cohort, m.toward, m.run = m.cohort, k, -1, 0
		if m.flags&flagWasSlow == 0 && !anew {
			g.forgetTrackers(i)
		}
	}
	if !anew {
		return
	}
	goesOn := [maxCohorts + 1]uint8{}
	for k := range goesOn {
		goesOn[k] = from.same(k)
	}
	for i := range g.members {
		if m := &g.members[i]; m.flags&flagWasSlow == 0 && goesOn[m.cohort] != m.was {
			g.forgetTrackers(i)
		}
	}
	for _, s := range g.signals {
		if s == nil {
			continue
		}
		before := s.cohorts
		s.cohorts = make([]estimator, len(p.edges)+1)
		for k := range s.cohorts {
			if was := int(goesOn[k]); was < len(before) {
				s.cohorts[k] = before[was]
				s.cohorts[k].relearn()
			}
		}
	}
}

// cohortMoves counts members by their new and their former cohort.
type cohortMoves [maxCohorts + 1][maxCohorts + 1]int

// same is the former cohort that a new one is, or none.
func (c *cohortMoves) same(k int) uint8 {
	if k == noCohort {
		return none
	}
	for was := range maxCohorts {
		now, then := 0, 0
		for i := range c {
			now += c[k][i]
			then += c[i][was]
		}
		if both := float64(c[k][was]); both > 0 && both >= sameShare*float64(now) && both >= sameShare*float64(then) {
			return uint8(was)
		}
	}
	return none
}

// sameShare of the nodes of both makes a cohort another one; none is no cohort at all.
const sameShare, none = 0.8, math.MaxUint8
