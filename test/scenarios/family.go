// SPDX-License-Identifier: Apache-2.0

// Package scenarios judges straggler detection in fleets whose truth is known. A family
// is a law of fleets, so that no constant of a detector can fit it. Each run draws a fleet
// and streams its values tick by tick to the product's engine and to plain rules. It has its
// faults, and the delay with which an oracle would find each of them.
package scenarios // import "github.com/gpu-collector/gpu-collector/test/scenarios"

import (
	"math"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

// Family is a law of fleets.
type Family struct {
	Name  string
	Runs  int           // of a sample
	Grace time.Duration // how long a node is not counted after its fault
	// Unrated families have no ratio to the oracle. It knows the biases, and a fault from
	// the first tick looks like one.
	Unrated bool
	draw    func(d *draw, m *Model) // changes a model of the family base
}

// Model is what a run drew. All but counts, times and levels are fractions; 0 and nil are none.
//
//	value = level * (1 + bias) * (1 + noise) * (1 - loss) * common
type Model struct {
	Nodes            int
	Interval, Length time.Duration

	// Sigma is the marginal standard deviation of the noise, Phi its autocorrelation
	// from one tick to the next. Student innovations have three degrees of freedom.
	Sigma, Phi float64
	Student    bool
	White      float64 // standard deviation of noise without memory on top of that
	// Racks share noise of their own.
	Racks              int
	RackSigma, RackPhi float64
	Restless           float64 // multiplies the noise in every second hour
	// Every LoudEvery-th node has Loud times the noise.
	LoudEvery int
	Loud      float64
	Steps     *Steps            // replaces the noise
	Bias      float64           // standard deviation of how nodes differ for good
	Signal    nodesignal.Signal // of the values: a throughput, or a clock as a fraction
	Grid      float64           // what values are rounded to, and then 1 at most
	Mismatch  *Mismatch         // adds clocks
	Recording *Recording        // replaces levels and noise

	Jobs []Job         // none of them labelled
	Turn time.Duration // mean time until a node takes up the other job
	// Singles is the least level of jobs of one node, which then takes up another of them.
	Singles  float64
	Missing  float64 // share of reports that never arrive
	Diurnal  *Diurnal
	Dips     *Dips
	Restarts *Restarts
	// Churn is the share of the healthy nodes that are replaced in an hour, with Swap by
	// one of any job.
	Churn   float64
	Swap    bool
	Upgrade *Upgrade
	// WarmUp is how long all nodes are slower at first, each by a share of its own up to
	// Cold that a ramp ends.
	WarmUp time.Duration
	Cold   float64
	Reboot time.Duration // between two restarts of the gateway

	Fault FaultLaw
}

// Job is a number of nodes that work at one level.
type Job struct {
	Nodes int
	Level float64
}

// Steps fill the ticks: a value is the mean rate of the whole steps that ended in it.
type Steps struct {
	Time  time.Duration
	Sigma float64 // standard deviation of the logarithm of a step's time
	Long  float64 // share of the steps that take 2 to 5 times as long
	// Trace is the seconds of real steps, which replace that law. Each node begins
	// at a step of its own and goes round.
	Trace []float64
}

// Diurnal is a swing with the hour. Each node's amplitude is off by up to the share
// Unequal, and its phase by a standard deviation of Phase. A Period of 0 is a day.
type Diurnal struct {
	Amplitude, Unequal float64
	Phase, Period      time.Duration
}

// Upgrade makes nodes faster for good, one by one between two times: each by a share of its
// own up to Most, and half of that at least.
type Upgrade struct {
	Most     float64
	From, To time.Duration
}

// Mismatch is a share of the nodes that do More at a clock which is Less lower, each for an hour
// of its own. The clocks of all have noise of a standard deviation of Sigma.
type Mismatch struct{ Share, More, Less, Sigma float64 }

// Dips are pauses of all: Depth of every value For this long Every so often. Clocks
// is the most by which a node is late.
type Dips struct {
	Depth      float64
	For, Every time.Duration
	Clocks     time.Duration
}

// Restarts stop all nodes at once, each 1 to 3 h for 1 to 8 min. After it each node
// is slower by a share of its own up to Slow, which a ramp of 2 to 10 min ends.
type Restarts struct{ Slow float64 }

// Kind of a fault.
type Kind uint8

// Kinds of faults.
const (
	Step    Kind = iota
	Drift        // the loss grows by Rate an hour
	Flicker      // the loss is there for Duty of each Period
	Daily        // the loss comes within Period and goes so, for Duty of each day
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
	// drift. Losses are those of one after the other.
	Loss, LossTo float64
	Losses       []float64
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

		f("loss-3", 24, func(_ *draw, m *Model) { m.Fault.Loss = 0.03 }),
		f("loss-5", 24, func(_ *draw, m *Model) { m.Fault.Loss = 0.05 }),
		f("loss-8", 24, func(_ *draw, m *Model) { m.Fault.Loss = 0.08 }),
		f("upgrade", 24, func(d *draw, m *Model) {
			begin := d.time(time.Hour, 4*time.Hour)
			m.Upgrade = &Upgrade{Most: d.uniform(0.03, 0.06), From: begin, To: begin + d.time(2*time.Hour, 8*time.Hour)}
			m.Fault.Loss = d.loss25()
		}),
		f("experts", 16, func(d *draw, m *Model) {
			period := d.logTime(20*time.Minute, 2*time.Hour)
			m.Diurnal = &Diurnal{Amplitude: d.uniform(0.05, 0.1), Unequal: 0.2, Phase: period, Period: period}
			m.Fault.Loss = d.loss30()
		}),
		f("hotrow", 12, drawHotRow),
		f("grid", 24, func(d *draw, m *Model) {
			m.Jobs[0].Level = d.uniform(0.85, 1.05)
			m.Grid, m.Bias, m.Fault.Loss = 0.05, d.uniform(0, 0.03), d.loss30()
		}),
		f("clock", 24, func(d *draw, m *Model) {
			m.Signal, m.Jobs[0].Level, m.Sigma = nodesignal.Compute, d.uniform(0.7, 0.95), d.log(0.001, 0.01)
			m.Fault.Loss = d.loss30()
		}),
		f("stages", 24, drawStages),
		f("swapped", 24, func(d *draw, m *Model) {
			drawModels(d, m)
			m.Churn, m.Swap = d.log(0.01, 0.1), true
		}),
		f("uneven", 24, func(d *draw, m *Model) {
			d.nodes(m, 8)
			m.Fault.Nodes, m.Fault.Losses = 2, []float64{0.6, 0.08}
		}),
		f("rampstart", 24, func(d *draw, m *Model) {
			m.WarmUp, m.Cold = d.time(3*time.Minute, 15*time.Minute), d.uniform(0.05, 0.3)
			m.Fault.Begin, m.Fault.For, m.Fault.Loss, m.Fault.LossTo = 0, 8*time.Hour, 0.1, 0.25
		}),
		f("contradiction", 24, func(d *draw, m *Model) {
			m.Mismatch = &Mismatch{Share: d.uniform(0.02, 0.1), More: d.uniform(0.02, 0.1), Less: d.uniform(0.06, 0.15), Sigma: d.log(0.001, 0.01)}
			m.Fault.Loss = d.loss30()
		}),
		f("reboot", 24, func(d *draw, m *Model) { m.Reboot, m.Fault.Loss = d.time(90*time.Minute, 150*time.Minute), d.loss25() }),
		f("singles", 2, func(d *draw, m *Model) {
			m.Length = 6 * time.Hour
			d.nodes(m, 2000)
			m.Singles, m.Turn, m.Fault.Begin = d.uniform(0.3, 0.8), d.logTime(time.Hour, 8*time.Hour), 2*time.Hour
		}),
	}
}

func newFamily(name string, runs int, draw func(*draw, *Model)) Family {
	return Family{Name: name, Runs: runs, Grace: 15 * time.Minute, draw: draw}
}
