// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
)

// unjudged says why there is no verdict on a member at this tick, and until when, in
// unix milliseconds, if that is known.
func (e *Engine) unjudged(g *group, i int) (why unjudged.Reason, until int64) {
	m := &g.members[i]
	left := time.Duration(WarmTicks(e.cfg.Warmup, e.elapsed, m.late != 0)-int(m.warm)) * e.elapsed
	switch {
	case m.state == StateMissing:
		return unjudged.Missing, 0
	case m.state == StateIdle:
		return unjudged.Idle, 0
	case m.state == StateCalibrating && m.reported == StateActive:
		return unjudged.NoSignal, 0
	case m.state == StateCalibrating:
		return unjudged.Calibrating, 0
	case m.flags&flagContested != 0:
		return unjudged.Contested, 0
	case m.flags&(flagJudged|flagSlow) != 0:
		return unjudged.Judged, 0
	case m.flags&flagLockstep != 0:
		return unjudged.Lockstep, 0
	case m.flags&flagOverlap != 0:
		return unjudged.Overlap, 0
	case m.flags&flagYoung != 0:
		return unjudged.Calibrating, 0
	case g.plain != nil && !m.known.has(nodesignal.Score):
		return unjudged.NoSignal, 0
	case g.plain != nil && !g.rule.quorum:
		return unjudged.FewPeers, 0
	case g.plain != nil:
		return unjudged.Judged, 0
	case left > 0:
		return unjudged.Calibrating, e.at + left.Milliseconds()
	case m.cohort == noCohort:
		if ms := g.split.means[g.split.signal]; ms != nil && e.waits(ms.n[i]) {
			until = e.at + (e.cfg.Split.Interval - time.Duration(ms.n[i])*e.elapsed).Milliseconds()
		}
		return unjudged.Levels, until
	case g.split.passes(m):
		return unjudged.Levels, 0
	case m.flags&flagUnjudged != 0:
		return unjudged.FewPeers, 0
	}
	return unjudged.NoSignal, 0 // it told one that has grown too old
}

// detectableWithin is how long a loss that can be found takes at most.
const detectableWithin = time.Hour

// Detectable is the smallest loss, a fraction of the peers' level, that fills one of the
// sums within so many ticks. A tick adds loss/Scale - kappa to a sum, up to its limit.
func (p *Params) Detectable(c *CUSUM, ticks float64) float64 {
	s, best := p.steps(c, 0), math.Inf(1)
	for j, h := range p.Limits {
		if h > 0 {
			best = min(best, p.Scale*(float64(s.kappa[j])+h/max(ticks, 1)))
		}
	}
	if p.Relative {
		return -math.Expm1(-best)
	}
	return best
}

// detectable is the smallest loss that can be found now in every cohort of a group, by
// the signal that finds it best: a fraction, 0 while there is none.
func (e *Engine) detectable(g *group) float64 {
	best := math.Inf(1)
	for s := range nodesignal.Count {
		if !e.deciding.has(s) || g.signals[s] == nil {
			continue
		}
		worst := 0.0
		for k := range g.signals[s].cohorts {
			t := &g.signals[s].cohorts[k]
			switch {
			case e.cfg.Signals[s].Coupled && t.wavers.silent():
				worst = math.Inf(1)
			case t.known && !t.lockstep():
				worst = max(worst, t.detectable)
			case t.known || t.n > 0:
				worst = math.Inf(1)
			}
		}
		if worst > 0 {
			best = min(best, worst)
		}
	}
	if math.IsInf(best, 1) {
		return 0
	}
	return best
}
