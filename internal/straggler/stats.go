// SPDX-License-Identifier: Apache-2.0

package straggler

import "slices"

// median sorts x and returns its middle value, the mean of the two middle
// ones for an even count. x must not be empty.
func median(x []float64) float64 {
	slices.Sort(x)
	n := len(x)
	if n%2 == 1 {
		return x[n/2]
	}
	return x[n/2-1] + (x[n/2]-x[n/2-1])/2
}

// rule is the threshold of one set of peers over time: the published formula
//
//	median - max(k*1.4826*MAD, min_gap), smoothed by a moving average
//
// with quorum and panic mode. The average never comes closer to this tick's
// median than min_gap: on a dip of the whole fleet the threshold follows at
// once instead of accusing everybody.
type rule struct {
	threshold float64
	valid     bool // a quorum was met once

	median, mad, ref float64
	active           int
	quorum           bool
	below            int
	panic            bool
	calm             int
}

// update takes the scores of the active nodes and the throughputs of the busy
// ones; it reorders and overwrites both.
func (r *rule) update(cfg *Config, scores, throughputs []float64) {
	r.active = len(scores)
	r.ref = 0
	if len(throughputs) >= cfg.Quorum {
		r.ref = median(throughputs)
	}
	r.quorum = len(scores) >= cfg.Quorum
	r.below = 0
	if !r.quorum {
		return
	}
	r.median = median(scores)
	r.mad = sortedMAD(scores, r.median)
	next := r.next(cfg)
	r.below, _ = slices.BinarySearch(scores, next)
	if !r.panicked(cfg) {
		r.threshold, r.valid = next, true
	}
}

func (r *rule) next(cfg *Config) float64 {
	next := r.median - max(cfg.K*MADToSigma*r.mad, cfg.MinGap)
	if r.valid {
		next = cfg.Alpha*next + (1-cfg.Alpha)*r.threshold
	}
	return max(min(next, r.median-cfg.MinGap), 0)
}

// panicked keeps the panic state: too many nodes below the new threshold means
// that the threshold, not the nodes, is suspect.
func (r *rule) panicked(cfg *Config) bool {
	if float64(r.below) > cfg.PanicFraction*float64(r.active) {
		r.panic, r.calm = true, 0
	} else if r.panic {
		r.calm++
		if r.calm >= cfg.PanicExitTicks {
			r.panic = false
		}
	}
	return r.panic
}

// sortedMAD returns the median absolute deviation from m of sorted values
// without touching them: the deviations on either side of m are two sorted
// runs, merged from the middle outwards until half of them are seen.
func sortedMAD(sorted []float64, m float64) float64 {
	n := len(sorted)
	hi, _ := slices.BinarySearch(sorted, m)
	lo := hi - 1
	var last, before float64
	for range n/2 + 1 {
		before = last
		switch {
		case lo < 0:
			last, hi = sorted[hi]-m, hi+1
		case hi >= n || m-sorted[lo] <= sorted[hi]-m:
			last, lo = m-sorted[lo], lo-1
		default:
			last, hi = sorted[hi]-m, hi+1
		}
	}
	if n%2 == 1 {
		return last
	}
	return before + (last-before)/2
}
