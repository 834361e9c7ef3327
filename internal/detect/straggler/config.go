// SPDX-License-Identifier: Apache-2.0

// Package straggler compares nodes with their peers by medians, median absolute
// deviations (MAD) and exponential moving averages (EMA). It is pure: it knows neither
// pdata nor a clock, and the same observations and ticks give the same verdicts.
//
// Read detector.go first: one tick of one signal from top to bottom. parts.go finds a
// large part that fell, levels.go nodes that do other work.
package straggler // import "github.com/gpu-collector/gpu-collector/internal/detect/straggler"

import (
	"errors"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold/rule"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
)

// Config of an Engine. The keys are those of the processor's section gateway; the
// fields without have keys outside it.
type Config struct {
	Signals [nodesignal.Count]nodesignal.Spec `mapstructure:"-"`
	// TTL without a report makes a node missing.
	TTL time.Duration `mapstructure:"-"`

	// Of the threshold that is published; the engine judges no node by it.
	rule.Config `mapstructure:",squash"`

	// MinPeers with a signal are needed to judge any by it: of two either may be the slow one.
	MinPeers int `mapstructure:"min_peers"`
	// MaxOnsets nodes per cluster have an onset at a tick; the rest waits for the next.
	MaxOnsets int `mapstructure:"max_onsets"`
	// CoverageFraction of the known nodes must report, else coverage is low.
	CoverageFraction float64 `mapstructure:"coverage_fraction"`
	// Retention without a report forgets a node.
	Retention time.Duration `mapstructure:"retention"`
	// MaxNodes bounds the slots: a node takes one, and a peer group two. Once three quarters
	// are taken, a cluster gets no more than half of those that others do not hold.
	MaxNodes int `mapstructure:"max_nodes"`

	ranks bool // see OfRanks
}

// DefaultConfig returns the defaults; K, Alpha, Quorum and CoverageFraction are those
// that operators of MAD-based straggler detection know.
func DefaultConfig() Config {
	return Config{
		Signals: nodesignal.Defaults(), TTL: 50 * time.Second,
		Config:   rule.Config{K: 2, MinGap: 0.05, Alpha: 0.2, Quorum: 5, PanicFraction: 0.4, PanicExitTicks: 3},
		MinPeers: 3, MaxOnsets: 10, CoverageFraction: 0.8, Retention: time.Hour,
		MaxNodes: 200_000,
	}
}

// Validate returns all mistakes of c, one error per field. section is put before the
// keys that are the gateway's alone: not before those of the signals.
func (c *Config) Validate(section string) error {
	var errs []error
	check := func(ok bool, key string, is any, must string) {
		errs = append(errs, mistake.If(!ok, "`%s` is %v, must be %s", key, is, must))
	}
	for s := range nodesignal.Count {
		spec, key := &c.Signals[s], "signals::"+s.String()+"::"
		check(spec.MinGap > 0 && spec.MinGap < 1, key+"min_gap", spec.MinGap, "in (0,1)")
		check(spec.Direction == nodesignal.Low || spec.Direction == nodesignal.High, key+"direction", spec.Direction, "low or high")
	}
	errs = append(errs, mistake.If(nodesignal.Deciding(&c.Signals) == 0, "`signals` decide nothing, at least one must have `decides: true`"))
	c.Config.Validate(func(ok bool, key string, is any, must string) { check(ok, section+key, is, must) })
	check(c.MinPeers >= 3, section+"min_peers", c.MinPeers, rule.AtLeastThree)
	check(c.CoverageFraction >= 0 && c.CoverageFraction <= 1, section+"coverage_fraction", c.CoverageFraction, "in [0,1]")
	check(c.Retention >= c.TTL, section+"retention", c.Retention, "at least the "+c.TTL.String()+" that a node may be silent")
	for key, n := range map[string]int{"max_onsets": c.MaxOnsets, "max_nodes": c.MaxNodes} {
		check(n >= 1, section+key, n, "at least 1")
	}
	return errors.Join(errs...)
}
