// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/topology"
)

// scratch is what a tick needs while it runs; it is kept so that a tick of
// groups that are known allocates nothing.
type scratch struct {
	at      int64         // the tick, unix milliseconds
	elapsed time.Duration // since the tick before
	changes int           // of severity told in this cluster

	bits                        []uint64
	rest, places                []float64
	yard                        peers
	distinct                    [maxDistinct]float64
	x, y, bias                  []float64
	slots                       []int32
	scores, throughputs         []float64 // of this group
	ref                         float64   // the median of throughputs
	wideScores, wideThroughputs []float64
	clumps                      []clumped
	cuts                        []cut
	cohortLevels                []*Params
	edges                       []float64
	onsets                      []*node
	ranking                     ranking
	sought                      []topology.Node
}

// Tick computes thresholds and verdicts from the observations so far.
func (e *Engine) Tick(now time.Time) *Report {
	r := &e.report
	r.At, r.Groups, r.Changes, r.Ranks = now, r.Groups[:0], r.Changes[:0], r.Ranks[:0]
	e.at, e.elapsed = now.UnixMilli(), 0
	if !e.ticked.IsZero() {
		e.elapsed = max(now.Sub(e.ticked), 0)
		if e.elapsed > e.cfg.TTL {
			e.hearing = now.UnixNano()
		}
	}
	if e.saving.continues {
		e.saving.continues = false
		e.events = append(e.events, e.Open(EventContinues, "", now)...)
	}
	e.row = 0
	e.ranking.most = e.cfg.Episodes.MaxRanked
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
	c.wide.update(&e.cfg, &e.scratch, e.wideScores, e.wideThroughputs)
	e.groupReport(&e.report.Groups[at], c.name, "", &c.wide, c.wideCounts, stragglers)
	e.tellOnsets(c, now)
	e.silences(c, now)
	e.ranking.list(&e.report)
}

// deaf reports whether for longer than the TTL nobody listened to the nodes, or has
// listened again for no longer than that.
func (e *Engine) deaf() bool {
	ttl := e.cfg.TTL
	return e.elapsed > ttl || e.saving.resumed > 0 && time.Duration(e.at*int64(time.Millisecond)-e.saving.resumed) <= ttl
}

// expire marks silent nodes missing and forgets those past the retention. When
// no tick came for that long, it was the gateway that did not listen.
func (e *Engine) expire(g *group, now time.Time) {
	deaf := e.deaf()
	at := now.UnixNano()
	if !g.dirty && g.counts[StateMissing] == 0 && time.Duration(at-g.oldest) <= e.cfg.TTL {
		return
	}
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
	if g.since == 0 {
		g.since = e.at
	}
	g.settled = e.at-g.since >= settledAfter.Milliseconds()
	e.states(g)
	g.rule.update(&e.cfg, &e.scratch, e.scores, e.throughputs)
	e.ref = g.rule.ref
	if e.cfg.Decision == DecisionThreshold {
		e.judgePlain(g, now)
	} else {
		e.cohorts(g, now)
		for s := range nodesignal.Count {
			if e.deciding.has(s) && g.signals[s] != nil {
				e.judge(g, s)
			}
		}
	}
	e.conclude(g, now)
	r := e.addGroup()
	e.groupReport(r, g.cluster.name, g.name, &g.rule, g.counts, g.slow)
	r.Unjudged, r.Detectable = g.unjudged, e.detectable(g)
	e.reportSignals(g, r)
}

// states settles what each member is at this tick, and gathers the scores of
// the active ones and the throughputs of the busy ones.
func (e *Engine) states(g *group) {
	g.counts = [numStates]int{}
	g.scored = false
	e.scores, e.throughputs = e.scores[:0], e.throughputs[:0]
	scores, throughputs := g.signals[nodesignal.Score], g.signals[nodesignal.Throughput]
	g.oldest = math.MaxInt64
	for i := range g.members {
		m := &g.members[i]
		g.oldest = min(g.oldest, m.seen)
		m.state = m.now(e.raw)
		g.counts[m.state]++
		if m.flags&(flagDiffers|flagContested) != 0 {
			e.contest(g, i)
		} else {
			m.contest = 0
		}
		was := m.flags & flagSlow
		m.flags &^= flagSlow | flagWasSlow | flagUnjudged | flagJudged | flagLockstep | flagOverlap | flagYoung
		if was != 0 {
			m.flags |= flagWasSlow
		}
		m.suspicion, m.gap, m.weight, m.signal = 0, 0, 0, nodesignal.Score
		// A calibrating node waits for the reference that it helps to form.
		if throughputs != nil && m.known.has(nodesignal.Throughput) && m.state <= StateCalibrating && m.state != StateIdle && throughputs.x[i] > 0 {
			e.throughputs = append(e.throughputs, throughputs.x[i])
		}
		if m.state != StateActive {
			// Idle, calibrating and missing nodes do no work to be slow at.
			if m.warm > 0 && m.state == StateMissing {
				g.pause(i)
			} else if m.warm > 0 {
				g.forget(i)
			}
			m.fresh = 0
			continue
		}
		if m.fresh != 0 && m.warm < MaxWarmTicks {
			m.warm++
		}
		g.scored = g.scored || m.known&e.raw == 0
		if m.known.has(nodesignal.Score) {
			e.scores = append(e.scores, scores.x[i])
		}
	}
	e.wideScores = append(e.wideScores, e.scores...)
	e.wideThroughputs = append(e.wideThroughputs, e.throughputs...)
}

// now is the state of a member: active only with something to compare it by.
func (m *member) now(raw signalSet) State {
	switch {
	case m.flags&flagMissing != 0:
		return StateMissing
	case m.reported == StateActive && m.known&(raw|bit(nodesignal.Score)) == 0:
		return StateCalibrating
	}
	return m.reported
}

// contest follows the values of one name that contradict each other.
func (e *Engine) contest(g *group, i int) {
	m, cfg := &g.members[i], &e.cfg.Episodes
	differs := m.flags&flagDiffers != 0
	m.flags &^= flagDiffers
	if m.flags&flagContested == 0 {
		if m.contest++; int(m.contest) >= cfg.ContestedTicks {
			m.flags |= flagContested
			m.contest = 0
			e.counters.Contested++
			g.forget(i)
		}
		return
	}
	if differs {
		m.contest = 0
	} else if m.contest++; int(m.contest) >= cfg.ContestedCalm {
		m.flags &^= flagContested
		m.contest = 0
	}
}

// conclude turns the verdicts of a group into rows, changes and episodes.
func (e *Engine) conclude(g *group, now time.Time) {
	g.slow, g.unjudged = 0, [unjudged.Count]int{}
	rising := 0
	first := e.row
	for i := range g.members {
		m := &g.members[i]
		if m.suspicion >= 0.5 {
			rising++
		}
		slow := m.flags&flagSlow != 0
		if slow {
			g.slow++
		}
		row := e.fill(g, i)
		if slow != (m.flags&flagWasSlow != 0) {
			e.report.Changes = append(e.report.Changes, *row)
		}
		if m.state == StateActive {
			e.ranking.offer(e.report.Nodes, first+i)
		}
		m.fresh = 0
	}
	if e.cfg.Decision == DecisionCUSUM {
		e.incident(g, now)
	}
	for i := range g.members {
		if g.members[i].flags&(flagSlow|flagEpisode) != 0 {
			e.follow(g, i, rising, now)
		}
	}
}
