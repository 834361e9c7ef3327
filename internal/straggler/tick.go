// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodesignal"
)

// Tick computes thresholds and verdicts from the observations so far.
func (e *Engine) Tick(now time.Time) *Report {
	r := &e.report
	r.At, r.Groups, r.Nodes, r.Changes = now, r.Groups[:0], r.Nodes[:0], r.Changes[:0]
	e.names = e.names[:0]
	for name := range e.clusters {
		e.names = append(e.names, name)
	}
	slices.Sort(e.names)
	for _, name := range e.names {
		e.tickCluster(e.clusters[name], now)
	}
	return r
}

func (e *Engine) tickCluster(c *cluster, now time.Time) {
	e.expire(c, now)
	if len(c.nodes) == 0 {
		return
	}
	c.wideCounts = [numStates]int{}
	at := len(e.report.Groups)
	e.report.Groups = append(e.report.Groups, GroupReport{})
	stragglers := 0
	for _, g := range c.order {
		stragglers += e.tickGroup(g, now)
		for s, n := range g.counts {
			c.wideCounts[s] += n
		}
	}
	e.scores, e.throughputs = e.scores[:0], e.throughputs[:0]
	for _, g := range c.order {
		e.collect(g.members)
	}
	began := e.updateRule(&c.wide)
	e.report.Groups[at] = e.groupReport(c.name, "", &c.wide, c.wideCounts, stragglers, began)
}

// expire marks silent nodes missing and forgets those past the retention.
func (e *Engine) expire(c *cluster, now time.Time) {
	for _, g := range slices.Backward(c.order) { // dropIfEmpty shrinks it
		g.members = slices.DeleteFunc(g.members, func(n *node) bool {
			silent := now.Sub(n.seen)
			if silent > e.cfg.Retention {
				delete(c.nodes, n.name)
				e.nodes--
				return true
			}
			n.missing = silent > e.cfg.TTL
			return false
		})
		e.dropIfEmpty(g)
	}
	if len(c.nodes) == 0 {
		delete(e.clusters, c.name)
	}
}

func (e *Engine) tickGroup(g *group, now time.Time) (stragglers int) {
	if g.unsorted {
		slices.SortFunc(g.members, func(a, b *node) int { return cmp.Compare(a.name, b.name) })
		g.unsorted = false
	}
	g.counts = [numStates]int{}
	for _, n := range g.members {
		g.counts[n.state()]++
	}
	e.scores, e.throughputs = e.scores[:0], e.throughputs[:0]
	e.collect(g.members)
	began := e.updateRule(&g.rule)
	for _, n := range g.members {
		changed := e.judge(g, n, now)
		if n.verdict.Straggler {
			stragglers++
		}
		nr := NodeReport{
			Cluster: g.cluster.name, Group: g.name, Node: n.name, Peers: g.peers,
			State: n.state(), Score: n.score, Straggler: n.verdict.Straggler, Since: n.verdict.Since,
			Threshold: g.rule.threshold, Median: g.rule.median, Active: g.rule.active,
		}
		e.report.Nodes = append(e.report.Nodes, nr)
		if changed {
			e.report.Changes = append(e.report.Changes, nr)
		}
	}
	e.report.Groups = append(e.report.Groups, e.groupReport(g.cluster.name, g.name, &g.rule, g.counts, stragglers, began))
	return stragglers
}

// judge moves the verdict on one node and reports whether it changed.
func (e *Engine) judge(g *group, n *node, now time.Time) bool {
	fresh := n.fresh
	n.fresh = false
	switch {
	case n.state() != StateActive || !n.hasScore:
		// Idle, calibrating and missing nodes do no work to be slow at.
		return n.verdict.Reset()
	case !g.rule.quorum || g.rule.panic || !fresh:
		// Nothing to compare with, or nothing new to compare: the verdict stands.
		return false
	default:
		return n.verdict.Step(n.score, g.rule.threshold, now, e.cfg.EnterTicks, e.cfg.LeaveTicks)
	}
}

// collect adds the members' scores and throughputs to the scratch slices.
func (e *Engine) collect(members []*node) {
	for _, n := range members {
		state := n.state()
		if state == StateActive && n.hasScore {
			e.scores = append(e.scores, n.score)
		}
		// A calibrating node waits for the reference that it helps to form.
		if (state == StateActive || state == StateCalibrating) && n.values.V[nodesignal.Throughput] > 0 {
			e.throughputs = append(e.throughputs, n.values.V[nodesignal.Throughput])
		}
	}
}

func (e *Engine) updateRule(r *rule) (panicBegan bool) {
	was := r.panic
	r.update(&e.cfg, e.scores, e.throughputs)
	return r.panic && !was
}

func (e *Engine) groupReport(cluster, name string, r *rule, counts [numStates]int, stragglers int, began bool) GroupReport {
	known := 0
	for _, n := range counts {
		known += n
	}
	reporting := known - counts[StateMissing]
	return GroupReport{
		Cluster: cluster, Group: name,
		Valid: r.valid, Quorum: r.quorum, Threshold: r.threshold,
		Median: r.median, MAD: r.mad, Ref: r.ref,
		Counts:      counts,
		CoverageLow: float64(reporting) < e.cfg.CoverageFraction*float64(known),
		Panic:       r.panic, PanicBegan: began,
		Stragglers: stragglers,
	}
}
