// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// judge compares the members of a group by one signal, cohort by cohort.
func (e *Engine) judge(g *group, s nodesignal.Signal) {
	sig := g.signals[s]
	for k := range len(g.split.edges) + 1 {
		e.slots = e.slots[:0]
		if s != nodesignal.Score || g.scored {
			e.gather(g, s, uint8(k))
		}
		t := &sig.cohorts[k]
		if len(e.slots) == 0 {
			t.known, t.n = false, 0
			continue
		}
		e.part(g, s, t)
		if t.update(&e.cfg, &e.cfg.Signals[s], &e.scratch, len(e.slots), e.x, e.bias, e.at, e.elapsed) {
			e.step(g, s, t)
			continue
		}
		for _, i := range e.slots {
			// Too few peers to say anything of any of them.
			sig.tracks[i].reset()
			g.members[i].flags |= flagUnjudged
		}
	}
}

// gather finds the members of a cohort that can be compared by s: their slots, values
// and biases. Values come from members that told one since the last tick and are not
// suspect, or from all when these are too few. A tenth of suspects would make the
// spread of the others look an eighth wider than it is.
func (e *Engine) gather(g *group, s nodesignal.Signal, cohort uint8) {
	sig := g.signals[s]
	n := len(g.members)
	e.slots, e.x, e.bias = slices.Grow(e.slots[:0], n)[:n], slices.Grow(e.x[:0], n)[:n], slices.Grow(e.bias[:0], n)[:n]
	slots, x, bias := e.slots, e.x, e.bias
	all, calm := 0, 0
	young := e.young(g)
	recent := min(1, float64(e.elapsed)/float64(e.cfg.Incident.PartWindow))
	for i := range g.members {
		m := &g.members[i]
		if m.state != StateActive || !m.known.has(s) || m.flags&flagContested != 0 ||
			m.cohort != cohort || g.split.passes(m) || (s == nodesignal.Score && m.known&e.raw != 0) {
			continue
		}
		if m.fresh.has(s) {
			sig.tracks[i].stale = 0
		} else if e.outdated(g, i, s) {
			continue
		}
		if int(m.warm) < e.cfg.WarmupTicks && !young {
			continue
		}
		slots[all] = int32(i)
		all++
		if tr := &sig.tracks[i]; m.fresh.has(s) {
			tr.follow(sig.x[i], recent)
			if !tr.Suspect() {
				x[calm], bias[calm] = sig.x[i], tr.bias
				calm++
			}
		}
	}
	if 2*calm < all || calm < e.cfg.MinPeers {
		for k, i := range slots[:all] {
			x[k], bias[k] = sig.x[i], sig.tracks[i].bias
		}
		calm = all
	}
	e.slots, e.x, e.bias = slots[:all], x[:calm], bias[:calm]
}

// young reports whether too few of a group are warm to be peers of the others:
// then those that are not are their own.
func (e *Engine) young(g *group) bool {
	warm := 0
	for i := range g.members {
		if int(g.members[i].warm) >= e.cfg.WarmupTicks {
			if warm++; warm >= e.cfg.MinPeers {
				return false
			}
		}
	}
	return true
}

// outdated forgets a value that its node has not told for the TTL: it tells
// others, but this one no more. When no tick came for that long, it was the gateway
// that did not listen, and what does not change nobody would say again.
func (e *Engine) outdated(g *group, i int, s nodesignal.Signal) bool {
	t := &g.signals[s].tracks[i]
	t.known = false
	if e.elapsed > e.cfg.TTL {
		return false
	}
	if stale := int(t.stale) + int(max(e.elapsed*staleTTL/e.cfg.TTL, 1)); stale <= staleTTL {
		t.stale = uint8(stale)
		return false
	}
	t.stale = 0
	g.members[i].known &^= bit(s)
	g.scored = true // it may be all that it tells now
	t.Reset()
	return true
}

// step moves the trackers of the gathered members.
func (e *Engine) step(g *group, s nodesignal.Signal, t *estimator) {
	sig, p, c := g.signals[s], &t.params, &e.cfg.CUSUM
	derived, perLevel, perGap := p.steps(), 1/p.Level, float32(1/e.cfg.Signals[s].MinGap)
	warmup := uint8(e.cfg.WarmupTicks)
	stuck := uint16(e.cfg.Episodes.StuckTicks)
	var l lag
	var before Tracker
	for _, i := range e.slots {
		m, tr := &g.members[i], &sig.tracks[i]
		if m.warm >= warmup {
			m.flags |= flagJudged
		}
		if m.fresh.has(s) && m.warm >= warmup {
			d := p.deviation(sig.x[i], perLevel)
			last, bias, straggler := float64(tr.last), tr.bias, tr.straggler
			z, known := clamp((d-bias)*derived.perScale, -maxLag, maxLag), tr.known
			still := s == nodesignal.Throughput && tr.same >= stuck && tr.sum == 0
			if still {
				before = tr.Tracker
			}
			tr.step(c, p, &derived, d, e.at)
			if still && tr.sum > 0 {
				// It is the peers that moved: nobody measures this one.
				if tr.same == stuck || known {
					e.counters.Stuck++
				}
				tr.Tracker, tr.known = before, false
			} else {
				if known && !straggler && !t.parting.on {
					l.add(z, clamp((last-bias)*derived.perScale, -maxLag, maxLag), float64(tr.slow))
				}
				tr.known = true
				tr.slow += slowAlpha * (float32(z) - tr.slow)
			}
		}
		if tr.straggler {
			m.flags |= flagSlow
		}
		suspicion := float32(0)
		if tr.sum > 0 {
			suspicion = tr.suspicion()
		}
		if suspicion > m.suspicion || (suspicion == m.suspicion && (m.signal == nodesignal.Score || (suspicion > 0 && tr.gap*perGap > m.weight))) {
			m.suspicion, m.gap, m.weight, m.signal = suspicion, tr.gap, tr.gap*perGap, s
		}
	}
	t.correlate(&e.cfg.Estimator, &l)
}

// judgePlain compares each member's score with the published threshold.
func (e *Engine) judgePlain(g *group, now time.Time) {
	for i := range g.members {
		m, v := &g.members[i], &g.plain[i]
		fresh := m.fresh.has(nodesignal.Score)
		switch {
		case m.state != StateActive || !m.known.has(nodesignal.Score) || m.flags&flagContested != 0:
			v.Reset()
		case !g.rule.quorum || g.rule.panic || !fresh:
			// Nothing to compare with, or nothing new to compare: the verdict stands.
		default:
			limit := g.rule.threshold
			if v.Straggler {
				limit += e.cfg.ExitBand
			}
			v.Step(g.signals[nodesignal.Score].x[i], limit, now, e.cfg.EnterTicks, e.cfg.LeaveTicks)
		}
		if v.Straggler {
			m.flags |= flagSlow
			m.suspicion, m.gap = 1, float32(g.rule.median-g.signals[nodesignal.Score].x[i])
		}
	}
}

// since is when what speaks against a member began, in unix milliseconds.
func (e *Engine) since(g *group, i int) int64 {
	if g.plain != nil {
		return g.plain[i].Since.UnixMilli()
	}
	return g.signals[g.members[i].signal].tracks[i].since
}

// fill writes the next row of the report's nodes. The names in it are written
// only when they are not those of the tick before: each is somewhere else in memory.
func (e *Engine) fill(g *group, i int) *NodeReport {
	r := &e.report
	if e.row == len(r.Nodes) {
		r.Nodes = append(r.Nodes, NodeReport{})
	}
	row := &r.Nodes[e.row]
	e.row++
	if e.relabel {
		row.NodeName = g.nodes[i].as
	}
	m := &g.members[i]
	row.State, row.Straggler, row.Contested = m.state, m.flags&flagSlow != 0, m.flags&flagContested != 0
	row.Waits = m.cohort == noCohort && m.state == StateActive && int(g.split.means[g.split.signal].n[i]) >= e.cfg.WarmupTicks
	row.UnjudgedBefore = m.why
	row.Unjudged, row.Until = e.unjudged(g, i)
	m.why = row.Unjudged
	g.unjudged[m.why]++
	row.Signal, row.Suspicion, row.Gap = m.signal, float64(m.suspicion), float64(m.gap)
	if row.Straggler {
		row.Since = time.UnixMilli(e.since(g, i)).UTC()
	} else if !row.Since.IsZero() {
		row.Since = time.Time{}
	}
	return row
}

// addGroup appends a group to the report. It is written where it stays: a copy
// of what all signals say is a kilobyte.
func (e *Engine) addGroup() *GroupReport {
	groups := &e.report.Groups
	if len(*groups) < cap(*groups) {
		*groups = (*groups)[:len(*groups)+1]
	} else {
		*groups = append(*groups, GroupReport{})
	}
	return &(*groups)[len(*groups)-1]
}

func (e *Engine) groupReport(to *GroupReport, cluster, name string, r *rule, counts [numStates]int, stragglers int) {
	known := 0
	for _, n := range counts {
		known += n
	}
	reporting := known - counts[StateMissing]
	*to = GroupReport{}
	to.Cluster, to.Group = cluster, name
	to.Valid, to.Quorum, to.Threshold = r.valid, r.quorum, r.threshold
	to.Median, to.MAD, to.Ref = r.median, r.mad, r.ref
	to.Counts, to.Stragglers = counts, stragglers
	to.CoverageLow = float64(reporting) < e.cfg.CoverageFraction*float64(known)
	to.Panic, to.PanicBegan = r.panic, r.began
}

// reportSignals adds how the group's nodes are compared to its report.
func (e *Engine) reportSignals(g *group, r *GroupReport) {
	r.Incident, r.Held = g.incident.on, g.split.held
	if g.incident.on {
		r.IncidentSince = time.UnixMilli(g.incident.since).UTC()
	}
	if len(g.split.edges) == 0 {
		g.signalReports(&r.Signals, 0)
		return
	}
	r.SplitBy, r.Turns = g.split.signal, g.split.turn
	if cap(g.split.reports) < maxCohorts {
		g.split.reports = make([]CohortReport, 0, maxCohorts)
	}
	g.split.reports = g.split.reports[:0]
	for k := range len(g.split.edges) + 1 {
		c := CohortReport{}
		if k > 0 {
			c.From, c.HasFrom = g.split.edges[k-1], true
		}
		for i := range g.members {
			if g.members[i].state == StateActive && int(g.members[i].cohort) == k {
				c.Active++
			}
		}
		g.signalReports(&c.Signals, k)
		g.split.reports = append(g.split.reports, c)
	}
	r.Cohorts = g.split.reports
}

func (g *group) signalReports(to *[nodesignal.Count]SignalReport, cohort int) {
	for s, sig := range g.signals {
		if sig != nil {
			t := &sig.cohorts[cohort]
			to[s] = SignalReport{Known: t.known, Params: t.params, N: t.n, Phi: t.phi, Fall: t.fall}
		}
	}
}
