// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// draw is the one random stream of a run.
type draw struct {
	*rand.Rand
	run int
}

func newDraw(seed uint64, family string, run int) *draw {
	h := sha256.Sum256(fmt.Appendf(nil, "%d %s %d", seed, family, run))
	return &draw{rand.New(rand.NewPCG(binary.LittleEndian.Uint64(h[:8]), binary.LittleEndian.Uint64(h[8:16]))), run}
}

func (d *draw) uniform(a, b float64) float64 { return a + (b-a)*d.Float64() }

// log is uniform in the logarithm.
func (d *draw) log(a, b float64) float64 { return a * math.Pow(b/a, d.Float64()) }

// between is a whole number from a to b, both included.
func (d *draw) between(a, b int) int { return a + d.IntN(b-a+1) }

func (d *draw) time(a, b time.Duration) time.Duration {
	return time.Duration(d.uniform(float64(a), float64(b)))
}

func (d *draw) logTime(a, b time.Duration) time.Duration {
	return time.Duration(d.log(float64(a), float64(b)))
}

const (
	// studentCut bounds Student's innovations, in their standard deviation.
	studentCut = 12
	// studentScale is the standard deviation of Student's t with three degrees of
	// freedom, cut at studentCut times that.
	studentScale = 1.6674
)

// student is Student's t with three degrees of freedom, cut, with a standard
// deviation of 1.
func (d *draw) student() float64 {
	a, b, c := d.NormFloat64(), d.NormFloat64(), d.NormFloat64()
	t := d.NormFloat64() / math.Sqrt((a*a+b*b+c*c)/3) / studentScale
	return min(max(t, -studentCut), studentCut)
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

// ladder makes jobs of some nodes, each at a level that follows from the one before.
func (d *draw) ladder(m *Model, jobs, least, most int, next func(level float64) float64) {
	m.Jobs = make([]Job, jobs)
	level := 1.0
	for i := range m.Jobs {
		m.Jobs[i] = Job{Nodes: d.between(least, most), Level: level}
		level = next(level)
	}
	d.sum(m)
}

func drawJobs(d *draw, m *Model) {
	d.ladder(m, d.between(2, 6), 8, 24, func(level float64) float64 { return level / d.uniform(1.2, 2.2) })
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
	// The noise of a tick is the mean of noise that lasts for tau seconds.
	tick, tau, sigma := m.Interval.Seconds(), d.uniform(0.1, 20), d.log(0.01, 0.06)
	m.Phi, m.Sigma = math.Exp(-tick/tau), sigma*min(1, math.Sqrt(2*tau/max(tick, 2*tau)))
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

func drawHotRow(d *draw, m *Model) {
	m.Length = 60 * time.Hour
	d.nodes(m, int(math.Round(d.log(16, 64))))
	m.Fault = FaultLaw{
		Kind: Daily, Nodes: d.share(m.Nodes, d.uniform(0.25, 0.35)), Neighbour: true, Begin: d.time(5*time.Hour, 10*time.Hour), For: 48 * time.Hour,
		Loss: d.uniform(0.04, 0.06), Period: d.time(20*time.Minute, 2*time.Hour), Duty: d.uniform(0.2, 0.3),
	}
}

func drawStages(d *draw, m *Model) {
	d.ladder(m, d.between(2, 8), 4, 16, func(level float64) float64 { return level * (1 - d.uniform(0.03, 0.06)) })
	m.Fault.Loss = d.loss30()
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
