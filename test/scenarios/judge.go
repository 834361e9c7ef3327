// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// Verdicts are what one decider said in one run of a family.
type Verdicts struct {
	// Days of healthy nodes after the first hour, and the share of them that was
	// flagged. A node is not counted in its fault and for a grace after it.
	Days, FlaggedDays float64
	// Onsets are verdicts that began on a healthy node, Early those of the first hour.
	Onsets, Early int
	// Named are the onsets told of nodes that have a fault with others, Again those told
	// while one of the node was open.
	Named, Again int
	// Incidents are group incidents that began.
	Incidents int
	Found     []Found // one per fault
	// Seen are the node-days that the engine knew of, Silent those of them without a
	// verdict, by reason.
	Seen   float64
	Silent map[string]float64
}

// Found is what became of a fault.
type Found struct {
	// Delay is from the fault's first moment to the end of the tick that flagged the
	// node: one tick where it already was flagged. Never is true of a fault not found.
	Delay time.Duration
	Never bool
	// Oracle is the oracle's delay.
	Oracle time.Duration
	// Plain is true of a step of 8 % and more under noise of 2 % and less.
	Plain bool
}

// judge counts the verdicts of one run against its truth.
type judge struct {
	run    *Run
	result Verdicts
	// begin and end are the ticks in which a node is not counted.
	begin, end   []int
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
		result: Verdicts{Silent: map[string]float64{}},
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

// tick takes the verdicts in j.flagged, and what the engine told besides them.
func (j *judge) tick(told *told) {
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
	for _, node := range told.onsets {
		if at := slices.IndexFunc(j.run.Faults, func(f Fault) bool { return f.Node == node }); at >= 0 && j.run.Faults[at].Kind == Daily {
			r.Named++
		}
	}
	r.Again += told.again
	if tick >= j.first {
		r.Incidents += max(told.incidents-j.ongoing, 0)
		r.Seen += float64(told.known) * day
		for reason, nodes := range told.silent {
			r.Silent[reason] += float64(nodes) * day
		}
	}
	j.ongoing = told.incidents
	copy(j.lives, j.run.Life)
	j.was, j.flagged = j.flagged, j.was
}

// Result is what one decider said in all runs of a family.
type Result struct{ Runs []Verdicts }

// sum is that of all runs.
func (r *Result) sum(of func(*Verdicts) float64) (sum float64) {
	for i := range r.Runs {
		sum += of(&r.Runs[i])
	}
	return sum
}

func (r *Result) days() float64 { return r.sum(func(v *Verdicts) float64 { return v.Days }) }
func (r *Result) count() float64 {
	return r.sum(func(v *Verdicts) float64 { return float64(v.Onsets) })
}

func (r *Result) faults() float64 {
	return r.sum(func(v *Verdicts) float64 { return float64(len(v.Found)) })
}

// Onsets are the false onsets per node-day.
func (r *Result) Onsets() (rate, upper float64) {
	return r.count() / r.days(), max(RateUpper(int(r.count()), r.days()), r.bootstrap())
}

// Flagged is the flagged share of healthy time.
func (r *Result) Flagged() float64 {
	return r.sum(func(v *Verdicts) float64 { return v.FlaggedDays }) / r.days()
}

// Incidents are the group incidents of a run, on average.
func (r *Result) Incidents() float64 {
	return r.sum(func(v *Verdicts) float64 { return float64(v.Incidents) }) / float64(len(r.Runs))
}

// early are the false onsets of a run's first hour, on average.
func (r *Result) early() float64 {
	return r.sum(func(v *Verdicts) float64 { return float64(v.Early) }) / float64(len(r.Runs))
}

func (r *Result) named() float64 { return r.sum(func(v *Verdicts) float64 { return float64(v.Named) }) }
func (r *Result) again() float64 { return r.sum(func(v *Verdicts) float64 { return float64(v.Again) }) }

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
	return float64(found) / max(r.faults(), 1)
}

// Delay is a quantile over the faults that were found, or over the plain ones of them.
func (r *Result) Delay(q float64, plain bool) (delay time.Duration, n int) {
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
func (r *Result) Ratio() float64 {
	var ratios []float64
	for i := range r.Runs {
		for _, f := range r.Runs[i].Found {
			ratio := math.Inf(1)
			if !f.Never {
				ratio = float64(f.Delay) / float64(f.Oracle)
			}
			ratios = append(ratios, ratio)
		}
	}
	slices.Sort(ratios)
	if len(ratios) == 0 {
		return math.NaN()
	}
	return ratios[(len(ratios)-1)/2]
}

// Silent is the share of the time without a verdict, and the reason that was told most.
func (r *Result) Silent() (share float64, most string) {
	days := map[string]float64{}
	for i := range r.Runs {
		for reason, d := range r.Runs[i].Silent {
			days[reason] += d
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(days)) {
		if days[reason] > days[most] {
			most = reason
		}
	}
	return r.silentFor(""), most
}

// silentFor is the share of the time without a verdict for a reason whose name has a word.
func (r *Result) silentFor(word string) float64 {
	return r.sum(func(v *Verdicts) (days float64) {
		for reason, d := range v.Silent {
			if strings.Contains(reason, word) {
				days += d
			}
		}
		return days
	}) / r.sum(func(v *Verdicts) float64 { return v.Seen })
}

// confidence of the bounds, one-sided.
const confidence = 0.95

// RateUpper is the upper bound of a rate after count events in an exposure: the
// exact Poisson bound (Garwood 1936). With no event it is the rule of three,
// 3.0/exposure.
func RateUpper(count int, exposure float64) float64 {
	if exposure <= 0 {
		return math.Inf(1)
	}
	low, high := float64(count), 2*float64(count)+20
	for range 60 {
		if middle := (low + high) / 2; poissonAtMost(count, middle) > 1-confidence {
			low = middle
		} else {
			high = middle
		}
	}
	return high / exposure
}

// poissonAtMost is P(X <= k). The terms fall from k downwards wherever the
// bound is sought, so the sum ends where they no longer count.
func poissonAtMost(k int, mean float64) float64 {
	sum, logMean := 0.0, math.Log(mean)
	for i := k; i >= 0; i-- {
		logFactorial, _ := math.Lgamma(float64(i) + 1)
		term := math.Exp(float64(i)*logMean - mean - logFactorial)
		sum += term
		if term < sum*1e-12 {
			break
		}
	}
	return sum
}
