// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"cmp"
	"hash/fnv"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodesignal"
)

// maxCohorts a group is split into at most.
const maxCohorts = 4

// noCohort is of a node that is too new to tell what work it does.
const noCohort = maxCohorts

// splitState splits a group some label of which is missing, so that its nodes
// may do different work: the nodes' means of one signal lie in clumps.
type splitState struct {
	on     bool
	held   bool // the means stand still, as the group is in an incident
	signal nodesignal.Signal
	// mean and hour are parallel to the members, n counts the ticks in them.
	mean, hour []float64
	n          []uint8
	// edges between the cohorts, ascending.
	edges  []float64
	looked time.Time
	came   int // nodes that are new since the last look
	// reports are the cohorts' of this tick.
	reports []CohortReport
}

func (p *splitState) add() {
	if p.on {
		p.mean, p.hour, p.n = append(p.mean, 0), append(p.hour, 0), append(p.n, 0)
	}
}

func (p *splitState) pick(order []int) {
	if p.on {
		p.mean, p.hour, p.n = pick(p.mean, order), pick(p.hour, order), pick(p.n, order)
	}
}

func (p *splitState) forget(i int) {
	if p.on {
		p.n[i] = 0
	}
}

// clumped is one node's mean, and whether it has fallen to it.
type clumped struct {
	mean   float64
	fallen bool
}

// cohorts follows the nodes' means and looks, now and then, at how they lie.
func (e *Engine) cohorts(g *group, now time.Time) {
	p := &g.split
	if !p.on || e.cfg.Split.Interval == 0 {
		return
	}
	if s := e.splitSignal(g); s != p.signal || p.looked.IsZero() {
		p.signal, p.edges = s, p.edges[:0]
		clear(p.n)
		h := fnv.New32a()
		_, _ = h.Write([]byte(g.name)) // never fails
		// Not all groups on the same tick.
		p.looked = now.Add(-e.cfg.Split.Interval / 16 * time.Duration(h.Sum32()%16))
		e.regroup(g, true)
	}
	e.means(g)
	if now.Sub(p.looked) >= e.cfg.Split.Interval || p.came >= e.cfg.Split.MinSide {
		p.looked, p.came = now, 0
		e.look(g)
	}
}

// splitSignal is the first relative signal that the group has, else its score:
// fractions are much the same whatever the work.
func (e *Engine) splitSignal(g *group) nodesignal.Signal {
	for s := range nodesignal.Score {
		if e.deciding.has(s) && e.cfg.Signals[s].Relative && g.signals[s] != nil {
			return s
		}
	}
	return nodesignal.Score
}

// means follows each node's mean, which stands still while the node or its
// group is slow: that is no other work. One that is young is none yet.
func (e *Engine) means(g *group) {
	p := &g.split
	p.held = g.incident.on
	sig := g.signals[p.signal]
	if sig == nil {
		return
	}
	short := float64(e.elapsed) / float64(e.cfg.Split.Window)
	long := float64(e.elapsed) / float64(e.cfg.Split.FallWindow)
	warm := uint8(e.cfg.WarmupTicks) //nolint:gosec // validated
	for i := range g.members {
		m := &g.members[i]
		if m.state != StateActive || !m.fresh.has(p.signal) || m.flags&(flagWasSlow|flagContested) != 0 ||
			(p.held && p.n[i] >= warm) {
			continue
		}
		p.n[i] = min(p.n[i]+1, 254)
		weight := 1 / float64(p.n[i])
		p.mean[i] += min(1, max(short, weight)) * (sig.x[i] - p.mean[i])
		p.hour[i] += min(1, max(long, weight)) * (sig.x[i] - p.hour[i])
		if p.n[i] == warm {
			p.came++
			m.cohort = p.cohortOf(i, warm)
		}
	}
}

// newcomer is the cohort of a node without a mean.
func (p *splitState) newcomer() uint8 {
	if len(p.edges) > 0 {
		return noCohort
	}
	return 0
}

func (p *splitState) cohortOf(i int, warm uint8) uint8 {
	if p.n[i] < warm {
		return p.newcomer()
	}
	k := uint8(0)
	for _, edge := range p.edges {
		if p.mean[i] >= edge {
			k++
		}
	}
	return k
}

// look finds the edges anew.
func (e *Engine) look(g *group) {
	p, cfg := &g.split, &e.cfg.Split
	list := e.clumps[:0]
	for i := range g.members {
		if g.members[i].state == StateActive && int(p.n[i]) >= e.cfg.WarmupTicks {
			fell := p.hour[i] - p.mean[i]
			list = append(list, clumped{p.mean[i], fell > cfg.FallBy*p.unit(e, p.hour[i])})
		}
	}
	e.clumps = list
	slices.SortFunc(list, func(a, b clumped) int { return cmp.Compare(a.mean, b.mean) })

	// An edge that is there stays for as long as there is half of the gap: what
	// is left of a job does not become part of another.
	was := len(p.edges)
	kept := p.edges[:0]
	from := 0
	for _, edge := range p.edges {
		at, _ := slices.BinarySearchFunc(list, edge, func(c clumped, edge float64) int { return cmp.Compare(c.mean, edge) })
		if at > from && at < len(list) && e.apart(p, list[from:], at-from, 0.5) {
			kept = append(kept, (list[at-1].mean+list[at].mean)/2)
			from = at
		}
	}
	p.edges = kept
	from = 0
	fresh := e.edges[:0]
	for _, edge := range kept {
		at, _ := slices.BinarySearchFunc(list, edge, func(c clumped, edge float64) int { return cmp.Compare(c.mean, edge) })
		fresh = e.divide(p, list[from:at], append(fresh, edge))
		from = at
	}
	fresh = e.divide(p, list[from:], fresh)
	slices.Sort(fresh)
	e.edges = fresh
	p.edges = append(p.edges[:0], fresh[:min(len(fresh), maxCohorts-1)]...)
	for k, edge := range p.edges {
		p.edges[k] = float64(float32(edge)) // as it travels
	}
	e.regroup(g, len(p.edges) != was)
}

// divide appends the edges within a sorted list.
func (e *Engine) divide(p *splitState, list []clumped, edges []float64) []float64 {
	cfg := &e.cfg.Split
	side := max(cfg.MinSide, int(cfg.MinShare*float64(len(list))+0.5))
	if len(list) < max(cfg.MinPeers, 2*side) || len(edges) >= maxCohorts-1 {
		return edges
	}
	at, widest := 0, 0.0
	for k := side; k <= len(list)-side; k++ {
		if gap := (list[k].mean - list[k-1].mean) / max(p.unit(e, list[k].mean), minScale); gap > widest {
			at, widest = k, gap
		}
	}
	if at == 0 || !e.apart(p, list, at, 1) || fell(list[:at]) > cfg.FallShare*float64(at) {
		return edges
	}
	edges = append(edges, (list[at-1].mean+list[at].mean)/2)
	edges = e.divide(p, list[:at], edges)
	return e.divide(p, list[at:], edges)
}

func fell(list []clumped) (n float64) {
	for _, c := range list {
		if c.fallen {
			n++
		}
	}
	return n
}

// unit is what a gap at x is a fraction of.
func (p *splitState) unit(e *Engine, x float64) float64 {
	if e.cfg.Signals[p.signal].Relative {
		return x
	}
	return 1
}

// apart reports whether the list has a gap before at that is wide for itself
// and against the spread on either side. share lowers what is asked for.
func (e *Engine) apart(p *splitState, list []clumped, at int, share float64) bool {
	gap := list[at].mean - list[at-1].mean
	return gap > share*e.cfg.Split.MinGap*p.unit(e, list[at].mean) &&
		gap > share*e.cfg.Split.GapToSpread*max(e.spreadOf(list[:at]), e.spreadOf(list[at:]))
}

func (e *Engine) spreadOf(list []clumped) float64 {
	e.rest = e.rest[:0]
	for _, c := range list {
		e.rest = append(e.rest, c.mean)
	}
	e.bits = deviations(e.bits[:0], e.rest, list[len(list)/2].mean)
	return MADToSigma * median(e.bits)
}

// regroup puts each node into its cohort. Unless the cohorts are what they were,
// nothing that was learnt among the others counts; only who is a straggler has
// to show first that it is none.
func (e *Engine) regroup(g *group, anew bool) {
	p := &g.split
	for i := range g.members {
		m := &g.members[i]
		k := p.cohortOf(i, uint8(e.cfg.WarmupTicks)) //nolint:gosec // validated
		if k == m.cohort && !anew {
			continue
		}
		m.cohort = k
		if m.flags&flagWasSlow == 0 {
			g.forgetTrackers(i)
		}
	}
	if !anew {
		return
	}
	for _, s := range g.signals {
		if s != nil {
			s.cohorts = [maxCohorts]estimator{}
		}
	}
}
