// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
)

// alert is what the fleet view told of, once.
type alert struct {
	id, kind, text, reason string
	nodes                  []string
	// at is when it was told, since the run began.
	at time.Duration
	// silence is true where it says that nodes are silent. No fault of a plan silences a
	// node: the machine was late with its pushes, or a tier was away.
	silence bool
	fault   int // of the plan, -1 for a false one
}

// outcome is what became of a fault.
type outcome struct {
	fault
	alert *alert // the first that was about it, nil for a miss
	// delay is that of the alert; agent is when the node itself found out, less than 0 for
	// never.
	delay, agent time.Duration
}

// match gives each alert the fault that it is about: one of a node that it names, that
// was there when it was told, or shortly before. early is how exact times are.
func match(faults []fault, alerts []alert, early time.Duration) []outcome {
	slices.SortFunc(alerts, func(a, b alert) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.id, b.id)) })
	out := make([]outcome, len(faults))
	for i := range faults {
		out[i] = outcome{fault: faults[i], agent: -1}
	}
	for i := range alerts {
		a := &alerts[i]
		a.fault = -1
		for j := range faults {
			f := &faults[j]
			if a.silence || a.at < f.From-early || a.at > f.Until+grace || !slices.Contains(a.nodes, fleetpush.NodeName(f.node)) {
				continue
			}
			a.fault = j
			if out[j].alert == nil {
				out[j].alert, out[j].delay = a, max(0, a.at-f.From)
			}
		}
	}
	return out
}
