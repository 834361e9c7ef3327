// SPDX-License-Identifier: Apache-2.0

// Package unjudged names the reasons for which there is no verdict on a node, for the
// engine and for all that tell of it.
package unjudged // import "github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"

import "fmt"

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
	// Overlap nodes have hidden their communication behind compute: nobody has to wait, and
	// who waits least is not the slowest.
	Overlap
	// Count is the number of reasons, Judged included.
	Count
)

var names = [Count]string{"", "idle", "missing", "calibrating", "contested", "no_signal", "too_few_peers", "other_levels", "lockstep", "overlap"}

// String is empty for Judged.
func (r Reason) String() string {
	if r < Count {
		return names[r]
	}
	return ""
}

// silences say why there is no verdict, and what ends that.
var silences = [Count]struct{ why, remedy string }{
	Idle:        {"there is no work", "idle nodes are not compared; start a job"},
	Missing:     {"nothing is heard", "see whether its agent runs and reaches the gateway"},
	Calibrating: {"the usual level is being learnt", "wait: it is judged after a minute, or after five in a settled group"},
	Contested:   {"several nodes use one name", "give each node a name of its own, host.name or k8s.node.name"},
	NoSignal:    {"nothing that is told decides", "push the own step time of each rank, gpu.app.step.own_duration"},
	FewPeers:    {"there are too few peers", "more active nodes of one job, role and GPU model are needed"},
	Levels:      {"the work is other than that of all nodes to compare with", "set gpu.job.id and gpu.job.role on the pushes of the job"},
	Overlap:     {"communication beside compute hides who waits", "push each rank's own work, without the time in which it waits for others"},
	Lockstep:    {"all nodes wait for the slowest", "push each rank's own work, without the time in which it waits for others"},
}

// Parse returns the reason of a name, Judged for what is none.
func Parse(name string) Reason {
	for r, n := range names {
		if n == name {
			return Reason(r)
		}
	}
	return Judged
}

// Why says the reason to people, after "there is no verdict, since"; empty for Judged.
func (r Reason) Why() string {
	if r < Count {
		return silences[r].why
	}
	return ""
}

// Silence says how many nodes of a fleet have no verdict for the reason; empty for Judged.
// The page, the terminal and doctor tell it so.
func (r Reason) Silence(n, of int) string {
	if r == Judged || r >= Count {
		return ""
	}
	noun, verb := "nodes", "are"
	if of == 1 {
		noun = "node"
	}
	if n == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%d of %d %s %s without a verdict, since %s", n, of, noun, verb, silences[r].why)
}

// Remedy says what ends the silence; empty for Judged.
func (r Reason) Remedy() string {
	if r < Count {
		return silences[r].remedy
	}
	return ""
}
