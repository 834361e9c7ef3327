// SPDX-License-Identifier: Apache-2.0

// Package scenarios judges straggler detection in fleets whose truth is known. A family
// is a law of fleets, so that no constant of a detector can fit it. Each run draws a fleet
// and streams its values tick by tick to the product's engine and to plain rules. It tells
// its faults, and the delay with which an oracle would find each of them.
package scenarios // import "github.com/gpu-collector/gpu-collector/test/scenarios"

import (
	"math"
	"time"
)

// Family is a law of fleets.
type Family struct {
	Name string
	// Runs make a sample.
	Runs int
	// Grace is how long a node is not counted after its fault.
	Grace time.Duration
	// Unrated families have no ratio to the oracle. It knows the biases, and a fault from
	// the first tick looks like one; it does not know the law of a real run.
	Unrated bool
	// draw changes a model of the family base.
	draw func(d *draw, m *Model)
}

// Model is what a run drew. All but counts, times and levels are fractions.
//
//	value = level * (1 + bias) * (1 + noise) * (1 - loss) * common
type Model struct {
	Nodes            int
	Interval, Length time.Duration

	// Sigma is the marginal standard deviation of the noise, Phi its autocorrelation
	// from one tick to the next. Student innovations have three degrees of freedom.
	Sigma, Phi float64
	Student    bool
	// White is the standard deviation of noise without memory on top of that.
	White float64
	// Racks share noise of their own.
	Racks              int
	RackSigma, RackPhi float64
	// Restless multiplies the noise in every second hour; 0 is none.
	Restless float64
	// Every LoudEvery-th node has Loud times the noise.
	LoudEvery int
	Loud      float64
	// Steps takes the place of the noise; nil is none.
	Steps *Steps
	// Bias is the standard deviation of how nodes differ for good.
	Bias float64

	// Recording takes the place of levels and noise; nil is none.
	Recording *Recording

	// Jobs, none of them labelled. Turn is the mean time until a node takes up the
	// other one; 0 is never.
	Jobs []Job
	Turn time.Duration
	// Missing is the share of reports that never arrive.
	Missing  float64
	Diurnal  *Diurnal
	Dips     *Dips
	Restarts *Restarts
	// Churn is the share of the healthy nodes that are replaced in an hour.
	Churn float64

	Fault FaultLaw
}

// Job is a number of nodes that work at one level.
type Job struct {
	Nodes int
	Level float64
}

// Steps fill the ticks: a value is the mean rate of the whole steps that ended in it.
type Steps struct {
	Time time.Duration
	// Sigma is the standard deviation of the logarithm of a step's time.
	Sigma float64
	// Long is the share of the steps that take 2 to 5 times as long.
	Long float64
	// Trace is the seconds of real steps, in the place of that law. Each node begins
	// at a step of its own and goes round.
	Trace []float64
}

// Diurnal is a swing with the hour. Each node's amplitude is off by up to the share
// Unequal, and its phase by a standard deviation of Phase.
type Diurnal struct {
	Amplitude, Unequal float64
	Phase              time.Duration
}

// Dips are pauses of all: Depth of every value For this long Every so often. Clocks
// is the most by which a node is late.
type Dips struct {
	Depth      float64
	For, Every time.Duration
	Clocks     time.Duration
}

// Restarts silence all nodes at once, each 1 to 3 h for 1 to 8 min. After it each node
// is slower by a share of its own up to Slow, which a ramp of 2 to 10 min ends.
type Restarts struct{ Slow float64 }

// Kind of a fault.
type Kind uint8

// Kinds of faults.
const (
	Step    Kind = iota
	Drift        // the loss grows by Rate an hour
	Flicker      // the loss is there for Duty of each Period
)

// FaultLaw is what goes wrong with how many nodes, and when.
type FaultLaw struct {
	Kind Kind
	// Nodes that it hits: at random, or side by side, or a whole rack, or from First on.
	Nodes     int
	First     int
	Neighbour bool
	Rack      bool
	// Begin of all faults, or the bounds of each one's own where To is set.
	Begin, To, For time.Duration
	// Loss of all, or the bounds of each one's own where LossTo is set; the most of a
	// drift.
	Loss, LossTo float64
	Rate         float64
	Duty         float64
	Period       time.Duration
}

// First is how long nothing is counted.
const First = time.Hour

// All are the families that are drawn, in the order of their table.
func All() []Family {
	f := newFamily
	fromstart, turns := f("fromstart", 24, drawFromStart), f("turns", 16, drawTurns)
	fromstart.Unrated = true
	turns.Grace = 30 * time.Minute
	return []Family{
		f("base", 24, func(*draw, *Model) {}),
		f("noisy", 24, drawNoisy),
		f("steps", 24, drawSteps),
		f("student", 24, func(d *draw, m *Model) {
			m.Student, m.Sigma, m.Phi, m.Fault.Loss = true, d.log(0.01, 0.05), d.uniform(0, 0.8), d.loss30()
		}),
		f("bias", 24, func(d *draw, m *Model) {
			m.Bias, m.Sigma, m.Fault.Loss = d.uniform(0.03, 0.08), d.log(0.01, 0.03), d.loss30()
		}),
		fromstart,
		f("diurnal", 10, drawDiurnal),
		f("dips", 24, func(d *draw, m *Model) {
			m.Dips, m.Missing, m.Fault.Loss = d.dips(), d.uniform(0, 0.3), d.loss25()
		}),
		f("restart", 24, func(d *draw, m *Model) {
			m.Restarts, m.Restless, m.Fault.Loss = &Restarts{Slow: d.uniform(0, 0.3)}, d.uniform(1, 2), d.loss25()
		}),
		f("swing", 24, func(d *draw, m *Model) {
			m.Sigma, m.Restless, m.Fault.Loss = d.log(0.005, 0.015), d.uniform(2, 4), d.loss25()
		}),
		f("churn", 24, func(d *draw, m *Model) { m.Churn, m.Fault.Loss = d.log(0.02, 0.2), d.loss25() }),
		f("jobs", 24, drawJobs),
		f("models", 24, drawModels),
		turns,
		f("many", 24, drawMany),
		f("small", 48, drawSmall),
		f("tiny", 16, func(d *draw, m *Model) {
			m.Length, m.Sigma, m.Phi = 18*time.Hour, d.log(0.003, 0.015), d.uniform(0, 0.8)
			m.Fault.For, m.Fault.Loss = 8*time.Hour, d.uniform(0.015, 0.04)
		}),
		f("drift", 16, func(d *draw, m *Model) {
			m.Length = 16 * time.Hour
			m.Fault.Kind, m.Fault.Rate, m.Fault.Loss, m.Fault.For = Drift, d.log(0.005, 0.08), 0.2, 10*time.Hour
		}),
		f("flicker", 24, func(d *draw, m *Model) {
			m.Fault.Kind, m.Fault.Duty, m.Fault.Period = Flicker, d.log(0.05, 0.5), d.logTime(2*time.Minute, 30*time.Minute)
			m.Fault.Loss = min(max(d.uniform(0.1, 0.5), 0.015/m.Fault.Duty), 0.6)
		}),
		f("ticks", 24, drawTicks),
		f("stop", 24, func(d *draw, m *Model) {
			m.Bias, m.Sigma, m.Fault.Loss = d.uniform(0, 0.08), d.log(0.005, 0.05), d.uniform(0.5, 0.99)
		}),
		f("memory", 16, func(d *draw, m *Model) {
			m.Length, m.Phi, m.Sigma, m.White = 14*time.Hour, 1-d.log(0.005, 0.05), d.log(0.005, 0.02), d.uniform(0, 0.02)
			m.Fault.Loss = d.loss30()
		}),
		f("racks", 16, drawRacks),
		f("big", 4, func(d *draw, m *Model) {
			d.nodes(m, int(math.Round(d.uniform(256, 512))))
			m.Fault.Nodes = d.share(m.Nodes, d.uniform(0.01, 0.05))
		}),
		f("mix", 40, drawMix),
	}
}

func newFamily(name string, runs int, draw func(*draw, *Model)) Family {
	return Family{Name: name, Runs: runs, Grace: 15 * time.Minute, draw: draw}
}
