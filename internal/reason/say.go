// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// Told is evidence as a record of an episode has it.
type Told struct {
	Fact         string
	Value, Peers *float64
}

// Advice says in a sentence what to do about a reason; it is empty for a reason that no
// rule has. An unexplained one depends on the action: one node or many.
func Advice(r Reason, a Action) string {
	if i := slices.IndexFunc(rules, func(rule Rule) bool { return rule.Reason == r }); i >= 0 {
		return rules[i].Advice
	}
	switch {
	case r != Unexplained:
		return ""
	case a == ActionCheckShared:
		return sharedAdvice
	}
	return unexplainedAdvice
}

// Because says in a clause why a node is slow: the fact that decided, and the first that
// has a number. Without evidence it is the rule. It is empty for a reason that says nothing.
func Because(r Reason, evidence []Told) string {
	if r == Unexplained {
		return "nothing that was measured explains it"
	}
	var parts []string
	for _, e := range evidence {
		f := slices.IndexFunc(facts[:], func(f factInfo) bool { return f.name == e.Fact })
		if f < 0 || e.Value == nil {
			continue
		}
		info := &facts[f]
		text := info.what
		switch {
		case info.form == events || info.form == yes && len(parts) > 0:
			continue
		case info.form == xid:
			text = "the driver reported Xid " + info.say(*e.Value)
		case info.form != yes:
			text += ": " + info.say(*e.Value)
			if e.Peers != nil {
				text += ", peers " + info.say(*e.Peers)
			}
		}
		parts = append(parts, text)
		if info.form != yes {
			break
		}
	}
	if len(parts) > 0 {
		return strings.Join(parts, "; ")
	}
	if i := slices.IndexFunc(rules, func(rule Rule) bool { return rule.Reason == r }); i >= 0 {
		return rules[i].When
	}
	return strings.ReplaceAll(string(r), "_", " ")
}

// say writes a value with its unit as people do.
func (f *factInfo) say(v float64) string {
	unit := ""
	switch {
	case f.form == share:
		v, unit = 100*v, " %"
	case f.unit == "Cel":
		unit = " °C"
	case f.unit == "By/s":
		v, unit = v/1e9, " GB/s"
	case f.unit == "W" || f.unit == "s":
		unit = " " + f.unit
	}
	return strconv.FormatFloat(math.Round(10*v)/10, 'f', -1, 64) + unit
}
