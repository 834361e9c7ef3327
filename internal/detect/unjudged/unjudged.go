// SPDX-License-Identifier: Apache-2.0

// Package unjudged names the reasons for which there is no verdict on a node: for the
// engine, and for the metrics, the log and the page.
package unjudged // import "github.com/gpu-collector/gpu-collector/internal/detect/unjudged"

import (
	"fmt"
	"strings"
)

// Reason is why there is no verdict on a node. Its number is that of the metric
// gpu.node.unjudged.
type Reason uint8

// The reasons.
const (
	// Judged nodes are compared with their peers.
	Judged Reason = iota
	Idle
	Missing
	// Calibrating nodes have just come.
	Calibrating
	// Contested names are used by several nodes.
	Contested
	// NoSignal nodes send nothing that they can be compared by.
	NoSignal
	FewPeers
	// Levels nodes do other work than those that they could be compared with.
	Levels
	// Lockstep nodes all wait for the slowest: none of them stands out.
	Lockstep
	// Noise hides that a node is behind. It is compared all the same.
	Noise
	// Count is the number of reasons, Judged included.
	Count
)

var texts = [Count]struct{ name, sentence string }{
	Idle:        {"idle", "The node has no work."},
	Missing:     {"missing", "No report from the node. Look whether it is up and its agent runs."},
	Calibrating: {"calibrating", "Warm-up. A node is compared from its first push on, after six pushes in a group older than a minute, or after five minutes in one older than 15 minutes."},
	Contested:   {"contested", "Several nodes or agents use this name. Give each its own: `GPU_COLLECTOR_NODE`."},
	NoSignal:    {"no_signal", "The node sends none of the signals that verdicts use. Push the step time."},
	FewPeers:    {"too_few_peers", "Fewer peers than `min_peers` send the same signal. Compare more nodes with `group_by`."},
	Levels:      {"other_levels", "Nodes take turns at unlabelled jobs, so their levels cannot be compared. Set `gpu.job.id`."},
	Lockstep:    {"lockstep", "All ranks wait for the slowest, so step times are equal. Push each rank's own time, or let NCCL tell."},
	Noise:       {"noise", "The node is behind, but its peers differ by as much. Compare it with nodes of the same work."},
}

// Compared reports whether the node is compared with its peers.
func (r Reason) Compared() bool { return r == Judged || r == Noise }

// String is empty for Judged.
func (r Reason) String() string {
	if r < Count {
		return texts[r].name
	}
	return ""
}

// Sentence explains r to people, for one node or for a group. It is empty for Judged.
func (r Reason) Sentence() string {
	if r < Count {
		return texts[r].sentence
	}
	return ""
}

// Parse is the reason of a name, Judged for none.
func Parse(name string) (Reason, bool) {
	for r := range Count {
		if texts[r].name == name {
			return r, true
		}
	}
	return Judged, false
}

// Legend lists the sentences by their numbers.
func Legend() string {
	var list []string
	for r := Judged + 1; r < Count; r++ {
		list = append(list, fmt.Sprintf("%d: %s", r, r.Sentence()))
	}
	return strings.Join(list, " ")
}

// Most returns the reason of most nodes of a group, Judged where any of them is judged.
func Most(counts *[Count]int) (why Reason) {
	for r, n := range counts {
		if counts[Judged] == 0 && n > counts[why] {
			why = Reason(r)
		}
	}
	return why
}
