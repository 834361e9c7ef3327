// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// named is a family whose model a test sets.
func named(change func(m *Model)) *Family {
	return &Family{Name: "test", Grace: 15 * time.Minute, draw: func(d *draw, m *Model) {
		*m = Model{Interval: 10 * time.Second, Length: 10 * time.Hour, Fault: FaultLaw{For: time.Hour, Nodes: 1}}
		d.nodes(m, 8)
		m.Fault.Nodes = 1
		change(m)
	}}
}

// noise is each node's noise in a clean run: its value by what it is without.
func noise(t *testing.T, f *Family) [][]float64 {
	t.Helper()
	r := f.run(1, 0, true)
	out := make([][]float64, r.Model.Nodes)
	for r.Next() {
		for i, v := range r.Values {
			if !math.IsNaN(v) {
				out[i] = append(out[i], v/r.Clean[i]-1)
			}
		}
	}
	return out
}

// moments are those of all nodes together, and the correlation at a lag.
func moments(x [][]float64, lag int) (mean, sd, phi float64) {
	n, c := 0.0, 0.0
	for _, node := range x {
		for i, v := range node {
			mean += v
			sd += v * v
			n++
			if i >= lag {
				c += v * node[i-lag]
			}
		}
	}
	return mean / n, math.Sqrt(sd / n), c / sd
}

// TestNoise: each law has the moments that it claims.
func TestNoise(t *testing.T) {
	for _, tt := range []struct {
		name    string
		change  func(m *Model)
		lag     int
		sd, phi float64
	}{
		{"iid", func(m *Model) { m.Sigma = 0.1 }, 1, 0.1, 0},
		{"AR", func(m *Model) { m.Sigma, m.Phi = 0.02, 0.8 }, 1, 0.02, 0.8},
		{"Student", func(m *Model) { m.Student, m.Sigma, m.Phi = true, 0.02, 0.5 }, 1, 0.02, 0.5},
		// AR .9 of a variance of 4, white of 1: 4/5 * .9 after a tick.
		{"white on top", func(m *Model) { m.Sigma, m.Phi, m.White = 0.02, 0.9, 0.01 }, 1, math.Sqrt(5) / 100, 0.72},
		// Two hours in each four are three times as loud: (1 + 9) / 2.
		{"restless", func(m *Model) { m.Sigma, m.Restless = 0.01, 3 }, 1, math.Sqrt(5) / 100, 0},
		// The fleet's rack noise is that of eight nodes at once.
		{"racks", func(m *Model) { m.Sigma, m.Racks, m.RackSigma, m.RackPhi = 0.01, 100, 0.02, 0.5 }, 1, math.Sqrt(5) / 100, 0.4},
		// Every second node has three times the noise.
		{"loud", func(m *Model) { m.Sigma, m.LoudEvery, m.Loud = 0.01, 2, 3 }, 1, math.Sqrt(5) / 100, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := noise(t, named(func(m *Model) {
				m.Jobs[0].Nodes, m.Nodes = 800, 800
				m.Length = 2 * time.Hour
				tt.change(m)
			}))
			mean, sd, phi := moments(x, tt.lag)
			assert.InDelta(t, 0, mean, 0.05*tt.sd)
			assert.InEpsilon(t, tt.sd, sd, 0.02)
			assert.InDelta(t, tt.phi, phi, 0.02)
		})
	}
}

// TestSteps: a tick is the mean rate of the whole steps that ended in it.
func TestSteps(t *testing.T) {
	x := noise(t, named(func(m *Model) { m.Steps = &Steps{Time: time.Second, Sigma: 0.05} }))
	_, sd, _ := moments(x, 1)
	assert.InEpsilon(t, 0.05/math.Sqrt(10), sd, 0.1, "ten steps")
	for _, node := range x {
		assert.Len(t, node, 3600)
	}

	// A step of 25 s ends in two of five ticks.
	x = noise(t, named(func(m *Model) { m.Steps = &Steps{Time: 25 * time.Second} }))
	for _, node := range x {
		assert.InDelta(t, 1440, len(node), 1)
		assert.InDelta(t, 0, node[0], 1e-12)
	}

	// One in fifty takes 3.5 times as long on average: the mean rate is that much less.
	r := named(func(m *Model) { m.Steps = &Steps{Time: time.Second, Long: 0.02} }).run(1, 0, true)
	steps, ticks := 0.0, 0.0
	for r.Next() {
		for i, v := range r.Values {
			steps += v * 10
			ticks++
			assert.GreaterOrEqual(t, r.Clean[i], v-1e-12)
		}
	}
	assert.InEpsilon(t, 10/(1+0.02*2.5), steps/ticks, 0.02)
}

// TestFaults: each kind loses as much as it should, when it should.
func TestFaults(t *testing.T) {
	play := func(law FaultLaw) []float64 {
		r := named(func(m *Model) { m.Fault = law }).run(1, 0, false)
		require.Len(t, r.Faults, law.Nodes)
		var lost []float64
		for r.Next() {
			lost = append(lost, 1-r.Values[r.Faults[0].Node]/r.Clean[0])
		}
		return lost
	}
	law := FaultLaw{Nodes: 3, Begin: time.Hour, For: 2 * time.Hour, Loss: 0.2}
	step := play(law)
	assert.InDelta(t, 0, step[359], 1e-12)
	assert.InDelta(t, 0.2, step[360], 1e-12)
	assert.InDelta(t, 0.2, step[1079], 1e-12)
	assert.InDelta(t, 0, step[1080], 1e-12)

	law.Kind, law.Rate = Drift, 0.15
	drift := play(law)
	assert.InDelta(t, 0.15, drift[719], 1e-9, "an hour of it")
	assert.InDelta(t, 0.2, drift[1000], 1e-9, "the most")

	law.Kind, law.Duty, law.Period = Flicker, 0.25, 100*time.Second
	flicker := play(law)
	sum := 0.0
	for tick, lost := range flicker {
		if tick < 360 || tick >= 1080 {
			assert.InDelta(t, 0, lost, 1e-12)
		}
		sum += lost
		if tick >= 370 && tick < 1080 {
			assert.InDelta(t, flicker[tick-10], lost, 1e-9, "after a period")
		}
	}
	assert.InDelta(t, 0.2*0.25*720, sum, 1e-6)

	law.Losses = []float64{0.6, 0.2, 0.1}
	for k, f := range named(func(m *Model) { m.Fault = law }).run(1, 0, false).Faults {
		assert.InDelta(t, law.Losses[k], f.Loss, 0, "one after the other")
	}
}
