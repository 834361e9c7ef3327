// SPDX-License-Identifier: Apache-2.0

package straggler

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
	began            bool // the panic, with this tick
	calm             int
}

// update takes the scores of the active nodes and the throughputs of the busy
// ones.
func (r *rule) update(cfg *Config, b *scratch, scores, throughputs []float64) {
	r.active = len(scores)
	r.ref = 0
	if len(throughputs) >= cfg.Quorum {
		b.bits = bitsOf(b.bits[:0], throughputs)
		r.ref = median(b.bits)
	}
	r.quorum = len(scores) >= cfg.Quorum
	r.below, r.began = 0, false
	if !r.quorum {
		return
	}
	b.bits = bitsOf(b.bits[:0], scores)
	r.median = median(b.bits)
	b.bits = deviations(b.bits[:0], scores, r.median)
	r.mad = median(b.bits)
	next := r.next(cfg)
	for _, x := range scores {
		if x < next {
			r.below++
		}
	}
	was := r.panic
	if !r.panicked(cfg) {
		r.threshold, r.valid = next, true
	}
	r.began = r.panic && !was
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
