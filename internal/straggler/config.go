// SPDX-License-Identifier: Apache-2.0

// Package straggler compares nodes with their peers. It is pure: it knows
// neither pdata nor a clock, the same observations and ticks always give the
// same verdicts, and a tick reuses its buffers.
//
// An Engine keeps the last score of each node per cluster and peer group. At
// each Tick it computes, per group, the robust centre and spread of the
// active nodes' scores, the threshold below which a node stands out, and the
// verdict on each node.
package straggler // import "github.com/gpu-collector/gpu-collector/internal/straggler"

import (
	"errors"
	"fmt"
	"time"
)

// MADToSigma turns a median absolute deviation into a standard deviation for
// normal data: 1/Φ⁻¹(3/4) (Rousseeuw and Croux 1993).
const MADToSigma = 1.4826

// Config of an Engine. All durations and counts are positive.
type Config struct {
	// K is the factor on 1.4826*MAD. 2 flags 2.3 % of a normal healthy fleet
	// on one tick, hence MinGap and EnterTicks.
	K float64
	// MinGap is the least distance of the threshold from the median. Real
	// fleets have MAD = 0 much of the time: 94 % of the busy GPUs of a 31-host
	// fleet ran at the very same clock.
	MinGap float64
	// Alpha is the weight of this tick in the threshold's moving average.
	Alpha float64
	// Quorum is the number of active nodes without which nothing is computed anew.
	Quorum int
	// PanicFraction of active nodes below the threshold makes the threshold
	// itself suspect, PanicExitTicks calm ticks end that.
	PanicFraction  float64
	PanicExitTicks int
	// EnterTicks consecutive observations below the threshold make a node a
	// straggler, LeaveTicks at or above end it.
	EnterTicks, LeaveTicks int
	// CoverageFraction of the expected nodes must report, else coverage is low.
	CoverageFraction float64
	// TTL without a word from a node makes it missing, Retention forgets it.
	TTL, Retention time.Duration
	// Bounds of the state.
	MaxClusters, MaxGroups, MaxNodes int
}

// DefaultConfig returns the defaults; K, Alpha, Quorum and CoverageFraction
// are those that operators of MAD-based straggler detection know.
func DefaultConfig() Config {
	return Config{
		K: 2, MinGap: 0.05, Alpha: 0.2, Quorum: 5,
		PanicFraction: 0.4, PanicExitTicks: 3,
		EnterTicks: 3, LeaveTicks: 3,
		CoverageFraction: 0.8,
		TTL:              50 * time.Second, Retention: time.Hour,
		MaxClusters: 256, MaxGroups: 10_000, MaxNodes: 100_000,
	}
}

// Validate returns all mistakes of c, one error per field. section is put
// before the keys that are the gateway's alone.
func (c *Config) Validate(section string) error {
	var errs []error
	add := func(bad bool, key, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf("`"+key+"` "+format, args...))
		}
	}
	add(!(c.K > 0 && c.K <= 10), section+"k", "is %v, must be in (0,10]", c.K)
	add(!(c.MinGap >= 0 && c.MinGap < 1), section+"min_gap", "is %v, must be in [0,1)", c.MinGap)
	add(!(c.Alpha > 0 && c.Alpha <= 1), section+"alpha", "is %v, must be in (0,1]", c.Alpha)
	add(c.Quorum < 3, section+"quorum", "is %d, must be at least 3: the median of two nodes accuses neither", c.Quorum)
	add(!(c.PanicFraction > 0 && c.PanicFraction <= 1), section+"panic_fraction", "is %v, must be in (0,1]", c.PanicFraction)
	add(c.PanicExitTicks < 1, section+"panic_exit_ticks", "is %d, must be at least 1", c.PanicExitTicks)
	add(c.EnterTicks < 1, "enter_ticks", "is %d, must be at least 1", c.EnterTicks)
	add(c.LeaveTicks < 1, "leave_ticks", "is %d, must be at least 1", c.LeaveTicks)
	add(!(c.CoverageFraction >= 0 && c.CoverageFraction <= 1), section+"coverage_fraction", "is %v, must be in [0,1]", c.CoverageFraction)
	add(c.Retention < c.TTL, section+"retention", "is %s, must be at least the %s that a node may be silent", c.Retention, c.TTL)
	add(c.MaxClusters < 1, section+"max_clusters", "is %d, must be at least 1", c.MaxClusters)
	add(c.MaxGroups < 1, section+"max_groups", "is %d, must be at least 1", c.MaxGroups)
	add(c.MaxNodes < 1, section+"max_nodes", "is %d, must be at least 1", c.MaxNodes)
	return errors.Join(errs...)
}
