// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// mistakes collects what is wrong with a configuration, one error per key.
type mistakes struct {
	section string
	errs    []error
}

func (m *mistakes) add(bad bool, key, format string, args ...any) {
	if bad {
		m.errs = append(m.errs, fmt.Errorf("`"+m.section+key+"` "+format, args...))
	}
}

func (m *mistakes) positive(key string, x float64) {
	m.add(!(x > 0 && x <= maxConstant), key, "is %v, must be in (0,%v]", x, maxConstant)
}

// fraction is for what may be nothing, but not all.
func (m *mistakes) fraction(key string, x float64) {
	m.add(!(x >= 0 && x < 1), key, "is %v, must be in [0,1)", x)
}

func (m *mistakes) share(key string, x float64) {
	m.add(!(x > 0 && x <= 1), key, "is %v, must be in (0,1]", x)
}

func (m *mistakes) count(key string, n, least, most int) {
	m.add(n < least, key, "is %d, must be at least %d", n, least)
	m.add(n > most, key, "is %d, must be at most %d", n, most)
}

func (m *mistakes) duration(key string, d time.Duration) {
	m.add(d <= 0, key, "is %s, must be more than 0s", d)
}

// Bounds that keep sums and counters finite.
const (
	maxConstant = 1e6
	maxTicks    = 10_000
)

// Validate returns all mistakes of c, one error per field. section is put
// before the keys that are the gateway's alone: not before those of the signals.
func (c *Config) Validate(section string) error {
	m := mistakes{}
	m.count("enter_ticks", c.EnterTicks, 1, maxTicks)
	m.count("leave_ticks", c.LeaveTicks, 1, maxTicks)
	for s := range nodesignal.Count {
		spec, key := &c.Signals[s], "signals::"+s.String()+"::"
		m.add(!(spec.MinGap > 0 && spec.MinGap < 1), key+"min_gap", "is %v, must be in (0,1)", spec.MinGap)
		m.add(spec.Direction != nodesignal.Low && spec.Direction != nodesignal.High, key+"direction", "is %d, must be low or high", spec.Direction)
	}
	m.add(c.Decision == DecisionCUSUM && c.deciding() == 0, "signals", "decide nothing, at least one must have `decides: true`")
	m.section = section
	m.add(c.Decision >= numDecisions, "decision", "is %d, must be cusum or threshold", c.Decision)
	m.add(!(c.K > 0 && c.K <= 10), "k", "is %v, must be in (0,10]", c.K)
	m.fraction("min_gap", c.MinGap)
	m.share("alpha", c.Alpha)
	m.add(c.Quorum < 3, "quorum", "is %d, must be at least 3: the median of two nodes accuses neither", c.Quorum)
	m.share("panic_fraction", c.PanicFraction)
	m.count("panic_exit_ticks", c.PanicExitTicks, 1, maxTicks)
	m.fraction("exit_band", c.ExitBand)
	m.add(c.MinPeers < 3, "min_peers", "is %d, must be at least 3: the median of two nodes accuses neither", c.MinPeers)
	m.duration("warmup", c.Warmup)
	m.add(!(c.CoverageFraction >= 0 && c.CoverageFraction <= 1), "coverage_fraction", "is %v, must be in [0,1]", c.CoverageFraction)
	m.add(c.Retention < c.TTL, "retention", "is %s, must be at least the %s that a node may be silent", c.Retention, c.TTL)
	m.count("max_clusters", c.MaxClusters, 1, 1<<30)
	m.count("max_groups", c.MaxGroups, 1, 1<<30)
	m.count("max_nodes", c.MaxNodes, 1, 1<<30)
	c.Estimator.validate(&m)
	c.CUSUM.validate(&m)
	c.Split.validate(&m)
	c.Incident.validate(&m)
	c.Episodes.validate(&m)
	return errors.Join(m.errs...)
}

func (e *Estimator) validate(m *mistakes) {
	const s = "estimator::"
	m.fraction(s+"tied_below", e.TiedBelow)
	m.share(s+"tied_clip", e.TiedClip)
	m.duration(s+"scale_window", e.ScaleWindow)
	m.share(s+"min_scale", e.MinScale)
	m.fraction(s+"max_quantum", e.MaxQuantum)
	m.share(s+"min_bias", e.MinBias)
	m.positive(s+"bias_spreads", e.BiasSpreads)
	m.duration(s+"level_window", e.LevelWindow)
}

func (c *CUSUM) validate(m *mistakes) {
	const s = "cusum::"
	for j, sum := range c.sums() {
		sum.validate(m, s+[...]string{"loud", "mid", "low"}[j]+"::")
	}
	m.add(!(c.ClipLow < 0 && c.ClipLow >= -maxConstant), s+"clip_low", "is %v, must be below 0", c.ClipLow)
	m.count(s+"enter_ticks", c.EnterTicks, 1, math.MaxUint8)
	m.duration(s+"leave_after", c.LeaveAfter)
	m.duration(s+"bias_window", c.BiasWindow)
	m.duration(s+"noise_window", c.NoiseWindow)
	m.add(!(c.MaxNoise >= 1 && c.MaxNoise <= maxConstant), s+"max_noise", "is %v, must be at least 1", c.MaxNoise)
}

func (u *Sum) validate(m *mistakes, s string) {
	m.positive(s+"loss", u.Loss)
	m.positive(s+"min_kappa", u.MinKappa)
	m.add(!(u.Reach > 0 && u.Reach <= -firstBin), s+"reach", "is %v, must be in (0,%v]", u.Reach, -firstBin)
	m.positive(s+"min_limit", u.MinLimit)
	m.add(!(u.Wander >= 0 && u.Wander <= maxConstant), s+"wander", "is %v, must be in [0,%v]", u.Wander, maxConstant)
}

func (p *Split) validate(m *mistakes) {
	const s = "split::"
	m.add(p.Interval < 0, s+"interval", "is %s, must be 0s (never) or more", p.Interval)
	m.duration(s+"window", p.Window)
	m.count(s+"min_peers", p.MinPeers, 6, maxTicks)
	m.count(s+"min_side", p.MinSide, 3, maxTicks)
	m.add(!(p.MinShare >= 0 && p.MinShare < 0.5), s+"min_share", "is %v, must be in [0,0.5)", p.MinShare)
	m.add(!(p.MinGap > 0 && p.MinGap < 1), s+"min_gap", "is %v, must be in (0,1)", p.MinGap)
	m.positive(s+"gap_to_spread", p.GapToSpread)
	m.share(s+"fall_share", p.FallShare)
	m.share(s+"fall_by", p.FallBy)
	m.add(p.FallWindow < p.Window, s+"fall_window", "is %s, must be at least the %s of `window`", p.FallWindow, p.Window)
}

func (i *Incident) validate(m *mistakes) {
	const s = "incident::"
	m.add(!(i.Fall > 0 && i.Fall < 1), s+"fall", "is %v, must be in (0,1)", i.Fall)
	m.duration(s+"part_window", i.PartWindow)
	m.duration(s+"part_after", i.PartAfter)
	m.duration(s+"end_after", i.EndAfter)
	m.count(s+"min_nodes", i.MinNodes, 1, 1<<30)
	m.share(s+"min_share", i.MinShare)
	m.duration(s+"update_after", i.UpdateAfter)
	m.duration(s+"relearn_after", i.RelearnAfter)
}

func (e *Episodes) validate(m *mistakes) {
	const s = "episodes::"
	m.count(s+"max_onsets", e.MaxOnsets, 1, maxTicks)
	m.count(s+"severity_ticks", e.SeverityTicks, 1, maxTicks)
	m.count(s+"flap_episodes", e.FlapEpisodes, 2, maxTicks)
	m.duration(s+"flap_window", e.FlapWindow)
	m.count(s+"contested_ticks", e.ContestedTicks, 1, maxTicks)
	m.count(s+"contested_calm", e.ContestedCalm, 1, maxTicks)
	m.count(s+"stuck_ticks", e.StuckTicks, 2, maxTicks)
	m.count(s+"max_listed", e.MaxListed, 1, maxTicks)
	m.count(s+"max_ranked", e.MaxRanked, 1, 100)
}
