// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// sample plays a model and returns each node's values.
func sample(m Model, f Fault, nodes, ticks, begin, end int) (*world, [][]float64) {
	w := newWorld(m, f, nodes, begin, end, random(1, "test", 0))
	out := make([][]float64, nodes)
	for range ticks {
		for i, v := range w.next() {
			out[i] = append(out[i], v)
		}
	}
	return w, out
}

// moments are the mean, standard deviation and lag-1 autocorrelation.
func moments(x []float64) (mean, sd, phi float64) {
	for _, v := range x {
		mean += v / float64(len(x))
	}
	var c float64
	for i, v := range x {
		sd += (v - mean) * (v - mean)
		if i > 0 {
			c += (v - mean) * (x[i-1] - mean)
		}
	}
	return mean, math.Sqrt(sd / float64(len(x))), c / sd
}

// TestNoise: the model is what it says it is.
func TestNoise(t *testing.T) {
	for _, tt := range []struct {
		name    string
		m       Model
		sd, phi float64
	}{
		{"iid", Model{Sigma: 0.01}, 0.01, 0},
		{"AR", Model{Sigma: 0.02, Phi: 0.8}, 0.02, 0.8},
		{"hard AR", Model{Sigma: 0.015, Phi: 0.95}, 0.015, 0.95},
		// The mean of six has a sixth of the variance, and shares five with the one before.
		{"window", Model{Sigma: 0.0245, Window: 6}, 0.01, 5.0 / 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, x := sample(tt.m, Fault{}, 1, 100_000, 0, 0)
			mean, sd, phi := moments(x[0])
			assert.InDelta(t, 0.9, mean, 0.001)
			assert.InEpsilon(t, tt.sd*0.9, sd, 0.05)
			assert.InDelta(t, tt.phi, phi, 0.02)
		})
	}
}

func TestBiasAndJobs(t *testing.T) {
	w, x := sample(Model{Bias: 0.01, Jobs: []Job{{0.7, 0.95}, {0.3, 0.6}}, Labelled: true}, Fault{}, 1000, 1, 0, 0)
	var off []float64
	for i, v := range x {
		level := 0.95
		if i >= 700 {
			level = 0.6
		}
		off = append(off, v[0]/level-1)
	}
	_, sd, _ := moments(off)
	assert.InEpsilon(t, 0.01, sd, 0.1)
	assert.Equal(t, []string{"job-a"}, w.peers(699))
	assert.Equal(t, []string{"job-b"}, w.peers(700))
}

func TestFault(t *testing.T) {
	w, x := sample(Model{}, Fault{Nodes: 0.3, Loss: 0.2}, 64, 10, 4, 7)
	hit := 0
	for i, v := range x {
		want := []float64{0.9, 0.9, 0.9, 0.9, 0.72, 0.72, 0.72, 0.9, 0.9, 0.9}
		if !w.faulty[i] {
			want = []float64{0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9}
		} else {
			hit++
		}
		assert.InDeltaSlice(t, want, v, 1e-12)
	}
	assert.Equal(t, 19, hit)

	_, x = sample(Model{}, Fault{Nodes: 1, Loss: 0.04, Drift: true}, 1, 2*perHour, 0, 2*perHour)
	assert.InDelta(t, 0.9*0.96, x[0][perHour-1], 1e-9)
	assert.InDelta(t, 0.9*0.92, x[0][2*perHour-1], 1e-9)
}

// TestDip: a dip is as long and deep as it says, on and between the ticks.
func TestDip(t *testing.T) {
	for _, skewed := range []bool{false, true} {
		m := Model{Dip: Dip{Every: 10 * time.Minute, For: time.Minute, Depth: 0.4, Skewed: skewed}}
		_, x := sample(m, Fault{}, 8, 120, 0, 0)
		for _, v := range x {
			lost, touched := 0.0, 0
			for _, value := range v {
				lost += (0.9 - value) / (0.9 * 0.4)
				if value < 0.9-1e-9 {
					touched++
				}
			}
			assert.InDelta(t, 12, lost, 1e-9, "two dips of six ticks")
			if skewed {
				assert.Equal(t, 14, touched)
			} else {
				assert.Equal(t, 12, touched)
			}
		}
	}
}

func TestGlitchesDriftRoleAndSteps(t *testing.T) {
	_, x := sample(Model{Glitch: 0.01}, Fault{}, 1, 100_000, 0, 0)
	lost := 0
	for _, v := range x[0] {
		if v < 0.9-1e-9 {
			lost++
			assert.InDelta(t, 0.9*0.65, v, 0.9*0.25+1e-9)
		}
	}
	assert.InEpsilon(t, 1000, lost, 0.1)

	_, x = sample(Model{Drift: 0.2}, Fault{}, 1, 24*perHour+1, 0, 0)
	assert.InDelta(t, 0.9*0.8, x[0][24*perHour], 1e-9)

	_, x = sample(Model{RoleBias: 0.03, RoleEvery: 8}, Fault{}, 9, 1, 0, 0)
	for i, v := range x {
		want := 0.9
		if i%8 == 0 {
			want = 0.873
		}
		assert.InDelta(t, want, v[0], 1e-9)
	}

	_, x = sample(Model{Sigma: 0.05, Quantum: 0.05}, Fault{}, 1, 1000, 0, 0)
	for _, v := range x[0] {
		assert.InDelta(t, math.Round(v*20), v*20, 1e-9)
	}
}

// TestSameSeedSameSamples, and each seed, scenario and run has its own.
func TestSameSeedSameSamples(t *testing.T) {
	first := func(seed uint64, scenario string, run int) float64 { return random(seed, scenario, run).Float64() }
	same := first(1, "01", 0)
	assert.InDelta(t, same, first(1, "01", 0), 0)
	for _, other := range []float64{first(2, "01", 0), first(1, "02", 0), first(1, "01", 1)} {
		assert.NotEqual(t, same, other)
	}
}
