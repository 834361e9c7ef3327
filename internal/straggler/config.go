// SPDX-License-Identifier: Apache-2.0

// Package straggler compares nodes with their peers. It is pure: it knows
// neither pdata nor a clock, the same observations and ticks always give the
// same verdicts, and a tick reuses its buffers.
//
// An Engine keeps the last signals of each node per cluster and peer group. At each
// Tick it computes the robust centre and spread of the active nodes' values, per
// group and signal. It steps one Tracker per node and signal with them, and turns the
// trackers' results into episodes.
package straggler // import "github.com/gpu-collector/gpu-collector/internal/straggler"

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// MADToSigma turns a median absolute deviation into a standard deviation for
// normal data: 1/Φ⁻¹(3/4) (Rousseeuw and Croux 1993).
const MADToSigma = 1.4826

// Config of an Engine. All durations and counts are positive. The keys are those
// of the processor's section gateway; the fields without have keys outside it.
type Config struct {
	// Decision is what makes a node a straggler.
	Decision Decision `mapstructure:"-"`

	// K is the factor on 1.4826*MAD. 2 flags 2.3 % of a normal healthy fleet
	// on one tick, hence MinGap and EnterTicks.
	K float64 `mapstructure:"k"`
	// MinGap is the least distance of the threshold from the median. Real
	// fleets have MAD = 0 much of the time: 94 % of the busy GPUs of a 31-host
	// fleet ran at the very same clock.
	MinGap float64 `mapstructure:"min_gap"`
	// Alpha is the weight of this tick in the threshold's moving average.
	Alpha float64 `mapstructure:"alpha"`
	// Quorum is the number of active nodes without which nothing is computed anew.
	Quorum int `mapstructure:"quorum"`
	// PanicFraction of active nodes below the threshold makes the threshold
	// itself suspect, PanicExitTicks calm ticks end that.
	PanicFraction  float64 `mapstructure:"panic_fraction"`
	PanicExitTicks int     `mapstructure:"panic_exit_ticks"`
	// EnterTicks consecutive observations below the threshold make a node a
	// straggler under DecisionThreshold, LeaveTicks at or above it plus
	// ExitBand end that.
	EnterTicks int     `mapstructure:"-"`
	LeaveTicks int     `mapstructure:"-"`
	ExitBand   float64 `mapstructure:"exit_band"`

	// Signals says how each signal is compared.
	Signals [nodesignal.Count]nodesignal.Spec `mapstructure:"-"`
	// MinPeers with a signal are needed to judge any of them by it: of two nodes
	// nobody can tell which is slow.
	MinPeers int `mapstructure:"min_peers"`
	// Warmup with values, and LeastWarmTicks, are needed of a node before it is judged:
	// the first steps of a job compile and fill caches, and nodes that do other work
	// than the rest must be seen together to be told apart.
	Warmup    time.Duration `mapstructure:"warmup"`
	Estimator Estimator     `mapstructure:"estimator"`
	CUSUM     CUSUM         `mapstructure:"cusum"`
	Split     Split         `mapstructure:"split"`
	Incident  Incident      `mapstructure:"incident"`
	Episodes  Episodes      `mapstructure:"episodes"`

	// CoverageFraction of the expected nodes must report, else coverage is low.
	CoverageFraction float64 `mapstructure:"coverage_fraction"`
	// TTL without a word from a node makes it missing, Retention forgets it.
	TTL       time.Duration `mapstructure:"-"`
	Retention time.Duration `mapstructure:"retention"`
	// Bounds of the state. Of groups and nodes a cluster holds no more than half
	// of what the others do not.
	MaxClusters int `mapstructure:"max_clusters"`
	MaxGroups   int `mapstructure:"max_groups"`
	MaxNodes    int `mapstructure:"max_nodes"`
	// MaxLabelBytes bounds the different topology labels of the nodes, and a cluster's as
	// MaxNodes does.
	MaxLabelBytes int `mapstructure:"-"`
}

// Estimator holds the constants of a group's spread and of its nodes' biases, in the
// order of their use. test/scenarios measures what they give together.
type Estimator struct {
	// TiedBelow is the spread under which most values count as tied. Their mean
	// deviation counts then too, each bounded by TiedClip (Iglewicz and Hoaglin 1993).
	TiedBelow float64 `mapstructure:"tied_below"`
	TiedClip  float64 `mapstructure:"tied_clip"`
	// ScaleWindow is the time constant of the spread. The spread is smoothed, the
	// centre never: that must move with the fleet.
	ScaleWindow time.Duration `mapstructure:"scale_window"`
	// MinScale is the least spread, a share of the smallest gap worth an alert.
	MinScale float64 `mapstructure:"min_scale"`
	// MaxQuantum bounds the step between values that is taken for a resolution.
	MaxQuantum float64 `mapstructure:"max_quantum"`
	// A node may differ from its peers for good by MinBias, a share of the smallest
	// gap worth an alert, and by BiasSpreads times the spread of what the nodes
	// differ by: 3.5 leaves one healthy node of 4,000 beyond.
	MinBias     float64 `mapstructure:"min_bias"`
	BiasSpreads float64 `mapstructure:"bias_spreads"`
	// LevelWindow is the time constant of a group's usual level; it stands
	// still while the group is below it.
	LevelWindow time.Duration `mapstructure:"level_window"`

	_ struct{}
}

// Split is how a group whose nodes do several kinds of work is split without labels.
type Split struct {
	// Interval between two looks; 0 never splits.
	Interval time.Duration `mapstructure:"interval"`
	// Window is the time constant of a node's mean that is looked at.
	Window time.Duration `mapstructure:"window"`
	// MinPeers are needed to look, MinSide of them on either side: three that
	// were alike and apart from the others since they came are a job. By a signal
	// that is a fraction it takes MinShare of the nodes too.
	MinPeers int     `mapstructure:"min_peers"`
	MinSide  int     `mapstructure:"min_side"`
	MinShare float64 `mapstructure:"min_share"`
	// MinGap and GapToSpread times the spread within the sides are what the gap
	// between them must exceed; half of that keeps a split that is there.
	MinGap      float64 `mapstructure:"min_gap"`
	GapToSpread float64 `mapstructure:"gap_to_spread"`
	// When more than FallShare of a side fell by more than FallBy within FallWindow,
	// the side degraded and has no other job: the grouping stays.
	FallShare  float64       `mapstructure:"fall_share"`
	FallBy     float64       `mapstructure:"fall_by"`
	FallWindow time.Duration `mapstructure:"fall_window"`

	_ struct{}
}

// Incident is what makes many slow nodes one event.
type Incident struct {
	// Fall of a group's centre below its usual level, a fraction, keeps that level
	// where it is: it is another phase of the work. 8 % is beyond the swing of 1 to
	// 2 % that a cluster's temperature makes in a day (The Llama 3 Herd of Models,
	// 2024). Of signals with a greater min_gap that is what counts.
	Fall float64 `mapstructure:"fall"`
	// PartWindow is the time constant of the nodes' means by which a large part of a
	// group is told from the rest. After PartAfter of that all are compared with the
	// part that stayed at the usual level, until there were no parts for as long.
	// Where all fell before and a part comes back it takes four times as long.
	PartWindow time.Duration `mapstructure:"part_window"`
	PartAfter  time.Duration `mapstructure:"part_after"`
	// EndAfter without too many slow nodes an incident ends.
	EndAfter time.Duration `mapstructure:"end_after"`
	// More stragglers than MinNodes and than MinShare of the group are an incident.
	MinNodes int     `mapstructure:"min_nodes"`
	MinShare float64 `mapstructure:"min_share"`
	// UpdateAfter is how long more nodes of an incident wait to be told of.
	UpdateAfter time.Duration `mapstructure:"update_after"`
	// RelearnAfter is when what lasts is taken for usual.
	RelearnAfter time.Duration `mapstructure:"relearn_after"`

	_ struct{}
}

// Episodes is how verdicts become events.
type Episodes struct {
	// MaxOnsets node events per cluster and tick tell of one node each, the
	// rest becomes one event with a count.
	MaxOnsets int `mapstructure:"max_onsets"`
	// SeverityTicks in a row must agree on another severity.
	SeverityTicks int `mapstructure:"severity_ticks"`
	// FlapEpisodes of one node within FlapWindow make it flapping: its episode
	// stays open until FlapWindow has passed without it being slow.
	FlapEpisodes int           `mapstructure:"flap_episodes"`
	FlapWindow   time.Duration `mapstructure:"flap_window"`
	// ContestedTicks in a row with contradicting values under one name suspend
	// the verdict on it until ContestedCalm ticks without.
	ContestedTicks int `mapstructure:"contested_ticks"`
	ContestedCalm  int `mapstructure:"contested_calm"`
	// StuckTicks with the very same throughput mean that nobody measures it.
	StuckTicks int `mapstructure:"stuck_ticks"`
	// MaxListed bounds the nodes an event lists, MaxRanked the rank list of a cluster.
	MaxListed int `mapstructure:"max_listed"`
	MaxRanked int `mapstructure:"max_ranked"`

	_ struct{}
}

// DefaultConfig returns the defaults; K, Alpha, Quorum and CoverageFraction
// are those that operators of MAD-based straggler detection know.
func DefaultConfig() Config {
	return Config{
		K: 2, MinGap: 0.05, Alpha: 0.2, Quorum: 5,
		PanicFraction: 0.4, PanicExitTicks: 3,
		EnterTicks: 3, LeaveTicks: 3,
		Signals:  nodesignal.Defaults(),
		MinPeers: 3, Warmup: time.Minute,
		Estimator: Estimator{
			TiedBelow: 0.005, TiedClip: 0.05, ScaleWindow: 30 * time.Minute, MinScale: 0.1, MaxQuantum: 0.05,
			MinBias: 0.5, BiasSpreads: 3.5, LevelWindow: time.Hour,
		},
		CUSUM: DefaultCUSUM(),
		Split: Split{
			Interval: 5 * time.Minute, Window: 15 * time.Minute,
			MinPeers: 10, MinSide: 3, MinShare: 0.15, MinGap: 0.08, GapToSpread: 4,
			FallShare: 0.2, FallBy: 0.05, FallWindow: time.Hour,
		},
		Incident: Incident{Fall: 0.08, PartWindow: 30 * time.Second, PartAfter: 45 * time.Second, EndAfter: 3 * time.Minute, MinNodes: 2, MinShare: 0.15, UpdateAfter: 10 * time.Minute, RelearnAfter: 6 * time.Hour},
		Episodes: Episodes{
			MaxOnsets: 10, SeverityTicks: 6, FlapEpisodes: 3, FlapWindow: time.Hour,
			ContestedTicks: 3, ContestedCalm: 18, StuckTicks: 30, MaxListed: 100, MaxRanked: 10,
		},
		CoverageFraction: 0.8,
		TTL:              50 * time.Second, Retention: time.Hour,
		// A lone cluster holds half of the groups and nodes.
		MaxClusters: 256, MaxGroups: 20_000, MaxNodes: 200_000, MaxLabelBytes: 16 << 20,
	}
}
