// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// delay is the oracle's of the one fault of a model.
func delay(change func(m *Model)) time.Duration {
	return named(func(m *Model) {
		m.Fault.Begin, m.Fault.For = 5*time.Hour, 3*time.Hour
		change(m)
	}).Play(1, 0, false).Faults[0].Oracle
}

// TestOracle: delays that were computed by hand, log(ARL) over the information.
func TestOracle(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(m *Model)
		want   time.Duration
		within time.Duration
	}{
		{"iid 10 %, loss 10 %", func(m *Model) { m.Sigma, m.Fault.Loss = 0.1, 0.1 }, 250 * time.Second, 0},
		{"iid 10 %, loss 2 %", func(m *Model) { m.Sigma, m.Fault.Loss = 0.1, 0.02 }, 112 * time.Minute, time.Minute},
		{"iid 10 %, loss 1 %", func(m *Model) { m.Sigma, m.Fault.Loss = 0.1, 0.01 }, 451 * time.Minute, time.Minute},
		{"AR .8 1 %, loss 2 %", func(m *Model) { m.Sigma, m.Phi, m.Fault.Loss = 0.01, 0.8, 0.02 }, 370 * time.Second, 0},
		{"one tick at least", func(m *Model) { m.Sigma, m.Fault.Loss = 0.01, 0.5 }, 10 * time.Second, 0},
		// Half of the reports carry half of the information.
		{"missing", func(m *Model) { m.Sigma, m.Fault.Loss, m.Missing = 0.1, 0.1, 0.5 }, 500 * time.Second, 0},
		// 16.0 instead of 13.7 at ticks of 1 s, and 11.9 at 60 s.
		{"1 s", func(m *Model) { m.Interval, m.Sigma, m.Fault.Loss = time.Second, 0.1, 0.1 }, 29 * time.Second, 0},
		{"60 s", func(m *Model) { m.Interval, m.Sigma, m.Fault.Loss = time.Minute, 0.1, 0.1 }, 22 * time.Minute, 0},
		// The sixth hour is loud: four times the variance.
		{"restless", func(m *Model) { m.Sigma, m.Restless, m.Fault.Loss = 0.05, 2, 0.1 }, 250 * time.Second, 0},
		// White and AR of no memory are one white noise.
		{"white", func(m *Model) { m.Sigma, m.White, m.Fault.Loss = 0.06, 0.08, 0.1 }, 250 * time.Second, 0},
		{"racks", func(m *Model) {
			m.Racks, m.Sigma, m.RackSigma, m.Fault.Loss = 1, 0.06, 0.08, 0.1
		}, 250 * time.Second, 0},
		// Growing by 36 % an hour, by t per mil after t ticks: the sum of squares is t^3/3.
		{"drift", func(m *Model) {
			m.Sigma, m.Fault.Kind, m.Fault.Rate, m.Fault.Loss = 0.1, Drift, 0.36, 0.9
		}, 910 * time.Second, 20 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			assert.InDelta(t, tt.want, delay(tt.change), float64(tt.within))
		})
	}
	assert.Equal(t, Unknown, delay(func(m *Model) { m.Sigma = 0.1 }), "nothing is lost")
}

// TestOracleWaits: a fault that flickers shows nothing while it is off, and neither
// does a fleet that restarts.
func TestOracleWaits(t *testing.T) {
	steady := func(m *Model) { m.Sigma, m.Fault.Loss = 0.1, 0.1 }
	off := delay(func(m *Model) {
		steady(m)
		m.Fault.Kind, m.Fault.Duty, m.Fault.Period = Flicker, 0.5, 200*time.Second
	})
	assert.InDelta(t, 2*250*time.Second, off, float64(100*time.Second))

	r := named(func(m *Model) {
		steady(m)
		m.Restarts = &Restarts{}
	}).run(1, 0, false)
	f := r.Faults[0]
	f.Begin = r.down[0]
	downtime := time.Duration(r.up[0]-r.down[0]) * 10 * time.Second
	assert.Equal(t, 250*time.Second+downtime, r.oracle(&f, newDraw(1, "test", 0)))
}

// TestStudentDivergence: near nothing it is half of Fisher's information, (3+1)/(3+3)
// in units of t; a histogram of draws has the same.
func TestStudentDivergence(t *testing.T) {
	for _, shift := range []float64{1e-7, 1e-3, 0.01} {
		x := shift * studentScale
		assert.InEpsilon(t, x*x/3, divergeStudent(shift), 0.01)
	}
	d := newDraw(1, "test", 0)
	draws := make([]float64, 600_000)
	for i := range draws {
		draws[i] = d.student()
	}
	for _, shift := range []float64{0.5, 1, 2, 5} {
		assert.InEpsilon(t, divergence(draws, less(draws, shift)), divergeStudent(shift), 0.05, "%g", shift)
	}
}

// TestDivergence: of a normal law it is shift^2 / 2.
func TestDivergence(t *testing.T) {
	d := newDraw(1, "test", 0)
	draws := make([]float64, lawDraws)
	for i := range draws {
		draws[i] = d.NormFloat64()
	}
	for _, shift := range []float64{0.3, 1, 2} {
		assert.InEpsilon(t, shift*shift/2, divergence(draws, less(draws, shift)), 0.06, "%g", shift)
	}
}

// TestStepsLaw: steps of one law are normal ticks.
func TestStepsLaw(t *testing.T) {
	m := Model{Interval: 10 * time.Second, Steps: &Steps{Time: 100 * time.Millisecond, Sigma: 0.3}}
	// A hundred steps whose times have a relative standard deviation of 30.7 %.
	sd := math.Sqrt(math.Expm1(0.09)) / 10
	got := newStepsLaw(&m, 0.03, newDraw(1, "test", 0)).information
	assert.InEpsilon(t, 0.03*0.03/2/sd/sd, got, 0.1)
	// A step of 20 s reports in every second tick.
	m.Steps = &Steps{Time: 20 * time.Second, Sigma: 0.05}
	got = newStepsLaw(&m, 0.05, newDraw(1, "test", 0)).information
	assert.InEpsilon(t, 0.5*0.5, got, 0.1)
}
