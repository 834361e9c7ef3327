// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/detect/robust"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

// level is the part of a group whose nodes do the same work: those whose mean of the
// split's signal lies between its bounds. A group with labels has one.
type level struct {
	Low, High float64
	Signals   [nodesignal.Count]normal
}

func (l *level) same(as level) bool { return l.Low == as.Low && l.High == as.High }

// split tells apart nodes without labels that do other work: between their means are gaps.
type split struct {
	On     bool // some label is missing
	Signal nodesignal.Signal
	Looked float64 // age of the group at the last look
	Rises  float64 // nodes that took a higher level alone, faded over six hours; from 1 on levels mean nothing
	Unsure bool    // levels are so far apart and young that nodes may take turns at them
}

const (
	noLevel = math.MaxUint8
	// levelGap is the least gap between two levels, thrice that in a settled group, and
	// levelSpreads times the wider side's spread. A fourth of it keeps them apart. Three nodes
	// that were alike and apart from the others since they came are a job.
	levelGap, levelSpreads, sideNodes = 0.025, 3, 3
	// A node that rises by riseBy alone took other work.
	riseBy = 0.1
)

// unstable reports whether work changes hands or may, so that a lower level is no loss.
func (p *split) unstable() bool { return p.On && (p.Rises >= 1 || p.Unsure) }

// levelOf returns the index of the level of a mean.
func (g *group) levelOf(mean float32) uint8 {
	return uint8(slices.IndexFunc(g.levels, func(l level) bool { return float64(mean) <= l.High }))
}

// assignLevels finds levels where labels are missing, and gives members theirs.
func (e *Engine) assignLevels(g *group) {
	p := &g.split
	by := nodesignal.Throughput // else the score, of nodes that send nothing else
	if g.tracks[by] == nil || !e.deciding.Has(by) {
		by = nodesignal.Score
	}
	if by != p.Signal {
		p.Signal = by
		e.cut(g, nil)
	}
	tracks := g.tracks[by]
	if p.On && tracks != nil {
		due := false
		for i := range g.members { // a newcomer is placed among levels that were looked for with it
			m := &g.members[i]
			due = due || m.level == noLevel && m.state == nodesignal.StateActive && m.known.Has(p.Signal) && e.wait(g, &tracks[i]) == 0
		}
		if g.age >= window[0] && (p.Looked == 0 || g.age-p.Looked >= 5*lookEach || due && g.age > settled) {
			p.Looked = g.age
			e.look(g, tracks)
		}
		e.swaps(g, tracks)
	}
	for i := range g.members {
		switch m := &g.members[i]; {
		case m.level != noLevel || m.state != nodesignal.StateActive:
		case len(g.levels) == 1 && (!p.On || !m.known.Has(p.Signal)):
			m.level = 0
		case m.known.Has(by) && e.wait(g, &tracks[i]) == 0:
			m.level = g.levelOf(tracks[i].Mean)
		}
	}
}

// look finds gaps between the nodes' means.
func (e *Engine) look(g *group, tracks []track) {
	var calm, all []float64
	fell, rose := 0, 0
	for i := range g.members {
		t := &tracks[i]
		if g.members[i].state != nodesignal.StateActive || t.Ticks < 2 {
			continue
		}
		all = append(all, float64(t.Mean))
		if !t.Flagged {
			calm = append(calm, float64(t.Mean))
		}
		if lost := lately(t); lost > riseBy/2 {
			fell++
		} else if lost < -riseBy/2 {
			rose++
		}
	}
	if len(all) <= 3*sideNodes || len(calm) < 2*sideNodes { // of few, three that are alike are no job
		return
	}
	slices.Sort(calm)
	slices.Sort(all)
	var edges, were []float64
	for _, l := range g.levels[1:] {
		were = append(were, l.Low)
		if apart(all, l.Low) {
			edges = append(edges, l.Low)
		}
	}
	if g.split.Looked < settled || fell <= rose+2 && 5*fell <= len(calm) { // nodes that have just fallen are no job
		least := levelGap
		if g.age > settled {
			least *= 3
		}
		for _, cut := range e.sample.Gaps(calm, least, levelSpreads, sideNodes) {
			edge := (calm[cut] + calm[cut-1]) / 2
			near := slices.ContainsFunc(were, func(x float64) bool { return math.Abs(x-edge) < 0.75*levelGap })
			if !near && len(edges) < 7 {
				edges = append(edges, edge)
			}
		}
	}
	g.split.Unsure = len(edges) > 0 && g.age < window[baseline] && calm[len(calm)-1]-calm[0] > 2*riseBy
	if slices.Sort(edges); !slices.Equal(edges, were) {
		e.cut(g, edges)
	}
}

// apart reports whether the sides of an edge are, but for a tenth of each.
func apart(v []float64, edge float64) bool {
	low, _ := slices.BinarySearch(v, edge)
	high := len(v) - low
	return low >= 2 && high >= 2 && v[low+high/10]-v[low-1-low/10] > levelGap/4
}

// cut makes levels of edges. A level whose bounds stay keeps what it knows; another
// begins anew, and so do the nodes that come to it.
func (e *Engine) cut(g *group, edges []float64) {
	were := g.levels
	g.levels = make([]level, len(edges)+1)
	bounds := slices.Concat([]float64{math.Inf(-1)}, edges, []float64{math.Inf(1)})
	for k := range g.levels {
		l := level{Low: bounds[k], High: bounds[k+1]}
		if at := slices.IndexFunc(were, l.same); at >= 0 {
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
		if m.level = 0; len(edges) > 0 {
			m.level = g.levelOf(g.tracks[g.split.Signal][i].Mean)
		}
		if g.levels[m.level].same(was) {
			continue
		}
		for _, tracks := range g.tracks {
			if tracks != nil {
				t := &tracks[i]
				*t = track{X: t.X, Y: t.Y, Mean: t.Mean, Age: min(t.Age, 600), Ticks: t.Ticks, Same: t.Same, Fell: t.Fell, Met: t.Met, LastZero: t.LastZero}
			}
		}
	}
}

// swaps counts the nodes that took a higher level while the others stayed.
func (e *Engine) swaps(g *group, tracks []track) {
	p := &g.split
	p.Rises *= math.Exp(-e.dt / (6 * 3600))
	e.values = e.values[:0]
	for i := range tracks {
		if t := &tracks[i]; t.Ticks > 0 {
			e.values = append(e.values, t.Y-float64(t.Mean))
		}
	}
	if len(e.values) == 0 {
		return
	}
	common := e.sample.Level(e.values)
	spread := robust.MADToSigma * e.sample.MAD(e.values, common)
	for k := range g.levels { // of the calmest level
		if l := &g.levels[k].Signals[p.Signal]; l.Ticks > 0 {
			spread = min(spread, l.S)
		}
	}
	least := max(riseBy, 6*spread)
	for i := range g.members {
		m, t := &g.members[i], &tracks[i]
		if m.state != nodesignal.StateActive || !m.fresh.Has(p.Signal) {
			continue
		}
		switch up := t.Y - float64(t.Mean) - max(common, 0); {
		case t.Age > settled && !t.Flagged && up > least && common < 0.3*riseBy:
			if t.Ahead = min(t.Ahead+1, 2*holdTicks+1); t.Ahead == 2*holdTicks {
				p.Rises += 1 / max(2.5, float64(len(g.members))/20) // three are no chance, nor are 5 % of many
			}
		case up < riseBy/2:
			t.Ahead = 0
		}
	}
}
