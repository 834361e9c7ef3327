// SPDX-License-Identifier: Apache-2.0

package reason

import "time"

// Finding is why a node is slow, as far as its facts tell.
type Finding struct {
	// Reason and Action are stable snake_case values; Advice says Action in a
	// sentence to an operator.
	Reason Reason
	Action Action
	Advice string
	// Observation says that the deciding fact is no worse than the peers', or
	// that nothing is known of the peers: true of the node, but no proof that it
	// is what makes the node slower than they are.
	Observation bool
	// Standing says that what decided was there before the node became slow, and
	// that nothing newer explains it.
	Standing bool
	// GPU is the hw.id of what the evidence points at: a GPU, a MIG slice or a
	// network adapter. Empty when the evidence is of the whole node.
	GPU string
	// Evidence holds the facts that decided, then those that help to judge
	// them. Empty when nothing explains the node.
	Evidence []Evidence
	// Shared of the Asked nodes have the reason; only of a group's finding.
	Shared, Asked int
}

// Evidence is one fact and what it is among the peers.
type Evidence struct {
	Fact Fact
	// GPU is the hw.id of the GPU, MIG slice or adapter; empty for a fact of
	// the node.
	GPU string
	// Kind of the errors, by the name of their counter; only of NetworkErrors.
	Kind string
	// Value in the unit of the fact.
	Value float64
	// Peers is the median over the peers of the same fact, each peer counting
	// with its worst GPU; only read when HasPeers.
	Peers    float64
	HasPeers bool
	// Since is when it began to be what it is, zero where that is not known;
	// Standing says that it was before the node became slow.
	Since    time.Time
	Standing bool
}
