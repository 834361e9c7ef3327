// SPDX-License-Identifier: Apache-2.0

package nodesignal

import "slices"

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
