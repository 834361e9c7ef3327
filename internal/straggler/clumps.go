// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"cmp"
	"math"
	"slices"
)

// clumped is one node's mean, whether it has fallen or risen to it, and whether it
// stands still, as the node is slow.
type clumped struct {
	mean         float64
	fallen, rose bool
	slow         bool
}

func sortClumps(list []clumped) {
	slices.SortFunc(list, func(a, b clumped) int { return cmp.Compare(a.mean, b.mean) })
}

// cut is a place between two clumps of a sorted list: before the node at. It is kept
// when there was one.
type cut struct {
	at   int
	kept bool
}

// cut finds the clumps of a sorted list. It begins with a cut at every gap that is wide
// enough and has side nodes at either end of the list. While a cut has no two clumps at
// it, the one of these with the narrowest gap goes. edges are those that are there: they
// stay for half of what a new one takes. So what is left of a job becomes no part of
// another. turn says that nodes take turns: some are on their way from one clump to another.
func (e *Engine) cut(list []clumped, edges []float64, gap float64, side int, turn bool) []cut {
	cuts := e.cuts[:0]
	for _, edge := range edges {
		at, _ := slices.BinarySearchFunc(list, edge, func(c clumped, edge float64) int { return cmp.Compare(c.mean, edge) })
		if at > 0 && at < len(list) && (len(cuts) == 0 || at > cuts[len(cuts)-1].at) {
			cuts = append(cuts, cut{at, true})
		}
	}
	if len(list) >= e.cfg.Split.MinPeers && !e.degraded(list) {
		kept := len(cuts)
		for at := side; at <= len(list)-side; at++ {
			if list[at].mean-list[at-1].mean > gap/3 && !slices.Contains(cuts[:kept], cut{at, true}) {
				cuts = append(cuts, cut{at, false})
			}
		}
		slices.SortFunc(cuts, func(a, b cut) int { return cmp.Compare(a.at, b.at) })
	}
	drop := func(which func(k int) bool) bool {
		worst, narrowest := -1, 0.0
		for k, c := range cuts {
			if wide := list[c.at].mean - list[c.at-1].mean; (worst < 0 || wide < narrowest) && which(k) {
				worst, narrowest = k, wide
			}
		}
		if worst >= 0 {
			cuts = slices.Delete(cuts, worst, worst+1)
		}
		return worst >= 0
	}
	for drop(func(k int) bool { return !e.stands(list, cuts, k, gap, side, turn) }) {
		continue
	}
	for len(cuts) >= maxCohorts {
		// More jobs than there may be: the nearest are compared as well as they can be.
		drop(func(int) bool { return true })
	}
	e.cuts = cuts
	return cuts
}

// degraded reports whether there is sooner a fault of many than another job: more of
// the nodes fell than rose, or many are slow.
func (e *Engine) degraded(list []clumped) bool {
	slow := 0
	for i := range list {
		if list[i].slow {
			slow++
		}
	}
	n := float64(len(list))
	return fell(list) > e.cfg.Split.FallShare*n || float64(slow) > slowShare*n
}

// slowShare of slow nodes says that a group has a fault of many.
const slowShare = 1.0 / 6

// stands reports whether there are clumps on both sides of a cut: each has enough
// nodes, and the gap is wide for the spread on either side. Nodes that are each slow by
// a loss of its own are no job, and neither are nodes that fell to where they are.
func (e *Engine) stands(list []clumped, cuts []cut, k int, gap float64, side int, turn bool) bool {
	cfg, c := &e.cfg.Split, cuts[k]
	from, to := 0, len(list)
	if k > 0 {
		from = cuts[k-1].at
	}
	if k+1 < len(cuts) {
		to = cuts[k+1].at
	}
	lower, upper := list[from:c.at], list[c.at:to]
	wide, low, high := upper[0].mean-lower[len(lower)-1].mean, e.spreadOf(lower), e.spreadOf(upper)
	if c.kept {
		return works(lower) && works(upper) && wide > 0.5*max(gap, cfg.GapToSpread*max(low, high)) && (turn || alike(lower, len(upper), 2*high))
	}
	// The outermost of many lie closer than the clumps do.
	middles := upper[len(upper)/2].mean - lower[len(lower)/2].mean
	clear := wide > max(gap, cfg.GapToSpread*max(low, high)) ||
		min(len(lower), len(upper)) >= manyInClump && wide > max(low, high) && middles > max(gap, (cfg.GapToSpread+1)*max(low, high))
	return len(lower) >= side && len(upper) >= side && clear && alike(lower, len(upper), high) &&
		max(low, high) <= evenBy*(min(low, high)+evenFrom) && fell(lower) <= cfg.FallShare*float64(len(lower))
}

// manyInClump nodes have outermost ones. Fewer may lie so by chance, each slow by its own.
const manyInClump = 8

// Healthy nodes of one job differ from each other about as those of another: by a
// factor of evenBy at most, once that is more than evenFrom.
const evenBy, evenFrom = 4, 0.004

// alike reports whether few nodes below so many others, which spread so much, may be of one
// job. Nodes of a job differ as those of another do: further apart are nodes that are slow
// each by its own. The spread of few does not show it, since it leaves the outermost out.
func alike(lower []clumped, others int, spread float64) bool {
	n := len(lower)
	if few := n < manyInClump || n < 2*manyInClump && float64(n) < slowShare*float64(others); !few || others < manyInClump {
		return true
	}
	lower = lower[n/manyInClump:] // of many one may be slow
	least, most := math.Inf(1), math.Inf(-1)
	for _, c := range lower {
		if !c.slow { // its mean is where its job was before
			least, most = min(least, c.mean), max(most, c.mean)
		}
	}
	return most-least <= alikeBy*spread*(1+peersToTrust/math.Sqrt(float64(others)))+evenFrom
}

// alikeBy times their spread apart are the outermost of three to seven nodes of one job in
// about one case of a hundred.
const alikeBy = 4.5

// works reports whether any of the nodes is at work as it should be: a slow node's mean
// is where its job was before.
func works(list []clumped) bool {
	return slices.ContainsFunc(list, func(c clumped) bool { return !c.slow })
}

// fell is how many more fell than rose.
func fell(list []clumped) (n float64) {
	for i := range list {
		if list[i].fallen {
			n++
		}
		if list[i].rose {
			n--
		}
	}
	return n
}

// spreadOf is the robust standard deviation of a clump.
func (e *Engine) spreadOf(list []clumped) float64 {
	e.rest = e.rest[:0]
	for i := range list {
		e.rest = append(e.rest, list[i].mean)
	}
	e.bits = deviations(e.bits[:0], e.rest, list[len(list)/2].mean)
	return MADToSigma * median(e.bits)
}
