// SPDX-License-Identifier: Apache-2.0

package nodesignal

import (
	"errors"
	"math"
	"slices"
)

// maxNameLength is a DNS name's (RFC 1035).
const maxNameLength = 253

// Why an observation is not taken.
var (
	ErrNoCluster   = errors.New("no cluster name")
	ErrNoNode      = errors.New("no node name")
	ErrNameTooLong = errors.New("name is longer than 253 bytes")
	ErrScoreRange  = errors.New("score is not a number in [0,1]")
	ErrSignalRange = errors.New("signal is not a finite number >= 0")
)

// Observation is what one push reported about one node.
type Observation struct {
	Cluster, Node string
	// GroupLabels are the values of the peer-group attributes of this push, in configured
	// order, empty where it has none. Reports may have more or less of them, see
	// peergroup.Memory.
	GroupLabels []string
	// State that the node reports; only read when HasState. A node that has
	// never reported its state is active from its first score on.
	State    State
	HasState bool
	// Score in [0,1]; only read when HasScore.
	Score    float64
	HasScore bool
	// NoScore: the node's score cannot be used; the old one is void.
	NoScore bool
	// Heartbeat confirms the score known before: the node has reported, and a
	// processor that forwards only changes had none to forward.
	Heartbeat bool
	// Values are the raw signals of this push, >= 0, each in the unit of
	// its signal. The one of the signal Score is not read: that is Score.
	Values Values
	// Contested: several machines report under the node's name.
	Contested bool
	// Gone are the signals that the node measures no more; their values are void.
	Gone [Count]bool
}

// Validate returns why the observation cannot be taken, nil when it can.
func (o *Observation) Validate() error {
	switch {
	case o.Cluster == "":
		return ErrNoCluster
	case o.Node == "":
		return ErrNoNode
	case len(o.Cluster) > maxNameLength || len(o.Node) > maxNameLength:
		return ErrNameTooLong
	case o.HasScore && !(o.Score >= 0 && o.Score <= 1):
		return ErrScoreRange
	}
	for s := range Score {
		if o.Values.Known[s] && !(o.Values.V[s] >= 0 && !math.IsInf(o.Values.V[s], 1)) {
			return ErrSignalRange
		}
	}
	if slices.ContainsFunc(o.GroupLabels, func(s string) bool { return len(s) > maxNameLength }) {
		return ErrNameTooLong
	}
	return nil
}

// State of a node as it reports it, or StateMissing when it stopped reporting.
type State uint8

// States. Only active nodes have peers and can be stragglers.
const (
	StateActive State = iota
	StateIdle
	StateCalibrating
	StateMissing
	NumStates
)

var stateNames = [NumStates]string{"active", "idle", "calibrating", "missing"}

// ParseState reads a gpu.node.state attribute.
func ParseState(s string) (State, bool) {
	if i := slices.Index(stateNames[:StateMissing], s); i >= 0 {
		return State(i), true
	}
	return StateMissing, false
}

func (s State) String() string { return stateNames[s] }
