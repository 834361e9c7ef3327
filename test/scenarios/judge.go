// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/scenarios/families"
)

// FamilyRun is what one decider said in one run of a family.
type FamilyRun struct {
	// Days of healthy nodes after the first hour, and the share of them that was
	// flagged. A node is not counted in its fault and for a grace after it.
	Days, FlaggedDays float64
	// Onsets are verdicts that began on a healthy node.
	Onsets int
	// Incidents are group incidents that began.
	Incidents int
	Found     []Found // one per fault
	// Lockstep is the number of node-days of which the reason for no verdict was that.
	Lockstep float64
}

// Found is what became of a fault.
type Found struct {
	// Delay is from the fault's first moment to the end of the tick that flagged the
	// node: one tick where it already was flagged. Never is true of a fault not found.
	Delay time.Duration
	Never bool
	// Oracle is the oracle's delay.
	Oracle time.Duration
	// Plain is true of a step of 10 % and more under noise of 2 % and less.
	Plain bool
}

// ratio is the delay in those of the oracle.
func (f *Found) ratio() float64 {
	if f.Never {
		return math.Inf(1)
	}
	return float64(f.Delay) / float64(f.Oracle)
}

// judge counts the verdicts of one run against its truth.
type judge struct {
	run    *families.Run
	result FamilyRun
	// begin and end are the ticks in which a node is not counted.
	begin, end   []int
	first        int
	flagged, was []bool
	lives        []uint32
	racks        []bool // flagged at the tick before
	ongoing      int
}

func newJudge(run *families.Run) *judge {
	n, m := run.Model.Nodes, &run.Model
	j := &judge{
		run: run, begin: make([]int, n), end: make([]int, n), first: int(families.First / m.Interval),
		flagged: make([]bool, n), was: make([]bool, n), lives: make([]uint32, n), racks: make([]bool, m.Racks),
	}
	grace := int(run.Family.Grace / m.Interval)
	if m.Recording != nil {
		for _, node := range m.Recording.Slow {
			j.end[node] = math.MaxInt
		}
	}
	for i := range run.Faults {
		f := &run.Faults[i]
		j.begin[f.Node], j.end[f.Node] = f.Begin, f.End+grace
		j.result.Found = append(j.result.Found, Found{
			Never: true, Oracle: f.Oracle,
			Plain: f.Kind == families.Step && f.Loss >= 0.1 && f.Noise <= 0.02,
		})
	}
	return j
}

// tick takes the verdicts in j.flagged, and the numbers of groups with an incident and
// of nodes that are said to be in lockstep.
func (j *judge) tick(incidents, lockstep int) {
	tick, r := j.run.Tick, &j.result
	for k := range j.run.Faults {
		f, found := &j.run.Faults[k], &r.Found[k]
		if found.Never && tick >= f.Begin && tick < f.End && j.flagged[f.Node] {
			found.Never, found.Delay = false, time.Duration(tick-f.Begin+1)*j.run.Model.Interval
		}
	}
	if tick >= j.first {
		j.healthy(tick)
		r.Incidents += max(incidents-j.ongoing, 0)
		r.Lockstep += float64(lockstep) * j.run.Model.Interval.Hours() / 24
	}
	j.ongoing = incidents
	copy(j.lives, j.run.Life)
	j.was, j.flagged = j.flagged, j.was
}

// healthy counts the nodes that have no fault.
func (j *judge) healthy(tick int) {
	r, day := &j.result, j.run.Model.Interval.Hours()/24
	rack, began := false, false // a verdict on the node's rack
	for i, flagged := range j.flagged {
		counted := (tick < j.begin[i] || tick >= j.end[i]) && !j.run.Absent[i]
		onset := counted && flagged && (!j.was[i] || j.lives[i] != j.run.Life[i])
		if counted {
			r.Days += day
			if flagged {
				r.FlaggedDays += day
			}
		}
		if !j.run.Family.ByRack {
			if onset {
				r.Onsets++
			}
			continue
		}
		rack, began = rack || counted && flagged, began || onset
		if at := i / families.RackNodes; i%families.RackNodes == families.RackNodes-1 {
			if began && !j.racks[at] {
				r.Onsets++
			}
			j.racks[at], rack, began = rack, false, false
		}
	}
}

// FamilyResult is what one decider said in all runs of a family.
type FamilyResult struct{ Runs []FamilyRun }

// Onsets are the false onsets per node-day.
func (r *FamilyResult) Onsets() (rate, upper float64) {
	onsets, days := r.count(), r.days()
	return float64(onsets) / days, max(RateUpper(onsets, days), r.bootstrap())
}

// days are the node-days of healthy nodes.
func (r *FamilyResult) days() (days float64) {
	for i := range r.Runs {
		days += r.Runs[i].Days
	}
	return days
}

// count is the number of false onsets.
func (r *FamilyResult) count() (onsets int) {
	for i := range r.Runs {
		onsets += r.Runs[i].Onsets
	}
	return onsets
}

// faults is the number of faults that there were.
func (r *FamilyResult) faults() (n int) {
	for i := range r.Runs {
		n += len(r.Runs[i].Found)
	}
	return n
}

// bootstrap is the upper bound of the false onsets per node-day when the runs are
// drawn anew (Efron 1979): onsets come in runs, and Poisson's bound does not know.
func (r *FamilyResult) bootstrap() float64 {
	const samples = 2000
	rng := rand.New(rand.NewPCG(1, uint64(len(r.Runs))))
	rates := make([]float64, samples)
	for k := range rates {
		onsets, days := 0, 0.0
		for range r.Runs {
			run := &r.Runs[rng.IntN(len(r.Runs))]
			onsets += run.Onsets
			days += run.Days
		}
		rates[k] = float64(onsets) / days
	}
	slices.Sort(rates)
	return rates[int(confidence*samples)]
}

// Recall is the share of the faults that were found, and its lower bound: Clopper and
// Pearson's, of faults that are independent.
func (r *FamilyResult) Recall() (share, lower float64) {
	found, n := 0, 0
	for i := range r.Runs {
		for _, f := range r.Runs[i].Found {
			n++
			if !f.Never {
				found++
			}
		}
	}
	return float64(found) / float64(max(n, 1)), ShareLower(found, n)
}

// Delay is a quantile over the faults that were found, or over the plain ones of them.
func (r *FamilyResult) Delay(q float64, plain bool) (delay time.Duration, n int) {
	var delays []time.Duration
	for i := range r.Runs {
		for _, f := range r.Runs[i].Found {
			if !f.Never && (f.Plain || !plain) {
				delays = append(delays, f.Delay)
			}
		}
	}
	return figure.Quantile(delays, q), len(delays)
}

// Ratio is the median of delay to the oracle's; never found is infinite.
func (r *FamilyResult) Ratio() float64 {
	var ratios []float64
	for i := range r.Runs {
		for _, f := range r.Runs[i].Found {
			ratios = append(ratios, f.ratio())
		}
	}
	slices.Sort(ratios)
	if len(ratios) == 0 {
		return math.NaN()
	}
	return ratios[(len(ratios)-1)/2]
}

// Flagged is the flagged share of healthy time.
func (r *FamilyResult) Flagged() float64 {
	flagged := 0.0
	for i := range r.Runs {
		flagged += r.Runs[i].FlaggedDays
	}
	return flagged / r.days()
}

// Lockstep is the share of healthy time of which the reason for no verdict was lockstep.
func (r *FamilyResult) Lockstep() float64 {
	told := 0.0
	for i := range r.Runs {
		told += r.Runs[i].Lockstep
	}
	return told / r.days()
}

// Incidents are the group incidents of a run, on average.
func (r *FamilyResult) Incidents() float64 {
	n := 0
	for i := range r.Runs {
		n += r.Runs[i].Incidents
	}
	return float64(n) / float64(len(r.Runs))
}
