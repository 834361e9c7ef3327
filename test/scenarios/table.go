// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// limits are what the detector has to keep in a family. A limit of 0 is none.
type limits struct {
	// Onsets is the most that the upper bound of the false onsets per node-day may be.
	Onsets, Recall float64
	// Plain is the median delay of plain faults, Delay of all.
	Plain, Delay time.Duration
	Clean        float64 // the most onsets in the clean form
	// Unjudged is the least share of the time without a verdict, for Reason.
	Unjudged float64
	Reason   string
	// Named are the most onsets of nodes that have a fault with others, Again those of nodes
	// with an open one.
	Named, Again float64
	// Early is the most false onsets of the first hour, in a run on average, Incidents the
	// most incidents.
	Early, Incidents float64
}

// cleanOnsets is the limit of the clean forms of all drawn families together.
const cleanOnsets = 0.003

const noOnset = 0.5

// limitsOf are by family. Plain faults are common where all draws are of a step of 8 % and
// more, and noise is mostly below 2 %.
var limitsOf = func() map[string]limits {
	all := map[string]limits{}
	for _, f := range All() {
		all[f.Name] = limits{Onsets: 0.02, Recall: 1}
	}
	set := func(change func(*limits), names ...string) {
		for _, name := range names {
			l := all[name]
			change(&l)
			all[name] = l
		}
	}
	for name, onsets := range map[string]float64{
		"restart": 0.03, "grid": 0.03, "small": 0.04, "swapped": 0.03, "uneven": 0.05, "mix": 0.06,
	} {
		set(func(l *limits) { l.Onsets = onsets }, name)
	}
	for name, recall := range map[string]float64{
		"bias": 0.95, "churn": 0.95, "upgrade": 0.95, "stages": 0.95, "swapped": 0.95, "experts": 0.95, "models": 0.9, "ar-10": 0.9, "ar-20": 0.9,
		"rampstart": 0.85, "fromstart": 0.8, "hotrow": 0.8, "grid": 0.8, "flicker": 0.75, "mix": 0.7,
	} {
		set(func(l *limits) { l.Recall = recall }, name)
	}
	set(func(l *limits) { l.Plain = time.Minute }, plainFamilies...)
	for name, seconds := range map[string]time.Duration{"many": 150, "loss-3": 200, "loss-5": 75, "loss-8": 50, "fromstart": 100} {
		set(func(l *limits) { l.Delay = seconds * time.Second }, name)
	}
	// To an engine nodes that take turns at jobs look like slow ones.
	set(func(l *limits) { l.Recall, l.Unjudged, l.Reason, l.Early = 0, 0.9, "levels", 0.5 }, "turns", "singles")
	set(func(l *limits) { l.Named, l.Incidents = noOnset, 2.5 }, "hotrow")
	set(func(l *limits) { l.Again = noOnset }, "reboot")
	set(func(l *limits) { l.Unjudged, l.Reason = 0.9, "lockstep" }, "ar-wall")
	set(func(l *limits) { l.Recall = 1 }, "h100-5", "h100-10", "h100-20")
	set(func(l *limits) { l.Clean = noOnset }, "ar-10", "ar-20", "ar-wall", "h100", "h100-5", "h100-10", "h100-20")
	return all
}()

var plainFamilies = []string{"base", "bias", "churn", "jobs", "models", "stop", "memory", "racks", "big", "restart"}

// Markdown is the table of a document: a line per family. before is what another commit's
// engine made of the same families; nil is none.
func Markdown(outcomes []Outcome, before map[string]*Result) string {
	var b strings.Builder
	line := func(was string, cells ...string) {
		if before != nil {
			cells = slices.Insert(cells, 4, was)
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	line("before: false onsets, recall, delay", "family", "false onsets (<)", "`threshold`", "`ingero-like`", "recall", "delay p50", "× oracle")
	line("---", "---", "---", "---", "---", "---", "---", "---")
	for i := range outcomes {
		o, was := &outcomes[i], none
		r := o.Results[Detector]
		if r == nil {
			continue
		}
		if old := before[o.Family.Name]; old != nil {
			was = strings.Join([]string{old.rate(), old.recall(), old.delay()}, ", ")
		}
		_, upper := r.Onsets()
		line(was, o.Family.Name, r.rate()+" ("+figure.Digits(upper)+")", o.Results["threshold"].rate(), o.Results["ingero-like"].rate(),
			r.recall(), r.delay(), o.ratio(r))
	}
	if all := clean(outcomes); all != nil {
		_, upper := all.Onsets()
		line(none, "all, no faults", all.rate()+" ("+figure.Digits(upper)+")", none, none, none, none, none)
	}
	return b.String()
}

const none = "–"

func (r *Result) rate() string {
	if r == nil {
		return none
	}
	rate, _ := r.Onsets()
	return figure.Digits(rate)
}

// recall is for a table. It is 1 where nothing was missed.
func (r *Result) recall() string {
	if len(r.total().Found) == 0 {
		return none
	}
	return strconv.FormatFloat(math.Floor(100*r.Recall()+1e-9)/100, 'g', -1, 64)
}

func (r *Result) delay() string {
	if delay, found := r.Delay(0.5, false); found > 0 {
		return fmt.Sprintf("%.0f s", delay.Seconds())
	}
	return none
}

func (o *Outcome) ratio(r *Result) string {
	switch ratio := r.Ratio(); {
	case o.Family.Unrated || math.IsNaN(ratio):
		return none
	case math.IsInf(ratio, 1):
		return "∞"
	default:
		return strconv.FormatFloat(ratio, 'f', 1, 64)
	}
}

// Figures prints what the detector keeps of its limits.
func Figures(w io.Writer, outcomes []Outcome) {
	var plain Result
	for i := range outcomes {
		o := &outcomes[i]
		r, l := o.Results[Detector], limitsOf[o.Family.Name]
		if r == nil {
			continue
		}
		show := func(name string, value float64, unit string, limit float64, atMost bool) {
			if limit > 0 {
				figure.Fprint(w, "eval_"+strings.ReplaceAll(o.Family.Name, "-", "_")+"_detector_"+name, value, unit, limit, atMost)
			}
		}
		all := r.total()
		_, upper := r.Onsets()
		show("false_onsets_upper", upper, "1/node-day", l.Onsets, true)
		show("early_onsets", r.perRun(all.Early), "1/run", l.Early, true)
		show("incidents", r.perRun(all.Incidents), "1/run", l.Incidents, true)
		show("clean_onsets", float64(o.Clean.total().Onsets), "onsets", l.Clean, true)
		show("named", float64(all.Named), "onsets", l.Named, true)
		show("told_again", float64(all.Again), "onsets", l.Again, true)
		show("silent_for_"+l.Reason, o.Clean.unjudgedFor(l.Reason), "share", l.Unjudged, false)
		if len(all.Found) > 0 {
			show("recall", r.Recall(), "share", l.Recall, false)
		}
		if p50, found := r.Delay(0.5, false); found > 0 {
			show("delay_p50", p50.Seconds(), "s", l.Delay.Seconds(), true)
		}
		if l.Plain == 0 {
			continue
		}
		plain.Runs = append(plain.Runs, r.Runs...)
		if p50, found := r.Delay(0.5, true); found > 0 {
			show("delay8_p50", p50.Seconds(), "s", l.Plain.Seconds(), true)
		}
	}
	if all := clean(outcomes); all != nil {
		_, upper := all.Onsets()
		figure.Fprint(w, "eval_all_detector_clean_false_onsets_upper", upper, "1/node-day", cleanOnsets, true)
	}
	if p50, found := plain.Delay(0.5, true); found > 0 {
		figure.Fprint(w, "eval_all_detector_delay8_p50", p50.Seconds(), "s", time.Minute.Seconds(), true)
	}
}

// clean are the clean forms of all drawn families together; nil is none.
func clean(outcomes []Outcome) *Result {
	var all Result
	for i := range outcomes {
		if o := &outcomes[i]; o.Clean != nil && limitsOf[o.Family.Name].Clean == 0 {
			all.Runs = append(all.Runs, o.Clean.Runs...)
		}
	}
	if all.Runs == nil {
		return nil
	}
	return &all
}
