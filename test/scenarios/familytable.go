// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/scenarios/families"
)

// familyPromise is what the product has to keep in a family. A zero delay or ratio is
// no promise.
type familyPromise struct {
	// Onsets is the most that the upper bound of the false onsets per node-day may be.
	Onsets, Recall float64
	// Plain is the median delay of plain faults, Delay of all.
	Plain, Delay time.Duration
	Ratio        float64
	// Quiet is the promise of no onset at all in the clean form.
	Quiet bool
	// Lockstep is the least share of healthy time of which that is told.
	Lockstep float64
}

// cleanOnsets is the promise for the clean forms of all families together.
const cleanOnsets = 0.003

// familyPromises are by family.
var familyPromises = func() map[string]familyPromise {
	usual := familyPromise{Onsets: 0.02, Recall: 1, Plain: time.Minute, Ratio: 6.5}
	p := map[string]familyPromise{}
	for _, f := range append(families.All(), families.Cases()...) {
		p[f.Name] = usual
	}
	set := func(name string, change func(*familyPromise)) {
		q := p[name]
		change(&q)
		p[name] = q
	}
	for name, onsets := range map[string]float64{
		"restart": 0.03, "swing": 0.03, "models": 0.03, "stop": 0.03, "mix": 0.03,
		"small": 0.04, "memory": 0.05, "racks": 0.05, "steps": 0.07, "diurnal": 0.10,
	} {
		// The delay of plain faults is promised where the false onsets are fewest.
		set(name, func(q *familyPromise) { q.Onsets, q.Plain = onsets, 0 })
	}
	for name, recall := range map[string]float64{
		"noisy": 0.98, "many": 0.98, "jobs": 0.98, "tiny": 0.98, "flicker": 0.8, "fromstart": 0.7,
		"models": 0.95, "mix": 0.95, "steps": 0.94, "diurnal": 0.9,
	} {
		set(name, func(q *familyPromise) { q.Recall = recall })
	}
	for name, ratio := range map[string]float64{"noisy": 2, "drift": 2, "turns": 8, "dips": 9, "many": 12, "fromstart": 0} {
		set(name, func(q *familyPromise) { q.Ratio = ratio })
	}
	set("many", func(q *familyPromise) { q.Plain, q.Delay = 0, 2*time.Minute })
	set("stop", func(q *familyPromise) { q.Delay = time.Minute })
	// A fault from the first tick has no delay to be held to.
	set("fromstart", func(q *familyPromise) { q.Plain = 0 })
	// Of a real run, and of 16 nodes for three hours, there is too little for a bound of
	// the onsets: there are none. Recall is within an hour, for that is how long the
	// faults last.
	p["workers"] = familyPromise{Onsets: 0.02, Recall: 0.9, Ratio: p["noisy"].Ratio}
	for _, name := range []string{"recorded", "recorded30"} {
		p[name] = familyPromise{Recall: 0.9, Quiet: true}
	}
	p["samples"] = familyPromise{Recall: 1, Delay: 10 * time.Second, Quiet: true}
	p["lockstep"] = familyPromise{Quiet: true, Lockstep: 0.9}
	return p
}()

// deciderNames are those of the results, in the order of the deciders.
func (o *FamilyOutcome) deciderNames(deciders []Decider) []string {
	var names []string
	for _, d := range deciders {
		if o.Results[d.Name] != nil {
			names = append(names, d.Name)
		}
	}
	return names
}

// FamilyText is the table of the families: a line per family and decider.
func FamilyText(outcomes []FamilyOutcome, deciders []Decider) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "family\tdecider\tfalse onsets/node-day\t95 % upper\tclean\tflagged %\trecall\t95 % lower\tdelay p50\tp90\tx oracle\tincidents/run")
	for i := range outcomes {
		o := &outcomes[i]
		for _, name := range o.deciderNames(deciders) {
			r := o.Results[name]
			rate, upper := r.Onsets()
			recall, lower := r.Recall()
			p50, found := r.Delay(0.5, false)
			p90, _ := r.Delay(0.9, false)
			clean, ratio, delays := "", "-", "never\t"
			if c := o.Clean[name]; c != nil {
				cleanRate, _ := c.Onsets()
				clean = digits(cleanRate)
			}
			if !o.Family.Unrated {
				ratio = strconv.FormatFloat(r.Ratio(), 'f', 1, 64)
			}
			if found > 0 {
				delays = fmt.Sprintf("%.0f s\t%.0f s", p50.Seconds(), p90.Seconds())
			}
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%.3f\t%.3f\t%s\t%s\t%.1f\n", o.Family.Name, name,
				digits(rate), digits(upper), clean, digits(100*r.Flagged()), recall, lower, delays, ratio, r.Incidents())
		}
	}
	_ = w.Flush() // a builder takes everything
	return b.String()
}

// FamilyFigures prints what came of each family, with limits for the product.
func FamilyFigures(w io.Writer, outcomes []FamilyOutcome, deciders []Decider) {
	for i := range outcomes {
		for _, name := range outcomes[i].deciderNames(deciders) {
			outcomes[i].figures(w, name)
		}
	}
	for _, d := range deciders {
		var clean FamilyResult
		for i := range outcomes {
			if c := outcomes[i].Clean[d.Name]; c != nil && !outcomes[i].Family.Case {
				clean.Runs = append(clean.Runs, c.Runs...)
			}
		}
		if len(clean.Runs) == 0 {
			continue
		}
		rate, upper := clean.Onsets()
		prefix := "eval_clean_" + figureName(d.Name) + "_false_onsets"
		figure.FprintOnly(w, prefix, rate, "1/node-day")
		bounded(w, d.Name, prefix+"_upper", upper, "1/node-day", cleanOnsets, true)
	}
}

func figureName(decider string) string { return strings.ReplaceAll(decider, "-", "_") }

// bounded prints a figure with its limit if it is the product's and there is one.
func bounded(w io.Writer, decider, name string, value float64, unit string, limit float64, atMost bool) {
	if decider == Product && limit > 0 {
		figure.Fprint(w, name, value, unit, limit, atMost)
	} else {
		figure.FprintOnly(w, name, value, unit)
	}
}

func (o *FamilyOutcome) figures(w io.Writer, decider string) {
	r, p := o.Results[decider], familyPromises[o.Family.Name]
	prefix := "eval_" + o.Family.Name + "_" + figureName(decider) + "_"
	rate, upper := r.Onsets()
	recall, lower := r.Recall()
	figure.FprintOnly(w, prefix+"false_onsets", rate, "1/node-day")
	bounded(w, decider, prefix+"false_onsets_upper", upper, "1/node-day", p.Onsets, true)
	if c := o.Clean[decider]; c != nil {
		cleanRate, _ := c.Onsets()
		figure.FprintOnly(w, prefix+"clean_false_onsets", cleanRate, "1/node-day")
		if p.Quiet && decider == Product {
			figure.Fprint(w, prefix+"clean_onsets", float64(c.count()), "onsets", 0, true)
		}
		if p.Lockstep > 0 {
			bounded(w, decider, prefix+"told", c.Lockstep(), "share", p.Lockstep, false)
		}
	}
	if r.faults() == 0 {
		return
	}
	bounded(w, decider, prefix+"recall", recall, "share", p.Recall, false)
	figure.FprintOnly(w, prefix+"recall_lower", lower, "share")
	p50, found := r.Delay(0.5, false)
	if found > 0 {
		p90, _ := r.Delay(0.9, false)
		bounded(w, decider, prefix+"delay_p50", p50.Seconds(), "s", p.Delay.Seconds(), true)
		figure.FprintOnly(w, prefix+"delay_p90", p90.Seconds(), "s")
	}
	if plain, n := r.Delay(0.5, true); n > 0 && p.Plain > 0 {
		bounded(w, decider, prefix+"delay10_p50", plain.Seconds(), "s", p.Plain.Seconds(), true)
	}
	if !o.Family.Unrated {
		bounded(w, decider, prefix+"oracle_ratio", r.Ratio(), "x", p.Ratio, true)
	}
	figure.FprintOnly(w, prefix+"flagged", 100*r.Flagged(), "%")
	figure.FprintOnly(w, prefix+"incidents", r.Incidents(), "per_run")
}
