// SPDX-License-Identifier: Apache-2.0

// Package nodescore turns a node's readings into one health score in [0,1]
// and lets the node judge itself by the threshold that its gateway returned,
// or, when the gateway stays away, by its own past. Pure: time comes in as an
// argument.
package nodescore // import "github.com/gpu-collector/gpu-collector/internal/nodescore"

import (
	"fmt"
	"strings"
)

// Signal is an input of the score.
type Signal uint8

// The signals. Throughput is a rate and has no limit of its own, so it is
// divided by a reference; the others are fractions of a known limit.
const (
	Throughput Signal = iota // work done per second
	Compute                  // SM clock as a fraction of its maximum, under load
	Memory                   // free GPU memory as a fraction
	CPU                      // share of time in which no task waited for a CPU
	NumSignals
)

var signalNames = [NumSignals]string{"throughput", "compute", "memory", "cpu"}

func (s Signal) String() string { return signalNames[s] }

// ParseSignal returns the signal of that name, or an error that lists the names.
func ParseSignal(name string) (Signal, error) {
	for i, n := range signalNames {
		if n == name {
			return Signal(i), nil
		}
	}
	return 0, fmt.Errorf("unknown signal %q, known are %s", name, strings.Join(signalNames[:], ", "))
}

// Values holds one value per signal and which of them are known.
type Values struct {
	V     [NumSignals]float64
	Known [NumSignals]bool
}

// Set makes a signal known.
func (v *Values) Set(s Signal, x float64) { v.V[s], v.Known[s] = x, true }

// Weights are the shares of the signals in the score.
type Weights [NumSignals]float64

// DefaultWeights are 0.40 throughput, 0.25 compute, 0.15 CPU: the proportions
// that operators of peer-based straggler detection know. They also give 0.20
// to free memory; here it has no weight unless asked for, since frameworks
// fill the memory on purpose and a full GPU is not a slow one.
func DefaultWeights() Weights { return Weights{0.40, 0.25, 0, 0.15} }

// Floors are the values below which a signal is alarming by itself.
type Floors [NumSignals]float64

// DefaultFloors are a third of the expected speed for throughput and clock.
// CPU is spent on purpose by training jobs, so that only its exhaustion alarms.
func DefaultFloors() Floors { return Floors{0.35, 0.35, 0, 0.10} }

// Score combines normalised signals in [0,1]: the weighted mean of the known
// ones, times a penalty in [0.5,1] for the signal furthest below its floor, so
// that the mean cannot hide one dead signal. It is unknown (false) unless
// throughput or compute is known and weighted: memory and CPU alone say
// nothing about speed, and a node that pauses has nothing else to show.
func Score(w *Weights, floors *Floors, v *Values) (float64, bool) {
	var sum, weight float64
	penalty := 1.0
	for i := range NumSignals {
		if !v.Known[i] || w[i] == 0 {
			continue
		}
		x := clamp01(v.V[i])
		sum += w[i] * x
		weight += w[i]
		if x < floors[i] {
			penalty = min(penalty, 0.5+0.5*x/floors[i])
		}
	}
	if !(v.Known[Throughput] && w[Throughput] > 0 || v.Known[Compute] && w[Compute] > 0) {
		return 0, false
	}
	return clamp01(sum / weight * penalty), true
}

// clamp01 maps NaN to 0: what cannot be read is not healthy.
func clamp01(x float64) float64 {
	if !(x > 0) {
		return 0
	}
	return min(x, 1)
}
