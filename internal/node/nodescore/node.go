// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"errors"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold/rule"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
)

// Config of a Node. All durations and counts are positive. The keys are those of
// the processor's section agent; the fields without have keys outside it.
type Config struct {
	Weights Weights `mapstructure:"-"`
	Floors  Floors  `mapstructure:"-"`
	// Measures are how the signals are measured, Signals how they compare.
	Measures [nodesignal.Count]Measure         `mapstructure:"-"`
	Signals  [nodesignal.Count]nodesignal.Spec `mapstructure:"-"`
	// Interval is the pace of evaluation; readings between two are averaged.
	Interval time.Duration `mapstructure:"-"`
	// ReadingTTL is how long a reading counts that is not repeated.
	ReadingTTL time.Duration `mapstructure:"-"`
	// IdleBelow is the GPU utilisation under which a node is idle once that
	// has lasted IdleAfter; from LoadAbove on a GPU's clock and links count.
	IdleBelow float64       `mapstructure:"idle_below"`
	IdleAfter time.Duration `mapstructure:"idle_after"`
	LoadAbove float64       `mapstructure:"load_above"`
	// CalibrationSamples evaluations make the node's own baseline usable.
	CalibrationSamples int `mapstructure:"calibration_samples"`
	// BaselineAlpha is the weight of one evaluation in the baseline: slow
	// enough that a ramp of a few percent per hour stays visible.
	BaselineAlpha float64 `mapstructure:"baseline_alpha"`
	// SuspectBand below its baseline freezes it: a lasting slowdown must not
	// become the new normal.
	SuspectBand float64 `mapstructure:"suspect_band"`
	// CachedTTL is how long the gateway's last threshold is used when no newer
	// one comes.
	CachedTTL time.Duration `mapstructure:"cached_ttl"`
	// LocalFraction of its own baseline score is a node's threshold without a gateway.
	LocalFraction float64 `mapstructure:"local_fraction"`
	// EnterTicks scores in a row below the threshold make a straggler of a node that judges
	// itself, LeaveTicks at or above it end that.
	EnterTicks int `mapstructure:"-"`
	LeaveTicks int `mapstructure:"-"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	s := straggler.DefaultConfig()
	return Config{
		Weights: DefaultWeights(), Floors: DefaultFloors(),
		Measures: DefaultMeasures(), Signals: s.Signals,
		Interval: 10 * time.Second, ReadingTTL: 50 * time.Second,
		// Idle nodes of a real H100 fleet sit at exactly 0 % utilisation;
		// 5 % for a minute leaves room for health checks. Utilisation is over up
		// to a second while the clock is of the moment: a GPU that works less
		// than half of the time is likely to be caught resting.
		IdleBelow: 0.05, IdleAfter: time.Minute, LoadAbove: 0.5,
		CalibrationSamples: 6, BaselineAlpha: 0.01, SuspectBand: 0.05,
		CachedTTL: 5 * time.Minute, LocalFraction: 0.85,
		EnterTicks: 3, LeaveTicks: 3,
	}
}

// Validate returns all mistakes of c, one error per field. section is put
// before the keys that are the agent's alone.
func (c *Config) Validate(section string) error {
	var errs []error
	add := func(bad bool, key, format string, args ...any) {
		errs = append(errs, mistake.If(bad, "`"+key+"` "+format, args...))
	}
	for i := range nodesignal.Score {
		key := "signals::" + i.String() + "::"
		add(!(c.Weights[i] >= 0 && c.Weights[i] <= 1), key+"weight", "is %v, must be in [0,1]", c.Weights[i])
		add(!(c.Floors[i] >= 0 && c.Floors[i] < 1), key+"floor", "is %v, must be in [0,1)", c.Floors[i])
		add(c.Weights[i] > 0 && i != nodesignal.Throughput && c.Signals[i].Relative, key+"weight",
			"is %v, must be 0: nothing says how much of it is healthy, only peers can be compared by it", c.Weights[i])
		errs = append(errs, c.Measures[i].Validate(key))
	}
	add(len(c.Measures[nodesignal.Score].Sources) > 0, "signals::score::sources", "are given, must not be: the score is made of the other signals")
	add(c.Weights[nodesignal.Throughput]+c.Weights[nodesignal.Compute] == 0, "signals", "give no `weight` to throughput and compute, one of them must count")
	add(c.Interval <= 0, "push_interval", "is %s, must be more than 0s", c.Interval)
	add(!(c.IdleBelow >= 0 && c.IdleBelow < 1), section+"idle_below", "is %v, must be in [0,1)", c.IdleBelow)
	add(c.IdleAfter <= 0, section+"idle_after", "is %s, must be more than 0s", c.IdleAfter)
	add(!(c.LoadAbove >= c.IdleBelow && c.LoadAbove <= 1), section+"load_above", "is %v, must be in [%v,1], from `idle_below` on", c.LoadAbove, c.IdleBelow)
	add(c.CalibrationSamples < 1, section+"calibration_samples", "is %d, must be at least 1", c.CalibrationSamples)
	add(!(c.BaselineAlpha > 0 && c.BaselineAlpha <= 1), section+"baseline_alpha", "is %v, must be in (0,1]", c.BaselineAlpha)
	add(!(c.SuspectBand > 0 && c.SuspectBand < 1), section+"suspect_band", "is %v, must be in (0,1)", c.SuspectBand)
	add(c.CachedTTL <= 0, section+"cached_ttl", "is %s, must be more than 0s", c.CachedTTL)
	add(!(c.LocalFraction > 0 && c.LocalFraction < 1), section+"local_fraction", "is %v, must be in (0,1)", c.LocalFraction)
	add(c.EnterTicks < 1, "enter_ticks", "is %d, must be at least 1", c.EnterTicks)
	add(c.LeaveTicks < 1, "leave_ticks", "is %d, must be at least 1", c.LeaveTicks)
	return errors.Join(errs...)
}

// Mode is what a node judges itself by.
type Mode uint8

// Modes, best first.
const (
	ModeFleet  Mode = iota // the gateway's verdict, or its threshold, fresh
	ModeCached             // the gateway's last threshold
	ModeLocal              // the node's own baseline
	ModeNone               // nothing yet
	NumModes
)

func (m Mode) String() string {
	return [...]string{"fleet", "cached", "local", "none"}[m]
}

// Result of an evaluation.
type Result struct {
	State    nodesignal.State
	Score    float64 // in [0,1], known only when HasScore
	HasScore bool
	Signals  Signals // raw: throughput and power in their own units
	Mode     Mode
	// Threshold is the published one, or that of the node's own past; 0 in ModeNone.
	Threshold float64
	Straggler bool
	Changed   bool      // Straggler, by this evaluation
	Since     time.Time // when it began, zero where the gateway does not know
	// Verdict is the gateway's, where the gateway reports a straggler.
	Verdict threshold.Verdict
}

// Node follows one node. Not safe for concurrent use.
type Node struct {
	cfg  *Config
	plan *Plan

	table     table
	evaluated time.Time
	scored    time.Time // when it was last active
	idleSince time.Time
	used      [nodesignal.Count]int // the source behind each signal, plus one

	rate  baseline // throughput
	score baseline // of the score
	mode  Mode
	// peers is the last threshold with a quorum. A node without a baseline of its own keeps
	// that measure.
	peers threshold.Value

	verdict   rule.Verdict // the gateway's last, carried on by the plain rule
	straggler bool
}

// baseline is a bias-corrected moving average: the mean of the first samples,
// then an exponential one.
type baseline struct {
	value float64
	n     int
}

func (b *baseline) add(x, alpha float64) {
	b.n++
	b.value += max(alpha, 1/float64(b.n)) * (x - b.value)
}

// NewNode returns a node that has seen nothing; cfg and plan, compiled from
// cfg.Measures, are shared and read only.
func NewNode(cfg *Config, plan *Plan) *Node { return &Node{cfg: cfg, plan: plan, mode: ModeNone} }

// Observe takes the readings of one push. It returns how many it left out since the node has
// more than MaxGPUs or MaxRanks, or an ID is too long.
func (n *Node) Observe(r *Reading, now time.Time) (dropped int) {
	dropped, _ = n.ObserveWithin(unbounded, r, now)
	return dropped
}

// HasUnnamedRanks reports whether more than one rank without a name has reported.
func (n *Node) HasUnnamedRanks() bool { return n.table.hasUnnamedRanks() }

// Due reports whether an evaluation is due: at most one per interval, with
// half an interval of slack for jitter.
func (n *Node) Due(now time.Time) bool {
	return n.evaluated.IsZero() || now.Sub(n.evaluated) >= n.cfg.Interval/2
}

// Restart forgets the past, for a node that began another job.
func (n *Node) Restart() { *n = Node{cfg: n.cfg, plan: n.plan, mode: ModeNone} }

// Evaluate scores the readings since the last evaluation and judges the node of that
// name by the last answer of its gateway, where one is known.
func (n *Node) Evaluate(now time.Time, name string, peers threshold.Received, known bool) Result {
	n.table.take(now, n.cfg.ReadingTTL, n.plan)
	first := n.evaluated.IsZero()
	n.evaluated = now
	reported, fresh := n.table.application(n.plan)
	n.table.doubt(n.plan, n.cfg.IdleBelow)
	util, metered := n.table.mean(n.plan.utilization)

	before := n.used[nodesignal.Throughput]
	l := load{node: metered == 0 || util >= n.cfg.IdleBelow, gpu: n.cfg.LoadAbove, metered: metered, unmetered: fresh}
	res := Result{Signals: n.table.signals(n.plan, l, &n.used)}
	if before != n.used[nodesignal.Throughput] {
		n.rate = baseline{} // another unit
	}
	raw := &res.Signals.Values
	// A better source, in another unit, may need a report more: GPM compares two samples,
	// and a job pushes when it likes.
	early := first && n.plan.standsIn(n.used[nodesignal.Throughput])
	if early {
		raw.Known[nodesignal.Throughput] = false
	}
	if known && peers.QuorumMet {
		n.peers = peers.Value
	}
	verdict, slow, judged := peers.Of(name)
	n.mode = n.selectMode(now, peers, known, judged)

	if n.idle(!reported && metered > 0 && util < n.cfg.IdleBelow, now) {
		res.State = nodesignal.StateIdle
		// Another job may come with another rate.
		n.rate, n.score, n.peers = baseline{}, baseline{}, threshold.Value{}
		n.used = [nodesignal.Count]int{}
	}
	ref := 0.0
	if known && now.Sub(peers.At) <= n.cfg.CachedTTL {
		ref = peers.Ref
	}
	normal, calibrated := n.normalise(*raw, ref)
	if calibrated && !early {
		res.Score, res.HasScore = Score(&n.cfg.Weights, &n.cfg.Floors, &normal)
	}
	if res.State != nodesignal.StateIdle {
		// The gateway compares raw signals: a node does not wait for the reference of its score.
		res.State = nodesignal.StateActive
		if !speed(&n.cfg.Weights, raw) {
			res.State = nodesignal.StateCalibrating
		}
		if res.HasScore {
			n.scored = now
		}
	}
	res.Mode = n.mode
	res.Threshold = n.threshold(peers)
	if judged && n.mode == ModeFleet {
		n.applyVerdict(&res, verdict, slow)
	} else {
		n.judge(&res, now)
	}
	res.Straggler, res.Since = n.verdict.Straggler, n.verdict.Since
	res.Changed = res.Straggler != n.straggler
	n.straggler = res.Straggler
	n.learn(&res, raw)
	return res
}

func (n *Node) selectMode(now time.Time, peers threshold.Received, known, judged bool) Mode {
	// Before its first quorum a gateway returns a reference, but no threshold.
	known = known && (judged || peers.Threshold > 0)
	switch {
	case known && (judged || peers.QuorumMet) && peers.Fresh(now):
		return ModeFleet
	case known && peers.Threshold > 0 && now.Sub(peers.At) <= n.cfg.CachedTTL:
		return ModeCached
	case n.score.n >= n.cfg.CalibrationSamples || n.peers.QuorumMet:
		return ModeLocal
	}
	return ModeNone
}

// idle is true once the GPUs have done nothing for IdleAfter.
func (n *Node) idle(resting bool, now time.Time) bool {
	if !resting {
		n.idleSince = time.Time{}
		return false
	}
	if n.idleSince.IsZero() {
		n.idleSince = now
	}
	return now.Sub(n.idleSince) >= n.cfg.IdleAfter
}

// normalise makes fractions, and more is better. Throughput is divided by its reference: the
// peers' median, by which a node is found that was slow from its first step, else the node's
// own baseline. It returns false without either.
func (n *Node) normalise(raw nodesignal.Values, ref float64) (nodesignal.Values, bool) {
	for s := range nodesignal.Score {
		if raw.Known[s] && s != nodesignal.Throughput && n.cfg.Signals[s].Direction == nodesignal.High {
			raw.V[s] = 1 - raw.V[s]
		}
	}
	if !raw.Known[nodesignal.Throughput] {
		return raw, true
	}
	if ref <= 0 && n.rate.n >= n.cfg.CalibrationSamples {
		ref = n.rate.value
	}
	if ref <= 0 {
		ref = n.peers.Ref
	}
	if ref <= 0 {
		raw.Known[nodesignal.Throughput] = false
		return raw, false
	}
	x := raw.V[nodesignal.Throughput] / ref
	if n.cfg.Signals[nodesignal.Throughput].Direction == nodesignal.High {
		x = 1 / x
	}
	raw.V[nodesignal.Throughput] = clamp01(x)
	return raw, true
}

// applyVerdict takes over the gateway's verdict. An idle node has nothing to be slow at: the
// gateway may not know yet.
func (n *Node) applyVerdict(res *Result, verdict threshold.Verdict, slow bool) {
	n.verdict = rule.Verdict{}
	if slow && res.State != nodesignal.StateIdle {
		n.verdict.Straggler, n.verdict.Since = true, verdict.Since
		res.Verdict = verdict
	}
}

// judge moves the verdict by the plain rule, while the gateway gives none.
func (n *Node) judge(res *Result, now time.Time) {
	work := res.State == nodesignal.StateActive && res.HasScore
	switch {
	case res.State == nodesignal.StateIdle, !work && now.Sub(n.scored) > n.cfg.ReadingTTL:
		n.verdict = rule.Verdict{}
	case work && n.mode != ModeNone:
		n.verdict.Step(res.Score, res.Threshold, now, n.cfg.EnterTicks, n.cfg.LeaveTicks)
	}
}

func (n *Node) threshold(peers threshold.Received) float64 {
	switch n.mode {
	case ModeFleet, ModeCached:
		return peers.Threshold
	case ModeLocal:
		if n.score.n < n.cfg.CalibrationSamples {
			return n.cfg.LocalFraction * n.peers.Median
		}
		return n.cfg.LocalFraction * n.score.value
	}
	return 0
}

// learn updates the baselines unless the node is suspect.
func (n *Node) learn(res *Result, raw *nodesignal.Values) {
	if res.State == nodesignal.StateIdle || res.Straggler || res.HasScore && res.Score < res.Threshold {
		return
	}
	calibrated := n.rate.n >= n.cfg.CalibrationSamples
	if x := raw.V[nodesignal.Throughput]; raw.Known[nodesignal.Throughput] && !(calibrated && n.slower(x)) {
		n.rate.add(x, n.cfg.BaselineAlpha)
	}
	calibrated = n.score.n >= n.cfg.CalibrationSamples
	if res.HasScore && !(calibrated && res.Score < (1-n.cfg.SuspectBand)*n.score.value) {
		n.score.add(res.Score, n.cfg.BaselineAlpha)
	}
}

// slower reports whether a throughput is worse than the baseline by more than
// the band.
func (n *Node) slower(x float64) bool {
	if n.cfg.Signals[nodesignal.Throughput].Direction == nodesignal.High {
		return x > (1+n.cfg.SuspectBand)*n.rate.value
	}
	return x < (1-n.cfg.SuspectBand)*n.rate.value
}
