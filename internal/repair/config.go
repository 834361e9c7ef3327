// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"slices"
	"time"
)

// Config of a Machine. DefaultConfig has the defaults.
type Config struct {
	// Rungs are the enabled steps; none by default.
	Rungs []Step
	// Lasting confirms an episode that we have watched for so long. False episodes last
	// for 10 minutes in the mean, and for 38 under the worst noise (docs/detection.md,
	// scenario 28): flagged share divided by the rate of onsets.
	Lasting time.Duration
	// Again is in how long a second onset that names the same GPU confirms.
	Again time.Duration
	// Stale is how long a signal counts that nobody repeats. A gateway that lost its state
	// tells no end of its episodes.
	Stale time.Duration
	// SilenceWait is how long a new case waits for the gateway's word of silences, which
	// follows the records by up to two pushes; a reading of the node ends the wait after a
	// fifth of it. A machine that starts or takes over waits for all of it, as the gateway
	// repeats every two minutes what it has said before.
	SilenceWait time.Duration
	// MinPeers is how many other active nodes a peer group keeps.
	MinPeers int
	// Probation is how long a node has to work among its peers after a passed test.
	Probation time.Duration
	// Relapse is the suspicion from which a node on probation relapses, in [0,2]; 1 is a
	// straggler.
	Relapse float64
	// Relapses of one case after which the machine proposes service.
	Relapses int
	// TestAfterDrain tests a node as soon as it is empty. Otherwise the test waits for the
	// word that it is repaired.
	TestAfterDrain bool
	// Retest is when a failed test is repeated without a person's word; 0 is never.
	Retest time.Duration
	// MaxCases bounds the cases; an onset beyond it is refused.
	MaxCases int
	Breaker  BreakerConfig
}

// DefaultConfig has no rung: a machine of it tells of its decisions, and asks for nothing.
func DefaultConfig() Config {
	return Config{
		Lasting: 4 * time.Hour, Again: 24 * time.Hour, Stale: time.Hour, SilenceWait: 150 * time.Second, MinPeers: 3,
		Probation: 24 * time.Hour, Relapse: 0.5, Relapses: 3, MaxCases: 1000,
		Breaker: BreakerConfig{MaxNodes: 5, MaxFraction: 0.05, MaxPerHour: 3},
	}
}

func (c *Config) enabled(s Step) bool { return slices.Contains(c.Rungs, s) }
