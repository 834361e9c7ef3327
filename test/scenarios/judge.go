// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/gonum/mathext"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// Verdicts are those of one decider in one run of a family.
type Verdicts struct {
	// Days of healthy nodes after the first hour, and the share of them that was
	// flagged. A node is not counted in its fault and for a grace after it.
	Days, FlaggedDays float64
	// Onsets are verdicts that began on a healthy node, Early those of the first hour.
	Onsets, Early int
	// Named are the onsets of nodes that have a fault with others, Again those while one of
	// the node was open.
	Named, Again int
	Incidents    int     // group incidents that began
	Found        []Found // one per fault
	// Seen are the node-days that the engine knew of, Unjudged those of them without a
	// verdict, by reason.
	Seen     float64
	Unjudged map[string]float64
}

// Found is what became of a fault.
type Found struct {
	// Delay is from the fault's first moment to the end of the tick that flagged the
	// node: one tick where it already was flagged. Never is true of a fault not found.
	Delay  time.Duration
	Never  bool
	Oracle time.Duration // the oracle's delay
	Plain  bool          // a step of 8 % and more under noise of 2 % and less
}

// judge counts the verdicts of one run against its truth.
type judge struct {
	run          *Run
	result       Verdicts
	begin, end   []int // ticks between which a node is not counted
	first        int
	flagged, was []bool
	lives        []uint32
	ongoing      int
}

func newJudge(run *Run) *judge {
	n, m := run.Model.Nodes, &run.Model
	j := &judge{
		run: run, begin: make([]int, n), end: make([]int, n), first: int(First / m.Interval),
		flagged: make([]bool, n), was: make([]bool, n), lives: make([]uint32, n),
		result: Verdicts{Unjudged: map[string]float64{}},
	}
	if m.Recording != nil {
		for _, node := range m.Recording.Slow {
			j.end[node] = math.MaxInt
		}
	}
	for i := range run.Faults {
		f := &run.Faults[i]
		j.begin[f.Node], j.end[f.Node] = f.Begin, f.End+int(run.Family.Grace/m.Interval)
		j.result.Found = append(j.result.Found, Found{
			Never: true, Oracle: f.Oracle,
			Plain: f.Kind == Step && f.Loss >= 0.08 && f.Noise <= 0.02,
		})
	}
	return j
}

// tick takes the verdicts in j.flagged, and what the engine reported besides them.
func (j *judge) tick(tally *tally) {
	tick, r, day := j.run.Tick, &j.result, j.run.Model.Interval.Hours()/24
	for k := range j.run.Faults {
		f, found := &j.run.Faults[k], &r.Found[k]
		if found.Never && tick >= f.Begin && tick < f.End && j.flagged[f.Node] {
			found.Never, found.Delay = false, time.Duration(tick-f.Begin+1)*j.run.Model.Interval
		}
	}
	for i, flagged := range j.flagged {
		onset := flagged && (!j.was[i] || j.lives[i] != j.run.Life[i])
		switch {
		case tick >= j.begin[i] && tick < j.end[i] || j.run.Absent[i]:
			continue
		case onset && tick < j.first:
			r.Early++
		case onset:
			r.Onsets++
		}
		if tick >= j.first {
			r.Days += day
		}
		if flagged && tick >= j.first {
			r.FlaggedDays += day
		}
	}
	for _, node := range tally.onsets {
		if at := slices.IndexFunc(j.run.Faults, func(f Fault) bool { return f.Node == node }); at >= 0 && j.run.Faults[at].Kind == Daily {
			r.Named++
		}
	}
	r.Again += tally.again
	if tick >= j.first {
		r.Incidents += max(tally.incidents-j.ongoing, 0)
		r.Seen += float64(tally.known) * day
		for reason, nodes := range tally.unjudged {
			r.Unjudged[reason] += float64(nodes) * day
		}
	}
	j.ongoing = tally.incidents
	copy(j.lives, j.run.Life)
	j.was, j.flagged = j.flagged, j.was
}

// Result is one decider's in all runs of a family.
type Result struct{ Runs []Verdicts }

// total is that of all runs.
func (r *Result) total() Verdicts {
	all := Verdicts{Unjudged: map[string]float64{}}
	for i := range r.Runs {
		v := &r.Runs[i]
		all.Days += v.Days
		all.FlaggedDays += v.FlaggedDays
		all.Onsets += v.Onsets
		all.Early += v.Early
		all.Named += v.Named
		all.Again += v.Again
		all.Incidents += v.Incidents
		all.Found = append(all.Found, v.Found...)
		all.Seen += v.Seen
		for reason, days := range v.Unjudged {
			all.Unjudged[reason] += days
		}
	}
	return all
}

func (r *Result) perRun(total int) float64 { return float64(total) / float64(len(r.Runs)) }

// Onsets are the false onsets per node-day.
func (r *Result) Onsets() (rate, upper float64) {
	all := r.total()
	return float64(all.Onsets) / all.Days, max(RateUpper(all.Onsets, all.Days), r.bootstrap())
}

// Flagged is the flagged share of healthy time.
func (r *Result) Flagged() float64 {
	all := r.total()
	return all.FlaggedDays / all.Days
}

// bootstrap is the upper bound of the false onsets per node-day when the runs are
// drawn anew (Efron 1979): onsets come in runs, and Poisson's bound does not know.
func (r *Result) bootstrap() float64 {
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

// Recall is the share of the faults that were found.
func (r *Result) Recall() float64 {
	_, found := r.Delay(0.5, false)
	return float64(found) / max(float64(len(r.total().Found)), 1)
}

// Delay is a quantile over the faults that were found, or over the plain ones of them.
func (r *Result) Delay(q float64, plain bool) (delay time.Duration, n int) {
	var delays []time.Duration
	for _, f := range r.total().Found {
		if !f.Never && (f.Plain || !plain) {
			delays = append(delays, f.Delay)
		}
	}
	return figure.Quantile(delays, q), len(delays)
}

// Ratio is the median of delay to the oracle's; never found is infinite.
func (r *Result) Ratio() float64 {
	var ratios []float64
	for _, f := range r.total().Found {
		ratio := math.Inf(1)
		if !f.Never {
			ratio = float64(f.Delay) / float64(f.Oracle)
		}
		ratios = append(ratios, ratio)
	}
	slices.Sort(ratios)
	if len(ratios) == 0 {
		return math.NaN()
	}
	return ratios[(len(ratios)-1)/2]
}

// unjudgedFor is the share of the time without a verdict for a reason that contains part.
func (r *Result) unjudgedFor(part string) float64 {
	all, days := r.total(), 0.0
	for reason, d := range all.Unjudged {
		if strings.Contains(reason, part) {
			days += d
		}
	}
	return days / all.Seen
}

const confidence = 0.95

// RateUpper is the upper bound of a rate after count events in an exposure: the
// exact Poisson bound (Garwood 1936). With no event it is the rule of three,
// 3.0/exposure.
func RateUpper(count int, exposure float64) float64 {
	if exposure <= 0 {
		return math.Inf(1)
	}
	return mathext.GammaIncRegInv(float64(count)+1, confidence) / exposure
}
