// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// level is the part of a group whose nodes do the same work: those whose mean of the
// split's signal lies between its bounds. A group with labels has one.
type level struct {
	low, high float64
	signals   [nodesignal.Count]*normal
}

// of returns what is usual in a signal.
func (l *level) of(s nodesignal.Signal) *normal {
	if l.signals[s] == nil {
		l.signals[s] = &normal{}
	}
	return l.signals[s]
}

// split tells apart nodes without labels that do several kinds of work: between their
// means are gaps.
type split struct {
	on     bool // some label is missing
	signal nodesignal.Signal
	looked float64 // age of the group at the last look
	rises  float64 // nodes that took a higher level alone, faded over six hours
	most   float64 // rises with which levels tell nothing
}

const (
	noLevel = math.MaxUint8
	// lookLevels is how often, in seconds, levels are looked for.
	lookLevels = 5 * 60
	// levelGap is the least gap between two levels; it is also levelSpreads times the
	// wider side's spread. They stay apart until keepGap. Each side has sideNodes: three
	// that were alike and apart from the others since they came are a job.
	levelGap, levelSpreads, keepGap, sideNodes = 0.08, 4, 0.02, 3
	// A node that rises by riseBy alone took other work. Three in riseWindow are no
	// chance, nor are 5 % of many.
	riseBy, riseWindow = 0.1, 6 * 3600
)

// silent reports whether work changes hands, so that a lower level tells nothing.
func (p *split) silent() bool { return p.on && p.rises >= p.most }

// place returns the level of a mean.
func (g *group) place(mean float32) uint8 {
	return uint8(slices.IndexFunc(g.levels, func(l level) bool { return float64(mean) <= l.high }))
}

// place finds levels where labels are missing, and gives members theirs.
func (e *Engine) place(g *group) {
	p := &g.split
	by := nodesignal.Throughput // else the score, of nodes that tell nothing but that
	if g.tracks[by] == nil || !e.deciding.Has(by) {
		by = nodesignal.Score
	}
	if by != p.signal {
		p.signal = by
		e.cut(g, nil)
	}
	tracks := g.tracks[by]
	if p.on && tracks != nil {
		due := false
		for i := range g.members { // a newcomer is placed among levels that were looked for with it
			m := &g.members[i]
			due = due || m.level == noLevel && m.state == nodesignal.StateActive && m.known.Has(p.signal) && g.warm(&tracks[i])
		}
		if g.age >= lookEach && (p.looked == 0 || g.age-p.looked >= lookLevels || due && g.age > settled) {
			p.looked = g.age
			e.look(g, tracks)
		}
		e.swaps(g, tracks)
	}
	for i := range g.members {
		switch m := &g.members[i]; {
		case m.level != noLevel || m.state != nodesignal.StateActive:
		case len(g.levels) == 1 && (!p.on || !m.known.Has(p.signal)):
			m.level = 0
		case m.known.Has(by) && g.warm(&tracks[i]):
			m.level = g.place(tracks[i].mean)
		}
	}
}

// look finds gaps between the nodes' means.
func (e *Engine) look(g *group, tracks []track) {
	var calm, all []float64
	fell, rose := 0, 0
	for i := range g.members {
		t := &tracks[i]
		if g.members[i].state != nodesignal.StateActive || t.ticks < warmTicks {
			continue
		}
		all = append(all, float64(t.mean))
		if !t.flagged {
			calm = append(calm, float64(t.mean))
		}
		if t.fast > riseBy/2 {
			fell++
		} else if t.fast < -riseBy/2 {
			rose++
		}
	}
	if len(calm) < 2*sideNodes {
		return
	}
	slices.Sort(calm)
	slices.Sort(all)
	var edges, were []float64
	for _, l := range g.levels[1:] {
		were = append(were, l.low)
		if apart(all, l.low) {
			edges = append(edges, l.low)
		}
	}
	if g.split.looked < settled || fell <= rose+2 && 5*fell <= len(calm) { // who has just fallen is no job
		for _, cut := range e.sample.Gaps(calm, levelGap, levelSpreads, sideNodes) {
			edge := (calm[cut] + calm[cut-1]) / 2
			near := slices.ContainsFunc(were, func(x float64) bool { return math.Abs(x-edge) < 0.75*levelGap })
			if !near && len(edges) < 7 {
				edges = append(edges, edge)
			}
		}
	}
	if slices.Sort(edges); !slices.Equal(edges, were) {
		e.cut(g, edges)
	}
}

// apart reports whether the sides of an edge are, but for a tenth of each.
func apart(v []float64, edge float64) bool {
	low, _ := slices.BinarySearch(v, edge)
	high := len(v) - low
	return low >= 2 && high >= 2 && v[low+high/10]-v[low-1-low/10] > keepGap
}

// cut makes levels of edges. A level whose bounds stay keeps what it knows; another
// begins anew, and so do the nodes that come to it.
func (e *Engine) cut(g *group, edges []float64) {
	were := g.levels
	g.levels = make([]level, len(edges)+1)
	bounds := slices.Concat([]float64{math.Inf(-1)}, edges, []float64{math.Inf(1)})
	for k := range g.levels {
		l := level{low: bounds[k], high: bounds[k+1]}
		if at := slices.IndexFunc(were, func(w level) bool { return w.low == l.low && w.high == l.high }); at >= 0 {
			l = were[at]
		}
		g.levels[k] = l
	}
	for i := range g.members {
		m := &g.members[i]
		if m.level == noLevel {
			continue
		}
		was := were[m.level]
		m.level = 0
		if len(edges) > 0 {
			m.level = g.place(g.tracks[g.split.signal][i].mean)
		}
		if l := g.levels[m.level]; l.low == was.low && l.high == was.high {
			continue
		}
		for _, tracks := range g.tracks {
			if tracks != nil {
				t := &tracks[i]
				*t = track{x: t.x, y: t.y, mean: t.mean, age: min(t.age, 600), ticks: t.ticks, same: t.same, met: t.met}
			}
		}
	}
}

// swaps counts the nodes that took a higher level while the others stayed.
func (e *Engine) swaps(g *group, tracks []track) {
	p := &g.split
	p.rises *= math.Exp(-e.dt / riseWindow)
	p.most = max(2.5, float64(len(g.members))/20)
	e.values = e.values[:0]
	for i := range tracks {
		if t := &tracks[i]; t.ticks > 0 {
			e.values = append(e.values, t.y-float64(t.mean))
		}
	}
	if len(e.values) == 0 {
		return
	}
	common := e.sample.Level(e.values)
	least := max(riseBy, 6*g.levels[0].of(p.signal).s)
	for i := range g.members {
		m, t := &g.members[i], &tracks[i]
		if m.state != nodesignal.StateActive || !m.fresh.Has(p.signal) {
			continue
		}
		switch up := t.y - float64(t.mean) - max(common, 0); {
		case t.age > settled && up > least && common < 0.3*riseBy:
			if t.ahead = min(t.ahead+1, holdTicks+1); t.ahead == holdTicks {
				p.rises++
			}
		case up < riseBy/2:
			t.ahead = 0
		}
	}
}
