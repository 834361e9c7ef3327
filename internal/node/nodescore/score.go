// SPDX-License-Identifier: Apache-2.0

// Package nodescore turns a node's readings into raw signals and one health score in
// [0,1]. It lets the node judge itself by what its gateway returned. When the
// gateway stays away, the node judges itself by its own past. Pure: time comes in as
// an argument.
package nodescore // import "github.com/gpu-collector/gpu-collector/internal/node/nodescore"

import "github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"

// Weights are the shares of the signals in the score.
type Weights [nodesignal.Count]float64

// DefaultWeights are 0.40 throughput, 0.25 compute, 0.15 CPU: the proportions that
// operators of peer-based straggler detection know. They also give 0.20 to free
// memory. Here it has no weight unless asked for: frameworks fill the memory on
// purpose, and a full GPU is not slow.
func DefaultWeights() Weights {
	return Weights{nodesignal.Throughput: 0.40, nodesignal.Compute: 0.25, nodesignal.CPU: 0.15}
}

// Floors are the values below which a signal is alarming by itself.
type Floors [nodesignal.Count]float64

// DefaultFloors are a third of the expected speed for throughput, clock and
// links. CPU is spent on purpose by training jobs, so that only its exhaustion
// alarms.
func DefaultFloors() Floors {
	return Floors{nodesignal.Throughput: 0.35, nodesignal.Compute: 0.35, nodesignal.Interconnect: 0.35, nodesignal.CPU: 0.10}
}

// Score combines normalised signals in [0,1]. It is the weighted mean of the known
// ones, times a penalty in [0.5,1]. The penalty is for the signal furthest below its
// floor, so that the mean cannot hide one dead signal. It is unknown (false) unless
// throughput or compute is known and weighted: the others are not about speed.
func Score(w *Weights, floors *Floors, v *nodesignal.Values) (float64, bool) {
	var sum, weight float64
	penalty := 1.0
	for i := range nodesignal.Score {
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
	if !speed(w, v) {
		return 0, false
	}
	return clamp01(sum / weight * penalty), true
}

// speed reports whether a weighted signal is about the speed of the node.
func speed(w *Weights, v *nodesignal.Values) bool {
	return v.Known[nodesignal.Throughput] && w[nodesignal.Throughput] > 0 || v.Known[nodesignal.Compute] && w[nodesignal.Compute] > 0
}

// clamp01 maps NaN to 0: what cannot be read is not healthy.
func clamp01(x float64) float64 {
	if !(x > 0) {
		return 0
	}
	return min(x, 1)
}
