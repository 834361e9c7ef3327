// SPDX-License-Identifier: Apache-2.0

// Package unjudged names the reasons for which there is no verdict on a node: for the
// engine and for all that tell of it, in the same words.
package unjudged // import "github.com/gpu-collector/gpu-collector/internal/unjudged"

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

var words = [Count]struct{ name, sentence string }{
	Idle:        {"idle", "There is no work."},
	Missing:     {"missing", "Nothing is heard."},
	Calibrating: {"calibrating", "Warm-up: a node is compared from its sixth push on, or after five minutes where its group is older than 15."},
	Contested:   {"contested", "Several nodes or agents use one name."},
	NoSignal:    {"no_signal", "No signal that decides is told."},
	FewPeers:    {"too_few_peers", "Too few peers tell the same signal (min_peers, quorum)."},
	Levels:      {"other_levels", "Levels change hands: label the jobs (group_by)."},
	Lockstep:    {"lockstep", "All wait for the slowest: no signal tells the ranks apart."},
}

// String is empty for Judged.
func (r Reason) String() string {
	if r < Count {
		return words[r].name
	}
	return ""
}

// Sentence tells people, of one node or of a group of them; it is empty for Judged.
func (r Reason) Sentence() string {
	if r < Count {
		return words[r].sentence
	}
	return ""
}

// Parse is the reason of a name, Judged for none.
func Parse(name string) (Reason, bool) {
	for r := range Count {
		if words[r].name == name {
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

// Most returns why nobody of a group is judged: the reason of most of its nodes, Judged
// while some are.
func Most(counts *[Count]int) (why Reason) {
	for r, n := range counts {
		if counts[Judged] == 0 && n > counts[why] {
			why = Reason(r)
		}
	}
	return why
}
