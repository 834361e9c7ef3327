// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/detect/robust"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

// part follows whether a large part fell while the rest stayed: that is the yardstick then.
type part struct {
	Usual  float64 // 1 h mean of the centre; it stands still while there are two sides
	Known  bool    // there is a usual level
	Looked float64 // seconds since the last look
	Parted float64 // seconds that there have been two sides
	On     bool
	Cut    float64 // level between the sides
}

const (
	lookEach = 60 // seconds
	// Each side has leastSide of the nodes: fewer do not move the median.
	leastSide = 0.3
)

func (e *Engine) follow(p *part, tracks []track, centre, gap float64) {
	if p.Looked += e.dt; p.Looked < lookEach {
		return
	}
	step := p.Looked
	p.Looked = 0
	two := e.sides(p, tracks, gap)
	if two {
		p.Parted += step
	} else {
		p.Parted = 0
	}
	if p.On = p.Parted >= lookEach; p.On || two {
		return
	}
	if !p.Known {
		p.Usual, p.Known = centre, true
	}
	p.Usual += min(1, step/window[baseline]) * (centre - p.Usual)
}

// sides cuts the nodes' 2 min means where the variance between the sides is greatest, and
// reports whether these are two, of which the lower fell and not the upper rose.
func (e *Engine) sides(p *part, tracks []track, gap float64) bool {
	v := e.values[:0]
	for _, i := range e.slots {
		v = append(v, lately(&tracks[i]))
	}
	e.values = v
	slices.Sort(v) // the smallest loss first
	cut, n := robust.Halves(v), len(v)
	if share := float64(n-cut) / float64(n); cut < 2 || share < leastSide || share > 1-leastSide {
		return false
	}
	upper, lower := v[:cut], v[cut:]
	if lower[0]-upper[cut-1] <= max(leastLoss[1]*gap, 2*max(e.sample.Spread(upper), e.sample.Spread(lower))) {
		return false
	}
	// Where the sides are now: the means began before the yardstick changed.
	edge := (upper[cut-1] + lower[0]) / 2
	up, low := e.middle(tracks, edge, true), e.middle(tracks, edge, false)
	p.Cut = (up + low) / 2
	return e.pop.eitherSide || !p.Known || math.Abs(up-p.Usual) < math.Abs(low-p.Usual)/2
}

// lately is the 2 min mean of what a node is behind, without its baseline.
func lately(t *track) float64 { return float64(t.Fast - t.E[baseline]) }

// middle is the median level of one side.
func (e *Engine) middle(tracks []track, edge float64, upper bool) float64 {
	v := e.values[:0]
	for _, i := range e.slots {
		if lately(&tracks[i]) < edge == upper {
			v = append(v, tracks[i].Y)
		}
	}
	return e.sample.Level(v)
}

// gather finds the members of a level with a report of a signal since the last tick: those that
// are compared, and those that warm up, of which only the beginning of a loss is kept.
func (e *Engine) gather(g *group, s nodesignal.Signal, level uint8) {
	raw := e.deciding &^ nodesignal.SetOf(nodesignal.Score)
	e.slots, e.cold = e.slots[:0], e.cold[:0]
	for i := range g.members {
		m := &g.members[i]
		if !m.fresh.Has(s) || m.flags&flagContested != 0 || s == nodesignal.Score && m.known&raw != 0 { // a score is a mean of the others
			continue
		}
		switch warm := m.level != noLevel && m.state == nodesignal.StateActive && e.wait(g, &g.tracks[s][i]) == 0; {
		case warm && m.level == level:
			e.slots = append(e.slots, int32(i))
		case !warm && (m.level == level || m.level == noLevel && len(g.levels) == 1) && (m.state == nodesignal.StateActive || m.state == nodesignal.StateCalibrating):
			e.cold = append(e.cold, int32(i))
		}
	}
}

// reference finds the nodes that show what is usual: those without a verdict, all when
// fewer than half are left, and the upper side while the group is parted.
func (e *Engine) reference(tracks []track, l *normal) []int32 {
	calm, upper := e.calm[:0], e.upper[:0]
	for _, i := range e.slots {
		if t := &tracks[i]; !t.Flagged {
			calm = append(calm, i)
		}
		if l.Part.On && tracks[i].Y > l.Part.Cut {
			upper = append(upper, i)
		}
	}
	e.calm, e.upper = calm, upper
	switch {
	case len(upper) >= 2:
		return upper
	case 2*len(calm) < len(e.slots) || len(calm) < 3:
		return e.slots
	}
	return calm
}
