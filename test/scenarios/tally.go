// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// Result is what one decider said in all runs of one scenario.
type Result struct {
	// HealthyTicks of nodes after the warm-up, and how many of them were
	// flagged. A node is healthy until its fault; after it, it is not counted.
	HealthyTicks, FlaggedTicks int
	// FalseOnsets are verdicts that began on a healthy node, WarmupOnsets those
	// of the warm-up.
	FalseOnsets, WarmupOnsets int
	// Faults, and the delay of each that was flagged before it ended: from its
	// first moment to the tick that flagged it. A node that already was flagged
	// counts as found at once.
	Faults int
	Delays []time.Duration
	// Clear is how long a node stayed flagged after its fault ended.
	Clear []time.Duration
	// Records that a log would have held: of single nodes, and of groups.
	NodeRecords, GroupRecords int
	// Incidents are group incidents after the warm-up, and MinEvents and
	// MaxEvents the fewest and most of a run; FalseIncidents began without a fault.
	Incidents, FalseIncidents int
	MinEvents, MaxEvents      int
	Runs                      int
}

// NodeDays of healthy nodes.
func (r *Result) NodeDays() float64 {
	return float64(r.HealthyTicks) / float64(24*perHour)
}

// OnsetRate is false onsets per node-day, and its upper bound.
func (r *Result) OnsetRate() (rate, upper float64) {
	return float64(r.FalseOnsets) / r.NodeDays(), RateUpper(r.FalseOnsets, r.NodeDays())
}

// FlaggedShare of the healthy time.
func (r *Result) FlaggedShare() float64 {
	return float64(r.FlaggedTicks) / float64(r.HealthyTicks)
}

// Recall is the share of the faults found within a time, and its lower bound.
func (r *Result) Recall(within time.Duration) (share, lower float64) {
	found := 0
	for _, d := range r.Delays {
		if d <= within {
			found++
		}
	}
	return float64(found) / float64(max(r.Faults, 1)), ShareLower(found, r.Faults)
}

// Delay is the quantile q of the delays of the faults that were found.
func (r *Result) Delay(q float64) time.Duration { return figure.Quantile(r.Delays, q) }

// ClearTime is the quantile q of the times that a node stayed flagged once it
// was well again.
func (r *Result) ClearTime(q float64) time.Duration { return figure.Quantile(r.Clear, q) }

func (r *Result) add(o *Result) {
	r.HealthyTicks += o.HealthyTicks
	r.FlaggedTicks += o.FlaggedTicks
	r.FalseOnsets += o.FalseOnsets
	r.WarmupOnsets += o.WarmupOnsets
	r.Faults += o.Faults
	r.Delays = append(r.Delays, o.Delays...)
	r.Clear = append(r.Clear, o.Clear...)
	r.NodeRecords += o.NodeRecords
	r.GroupRecords += o.GroupRecords
	r.FalseIncidents += o.FalseIncidents
	r.Incidents += o.Incidents
	if r.Runs == 0 {
		r.MinEvents = o.Incidents
	}
	r.MinEvents, r.MaxEvents = min(r.MinEvents, o.Incidents), max(r.MaxEvents, o.Incidents)
	r.Runs++
}

// tally counts one run of one decider.
type tally struct {
	result           Result
	faulty           []bool
	warm, begin, end int
	flagged, was     []bool
	found, cleared   []bool
	ongoing          int
}

func newTally(faulty []bool, warm, begin, end int) *tally {
	n := len(faulty)
	t := &tally{faulty: faulty, warm: warm, begin: begin, end: end}
	t.flagged, t.was, t.found, t.cleared = make([]bool, n), make([]bool, n), make([]bool, n), make([]bool, n)
	for _, f := range faulty {
		if f {
			t.result.Faults++
		}
	}
	return t
}

// tick takes the verdicts in t.flagged and the number of groups with an incident.
func (t *tally) tick(tick, incidents int) {
	r := &t.result
	for i, flagged := range t.flagged {
		onset := flagged && !t.was[i]
		switch {
		case t.faulty[i] && tick >= t.end:
			if t.found[i] && !t.cleared[i] && !flagged {
				t.cleared[i] = true
				r.Clear = append(r.Clear, time.Duration(tick-t.end+1)*Interval)
			}
		case t.faulty[i] && tick >= t.begin:
			if flagged && !t.found[i] {
				t.found[i] = true
				r.Delays = append(r.Delays, time.Duration(tick-t.begin+1)*Interval)
			}
		case tick < t.warm:
			if onset {
				r.WarmupOnsets++
			}
		default:
			r.HealthyTicks++
			if flagged {
				r.FlaggedTicks++
			}
			if onset {
				r.FalseOnsets++
			}
		}
	}
	if began := incidents - t.ongoing; began > 0 {
		if tick >= t.warm {
			r.Incidents += began
		}
		if tick < t.begin || r.Faults == 0 {
			r.FalseIncidents += began
		}
	}
	t.ongoing = incidents
	t.was, t.flagged = t.flagged, t.was
}
