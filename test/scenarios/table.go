// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// limits are what the detector has to keep in a family. A limit of 0 is none.
type limits struct {
	// Onsets is the most that the upper bound of the false onsets per node-day may be.
	Onsets, Recall float64
	// Plain is the median delay of plain faults, Delay of all.
	Plain, Delay time.Duration
	// Quiet is no onset at all in the clean form.
	Quiet bool
	// Silent is the least share of the time without a verdict, for Reason.
	Silent float64
	Reason string
}

// cleanOnsets is the limit of the clean forms of all drawn families together.
const cleanOnsets = 0.003

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
	for name, onsets := range map[string]float64{"restart": 0.08, "mix": 0.08, "small": 0.04} {
		set(func(l *limits) { l.Onsets = onsets }, name)
	}
	for name, recall := range map[string]float64{
		"bias": 0.95, "churn": 0.95, "mix": 0.9, "models": 0.88, "fromstart": 0.6, "flicker": 0.5, "ar-10": 0.9, "ar-20": 0.9,
	} {
		set(func(l *limits) { l.Recall = recall }, name)
	}
	set(func(l *limits) { l.Plain = time.Minute }, plainFamilies...)
	set(func(l *limits) { l.Delay = 150 * time.Second }, "many")
	// Who takes turns at work of two levels cannot be told from who is slow.
	set(func(l *limits) { l.Recall, l.Silent, l.Reason = 0, 0.9, "levels" }, "turns")
	set(func(l *limits) { l.Silent, l.Reason = 0.9, "lockstep" }, "ar-wall")
	set(func(l *limits) { l.Recall = 1 }, "h100-5", "h100-10", "h100-20")
	set(func(l *limits) { l.Quiet = true }, "ar-10", "ar-20", "ar-wall", "h100", "h100-5", "h100-10", "h100-20")
	return all
}()

var plainFamilies = []string{"base", "bias", "churn", "jobs", "models", "stop", "memory", "racks", "big", "restart"}

// names are those of the results, in the order of the deciders.
func (o *Outcome) names(deciders []Decider) []string {
	var names []string
	for _, d := range deciders {
		if o.Results[d.Name] != nil {
			names = append(names, d.Name)
		}
	}
	return names
}

// Text is the whole table: a line per family and decider.
func Text(outcomes []Outcome, deciders []Decider) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "family\tdecider\tfalse onsets/node-day\t95 % upper\tclean\tflagged %\tsilent %\trecall\t95 % lower\tdelay p50\tp90\tx oracle\tincidents/run")
	for i := range outcomes {
		o := &outcomes[i]
		for _, name := range o.names(deciders) {
			r := o.Results[name]
			rate, upper := r.Onsets()
			recall, lower := r.Recall()
			p90, found := r.Delay(0.9, false)
			slowest := "–"
			if found > 0 {
				slowest = fmt.Sprintf("%.0f s", p90.Seconds())
			}
			clean := ""
			if name == Detector {
				cleanRate, _ := o.Clean.Onsets()
				clean = digits(cleanRate)
			}
			silent, reason := r.Silent()
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s %s\t%.3f\t%.3f\t%s\t%s\t%s\t%.1f\n", o.Family.Name, name,
				digits(rate), digits(upper), clean, digits(100*r.Flagged()), digits(100*silent), reason, recall, lower,
				r.delay(), slowest, o.ratio(r), r.Incidents())
		}
	}
	_ = w.Flush() // a builder takes everything
	return b.String()
}

// Markdown is the table of a document: a line per family. before is what another commit's
// engine made of the same families; nil is none.
func Markdown(outcomes []Outcome, before map[string]*Result) string {
	var b strings.Builder
	b.WriteString("| family | false onsets (<) | `threshold` | `ingero-like` |")
	rule := "\n|---|---|---|---|---|---|---|"
	if before != nil {
		b.WriteString(" before: false onsets, recall, delay |")
		rule += "---|"
	}
	b.WriteString(" recall | delay p50 | × oracle |" + rule + "\n")
	for i := range outcomes {
		o := &outcomes[i]
		r := o.Results[Detector]
		if r == nil {
			continue
		}
		rate, upper := r.Onsets()
		_, _ = fmt.Fprintf(&b, "| %s | %s (%s) |", o.Family.Name, digits(rate), digits(upper))
		for _, name := range []string{"threshold", "ingero-like"} {
			cell := " –"
			if plain := o.Results[name]; plain != nil {
				rate, _ := plain.Onsets()
				cell = " " + digits(rate)
			}
			b.WriteString(cell + " |")
		}
		if before != nil {
			cell := " –"
			if was := before[o.Family.Name]; was != nil {
				rate, _ := was.Onsets()
				cell = fmt.Sprintf(" %s, %s, %s", digits(rate), was.recall(), was.delay())
			}
			b.WriteString(cell + " |")
		}
		_, _ = fmt.Fprintf(&b, " %s | %s | %s |\n", r.recall(), r.delay(), o.ratio(r))
	}
	return b.String()
}

// recall is for a table.
func (r *Result) recall() string {
	if r.faults() == 0 {
		return "–"
	}
	recall, _ := r.Recall()
	return strconv.FormatFloat(math.Floor(100*recall+1e-9)/100, 'g', -1, 64)
}

// delay is the median, for a table.
func (r *Result) delay() string {
	if p50, found := r.Delay(0.5, false); found > 0 {
		return fmt.Sprintf("%.0f s", p50.Seconds())
	}
	return "–"
}

func (o *Outcome) ratio(r *Result) string {
	switch ratio := r.Ratio(); {
	case o.Family.Unrated || math.IsNaN(ratio):
		return "–"
	case math.IsInf(ratio, 1):
		return "∞"
	default:
		return strconv.FormatFloat(ratio, 'f', 1, 64)
	}
}

// digits rounds to three significant digits.
func digits(v float64) string {
	if v == 0 {
		return "0"
	}
	places := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', min(max(places, 0), 4), 64), ".")
}

// Figures prints what came of each family. The detector's have their limits, unless it
// stands for another engine: as is then the name of that.
func Figures(w io.Writer, outcomes []Outcome, deciders []Decider, as string) {
	var clean, plain Result
	for i := range outcomes {
		o := &outcomes[i]
		for _, name := range o.names(deciders) {
			p := printer{w: w, prefix: "eval_" + o.Family.Name + "_" + name + "_"}
			if name == Detector {
				p.prefix, p.limited = "eval_"+o.Family.Name+"_"+as+"_", as == Detector
			}
			p.family(o, name)
		}
		r := o.Results[Detector]
		if r == nil || o.Family.Recorded {
			continue
		}
		clean.Runs = append(clean.Runs, o.Clean.Runs...)
		if limitsOf[o.Family.Name].Plain > 0 {
			plain.Runs = append(plain.Runs, r.Runs...)
		}
	}
	p := printer{w, "eval_all_" + as + "_", as == Detector}
	if len(clean.Runs) > 0 {
		rate, upper := clean.Onsets()
		p.print("clean_false_onsets", rate, "1/node-day", 0, true)
		p.print("clean_false_onsets_upper", upper, "1/node-day", cleanOnsets, true)
	}
	if p50, n := plain.Delay(0.5, true); n > 0 {
		p.print("delay8_p50", p50.Seconds(), "s", time.Minute.Seconds(), true)
	}
}

// printer prints figures, with their limits if it is limited. A limit of 0 is none.
type printer struct {
	w       io.Writer
	prefix  string
	limited bool
}

func (p *printer) print(name string, value float64, unit string, limit float64, atMost bool) {
	name = strings.ReplaceAll(p.prefix+name, "-", "_")
	if p.limited && limit > 0 {
		figure.Fprint(p.w, name, value, unit, limit, atMost)
	} else {
		figure.FprintOnly(p.w, name, value, unit)
	}
}

func (p *printer) family(o *Outcome, decider string) {
	r, l := o.Results[decider], limitsOf[o.Family.Name]
	rate, upper := r.Onsets()
	p.print("false_onsets", rate, "1/node-day", 0, true)
	p.print("false_onsets_upper", upper, "1/node-day", l.Onsets, true)
	if decider == Detector {
		cleanRate, _ := o.Clean.Onsets()
		p.print("clean_false_onsets", cleanRate, "1/node-day", 0, true)
		if l.Quiet {
			// At most half an onset: none.
			p.print("clean_onsets", float64(o.Clean.count()), "onsets", 0.5, true)
		}
		if l.Reason != "" {
			p.print("silent_for_"+l.Reason, o.Clean.silentFor(l.Reason), "share", l.Silent, false)
		}
	}
	if r.faults() == 0 {
		return
	}
	recall, lower := r.Recall()
	p.print("recall", recall, "share", l.Recall, false)
	p.print("recall_lower", lower, "share", 0, false)
	if p50, found := r.Delay(0.5, false); found > 0 {
		p90, _ := r.Delay(0.9, false)
		p.print("delay_p50", p50.Seconds(), "s", l.Delay.Seconds(), true)
		p.print("delay_p90", p90.Seconds(), "s", 0, true)
	}
	if p50, n := r.Delay(0.5, true); n > 0 {
		p.print("delay8_p50", p50.Seconds(), "s", l.Plain.Seconds(), true)
	}
	if !o.Family.Unrated {
		p.print("oracle_ratio", r.Ratio(), "x", 0, true)
	}
	p.print("flagged", 100*r.Flagged(), "%", 0, true)
	p.print("incidents", r.Incidents(), "per_run", 0, true)
}
