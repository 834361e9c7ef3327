// SPDX-License-Identifier: Apache-2.0

// Package nodesignal names what is measured of a node's work. It says of each signal
// which way is bad, and how much is worth an alert. Agents measure the signals,
// gateways compare them between peers. Pure.
package nodesignal // import "github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"

import (
	"fmt"
	"slices"
	"strings"
)

// Signal is one thing measured of a node.
type Signal uint8

// The signals, in the order in which a tie between them is decided.
const (
	Throughput   Signal = iota // work done per second, in a unit of the job's own
	Compute                    // SM clock as a fraction of its maximum, under load
	Interconnect               // PCIe and NVLink as a fraction of what the links can do
	CPU                        // share of time in which no task waited for a CPU
	Power                      // watts drawn by the GPUs
	Memory                     // free GPU memory as a fraction
	// Communication is the share of time in collective operations. The rank that all
	// others wait for has the least.
	Communication
	// Score is the node's own health score. It is a mean of the others, so it
	// is compared only for nodes that report none of them.
	Score
	Count
)

var names = [Count]string{"throughput", "compute", "interconnect", "cpu", "power", "memory", "communication", "score"}

func (s Signal) String() string { return names[s] }

// Parse returns the signal of that name, or an error that lists the names.
func Parse(name string) (Signal, error) {
	if i := slices.Index(names[:], name); i >= 0 {
		return Signal(i), nil
	}
	return 0, fmt.Errorf("unknown signal %q, known are %s", name, strings.Join(names[:], ", "))
}

// Values holds one value per signal and which of them are known.
type Values struct {
	V     [Count]float64
	Known [Count]bool
}

// Set makes a signal known.
func (v *Values) Set(s Signal, x float64) { v.V[s], v.Known[s] = x, true }

// Direction says which way is bad.
type Direction int8

// Directions.
const (
	Low  Direction = 1  // less than the peers is bad
	High Direction = -1 // more than the peers is bad
)

// Spec says how a signal is compared between peers.
type Spec struct {
	// Decides is false for a signal that is only evidence.
	Decides   bool
	Direction Direction
	// Relative signals have no limit of their own: a gap is a share of the
	// peers' level. The others are fractions already.
	Relative bool
	// Coupled nodes wait for one another at each step. Then what sets them apart at a tick
	// says nothing of the next; where it does, nobody is accused by the signal.
	Coupled bool
	// MinGap is the smallest loss worth an alert, a fraction.
	MinGap float64
}

// Defaults returns how each signal is compared.
//
// A loss of 5 % is the smallest that is told from noise of 2 % within minutes. A
// synchronous job feels it. Greyhound (ATC '25) asks for 10 %. Healthy boards of one
// model differ in power by 8 % on average and 22 % at most ("Not All GPUs Are
// Created Equal", SC '22). Memory is filled on purpose. So those two do not decide.
func Defaults() [Count]Spec {
	return [Count]Spec{
		Throughput:   {Decides: true, Direction: Low, Relative: true, MinGap: 0.05},
		Compute:      {Decides: true, Direction: Low, MinGap: 0.05},
		Interconnect: {Decides: true, Direction: Low, MinGap: 0.10},
		CPU:          {Decides: true, Direction: Low, MinGap: 0.20},
		Power:        {Direction: Low, Relative: true, MinGap: 0.20},
		Memory:       {Direction: Low, MinGap: 0.20},
		// Half the loss of a GPU that computes 10 % longer shows in the share, less what the
		// peers wait anyway.
		Communication: {Decides: true, Direction: Low, Coupled: true, MinGap: 0.03},
		Score:         {Decides: true, Direction: Low, MinGap: 0.05},
	}
}
