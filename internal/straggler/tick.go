// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/robust"
	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
)

// scratch is what a tick needs while it runs; it is kept so that a tick of
// groups that are known allocates nothing.
type scratch struct {
	at      int64            // the tick, unix milliseconds
	elapsed time.Duration    // since the tick before
	dt      float64          // the same in seconds, at most the TTL
	weight  [windows]float64 // of this tick in each EMA
	changes int              // of severity told in this cluster

	sample                      robust.Sample
	values                      []float64
	slots, calm, upper          []int32 // members
	scores, throughputs         []float64 // of this group
	wideScores, wideThroughputs []float64
	onsets                      []*node
}

// Tick computes thresholds and verdicts from the observations so far.
func (e *Engine) Tick(now time.Time) *Report {
	r := &e.report
	r.At, r.Groups = now, r.Groups[:0]
	e.at, e.elapsed = now.UnixMilli(), 0
	if !e.ticked.IsZero() {
		e.elapsed = max(now.Sub(e.ticked), 0)
		if e.elapsed > e.cfg.TTL {
			e.hearing = now.UnixNano()
		}
	}
	// What nobody listened to was not heard: a pause of the gateway counts as one TTL.
	e.dt = min(e.elapsed, e.cfg.TTL).Seconds()
	for w := range windows {
		e.weight[w] = -math.Expm1(-e.dt / window[w])
	}
	e.row = 0
	for _, c := range e.order {
		e.tickCluster(c, now)
	}
	e.order = slices.DeleteFunc(e.order, func(c *cluster) bool {
		if len(c.nodes) == 0 {
			delete(e.clusters, c.name)
		}
		return len(c.nodes) == 0
	})
	clear(r.Nodes[e.row:])
	r.Nodes = r.Nodes[:e.row]
	e.relabel = false
	e.ticked = now
	slices.SortStableFunc(e.events, func(a, b Event) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Node, b.Node), a.At.Compare(b.At))
	})
	clear(r.Events)
	r.Events, e.events = e.events, r.Events[:0]
	r.Counters, e.counters = e.counters, Counters{}
	return r
}

func (e *Engine) tickCluster(c *cluster, now time.Time) {
	for _, g := range slices.Backward(c.order) { // the last node to leave ends its group
		e.expire(g, now)
		g.settle()
	}
	if len(c.nodes) == 0 {
		return
	}
	c.wideCounts = [numStates]int{}
	e.wideScores, e.wideThroughputs, e.changes = e.wideScores[:0], e.wideThroughputs[:0], 0
	at := len(e.report.Groups)
	e.addGroup()
	stragglers := 0
	for _, g := range c.order {
		e.tickGroup(g, now)
		stragglers += g.slow
		for s, n := range g.counts {
			c.wideCounts[s] += n
		}
	}
	c.wide.Update(&e.cfg.Config, &e.sample, e.wideScores, e.wideThroughputs)
	e.groupReport(&e.report.Groups[at], c.name, "", &c.wide, c.wideCounts, stragglers)
	e.tellOnsets(c, now)
	e.silences(c, now)
}

// expire marks silent nodes missing and forgets those past the retention. When
// no tick came for that long, it was the gateway that did not listen.
func (e *Engine) expire(g *group, now time.Time) {
	deaf := e.elapsed > e.cfg.TTL
	at := now.UnixNano()
	for i := range g.members {
		m := &g.members[i]
		silent := time.Duration(at - m.seen)
		if silent <= e.cfg.TTL && m.flags&flagMissing == 0 {
			continue
		}
		n := g.nodes[i]
		switch {
		case n == nil:
		case silent > e.cfg.Retention:
			e.forget(n, now)
		case silent > e.cfg.TTL:
			if m.flags&flagMissing == 0 && !deaf {
				m.flags |= flagMissing
				g.cluster.silent = append(g.cluster.silent, n)
			}
		default:
			m.flags &^= flagMissing
			e.endSilence(n, CauseRecovered, now)
		}
	}
}

func (e *Engine) tickGroup(g *group, now time.Time) {
	g.age += e.dt
	e.states(g)
	g.rule.Update(&e.cfg.Config, &e.sample, e.scores, e.throughputs)
	if e.cfg.Decision == DecisionThreshold {
		e.judgePlain(g, now)
	} else {
		for s := range nodesignal.Count {
			if e.deciding.has(s) && g.tracks[s] != nil {
				e.hear(g, s)
			}
		}
		e.place(g)
		for s := range nodesignal.Count {
			if e.deciding.has(s) && g.tracks[s] != nil {
				for k := range g.levels {
					e.compare(g, s, uint8(k))
				}
			}
		}
	}
	e.conclude(g, now)
	r := e.addGroup()
	e.groupReport(r, g.cluster.name, g.name, &g.rule, g.counts, g.slow)
	e.reportSignals(g, r)
}

// states settles what each member is at this tick, and gathers the scores of
// the active ones and the throughputs of the busy ones.
func (e *Engine) states(g *group) {
	g.counts = [numStates]int{}
	e.scores, e.throughputs = e.scores[:0], e.throughputs[:0]
	scores, throughputs := g.tracks[nodesignal.Score], g.tracks[nodesignal.Throughput]
	for i := range g.members {
		m := &g.members[i]
		m.state = m.now(e.deciding)
		g.counts[m.state]++
		if m.flags&(flagDiffers|flagContested) != 0 {
			e.contest(g, i)
		} else {
			m.contest = 0
		}
		m.flags &^= flagSlow | flagFewPeers | flagJudged | flagLockstep
		m.suspicion, m.gap, m.weight, m.signal = 0, 0, 0, nodesignal.Score
		// A calibrating node waits for the reference that it helps to form.
		if throughputs != nil && m.known.has(nodesignal.Throughput) && m.state <= StateCalibrating && m.state != StateIdle && throughputs[i].x > 0 {
			e.throughputs = append(e.throughputs, throughputs[i].x)
		}
		if m.state != StateActive {
			// Idle, calibrating and missing nodes do no work to be slow at.
			g.pause(i, m.state == StateMissing)
			m.fresh = 0
			continue
		}
		if m.known.has(nodesignal.Score) {
			e.scores = append(e.scores, scores[i].x)
		}
	}
	e.wideScores = append(e.wideScores, e.scores...)
	e.wideThroughputs = append(e.wideThroughputs, e.throughputs...)
}

// now is the state of a member: active only with something to compare it by.
func (m *member) now(deciding signalSet) State {
	switch {
	case m.flags&flagMissing != 0:
		return StateMissing
	case m.reported == StateActive && m.known&(deciding|bit(nodesignal.Score)) == 0:
		return StateCalibrating
	}
	return m.reported
}

// Three ticks in a row with contradicting values under one name suspend the verdict on
// it until three minutes of ticks without. stuckTicks with the very same throughput mean
// that nobody measures it.
const contestedTicks, contestedCalm, stuckTicks = 3, 18, 30

// contest follows the values of one name that contradict each other.
func (e *Engine) contest(g *group, i int) {
	m := &g.members[i]
	differs := m.flags&flagDiffers != 0
	m.flags &^= flagDiffers
	if m.flags&flagContested == 0 {
		if m.contest++; m.contest >= contestedTicks {
			m.flags |= flagContested
			m.contest = 0
			e.counters.Contested++
			g.pause(i, false)
		}
		return
	}
	if differs {
		m.contest = 0
	} else if m.contest++; m.contest >= contestedCalm {
		m.flags &^= flagContested
		m.contest = 0
	}
}

// outdated forgets a value that its node has not told for the TTL: it tells
// others, but this one no more. When no tick came for that long, it was the gateway
// that did not listen, and what does not change nobody would say again.
func (e *Engine) outdated(g *group, i int, s nodesignal.Signal) {
	t := &g.tracks[s][i]
	if e.elapsed > e.cfg.TTL {
		return
	}
	if stale := int(t.stale) + int(max(e.elapsed*250/e.cfg.TTL, 1)); stale <= 250 {
		t.stale = uint8(stale)
		if t.flagged {
			g.members[i].flags |= flagSlow | flagJudged // nothing new: the verdict stands
			g.members[i].suspect(s, 0, t, &e.cfg.Signals[s])
		}
		return
	}
	g.members[i].known &^= bit(s)
	*t = track{}
}

// judgePlain compares each member's score with the published threshold.
func (e *Engine) judgePlain(g *group, now time.Time) {
	for i := range g.members {
		m, v := &g.members[i], &g.plain[i]
		fresh := m.fresh.has(nodesignal.Score)
		switch {
		case m.state != StateActive || !m.known.has(nodesignal.Score) || m.flags&flagContested != 0:
			v.Reset()
		case !g.rule.Quorum || g.rule.Panic || !fresh:
			// Nothing to compare with, or nothing new to compare: the verdict stands.
		default:
			limit := g.rule.Value
			if v.Straggler {
				limit += e.cfg.ExitBand
			}
			v.Step(g.tracks[nodesignal.Score][i].x, limit, now, e.cfg.EnterTicks, e.cfg.LeaveTicks)
		}
		if v.Straggler {
			m.flags |= flagSlow
			m.suspicion, m.gap = 1, float32(g.rule.Median-g.tracks[nodesignal.Score][i].x)
		}
	}
}

// conclude turns the verdicts of a group into rows and episodes.
func (e *Engine) conclude(g *group, now time.Time) {
	g.slow, g.unjudged = 0, [unjudged.Count]int{}
	rising := 0
	for i := range g.members {
		m := &g.members[i]
		if m.suspicion >= 0.5 {
			rising++
		}
		if m.flags&flagSlow != 0 {
			g.slow++
		}
		e.fill(g, i)
		m.fresh = 0
	}
	if g.plain == nil {
		e.watch(g, now)
	}
	for i := range g.members {
		if g.members[i].flags&(flagSlow|flagEpisode) != 0 {
			e.track(g, i, rising, now)
		}
	}
}
