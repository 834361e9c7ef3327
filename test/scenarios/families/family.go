// SPDX-License-Identifier: Apache-2.0

// Package families draws fleets whose truth is known. A scenario is one fleet; a
// family is a law of fleets, so that no constant of a detector can fit it. Each run
// of a family streams its values tick by tick, and tells its faults and the delay
// with which an oracle would find each of them.
package families // import "github.com/gpu-collector/gpu-collector/test/scenarios/families"

import (
	"math"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// Family is a law of fleets.
type Family struct {
	Name string
	// Runs make a sample.
	Runs int
	// Grace is how long a node is not counted after its fault.
	Grace time.Duration
	// ByRack counts what several nodes of a rack do at once as one.
	ByRack bool
	// Unrated families have no ratio to the oracle: it knows the biases, and a fault
	// from the first tick looks like one.
	Unrated bool
	// Case is true of the families outside of the table: Cases, and recordings.
	Case bool
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

	// Top is the most that a value can be, and Quantum the step that it is rounded to,
	// both in shares of level 1; 0 is none.
	Top, Quantum float64
	// Others are signals besides the throughput.
	Others []Other
	// Shard is between the nodes and who compares them; nil is none.
	Shard *Shard
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

// Other is a signal that is a fraction, with noise of its own.
type Other struct {
	Signal            nodesignal.Signal
	Level, Sigma, Phi float64
}

// Shard passes on a value that is off by more than the share Band from the one that it
// passed on last, and any value each Resync. Of the rest it passes on a sign of life.
type Shard struct {
	Band   float64
	Resync time.Duration
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
	// Nodes that it hits, at random or side by side, or a whole rack, or Which.
	Nodes     int
	Which     []int
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
	// Signal that loses: the throughput, or one of Others.
	Signal nodesignal.Signal
}

// First is how long nothing is counted.
const First = time.Hour

// All are the families in the order of their table.
func All() []Family {
	f := newFamily
	fromstart, turns, racks := f("fromstart", 24, drawFromStart), f("turns", 16, drawTurns), f("racks", 16, drawRacks)
	fromstart.Unrated = true
	turns.Grace = 30 * time.Minute
	racks.ByRack = true
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
		racks,
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

// drawBase is what the other families change.
func drawBase(d *draw) Model {
	m := Model{
		Interval: 10 * time.Second, Length: 10 * time.Hour,
		Sigma: d.log(0.005, 0.02), Phi: d.uniform(0, 0.85),
		Fault: FaultLaw{Begin: d.time(5*time.Hour, 6*time.Hour), For: 3 * time.Hour, Loss: d.uniform(0.08, 0.2)},
	}
	d.nodes(&m, int(math.Round(d.log(16, 128))))
	return m
}

// nodes sets the number of nodes, all of one job, and how many of them are hit.
func (d *draw) nodes(m *Model, n int) {
	m.Jobs = []Job{{Nodes: n, Level: 1}}
	d.sum(m)
}

// sum counts the nodes of the jobs anew.
func (d *draw) sum(m *Model) {
	m.Nodes = 0
	for _, j := range m.Jobs {
		m.Nodes += j.Nodes
	}
	m.Fault.Nodes = d.share(m.Nodes, d.uniform(0.01, 0.1))
}

func (d *draw) share(nodes int, share float64) int {
	return max(1, int(math.Round(share*float64(nodes))))
}

func (d *draw) loss25() float64 { return d.uniform(0.1, 0.25) }
func (d *draw) loss30() float64 { return d.uniform(0.1, 0.3) }

func (d *draw) dips() *Dips {
	return &Dips{
		Depth: d.uniform(0.2, 0.6), For: d.time(20*time.Second, 90*time.Second),
		Every: d.time(10*time.Minute, 40*time.Minute), Clocks: d.time(0, 30*time.Second),
	}
}

func drawNoisy(d *draw, m *Model) {
	m.Sigma, m.Phi = d.log(0.03, 0.15), []float64{0, 0.3, 0.6}[d.IntN(3)]
	m.Fault.Loss = min(max(m.Sigma*d.uniform(0.8, 2), 0.05), 0.4)
}

func drawSteps(d *draw, m *Model) {
	m.Steps = &Steps{Time: d.logTime(500*time.Millisecond, 5*time.Second), Sigma: d.log(0.02, 0.1), Long: d.log(0.003, 0.02)}
	m.Fault.Loss = d.loss30()
}

func drawFromStart(d *draw, m *Model) {
	m.Bias = d.uniform(0, 0.02)
	m.Fault.Begin, m.Fault.For = 0, 8*time.Hour
	m.Fault.Loss, m.Fault.LossTo = 0.1, 0.25
}

func drawDiurnal(d *draw, m *Model) {
	m.Length = 60 * time.Hour
	d.nodes(m, int(math.Round(d.log(16, 64))))
	m.Fault.Nodes = max(1, m.Nodes/20)
	m.Fault.Begin, m.Fault.To = 30*time.Hour, 54*time.Hour
	m.Diurnal = &Diurnal{Amplitude: d.uniform(0.1, 0.4), Unequal: d.uniform(0, 0.33), Phase: d.time(0, 30*time.Minute)}
	m.Sigma, m.Phi, m.Fault.Loss = d.log(0.01, 0.04), d.uniform(0.5, 0.95), d.uniform(0.15, 0.4)
}

func drawJobs(d *draw, m *Model) {
	m.Jobs = make([]Job, d.between(2, 6))
	level := 1.0
	for i := range m.Jobs {
		m.Jobs[i] = Job{Nodes: d.between(8, 24), Level: level}
		level /= d.uniform(1.2, 2.2)
	}
	d.sum(m)
	m.Fault.Nodes = max(1, m.Nodes/12)
	m.Bias, m.Fault.Loss = d.uniform(0, 0.02), d.loss25()
}

func drawModels(d *draw, m *Model) {
	levels := []float64{1.25, 1.1, 0.95, 0.75, 0.45, 0.3}
	d.Shuffle(len(levels), func(i, j int) { levels[i], levels[j] = levels[j], levels[i] })
	m.Jobs = nil
	for _, level := range levels[:d.between(2, 5)] {
		m.Jobs = append(m.Jobs, Job{Nodes: int(math.Round(d.log(5, 40))), Level: level})
	}
	d.sum(m)
	m.Bias, m.Fault.Loss = d.uniform(0, 0.02), d.loss25()
}

func drawTurns(d *draw, m *Model) {
	half := m.Nodes / 2
	m.Jobs = []Job{{Nodes: m.Nodes - half, Level: 1}, {Nodes: half, Level: d.uniform(0.5, 0.75)}}
	m.Turn = d.time(5*time.Minute, 30*time.Minute)
	m.Sigma, m.Fault.Loss = d.log(0.005, 0.015), d.uniform(0.12, 0.25)
}

func drawMany(d *draw, m *Model) {
	d.nodes(m, int(math.Round(d.log(8, 128))))
	m.Fault.Nodes = d.share(m.Nodes, d.uniform(0.3, 0.6))
	if d.Float64() < 1.0/3 {
		m.Fault.Nodes = m.Nodes / 2
	}
	m.Fault.Loss, m.Fault.Neighbour = d.uniform(0.06, 0.3), d.Float64() < 0.5
}

func drawSmall(d *draw, m *Model) {
	d.nodes(m, d.between(3, 7))
	m.Sigma, m.Fault.Nodes, m.Fault.Loss = d.log(0.005, 0.03), 1, d.loss30()
	if two := d.Float64() < 1.0/3; two && m.Nodes >= 4 {
		m.Fault.Nodes = 2
	}
}

func drawTicks(d *draw, m *Model) {
	m.Interval = []time.Duration{1, 2, 5, 30, 60}[d.IntN(5)] * time.Second
	d.sampled(m, m.Interval, d.uniform(0.1, 20), d.log(0.01, 0.06))
	m.Fault.Loss = d.uniform(0.1, 0.5)
}

func drawRacks(d *draw, m *Model) {
	m.Racks = d.between(3, 12)
	d.nodes(m, RackNodes*m.Racks)
	m.RackPhi, m.RackSigma = d.uniform(0.9, 0.99), d.log(0.005, 0.02)
	m.Fault.Loss = d.loss30()
	if d.Float64() < 0.5 {
		m.Fault.Rack, m.Fault.Nodes = true, RackNodes
	}
}

func drawMix(d *draw, m *Model) {
	m.Length = 12 * time.Hour
	d.nodes(m, int(math.Round(d.log(6, 160))))
	m.Sigma, m.Phi = d.log(0.003, 0.08), d.uniform(0, 0.95)
	third := func() bool { return d.Float64() < 1.0/3 }
	m.Student = third()
	if third() {
		m.Bias = d.uniform(0, 0.08)
	}
	if third() {
		m.Diurnal = &Diurnal{Amplitude: d.uniform(0, 0.3), Unequal: 0.2}
	}
	if third() {
		m.Dips = d.dips()
	}
	if third() {
		m.Missing = d.uniform(0, 0.3)
	}
	if third() {
		m.Restarts = &Restarts{Slow: d.uniform(0, 0.3)}
	}
	if third() {
		m.Churn = d.uniform(0.02, 0.1)
	}
	if third() {
		m.LoudEvery, m.Loud = d.between(2, 9), d.uniform(1.5, 3)
	}
	m.Fault.Kind = Kind(d.IntN(3))
	m.Fault.Nodes = d.share(m.Nodes, d.log(0.01, 0.3))
	m.Fault.Loss = d.log(0.08, 0.5)
	m.Fault.Rate, m.Fault.Duty = d.log(0.03, 0.2), d.uniform(0.2, 0.5)
	m.Fault.Period = d.logTime(2*time.Minute, 30*time.Minute)
}
