// SPDX-License-Identifier: Apache-2.0

// Package unjudged names the reasons for which there is no verdict on a node, for the
// engine and for all that tell of it.
package unjudged // import "github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"

// Reason is why there is no verdict on a node. Its number is that of the metric
// gpu.node.unjudged.
type Reason uint8

// The reasons.
const (
	// Judged nodes are compared with their peers.
	Judged Reason = iota
	Idle
	Missing
	// Calibrating nodes say so, or have just come.
	Calibrating
	// Contested names are used by several nodes.
	Contested
	// NoSignal nodes tell nothing that decides.
	NoSignal
	FewPeers
	// Levels nodes do other work than those that they could be compared with.
	Levels
	// Lockstep nodes all wait for the slowest: none of them stands out, whoever it is.
	Lockstep
	// Count is the number of reasons, Judged included.
	Count
)

var names = [Count]string{"", "idle", "missing", "calibrating", "contested", "no_signal", "too_few_peers", "other_levels", "lockstep"}

// String is empty for Judged.
func (r Reason) String() string {
	if r < Count {
		return names[r]
	}
	return ""
}
