// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

// Config of a Node. All durations and counts are positive.
type Config struct {
	Weights Weights
	Floors  Floors
	// Interval is the pace of evaluation; readings between two are averaged.
	Interval time.Duration
	// ReadingTTL is how long a reading counts that is not repeated.
	ReadingTTL time.Duration
	// IdleBelow is the GPU utilisation under which a node is idle once that
	// has lasted IdleAfter.
	IdleBelow float64
	IdleAfter time.Duration
	// CalibrationSamples evaluations make the node's own baseline usable.
	CalibrationSamples int
	// BaselineAlpha is the weight of one evaluation in the baseline: slow
	// enough that a ramp of a few percent per hour stays visible.
	BaselineAlpha float64
	// SuspectBand below its baseline freezes it: a lasting slowdown must not
	// become the new normal.
	SuspectBand float64
	// CachedTTL is how long the gateway's last threshold is used when no newer
	// one comes.
	CachedTTL time.Duration
	// LocalFraction of its own baseline score is a node's threshold without a gateway.
	LocalFraction float64
	// EnterTicks and LeaveTicks are the persistence of the verdict, as at the gateway.
	EnterTicks, LeaveTicks int
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	s := straggler.DefaultConfig()
	return Config{
		Weights: DefaultWeights(), Floors: DefaultFloors(),
		Interval: 10 * time.Second, ReadingTTL: 50 * time.Second,
		// Idle nodes of a real H100 fleet sit at exactly 0 % utilisation;
		// 5 % for a minute leaves room for health checks.
		IdleBelow: 0.05, IdleAfter: time.Minute,
		CalibrationSamples: 6, BaselineAlpha: 0.01, SuspectBand: 0.05,
		CachedTTL: 5 * time.Minute, LocalFraction: 0.85,
		EnterTicks: s.EnterTicks, LeaveTicks: s.LeaveTicks,
	}
}

// Validate returns all mistakes of c, one error per field. section is put
// before the keys that are the agent's alone.
func (c *Config) Validate(section string) error {
	var errs []error
	add := func(bad bool, key, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf("`"+key+"` "+format, args...))
		}
	}
	for i := range NumSignals {
		add(!(c.Weights[i] >= 0 && c.Weights[i] <= 1), section+"weights::"+i.String(), "is %v, must be in [0,1]", c.Weights[i])
		add(!(c.Floors[i] >= 0 && c.Floors[i] < 1), section+"floors::"+i.String(), "is %v, must be in [0,1)", c.Floors[i])
	}
	add(c.Weights[Throughput]+c.Weights[Compute] == 0, section+"weights", "give nothing to throughput and compute, one of them must count")
	add(c.Interval <= 0, "push_interval", "is %s, must be more than 0s", c.Interval)
	add(!(c.IdleBelow >= 0 && c.IdleBelow < 1), section+"idle_below", "is %v, must be in [0,1)", c.IdleBelow)
	add(c.IdleAfter <= 0, section+"idle_after", "is %s, must be more than 0s", c.IdleAfter)
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
	ModeFleet  Mode = iota // the gateway's threshold, fresh
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
	State straggler.State
	// Score is in [0,1], known only when HasScore.
	Score    float64
	HasScore bool
	// Signals are the raw ones: throughput in its own unit.
	Signals Values
	Mode    Mode
	// Threshold the verdict used; 0 in ModeNone.
	Threshold float64
	Straggler bool
	// Changed is true when this evaluation changed Straggler.
	Changed bool
	Since   time.Time
}

// Node follows one node. Not safe for concurrent use.
type Node struct {
	cfg *Config

	window    Reading
	heldAt    [numInputs]time.Time
	held      [numInputs]sample
	evaluated time.Time
	scored    time.Time // when it was last active
	idleSince time.Time

	rate    baseline // throughput
	score   baseline // of the score
	verdict straggler.Verdict
	mode    Mode
	app     bool // the application has reported its steps
	// peers is what the gateway said last. Without a baseline of its own, what
	// its peers could do stays the measure of a node.
	peers threshold.Value
}

type sample struct {
	sum float64
	n   int
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

// NewNode returns a node that has seen nothing; cfg is shared and read only.
func NewNode(cfg *Config) *Node { return &Node{cfg: cfg, mode: ModeNone} }

// Observe takes the readings of one push.
func (n *Node) Observe(r *Reading, now time.Time) {
	for i := range numInputs {
		if r.n[i] == 0 {
			continue
		}
		n.window.sum[i] += r.sum[i]
		n.window.n[i] += r.n[i]
		n.heldAt[i] = now
	}
}

// Due reports whether an evaluation is due: at most one per interval, with
// half an interval of slack for jitter.
func (n *Node) Due(now time.Time) bool {
	return n.evaluated.IsZero() || now.Sub(n.evaluated) >= n.cfg.Interval/2
}

// Restart forgets the past, for a node that began another job.
func (n *Node) Restart() { *n = Node{cfg: n.cfg, mode: ModeNone} }

// Evaluate scores the readings since the last evaluation and judges the node
// by what its gateway said last, if anything.
func (n *Node) Evaluate(now time.Time, peers threshold.Received, known bool) Result {
	spoke := n.window.hasApp()
	r := n.take(now)
	n.evaluated = now
	n.app = n.app || r.hasApp()
	raw := r.signals(n.cfg.IdleBelow, n.app, spoke)
	res := Result{Signals: raw}
	if known && peers.QuorumMet {
		n.peers = peers.Value
	}
	n.mode = n.selectMode(now, peers, known)

	if n.idle(&r, now) {
		res.State = straggler.StateIdle
		// Another job may come with another rate.
		n.rate, n.score, n.app, n.peers = baseline{}, baseline{}, false, threshold.Value{}
	}
	ref := 0.0
	if known && now.Sub(peers.At) <= n.cfg.CachedTTL {
		ref = peers.Ref
	}
	normal, calibrated := n.normalise(raw, ref)
	res.Score, res.HasScore = Score(&n.cfg.Weights, &n.cfg.Floors, &normal)
	if res.State != straggler.StateIdle {
		res.State = straggler.StateActive
		if !calibrated || !res.HasScore {
			res.State = straggler.StateCalibrating
		}
	}
	if res.State == straggler.StateActive {
		n.scored = now
	}
	n.judge(&res, now, peers)
	n.learn(&res, raw)
	return res
}

// take empties the window, filled up with what is not too old from before.
func (n *Node) take(now time.Time) Reading {
	r := n.window
	for i := range numInputs {
		switch {
		case r.n[i] > 0:
			n.held[i] = sample{r.sum[i], r.n[i]}
		case n.held[i].n > 0 && now.Sub(n.heldAt[i]) <= n.cfg.ReadingTTL:
			r.sum[i], r.n[i] = n.held[i].sum, n.held[i].n
		default:
			n.held[i] = sample{}
		}
	}
	n.window = Reading{}
	return r
}

func (n *Node) selectMode(now time.Time, peers threshold.Received, known bool) Mode {
	// Before its first quorum a gateway returns a reference, but no threshold.
	known = known && peers.Threshold > 0
	switch {
	case known && peers.QuorumMet && peers.Fresh(now):
		return ModeFleet
	case known && now.Sub(peers.At) <= n.cfg.CachedTTL:
		return ModeCached
	case n.score.n >= n.cfg.CalibrationSamples || n.peers.QuorumMet:
		return ModeLocal
	}
	return ModeNone
}

// idle is true once the GPUs have done nothing for IdleAfter. An application
// that reports its steps is not idle, whatever the GPUs say.
func (n *Node) idle(r *Reading, now time.Time) bool {
	util, ok := r.mean(Utilization)
	if r.hasApp() || !ok || util >= n.cfg.IdleBelow {
		n.idleSince = time.Time{}
		return false
	}
	if n.idleSince.IsZero() {
		n.idleSince = now
	}
	return now.Sub(n.idleSince) >= n.cfg.IdleAfter
}

// normalise divides throughput by its reference: the peers' median where the
// gateway gave one, so that a node that was slow from its first step is found
// too, else the node's own baseline. Without either it says false.
func (n *Node) normalise(raw Values, ref float64) (Values, bool) {
	if !raw.Known[Throughput] {
		return raw, true
	}
	if ref <= 0 && n.rate.n >= n.cfg.CalibrationSamples {
		ref = n.rate.value
	}
	if ref <= 0 {
		ref = n.peers.Ref
	}
	if ref <= 0 {
		raw.Known[Throughput] = false
		return raw, false
	}
	raw.V[Throughput] = clamp01(raw.V[Throughput] / ref)
	return raw, true
}

func (n *Node) judge(res *Result, now time.Time, peers threshold.Received) {
	res.Mode = n.mode
	switch n.mode {
	case ModeFleet, ModeCached:
		res.Threshold = peers.Threshold
	case ModeLocal:
		normal := n.score.value
		if n.score.n < n.cfg.CalibrationSamples {
			normal = n.peers.Median
		}
		res.Threshold = n.cfg.LocalFraction * normal
	}
	switch {
	case res.State == straggler.StateIdle:
		res.Changed = n.verdict.Reset()
	case res.State != straggler.StateActive && now.Sub(n.scored) > n.cfg.ReadingTTL:
		// It has nothing left to be slow at.
		res.Changed = n.verdict.Reset()
	case res.State == straggler.StateActive && n.mode != ModeNone:
		res.Changed = n.verdict.Step(res.Score, res.Threshold, now, n.cfg.EnterTicks, n.cfg.LeaveTicks)
	}
	res.Straggler, res.Since = n.verdict.Straggler, n.verdict.Since
}

// learn updates the baselines unless the node is suspect.
func (n *Node) learn(res *Result, raw Values) {
	if res.State == straggler.StateIdle || n.verdict.Suspect() {
		return
	}
	calibrated := n.rate.n >= n.cfg.CalibrationSamples
	if raw.Known[Throughput] && !(calibrated && raw.V[Throughput] < (1-n.cfg.SuspectBand)*n.rate.value) {
		n.rate.add(raw.V[Throughput], n.cfg.BaselineAlpha)
	}
	calibrated = n.score.n >= n.cfg.CalibrationSamples
	if res.State == straggler.StateActive && !(calibrated && res.Score < (1-n.cfg.SuspectBand)*n.score.value) {
		n.score.add(res.Score, n.cfg.BaselineAlpha)
	}
}
