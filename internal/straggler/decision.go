// SPDX-License-Identifier: Apache-2.0

package straggler

import "fmt"

// Decision is what makes a node a straggler.
type Decision uint8

// Decisions.
const (
	// DecisionCUSUM sums up how far each signal of a node lies behind its peers.
	DecisionCUSUM Decision = iota
	// DecisionThreshold compares the node's score with the published threshold.
	DecisionThreshold
	numDecisions
)

func (d Decision) String() string {
	if d == DecisionThreshold {
		return "threshold"
	}
	return "cusum"
}

// ParseDecision returns the decision of that name.
func ParseDecision(name string) (Decision, error) {
	for d := range numDecisions {
		if d.String() == name {
			return d, nil
		}
	}
	return 0, fmt.Errorf("is %q, must be cusum or threshold", name)
}
