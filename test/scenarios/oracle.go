// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"math"
	"slices"
	"time"
)

// Unknown is the oracle's delay of a fault that even the oracle does not find.
const Unknown = time.Duration(math.MaxInt64)

const (
	// oracleDays are the node-days between two false alarms of the oracle.
	oracleDays = 100
	// oracleTicks is how long it is asked: a fault lasts for ever to it.
	oracleTicks = 2_000_000
	// lawDraws make a histogram of a law that has no formula.
	lawDraws = 60_000
)

// information is what one tick adds against a node whose value is too small by shift,
// in the logarithm. It remembers the ticks before.
type information interface {
	of(shift float64) float64
}

// oracle is the delay of a sum that knows law, bias and loss: log(ARL) over the
// information of the ticks (Lorden 1971), at least one tick.
func (r *Run) oracle(f *Fault, d *draw) time.Duration {
	m := &r.Model
	var law information
	switch {
	case m.Steps != nil:
		law = newStepsLaw(m, -math.Log1p(-f.Loss), d)
	case m.Recording != nil:
		law = newRecordedLaw(m.Recording, f)
	case m.Grid > 0:
		law = newGridLaw(m, f.Loss, d)
	case m.Student:
		law = &studentLaw{phi: m.Phi, sd: m.Sigma * r.nodes[f.Node].loud * math.Sqrt(1-m.Phi*m.Phi)}
	default:
		law = newGaussLaw(m, r.nodes[f.Node].loud)
	}
	sum, limit := 0.0, alarmLimit(m.Interval)
	for tick := f.Begin; tick < f.Begin+oracleTicks; tick++ {
		information := (1 - m.Missing) * law.of(-math.Log1p(-f.lasting(tick))/r.scale(tick))
		if _, down := r.restarting(tick); !down {
			sum += information
		}
		if sum >= limit {
			return time.Duration(tick-f.Begin+1) * m.Interval
		}
	}
	return Unknown
}

// alarmLimit is the logarithm of the ticks between two false alarms.
func alarmLimit(interval time.Duration) float64 {
	return math.Log(oracleDays * 24 * float64(time.Hour) / float64(interval))
}

// gaussLaw is the sum of two AR(1) and white noise: the innovations of its Kalman
// filter. Of one AR(1) they are (shift - phi * shift before).
type gaussLaw struct {
	phi, gain [2]float64
	variance  float64    // of the innovations
	state     [2]float64 // predicted shift
}

func newGaussLaw(m *Model, loud float64) *gaussLaw {
	l := &gaussLaw{phi: [2]float64{m.Phi, m.RackPhi}}
	sd := [2]float64{m.Sigma * loud, m.RackSigma}
	var p [2][2]float64 // of the prediction
	for i := range p {
		p[i][i] = sd[i] * sd[i]
	}
	// Far beyond the memory of the slowest noise.
	for range 10_000 {
		l.variance = p[0][0] + p[0][1] + p[1][0] + p[1][1] + m.White*m.White
		for i := range l.gain {
			l.gain[i] = (p[i][0] + p[i][1]) / l.variance
		}
		var next [2][2]float64
		for i := range next {
			for j := range next[i] {
				next[i][j] = l.phi[i] * l.phi[j] * (p[i][j] - l.gain[i]*l.gain[j]*l.variance)
			}
			next[i][i] += sd[i] * sd[i] * (1 - l.phi[i]*l.phi[i])
		}
		p = next
	}
	l.variance = p[0][0] + p[0][1] + p[1][0] + p[1][1] + m.White*m.White
	return l
}

func (l *gaussLaw) of(shift float64) float64 {
	e := shift - l.state[0] - l.state[1]
	for i := range l.state {
		l.state[i] = l.phi[i] * (l.state[i] + l.gain[i]*e)
	}
	return e * e / (2 * l.variance)
}

// studentLaw is AR(1) with Student's innovations.
type studentLaw struct {
	phi, sd, last      float64
	shift, information float64 // the last that was computed
}

func (l *studentLaw) of(shift float64) float64 {
	e := math.Abs(shift-l.phi*l.last) / l.sd
	if l.last = shift; e != l.shift {
		l.shift, l.information = e, divergeStudent(e)
	}
	return l.information
}

// divergeStudent is the Kullback-Leibler divergence between Student's t with three
// degrees of freedom and the same law shifted, by the shift in standard deviations. It
// integrates f(t) * log(f(t) / f(t+shift)). The odd part of the logarithm vanishes, and is
// left out: of a small shift it would be all that is seen.
func divergeStudent(shift float64) float64 {
	shift *= studentScale
	sum := 0.0
	// t = sqrt(3) tan(x) makes the density 2/pi cos(x)^2.
	const points = 1000
	for k := range points {
		x := math.Pi / 2 * (float64(k) + 0.5) / points
		t, c := math.Sqrt(3)*math.Tan(x), math.Cos(x)
		base := 3 + t*t
		up, down := (2*t*shift+shift*shift)/base, (-2*t*shift+shift*shift)/base
		sum += 2 / math.Pi * c * c * 2 * (math.Log1p(up) + math.Log1p(down))
	}
	return sum * math.Pi / 2 / points
}

// stepsLaw is the law of ticks that are filled with steps: one shift only.
type stepsLaw struct{ information float64 }

func (l stepsLaw) of(float64) float64 { return l.information }

// newStepsLaw draws a histogram of the law.
func newStepsLaw(m *Model, shift float64, d *draw) stepsLaw {
	var s stepper
	s.begin(m.Steps, d)
	draws := make([]float64, 0, lawDraws)
	for range lawDraws {
		if v := s.next(m.Steps, m.Interval, d); !math.IsNaN(v) {
			draws = append(draws, math.Log(v))
		}
	}
	return stepsLaw{float64(len(draws)) / lawDraws * divergence(draws, less(draws, shift))}
}

// newRecordedLaw is normal, with the mean and the deviation of the fault's node.
func newRecordedLaw(r *Recording, f *Fault) stepsLaw {
	sum, square, n := 0.0, 0.0, float64(len(r.Rates))
	for _, rates := range r.Rates {
		x := math.Log(rates[f.Node])
		sum, square = sum+x, square+x*x
	}
	shift := math.Log1p(-f.Loss)
	return stepsLaw{shift * shift / 2 / (square/n - sum*sum/n/n)}
}

// newGridLaw draws rounded values with the loss and without.
func newGridLaw(m *Model, loss float64, d *draw) stepsLaw {
	healthy, slow := make([]float64, lawDraws), make([]float64, lawDraws)
	for k := range healthy {
		v := m.Jobs[0].Level * (1 + m.Sigma*d.NormFloat64())
		healthy[k] = min(math.Round(v/m.Grid)*m.Grid, 1)
		slow[k] = min(math.Round(v*(1-loss)/m.Grid)*m.Grid, 1)
	}
	return stepsLaw{divergence(healthy, slow)}
}

// less is the draws of a law less a shift.
func less(draws []float64, shift float64) []float64 {
	slow := slices.Clone(draws)
	for k := range slow {
		slow[k] -= shift
	}
	return slow
}

// divergence is that of the law of slow draws from the law of healthy ones.
func divergence(well, ill []float64) float64 {
	const bins = 100
	slices.Sort(well)
	slices.Sort(ill)
	// One draw in a thousand on either end makes the outer bins.
	out := len(well) / 1000
	low, high := ill[out], well[len(well)-1-out]
	var healthy, slow [bins]float64
	for b := range bins {
		healthy[b], slow[b] = 0.5, 0.5 // nothing is impossible
	}
	bin := func(x float64) int {
		return int(min(max((x-low)/(high-low)*bins, 0), bins-1))
	}
	for k, x := range well {
		healthy[bin(x)]++
		slow[bin(ill[k])]++
	}
	sum, n := 0.0, float64(len(well))+bins/2
	for b := range bins {
		sum += slow[b] / n * math.Log(slow[b]/healthy[b])
	}
	return sum
}
