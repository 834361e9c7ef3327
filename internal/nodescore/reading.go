// SPDX-License-Identifier: Apache-2.0

package nodescore

import "math"

// Input is one kind of reading behind the signals.
type Input uint8

// Inputs, all summed over the GPUs or processes of a node.
const (
	StepDuration Input = iota // seconds per step, from the application
	StepRate                  // steps per second, from the application
	Utilization               // fraction of time the GPU was busy
	SMClock                   // Hz
	SMClockLimit              // Hz
	MemoryUsed                // bytes
	MemoryLimit               // bytes
	CPUPressure               // fraction of time some task waited for a CPU (Linux PSI)
	numInputs
)

// Reading collects the values of one push. The zero value is empty.
type Reading struct {
	sum [numInputs]float64
	n   [numInputs]int
}

// Add takes one value; it reports false for one that is not finite or negative.
func (r *Reading) Add(in Input, v float64) bool {
	if !(v >= 0) || math.IsInf(v, 1) {
		return false
	}
	r.sum[in] += v
	r.n[in]++
	return true
}

// Empty reports whether nothing was added.
func (r *Reading) Empty() bool { return r.n == [numInputs]int{} }

func (r *Reading) mean(in Input) (float64, bool) {
	if r.n[in] == 0 {
		return 0, false
	}
	return r.sum[in] / float64(r.n[in]), true
}

// ratio returns the sum of a over the sum of b; both must cover the same GPUs.
func (r *Reading) ratio(a, b Input) (float64, bool) {
	if r.n[a] == 0 || r.n[a] != r.n[b] || r.sum[b] == 0 {
		return 0, false
	}
	return r.sum[a] / r.sum[b], true
}

// hasApp reports whether the application spoke.
func (r *Reading) hasApp() bool { return r.n[StepDuration] > 0 || r.n[StepRate] > 0 }

// signals derives the raw signals. Throughput is the application's own rate
// where it is pushed, else utilisation times clock fraction, a stand-in that
// needs nothing from the application. The two have different units, so a node
// whose application has spoken (app) never falls back to the stand-in.
// spoke says that it has spoken since the last evaluation.
func (r *Reading) signals(idleBelow float64, app, spoke bool) (v Values) {
	clock, hasClock := r.ratio(SMClock, SMClockLimit)
	util, hasUtil := r.mean(Utilization)
	busy := hasUtil && util >= idleBelow

	d, hasDuration := r.mean(StepDuration)
	rate, hasRate := r.mean(StepRate)
	switch {
	case hasDuration && d > 0:
		v.Set(Throughput, 1/d)
	case hasRate:
		v.Set(Throughput, rate)
	case !app && hasClock && busy:
		v.Set(Throughput, util*clock)
	}
	// An idle GPU lowers its clock on purpose.
	if hasClock && (busy || !hasUtil && spoke) {
		v.Set(Compute, clock)
	}
	if used, ok := r.ratio(MemoryUsed, MemoryLimit); ok {
		v.Set(Memory, 1-used)
	}
	if cpu, ok := r.mean(CPUPressure); ok {
		v.Set(CPU, 1-cpu)
	}
	return v
}
