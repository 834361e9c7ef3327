// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// turning is how the nodes of a group without labels take each other's work in turns.
type turning struct {
	// rises are the newest moves upwards, of different nodes.
	rises []rise
	// known is true where the edges were found by the values of a tick, since the
	// means of nodes that change their work every few minutes lie anywhere.
	known bool
	// trial are edges that a look found so. Until the next look, good and bad count the
	// ticks in which they lay between clumps and did not, rose and fell the moves.
	trial                 []float64
	good, bad, rose, fell int
}

type rise struct {
	node *node
	at   int64 // unix milliseconds
}

// turnsWindow is how long a move upwards tells that nodes take turns, turnsRises how
// many nodes must have moved so: a fault moves no node upwards.
const (
	turnsWindow = 6 * time.Hour
	turnsRises  = 5
)

// turnTicks at another level move a node, as many as flag it otherwise.
const turnTicks = 3

// A node is at a level that it is nearer to than levelSpreads times the spread there,
// a fraction of at least minLevelGap and at most maxLevelGap.
const levelSpreads, minLevelGap, maxLevelGap = 4, 0.02, 0.06

// At reports whether a value is at the level that parameters are of.
func (p *Params) At(x float64) bool {
	return math.Abs(p.Deviation(x)) <= min(max(levelSpreads*p.Scale, minLevelGap), maxLevelGap)
}

// Turn follows a node's way to another level. run counts the ticks that its value was
// at level toward, -1 for none; levels are the cohorts' parameters, nil for those that
// are not known. It returns the level that the node moves to, or own.
func Turn(levels []*Params, own int, x float64, down bool, toward *int8, run *uint8) int {
	at := int8(-1)
	if p := levels[own]; p != nil && !p.At(x) {
		for k, p := range levels {
			if p != nil && p.At(x) && (at < 0 || math.Abs(p.Centre-x) < math.Abs(levels[at].Centre-x)) {
				at = int8(k)
			}
		}
	}
	if at != *toward {
		*toward, *run = at, 0
	}
	if at < 0 {
		return own
	}
	*run = min(*run+1, turnTicks)
	if *run < turnTicks || int(at) < own && !down {
		return own
	}
	*toward, *run = -1, 0
	return int(at)
}

// passes reports whether a member is at the level of another cohort that it may go to.
// Until it does or comes back it is compared with nobody.
func (p *splitState) passes(m *member) bool {
	return len(p.edges) > 0 && m.toward >= 0 && m.flags&flagWasSlow == 0 && (p.turn || int(m.toward) > int(m.cohort))
}

// Moved is a mean of a node that goes from one level to another.
func Moved(mean float64, from, to *Params, relative bool) float64 {
	if relative {
		return mean * to.Centre / from.Centre
	}
	return mean + to.Centre - from.Centre
}

// turns moves the nodes whose values are at another cohort's level. Upwards any may go,
// downwards only where nodes take turns: a fault goes down only.
func (e *Engine) turns(g *group) {
	p := &g.split
	if len(p.edges) == 0 {
		p.turn = false
		e.try(g)
		return
	}
	sig, relative := g.signals[p.signal], e.cfg.Signals[p.signal].Relative
	p.rises = slices.DeleteFunc(p.rises, func(r rise) bool { return e.at-r.at >= turnsWindow.Milliseconds() })
	p.turn = p.known || len(p.rises) >= turnsRises
	e.cohortLevels = e.cohortLevels[:0]
	for k := range sig.cohorts {
		level := (*Params)(nil)
		if t := &sig.cohorts[k]; t.params.Valid() { // of too few nodes it is the last there was
			level = &t.params
		}
		e.cohortLevels = append(e.cohortLevels, level)
	}
	for i := range g.members {
		m := &g.members[i]
		if m.state != StateActive || m.cohort == noCohort || m.flags&flagContested != 0 || !m.fresh.has(p.signal) {
			continue
		}
		was := int(m.cohort)
		k := Turn(e.cohortLevels, was, sig.x[i], p.turn, &m.toward, &m.run)
		if k == was {
			continue
		}
		m.cohort = uint8(k)
		ms := p.means[p.signal]
		ms.mean[i] = Moved(ms.mean[i], e.cohortLevels[was], e.cohortLevels[k], relative)
		ms.hour[i] = Moved(ms.hour[i], e.cohortLevels[was], e.cohortLevels[k], relative)
		g.forgetTrackers(i)
		if n := g.nodes[i]; k > was {
			p.rises = slices.DeleteFunc(p.rises, func(r rise) bool { return r.node == n })
			p.rises = append(p.rises, rise{n, e.at})
			if len(p.rises) > turnsRises {
				p.rises = p.rises[1:]
			}
		}
	}
}

// lookAtTurns looks for clumps in the values of this tick, when the means show none.
// What one look finds the next has to confirm. Between them nodes went up, not only down,
// and the values lay so in nearly every tick: a pause of all lies so only while it begins.
func (e *Engine) lookAtTurns(g *group) {
	p, s := &g.split, g.split.signal
	trial, good, bad, rose, fell := p.trial, p.good, p.bad, p.rose, p.fell
	p.turning = turning{rises: p.rises}
	if g.signals[s] == nil || p.means[s] == nil {
		return
	}
	list := e.clumps[:0]
	for i := range g.members {
		if m := &g.members[i]; m.state == StateActive && m.fresh.has(s) {
			list = append(list, clumped{mean: e.place(s, g.signals[s].x[i])})
		}
	}
	e.clumps = list
	found := e.edgesOf(s, list, nil, nil, true)
	if len(found) == 0 {
		return
	}
	same := len(found) == len(trial)
	for k := range found {
		same = same && math.Abs(e.place(s, found[k])-e.place(s, trial[k])) < e.cfg.Split.MinGap
	}
	if !same || bad > good/10 || rose == 0 || 3*rose < fell {
		p.trial = found
		for i := range g.members {
			g.members[i].toward, g.members[i].run = int8(reached(found, g.signals[s].x[i])), 0
		}
		return
	}
	p.edges, p.known, p.turn = found, true, true
	ms := p.means[s]
	for i := range g.members {
		if m := &g.members[i]; m.state == StateActive && m.fresh.has(s) {
			ms.mean[i], ms.hour[i] = g.signals[s].x[i], g.signals[s].x[i]
			g.forgetTrackers(i)
		}
	}
}

// reached is the number of edges that a value reaches.
func reached(edges []float64, x float64) (k int) {
	for _, edge := range edges {
		if x >= edge {
			k++
		}
	}
	return k
}

// try follows edges on trial.
func (e *Engine) try(g *group) {
	p := &g.split
	if len(p.trial) == 0 || g.signals[p.signal] == nil {
		return
	}
	var count [maxCohorts]int
	for i := range g.members {
		m := &g.members[i]
		if m.state != StateActive || !m.fresh.has(p.signal) {
			continue
		}
		k := reached(p.trial, g.signals[p.signal].x[i])
		count[k]++
		if k == int(m.toward) {
			m.run = 0
		} else if m.run++; m.run >= turnTicks {
			if k > int(m.toward) {
				p.rose++
			} else {
				p.fell++
			}
			m.toward, m.run = int8(k), 0
		}
	}
	if slices.Min(count[:len(p.trial)+1]) >= e.cfg.Split.MinSide {
		p.good++
	} else {
		p.bad++
	}
}

// edgesOf are the edges between the clumps of a list, which it sorts, in the unit of the
// signal. was are those that are there; into may be nil.
func (e *Engine) edgesOf(s nodesignal.Signal, list []clumped, was, into []float64, turn bool) []float64 {
	cfg := &e.cfg.Split
	sortClumps(list)
	side := cfg.MinSide
	if !e.cfg.Signals[s].Relative && s != nodesignal.Score {
		// A few that are slow by a fraction from their start have the same fault
		// sooner than a job of their own.
		side = max(side, int(cfg.MinShare*float64(len(list))+0.5))
	}
	for _, c := range e.cut(list, was, max(cfg.MinGap, e.cfg.Signals[s].MinGap), side, turn) {
		at := (list[c.at-1].mean + list[c.at].mean) / 2
		if e.cfg.Signals[s].Relative {
			at = math.Exp(at)
		}
		into = append(into, float64(float32(at))) // as it travels
	}
	return into
}
