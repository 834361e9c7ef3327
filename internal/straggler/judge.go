// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
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
		if t.update(&e.cfg, &e.cfg.Signals[s], &e.scratch, len(e.slots), peers{e.x, e.y, e.bias}, e.at, e.elapsed) {
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

// gather finds the members of a cohort that can be compared by s: their slots, and the
// peers' values, levels and biases. Peers' values come from members that told one since the last tick and are not
// suspect, or from all when these are too few. A tenth of suspects would make the
// spread of the others look an eighth wider than it is.
func (e *Engine) gather(g *group, s nodesignal.Signal, cohort uint8) {
	sig := g.signals[s]
	n := len(g.members)
	e.slots = slices.Grow(e.slots[:0], n)[:n]
	e.x, e.y, e.bias = slices.Grow(e.x[:0], n)[:n], slices.Grow(e.y[:0], n)[:n], slices.Grow(e.bias[:0], n)[:n]
	slots, x, ys, bias := e.slots, e.x, e.y, e.bias
	all, calm := 0, 0
	young, warm := e.young(g), e.warmups()
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
		if m.warm < warm[m.late] && !young {
			continue
		}
		slots[all] = int32(i)
		all++
		if tr := &sig.tracks[i]; m.fresh.has(s) {
			tr.follow(sig.x[i], recent)
			if !tr.straggler {
				x[calm], ys[calm], bias[calm] = sig.x[i], sig.y[i], float64(tr.bias)
				calm++
			}
		}
	}
	if 2*calm < all || calm < e.cfg.MinPeers {
		for k, i := range slots[:all] {
			x[k], ys[k], bias[k] = sig.x[i], sig.y[i], float64(sig.tracks[i].bias)
		}
		calm = all
	}
	e.slots, e.x, e.y, e.bias = slots[:all], x[:calm], ys[:calm], bias[:calm]
}

// young reports whether too few of a group are warm to be peers of the others:
// then those that are not are their own.
func (e *Engine) young(g *group) bool {
	n, warm := 0, e.warmups()
	for i := range g.members {
		if m := &g.members[i]; m.warm >= warm[m.late] {
			if n++; n >= e.cfg.MinPeers {
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
	t.Miss()
	if e.deaf() {
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
	sig, p := g.signals[s], &t.params
	if t.due(g.phase) {
		t.review(&e.cfg, &e.cfg.Signals[s], &e.scratch, sig.tracks)
	}
	p.Limits = t.limits
	coupled := e.cfg.Signals[s].Coupled
	if coupled && t.wavers.silent() {
		for j, h := range p.Limits {
			p.Limits[j] = -math.Abs(h)
		}
		if !t.wavers.overlaps() {
			p.Limits[loud] = doubt * math.Abs(p.Limits[loud])
		}
	}
	p.Round()
	if t.known = p.Valid(); !t.known {
		return
	}
	derived, perGap := p.steps(&e.cfg.CUSUM, e.at), float32(1/e.cfg.Signals[s].MinGap)
	t.threshold = derived.threshold()
	warm := e.warmups()
	stuck := uint16(e.cfg.Episodes.StuckTicks)
	var l lag
	var apart sides
	compared := flagJudged
	switch {
	case t.lockstep():
		compared = flagLockstep
	case coupled && t.wavers.overlaps():
		compared = flagOverlap
	case coupled && t.wavers.silent():
		compared = flagYoung
	}
	w := t.tails.watch(&e.cfg.CUSUM, len(e.slots), e.elapsed)
	var before Tracker
	for _, i := range e.slots {
		m, tr := &g.members[i], &sig.tracks[i]
		var says block
		if m.warm >= warm[m.late] {
			m.flags |= compared
		}
		if m.fresh.has(s) && m.warm >= warm[m.late] {
			last, suspect, hasLast := float64(tr.last), tr.Suspect(), tr.at.has(markKnown)
			still := s == nodesignal.Throughput && tr.same >= stuck && tr.Calm()
			if still {
				before = tr.Tracker
			}
			w.given = &tr.given
			tr.step(&derived, sig.y[i], derived.gap(sig.x[i]), &w)
			if still && tr.MoreThan(&before) {
				// It is the peers that moved: nobody measures this one.
				if !tr.Calm() && (tr.same == stuck || hasLast) {
					e.counters.Stuck++
				}
				tr.Skip(&before)
			} else {
				if hasLast && !suspect && !t.parting.on {
					l.add(clamp(float64(tr.last)*derived.perScale, -maxLag, maxLag), clamp(last*derived.perScale, -maxLag, maxLag))
				}
				// Of suspects too: where nobody waits, many are. A value that is told again is
				// on its side for no reason.
				if coupled && !t.parting.on && tr.same == 0 {
					says = sig.waver(i).take(derived.centre-sig.y[i], derived.perScale)
				}
				if !tr.straggler {
					w.n++
				}
			}
		}
		if coupled {
			apart.add(says, tr.against(&derived))
		}
		if tr.straggler {
			m.flags |= flagSlow
		}
		suspicion := tr.suspicion()
		if compared == flagYoung && !tr.straggler {
			suspicion = min(tr.against(&derived), mostYoung) // for who asks which part it is
		}
		if suspicion > m.suspicion || (suspicion == m.suspicion && (m.signal == nodesignal.Score || (suspicion > 0 && tr.gap*perGap > m.weight))) {
			m.suspicion, m.gap, m.weight, m.signal = suspicion, tr.gap, tr.gap*perGap, s
		}
	}
	w.end(e.elapsed)
	t.correlate(&e.cfg.Estimator, &l, e.elapsed)
	if coupled {
		if t.wavers == nil {
			t.wavers = &wavers{}
		}
		t.wavers.follow(&apart, e.elapsed)
	}
}

// mostYoung is less than the suspicion of a straggler.
const mostYoung = 0.99

// warmups are how many ticks with values a node needs to be judged, by member.late.
func (e *Engine) warmups() [2]uint8 {
	return [2]uint8{uint8(WarmTicks(e.cfg.Warmup, e.elapsed, false)), uint8(WarmTicks(e.cfg.Warmup, e.elapsed, true))}
}

// WarmTicks is how many ticks with values make a node warm: those of the warm-up, and
// LeastWarmTicks. A node that came late, to a group that is settled, takes five minutes:
// its caches are cold while those of the others are not. A fleet that pushes every second
// is a trial, and waits for the least only.
func WarmTicks(warmup, elapsed time.Duration, late bool) int {
	switch {
	case late:
		warmup = max(warmup, lateTime)
	case elapsed < shortPace:
		return LeastWarmTicks
	}
	return max(LeastWarmTicks, int(min((warmup+elapsed/2)/max(elapsed, time.Millisecond), MaxWarmTicks)))
}

// counted is the time that a tick counts for. In a trial that is as at the shipped pace.
func (e *Engine) counted() time.Duration {
	if e.elapsed < trialPace {
		return trialTick
	}
	return min(e.elapsed, e.cfg.TTL) // of a pause of the gateway nothing is known
}

const (
	lateTime             = 5 * time.Minute
	shortPace            = 1500 * time.Millisecond
	trialPace, trialTick = 900 * time.Millisecond, 10 * time.Second
	// LeastWarmTicks make a mean of a node's values.
	LeastWarmTicks = 6
	// MaxWarmTicks is where the count of a node's ticks ends.
	MaxWarmTicks = 250
	// settledAfter is when a group is settled.
	settledAfter = 15 * time.Minute
)

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
	return g.signals[g.members[i].signal].tracks[i].sinceMs()
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
	row.Waits = m.cohort == noCohort && m.state == StateActive && int(g.split.means[g.split.signal].n[i]) >= LeastWarmTicks
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
	r.Peers = g.peers
	r.Incident, r.Held, r.Settled = g.incident.on, g.split.held, g.settled
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
			to[s] = SignalReport{Known: t.known, Params: t.params, Threshold: t.threshold, N: t.n, Phi: t.phi, Fall: t.fall}
		}
	}
}
