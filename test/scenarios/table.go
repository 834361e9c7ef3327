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

// recallWithin is the time in which a fault has to be found to count for the table.
const recallWithin = time.Hour

// deciderNames are those of the results, in the order of Deciders.
func (o *Outcome) deciderNames() []string {
	var names []string
	for _, d := range Deciders() {
		if o.Results[d.Name] != nil {
			names = append(names, d.Name)
		}
	}
	return names
}

// within is the time that the table's recall of a scenario is about.
func (o *Outcome) within() time.Duration { return max(o.Scenario.Promise.Within, recallWithin) }

// Text is the whole table: a line per scenario and decider.
func Text(outcomes []Outcome) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "scenario\tdecider\tnode-days\tfalse onsets/node-day\t95 % upper\tflagged %\tin warm-up\tfaults\trecall\t95 % lower\tin 10 min\tdelay p50\tp90\tclear p50\tincidents/run")
	for i := range outcomes {
		o := &outcomes[i]
		for _, name := range o.deciderNames() {
			r := o.Results[name]
			rate, upper := r.OnsetRate()
			recall, lower := r.Recall(o.within())
			fast, _ := r.Recall(10 * time.Minute)
			_, _ = fmt.Fprintf(w, "%s %s\t%s\t%.0f\t%s\t%s\t%s\t%d\t%d\t%.3f\t%.3f\t%.3f\t%s\t%s\t%s\t%d to %d\n",
				o.Scenario.ID, o.Scenario.Name, name, r.NodeDays(), digits(rate), digits(upper), digits(100*r.FlaggedShare()), r.WarmupOnsets,
				r.Faults, recall, lower, fast, delay(r, 0.5), delay(r, 0.9), r.ClearTime(0.5), r.MinEvents, r.MaxEvents)
		}
	}
	_ = w.Flush() // a builder takes everything
	return b.String()
}

// Markdown is the short table of a document: a line per scenario.
func Markdown(outcomes []Outcome) string {
	var b strings.Builder
	b.WriteString("| Scenario | `threshold` false onsets, flagged | `ingero-like` false onsets, flagged | `cusum` false onsets, flagged | in the first hour | recall | delay p50, p90 | Sample |\n|---|---|---|---|---|---|---|---|\n")
	for i := range outcomes {
		o := &outcomes[i]
		_, _ = fmt.Fprintf(&b, "| %s %s |", o.Scenario.ID, o.Scenario.Name)
		for _, name := range o.deciderNames() {
			r := o.Results[name]
			rate, upper := r.OnsetRate()
			recall, lower := r.Recall(o.within())
			if name != Product {
				_, _ = fmt.Fprintf(&b, " %s, %s %%", digits(rate), digits(100*r.FlaggedShare()))
				if recall == 0 {
					b.WriteString(", **recall 0**")
				}
				b.WriteString(" |")
				continue
			}
			_, _ = fmt.Fprintf(&b, " **%s** (< %s), %s %% | %d | %s (> %s)", digits(rate), digits(upper), digits(100*r.FlaggedShare()), r.WarmupOnsets, digits(recall), digits(lower))
			if p := o.Scenario.Promise; p.Events > 0 {
				_, _ = fmt.Fprintf(&b, ", %d to %d events of the group a run", r.MinEvents, r.MaxEvents)
			}
			_, _ = fmt.Fprintf(&b, " | %s, %s | %.0f node-days, %d faults |", delay(r, 0.5), delay(r, 0.9), r.NodeDays(), r.Faults)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func delay(r *Result, q float64) string {
	if len(r.Delays) == 0 {
		return "never"
	}
	return strconv.Itoa(int(r.Delay(q).Seconds())) + " s"
}

// digits rounds to three significant digits.
func digits(v float64) string {
	if v == 0 {
		return "0"
	}
	places := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', min(max(places, 0), 4), 64), ".")
}

// Figures prints what each scenario promises and what came of it.
func Figures(w io.Writer, outcomes []Outcome) {
	var loss10, loss5 Result
	worst10, within5 := math.Inf(1), math.Inf(1)
	for i := range outcomes {
		o := &outcomes[i]
		for _, name := range o.deciderNames() {
			prefix := "eval_" + strings.ReplaceAll(name, "-", "_") + "_s" + o.Scenario.ID + "_"
			o.figures(w, prefix, name)
		}
		r, p := o.Results[Product], o.Scenario.Promise
		if r == nil {
			continue
		}
		switch p {
		case promise10, promiseMass:
			recall, _ := r.Recall(p.Within)
			worst10 = min(worst10, recall)
			loss10.add(r)
		case promise5:
			recall, _ := r.Recall(p.Within)
			within5 = min(within5, recall)
			loss5.add(r)
		}
	}
	if loss10.Faults > 0 {
		recall, lower := loss10.Recall(promise10.Within)
		figure.Fprint(w, "eval_cusum_recall10", recall, "share", promise10.Recall, false)
		figure.FprintOnly(w, "eval_cusum_recall10_lower", lower, "share")
		figure.Fprint(w, "eval_cusum_recall10_worst", worst10, "share", promise10.Recall, false)
		figure.Fprint(w, "eval_cusum_delay10_p50", loss10.Delay(0.5).Seconds(), "s", promise10.Delay50.Seconds(), true)
		figure.FprintOnly(w, "eval_cusum_delay10_p90", loss10.Delay(0.9).Seconds(), "s")
	}
	if loss5.Faults > 0 {
		recall, lower := loss5.Recall(promise5.Within)
		figure.Fprint(w, "eval_cusum_recall5_10min", recall, "share", promise5.Recall, false)
		figure.FprintOnly(w, "eval_cusum_recall5_10min_lower", lower, "share")
		figure.Fprint(w, "eval_cusum_recall5_10min_worst", within5, "share", promise5.Recall, false)
		figure.FprintOnly(w, "eval_cusum_delay5_p50", loss5.Delay(0.5).Seconds(), "s")
	}
}

func (o *Outcome) figures(w io.Writer, prefix, name string) {
	r, p := o.Results[name], o.Scenario.Promise
	rate, upper := r.OnsetRate()
	if name != Product {
		figure.FprintOnly(w, prefix+"false_onsets", rate, "1/node-day")
		figure.FprintOnly(w, prefix+"flagged", 100*r.FlaggedShare(), "%")
		recall, _ := r.Recall(o.within())
		figure.FprintOnly(w, prefix+"recall", recall, "share")
		return
	}
	recall, lower := r.Recall(o.within())
	if p.Gap {
		figure.FprintOnly(w, prefix+"false_onsets", rate, "1/node-day")
	} else {
		figure.Fprint(w, prefix+"false_onsets", rate, "1/node-day", p.FalseOnsets, true)
	}
	figure.FprintOnly(w, prefix+"false_onsets_upper", upper, "1/node-day")
	figure.FprintOnly(w, prefix+"node_days", math.Round(r.NodeDays()), "node-days")
	figure.FprintOnly(w, prefix+"flagged", 100*r.FlaggedShare(), "%")
	figure.FprintOnly(w, prefix+"faults", float64(r.Faults), "faults")
	if p.Recall > 0 {
		recall, lower = r.Recall(p.Within)
		figure.Fprint(w, prefix+"recall", recall, "share", p.Recall, false)
	} else {
		figure.FprintOnly(w, prefix+"recall", recall, "share")
	}
	figure.FprintOnly(w, prefix+"recall_lower", lower, "share")
	if len(r.Delays) > 0 {
		if p.Delay50 > 0 {
			figure.Fprint(w, prefix+"delay_p50", r.Delay(0.5).Seconds(), "s", p.Delay50.Seconds(), true)
		} else {
			figure.FprintOnly(w, prefix+"delay_p50", r.Delay(0.5).Seconds(), "s")
		}
		figure.FprintOnly(w, prefix+"delay_p90", r.Delay(0.9).Seconds(), "s")
	}
	if p.Events > 0 {
		figure.Fprint(w, prefix+"incidents_least", float64(r.MinEvents), "per_fault", float64(p.Events), false)
	}
	if !p.Gap {
		figure.Fprint(w, prefix+"incidents_most", float64(r.MaxEvents), "per_run", float64(p.Events), true)
	}
}
