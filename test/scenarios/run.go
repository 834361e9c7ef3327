// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"math"
	"time"
)

// RackNodes is how many nodes a rack has.
const RackNodes = 8

// leastNoise is the least that noise leaves of a value.
const leastNoise = 0.001

// Fault is the truth of one node.
type Fault struct {
	Node       int
	Begin, End int // its first tick, and the first without it
	Kind       Kind
	Loss       float64 // fraction lost while the fault is on, the most of a drift
	// Noise is the standard deviation of the node's noise in a tick, bursts aside;
	// NaN where no law of this does.
	Noise  float64
	Oracle time.Duration // delay of an oracle that knows law, bias and loss

	perTick    float64 // growth of a drift
	on, period float64 // of a flicker, in ticks
	phase      float64 // of a flicker at Begin, in ticks
	day        float64 // in ticks
}

// At is the fraction lost in a tick, 0 outside the fault.
func (f *Fault) At(tick int) float64 {
	if tick < f.Begin || tick >= f.End {
		return 0
	}
	return f.lasting(tick)
}

// lasting is At as if the fault had no end.
func (f *Fault) lasting(tick int) float64 {
	since := float64(tick - f.Begin)
	switch f.Kind {
	case Drift:
		return min(f.perTick*(since+1), f.Loss)
	case Flicker:
		return f.Loss * share(since+f.phase, f.period, f.on)
	case Daily:
		since = math.Mod(since, f.day)
		return f.Loss * max(0, min(since/f.period, (f.on-since)/f.period, 1))
	}
	return f.Loss
}

// share of the tick from x on that lies in the first part of a period.
func share(x, period, part float64) float64 {
	until := func(x float64) float64 {
		whole := math.Floor(x / period)
		return whole*part + min(x-whole*period, part)
	}
	return until(x+1) - until(x)
}

// faults are those of a run, by node.
func (r *Run) faults() []Fault {
	m, law, d := &r.Model, &r.Model.Fault, r.draw
	nodes, first := d.Perm(m.Nodes)[:law.Nodes], law.First
	switch {
	case law.Rack:
		first = RackNodes * d.IntN(m.Racks)
	case law.Neighbour:
		first = d.IntN(m.Nodes - law.Nodes + 1)
	}
	faults := make([]Fault, len(nodes))
	for k := range faults {
		node := nodes[k]
		if law.Rack || law.Neighbour || law.First > 0 {
			node = first + k
		}
		begin, loss := law.Begin, law.Loss
		if law.To > 0 {
			begin = d.time(law.Begin, law.To)
		}
		if law.LossTo > 0 {
			loss = d.uniform(law.Loss, law.LossTo)
		}
		if law.Losses != nil {
			loss = law.Losses[k]
		}
		f := Fault{Node: node, Kind: law.Kind, Loss: loss}
		f.Begin = r.ticks(begin)
		f.End = f.Begin + r.ticks(law.For)
		f.perTick = law.Rate * m.Interval.Hours()
		f.period = float64(law.Period) / float64(m.Interval)
		f.on, f.day = law.Duty*f.period, float64(r.ticks(24*time.Hour))
		if law.Kind == Daily {
			f.on = law.Duty * f.day
		}
		f.phase = d.uniform(0, f.period)
		faults[k] = f
	}
	return faults
}

// Run is one fleet of a family, tick by tick.
type Run struct {
	Family *Family
	Model  Model
	Faults []Fault // none in the clean form

	Tick   int       // that of the slices, which are valid until the next
	Values []float64 // of the nodes; NaN is no report
	Clean  []float64 // without noise and without loss
	Clocks []float64 // nil where none are reported
	// Life counts the names that a node had before. Between two lives no node is there.
	Life   []uint32
	Absent []bool

	clean bool
	draw  *draw
	nodes []node
	rack  []float64
	first int // tick of the recording that comes first
	restarts
}

type node struct {
	fault               *Fault // nil if it is healthy
	job                 int
	bias, loud, ar      float64
	amp, phase          float64 // of the day's swing; in days
	late                float64 // of the dips, in ticks
	slow                float64 // share lost after the begin of a job or a life,
	from, until         int     // from this tick to before that,
	ramp                bool    // less from tick to tick
	back                int     // tick of the next life
	level               float64 // of its own job
	gain                float64 // after the upgrade
	upgrade, mismatchAt int     // tick of the upgrade, first tick of the hour
	steps               stepper
}

// restarts are the times of the whole fleet's restarts, in ticks.
type restarts struct{ down, up, done []int }

// Play begins a run. The clean form of a run has the same draws and no fault.
func (f *Family) Play(seed uint64, run int, clean bool) *Run {
	r := f.run(seed, run, clean)
	if clean {
		r.Faults = nil
	}
	for i := range r.Faults {
		r.Faults[i].Oracle = r.oracle(&r.Faults[i], newDraw(seed, f.Name+" oracle", run))
	}
	return r
}

// run is Play without the oracle, and with the faults that a clean form leaves out.
func (f *Family) run(seed uint64, run int, clean bool) *Run {
	d := newDraw(seed, f.Name, run)
	m := drawBase(d)
	f.draw(d, &m)
	n := m.Nodes
	r := &Run{
		Family: f, Model: m, Tick: -1, clean: clean, draw: d, nodes: make([]node, n), rack: make([]float64, m.Racks),
		Values: make([]float64, n), Clean: make([]float64, n), Life: make([]uint32, n), Absent: make([]bool, n),
	}
	if m.Recording != nil {
		r.first = d.IntN(len(m.Recording.Rates))
	}
	r.Faults = r.faults()
	for k := range r.Faults {
		r.nodes[r.Faults[k].Node].fault = &r.Faults[k]
	}
	for i := range r.rack {
		r.rack[i] = d.NormFloat64()
	}
	if m.Restarts != nil {
		r.schedule()
	}
	job, left := 0, m.Jobs[0].Nodes
	for i := range r.nodes {
		x := &r.nodes[i]
		if left == 0 {
			job++
			left = m.Jobs[job].Nodes
		}
		left--
		x.job, x.loud = job, 1
		if m.LoudEvery > 0 && i%m.LoudEvery == 0 {
			x.loud = m.Loud
		}
		if m.Diurnal != nil {
			x.amp = m.Diurnal.Amplitude * (1 + m.Diurnal.Unequal*d.uniform(-1, 1))
			x.phase = d.NormFloat64() * m.Diurnal.Phase.Hours() / 24
			if m.Diurnal.Period > 0 {
				x.phase *= 24 / m.Diurnal.Period.Hours()
			}
		}
		if m.Dips != nil {
			x.late = d.uniform(0, float64(m.Dips.Clocks)/float64(m.Interval))
		}
		if m.Steps != nil {
			x.steps.begin(m.Steps, d)
		}
		r.settle(x)
		r.more(x)
	}
	for k := range r.Faults {
		f := &r.Faults[k]
		f.Noise = r.sigma() * r.nodes[f.Node].loud
		if m.Steps != nil || m.Recording != nil {
			f.Noise = math.NaN()
		}
	}
	if m.Mismatch != nil {
		r.Clocks = make([]float64, n)
	}
	return r
}

// more draws what few families have.
func (r *Run) more(x *node) {
	m, d := &r.Model, r.draw
	x.level, x.upgrade, x.mismatchAt = 1, math.MaxInt, math.MaxInt
	if m.Singles > 0 {
		x.level = d.log(m.Singles, 1)
	}
	if u := m.Upgrade; u != nil {
		x.gain, x.upgrade = u.Most*d.uniform(0.5, 1), r.ticks(d.time(u.From, u.To))
	}
	if m.WarmUp > 0 {
		x.slow, x.until, x.ramp = d.uniform(0, m.Cold), r.ticks(m.WarmUp), true
	}
	if m.Mismatch != nil && x.fault == nil && d.Float64() < m.Mismatch.Share {
		x.mismatchAt = r.ticks(d.time(time.Hour, m.Length-time.Hour))
	}
}

// settle gives a node what it has for good.
func (r *Run) settle(x *node) {
	x.ar = r.draw.NormFloat64()
	if r.Model.Bias > 0 {
		x.bias = r.Model.Bias * r.draw.NormFloat64()
	}
}

// sigma is the standard deviation of a node's value.
func (r *Run) sigma() float64 {
	m := &r.Model
	return math.Sqrt(m.Sigma*m.Sigma + m.White*m.White + m.RackSigma*m.RackSigma)
}

func (r *Run) ticks(d time.Duration) int {
	return int(math.Round(float64(d) / float64(r.Model.Interval)))
}

// Ticks is the length of the run.
func (r *Run) Ticks() int { return r.ticks(r.Model.Length) }

func (r *Run) schedule() {
	d := r.draw
	for at := 0; ; {
		down := at + r.ticks(d.time(time.Hour, 3*time.Hour))
		up := down + max(1, r.ticks(d.time(time.Minute, 8*time.Minute)))
		at = up + max(1, r.ticks(d.time(2*time.Minute, 10*time.Minute)))
		if down >= r.Ticks() {
			return
		}
		r.down, r.up, r.done = append(r.down, down), append(r.up, up), append(r.done, at)
	}
}

// restarting is the restart that a tick lies in, and whether all nodes are down.
func (r *restarts) restarting(tick int) (k int, down bool) {
	for k, at := range r.down {
		if tick >= at && tick < r.done[k] {
			return k, tick < r.up[k]
		}
	}
	return -1, false
}

// scale is the factor of the noise in a tick.
func (r *Run) scale(tick int) float64 {
	if r.Model.Restless > 0 && int(time.Duration(tick)*r.Model.Interval/time.Hour)%2 == 1 {
		return r.Model.Restless
	}
	return 1
}

// Next plays a tick, and reports false at the end.
func (r *Run) Next() bool {
	r.Tick++
	if r.Tick >= r.Ticks() {
		return false
	}
	m, d := &r.Model, r.draw
	restart, down := r.restarting(r.Tick)
	if restart >= 0 && r.Tick == r.down[restart] {
		for i := range r.nodes {
			x := &r.nodes[i]
			x.slow, x.from, x.until, x.ramp = d.uniform(0, m.Restarts.Slow), r.up[restart], r.done[restart], true
		}
	}
	rackFresh := math.Sqrt(1 - m.RackPhi*m.RackPhi)
	for k := range r.rack {
		r.rack[k] = m.RackPhi*r.rack[k] + rackFresh*d.NormFloat64()
	}
	fresh, scale := math.Sqrt(1-m.Phi*m.Phi), r.scale(r.Tick)
	replaced := m.Churn * m.Interval.Hours()
	turning := 0.0
	if m.Turn > 0 {
		turning = 1 - math.Exp(-float64(m.Interval)/float64(m.Turn))
	}
	for i := range r.Values {
		x := &r.nodes[i]
		if turning > 0 && d.Float64() < turning {
			r.turn(x)
		}
		if replaced > 0 {
			r.churn(i, replaced)
		}
		r.Clean[i] = m.Jobs[x.job].Level * x.level * (1 + x.bias) * r.common(x)
		v := r.Clean[i] * r.noise(i, fresh, scale)
		if m.Missing > 0 && d.Float64() < m.Missing || down || r.Absent[i] {
			v = math.NaN()
		}
		if x.fault != nil && !r.clean {
			v *= 1 - x.fault.At(r.Tick)
		}
		if m.Grid > 0 {
			v = min(math.Round(v/m.Grid)*m.Grid, 1)
		}
		r.Values[i] = v
		if m.Mismatch != nil {
			r.Clocks[i] = r.clock(x)
		}
	}
	return true
}

func (r *Run) turn(x *node) {
	if r.Model.Singles > 0 {
		x.level = r.draw.log(r.Model.Singles, 1)
	} else {
		x.job = 1 - x.job
	}
}

// isOdd reports whether it is the hour of a node.
func (r *Run) mismatched(x *node) bool {
	return r.Tick >= x.mismatchAt && r.Tick < x.mismatchAt+r.ticks(time.Hour)
}

func (r *Run) clock(x *node) float64 {
	c := 0.9 * (1 + r.Model.Mismatch.Sigma*r.draw.NormFloat64())
	if r.mismatched(x) {
		c *= 1 - r.Model.Mismatch.Less
	}
	return min(c, 1)
}

// noise is the factor of a node's noise, NaN where it has nothing to report.
func (r *Run) noise(i int, fresh, scale float64) float64 {
	m, d := &r.Model, r.draw
	if m.Recording != nil {
		return m.Recording.Rates[(r.Tick+r.first)%len(m.Recording.Rates)][i]
	}
	x := &r.nodes[i]
	if m.Steps != nil {
		return x.steps.next(m.Steps, m.Interval, d)
	}
	innovation := 0.0
	if m.Student {
		innovation = d.student()
	} else {
		innovation = d.NormFloat64()
	}
	x.ar = m.Phi*x.ar + fresh*innovation
	noise := m.Sigma * x.loud * scale * x.ar
	if m.White > 0 {
		noise += m.White * d.NormFloat64()
	}
	if m.Racks > 0 {
		noise += m.RackSigma * r.rack[i/RackNodes]
	}
	return max(1+noise, leastNoise)
}

// common is what happens to a node in this tick besides noise and faults.
func (r *Run) common(x *node) float64 {
	m, tick := &r.Model, float64(r.Tick)
	common := 1.0
	if m.Diurnal != nil {
		period := m.Diurnal.Period.Hours()
		if period == 0 {
			period = 24
		}
		common += x.amp * math.Sin(2*math.Pi*(tick*m.Interval.Hours()/period-x.phase))
	}
	if r.Tick >= x.upgrade {
		common *= 1 + x.gain
	}
	if r.mismatched(x) {
		common *= 1 + m.Mismatch.More
	}
	if m.Dips != nil {
		every, length := float64(m.Dips.Every)/float64(m.Interval), float64(m.Dips.For)/float64(m.Interval)
		// A run begins half of a period before the end of a dip.
		common *= 1 - m.Dips.Depth*share(tick-every/2+length-x.late, every, length)
	}
	if r.Tick >= x.from && r.Tick < x.until {
		slow := x.slow
		if x.ramp {
			slow *= 1 - (tick-float64(x.from))/float64(x.until-x.from)
		}
		common *= 1 - slow
	}
	return common
}

// churn replaces a node now and then, unless it is to have a fault.
func (r *Run) churn(i int, replaced float64) {
	d, x := r.draw, &r.nodes[i]
	if r.Absent[i] {
		if r.Tick < x.back {
			return
		}
		r.Absent[i] = false
		r.Life[i]++
		r.settle(x)
		if r.Model.Swap {
			x.job = d.IntN(len(r.Model.Jobs))
		}
		x.slow, x.from, x.until, x.ramp = d.uniform(0, 0.3), r.Tick, r.Tick+r.ticks(3*time.Minute), false
	}
	if d.Float64() < replaced && x.fault == nil {
		r.Absent[i] = true
		x.back = r.Tick + max(1, r.ticks(d.time(time.Minute, 6*time.Minute)))
	}
}

type stepper struct {
	length, left float64
	at           int // in a trace
}

func (s *stepper) draw(law *Steps, d *draw) float64 {
	if law.Trace != nil {
		if s.at++; s.at == len(law.Trace) {
			s.at = 0
		}
		return law.Trace[s.at]
	}
	length := law.Time.Seconds() * math.Exp(law.Sigma*d.NormFloat64())
	if d.Float64() < law.Long {
		length *= d.uniform(2, 5)
	}
	return length
}

func (s *stepper) begin(law *Steps, d *draw) {
	if law.Trace != nil {
		s.at = d.IntN(len(law.Trace))
	}
	s.length = s.draw(law, d)
	s.left = s.length * d.Float64()
}

// next is the mean rate of the whole steps that end in a tick, 1 at the step's usual
// time, and NaN if none does.
func (s *stepper) next(law *Steps, interval time.Duration, d *draw) float64 {
	steps, took, tick := 0, 0.0, interval.Seconds()
	for s.left <= tick {
		steps++
		took += s.length
		s.length = s.draw(law, d)
		s.left += s.length
	}
	s.left -= tick
	if steps == 0 {
		return math.NaN()
	}
	return law.Time.Seconds() * float64(steps) / took
}
