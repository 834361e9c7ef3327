// SPDX-License-Identifier: Apache-2.0

// Package rule is the published threshold: how a gateway computes it of its nodes'
// scores, and how a node that is cut off judges its own by it. Pure.
package rule // import "github.com/gpu-collector/gpu-collector/internal/detect/threshold/rule"

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/robust"
)

// Config of a Threshold.
type Config struct {
	// K is the factor on 1.4826*MAD. 2 flags 2.3 % of a normal healthy fleet on one
	// tick, hence MinGap and a verdict's ticks.
	K float64 `mapstructure:"k"`
	// MinGap is the least distance of the threshold from the median. Real fleets have
	// MAD = 0 much of the time: 94 % of the busy GPUs of a 31-host fleet ran at the very
	// same clock.
	MinGap float64 `mapstructure:"min_gap"`
	// Alpha is the weight of this tick in the threshold's moving average.
	Alpha float64 `mapstructure:"alpha"`
	// Quorum is the number of active nodes without which no threshold is computed anew.
	Quorum int `mapstructure:"quorum"`
	// PanicFraction of active nodes below the threshold makes the threshold itself
	// suspect, PanicExitTicks calm ticks end that.
	PanicFraction  float64 `mapstructure:"panic_fraction"`
	PanicExitTicks int     `mapstructure:"panic_exit_ticks"`

	_ struct{}
}

// AtLeastThree is what a number of peers must be.
const AtLeastThree = "at least 3: the median of two nodes accuses neither"

// Validate checks each key.
func (c *Config) Validate(check func(ok bool, key string, is any, must string)) {
	check(c.K > 0 && c.K <= 10, "k", c.K, "in (0,10]")
	check(c.MinGap >= 0 && c.MinGap < 1, "min_gap", c.MinGap, "in [0,1)")
	check(c.Alpha > 0 && c.Alpha <= 1, "alpha", c.Alpha, "in (0,1]")
	check(c.Quorum >= 3, "quorum", c.Quorum, AtLeastThree)
	check(c.PanicFraction > 0 && c.PanicFraction <= 1, "panic_fraction", c.PanicFraction, "in (0,1]")
	check(c.PanicExitTicks >= 1, "panic_exit_ticks", c.PanicExitTicks, "at least 1")
}

// Threshold is that of one set of peers over time:
//
//	median - max(k*1.4826*MAD, min_gap), smoothed by a moving average
//
// with quorum and panic mode. The average never comes closer to this tick's
// median than min_gap: on a dip of the whole fleet the threshold follows at
// once instead of accusing everybody.
type Threshold struct {
	Value float64
	Valid bool // a quorum was met once
	// Median and MAD of the scores, without the factor; Ref is the median throughput of
	// the busy nodes, 0 below the quorum.
	Median, MAD, Ref float64
	Quorum           bool
	// Panic says that the threshold is held.
	Panic bool

	below, calm int
}

// Update takes the scores of the active nodes and the throughputs of the busy ones.
func (t *Threshold) Update(cfg *Config, b *robust.Sample, scores, throughputs []float64) {
	t.Ref = 0
	if len(throughputs) >= cfg.Quorum {
		t.Ref = b.Median(throughputs)
	}
	t.Quorum = len(scores) >= cfg.Quorum
	t.below = 0
	if !t.Quorum {
		return
	}
	t.Median = b.Median(scores)
	t.MAD = b.MAD(scores, t.Median)
	next := t.next(cfg)
	for _, x := range scores {
		if x < next {
			t.below++
		}
	}
	if !t.panicked(cfg, len(scores)) {
		t.Value, t.Valid = next, true
	}
}

func (t *Threshold) next(cfg *Config) float64 {
	next := t.Median - max(cfg.K*robust.MADToSigma*t.MAD, cfg.MinGap)
	if t.Valid {
		next = cfg.Alpha*next + (1-cfg.Alpha)*t.Value
	}
	return max(min(next, t.Median-cfg.MinGap), 0)
}

// panicked keeps the panic state: too many nodes below the new threshold means
// that the threshold, not the nodes, is suspect.
func (t *Threshold) panicked(cfg *Config, active int) bool {
	if float64(t.below) > cfg.PanicFraction*float64(active) {
		t.Panic, t.calm = true, 0
	} else if t.Panic {
		t.calm++
		t.Panic = t.calm < cfg.PanicExitTicks
	}
	return t.Panic
}

// Verdict is the state machine of one node under the threshold. The zero value is a node in
// good standing.
type Verdict struct {
	// Straggler is the current verdict, Since the first observation of the
	// run of low scores that led to it.
	Straggler bool
	Since     time.Time

	low, high int
	lowSince  time.Time
}

// Step takes one score against one threshold and reports whether Straggler changed.
func (v *Verdict) Step(score, threshold float64, at time.Time, enter, leave int) bool {
	if score < threshold {
		if v.low == 0 {
			v.lowSince = at
		}
		v.low, v.high = v.low+1, 0
		if !v.Straggler && v.low >= enter {
			v.Straggler, v.Since = true, v.lowSince
			return true
		}
		return false
	}
	v.high, v.low = v.high+1, 0
	if v.Straggler && v.high >= leave {
		v.Straggler = false
		return true
	}
	return false
}
