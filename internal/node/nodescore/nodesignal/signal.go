// SPDX-License-Identifier: Apache-2.0

// Package nodesignal has the signals of a node's work: their names, which way is bad, and how
// much is worth an alert. Agents measure them, gateways compare them between peers. Pure.
package nodesignal // import "github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"

import (
	"fmt"
	"math"
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
	// Communication is the share of time in collectives. Ranks are compared by it, see
	// internal/detect/collective: one that computes longer than its peers waits least.
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

// Direction is which way is bad.
type Direction int8

// Directions.
const (
	Low  Direction = 1  // less than the peers is bad
	High Direction = -1 // more than the peers is bad
)

// Spec is how a signal is compared between peers.
type Spec struct {
	// Decides is false for a signal that is only evidence.
	Decides   bool
	Direction Direction
	// Relative signals have no limit of their own: a gap is a share of the
	// peers' level. The others are fractions already.
	Relative bool
	// MinGap is the smallest loss worth an alert, a fraction.
	MinGap float64
}

// Level is what nodes are compared by: the logarithm of a relative signal's value, a
// fraction as it is, negative where more is worse. No rate is below a billionth of a unit.
func (s *Spec) Level(x float64) float64 {
	if s.Relative {
		x = math.Log(max(x, 1e-9))
	}
	return float64(s.Direction) * x
}

// Value is the value of a level.
func (s *Spec) Value(level float64) float64 {
	if level *= float64(s.Direction); s.Relative {
		return math.Exp(level)
	}
	return level
}

// Loss makes a fraction of a difference of levels.
func (s *Spec) Loss(difference float64) float64 {
	if s.Relative {
		return -math.Expm1(-difference)
	}
	return difference
}

// MarshalBinary is the signal's name: a signal that comes between others gives what was saved
// before no other meaning.
func (s Signal) MarshalBinary() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalBinary takes a name, see Parse.
func (s *Signal) UnmarshalBinary(name []byte) (err error) {
	*s, err = Parse(string(name))
	return err
}

// Set is a set of signals, a bit each.
type Set uint8

const _ = Set(1 << (Count - 1)) // each signal has a bit

// MarshalBinary is the signals' names, for the same reason.
func (s Set) MarshalBinary() ([]byte, error) {
	var list []byte
	for x := range Count {
		if s.Has(x) {
			list = append(append(list, x.String()...), ' ')
		}
	}
	return list, nil
}

// UnmarshalBinary takes names, see Parse.
func (s *Set) UnmarshalBinary(list []byte) error {
	*s = 0
	for name := range strings.FieldsSeq(string(list)) {
		x, err := Parse(name)
		if err != nil {
			return err
		}
		*s |= SetOf(x)
	}
	return nil
}

// SetOf returns the set of one signal.
func SetOf(s Signal) Set { return 1 << s }

// Has reports whether a signal is in the set.
func (s Set) Has(x Signal) bool { return s>>x&1 != 0 }

// Deciding returns the signals that nodes are compared by.
func Deciding(specs *[Count]Spec) (set Set) {
	for s := range Count {
		if specs[s].Decides {
			set |= SetOf(s)
		}
	}
	return set
}

// Defaults returns how each signal is compared.
//
// A loss of 5 % is the smallest that differs from noise of 2 % within minutes. A
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
		// A rank that is 5 % slower waits for 3 % less of its time.
		Communication: {Decides: true, Direction: Low, MinGap: 0.02},
		Score:         {Decides: true, Direction: Low, MinGap: 0.05},
	}
}
