// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
)

// NoCap is the score of a GPU without a fault.
const NoCap = 100

// Scores at which the states begin.
const (
	minHealthy  = 90
	minDegraded = 50
)

// StateOf is the state that a score stands for.
func StateOf(score int) State {
	switch {
	case score >= minHealthy:
		return StateHealthy
	case score >= minDegraded:
		return StateDegraded
	default:
		return StateUnhealthy
	}
}

// ClearsBy is what ends a rule or a Xid.
type ClearsBy string

const (
	// ClearsCondition is that the condition was gone for two polls, and for Clears.After.
	ClearsCondition ClearsBy = "condition"
	// ClearsGeneration is that the driver was loaded anew, or the GPU reset, as far
	// as Monitor.Opened and the next sample show it.
	ClearsGeneration ClearsBy = "generation"
	// ClearsService is never by itself. A new board has another UUID.
	ClearsService ClearsBy = "service"
	// ClearsFirstAnswer is the first poll that the GPU answers.
	ClearsFirstAnswer ClearsBy = "first_answer"

	// ClearsQuiet is, for Xids, no such event for Clears.After.
	ClearsQuiet ClearsBy = "quiet"
	// ClearsRemap is, for Xids, that a pending row remapping was seen and is done; without one as ClearsQuiet.
	ClearsRemap ClearsBy = "remap"
	// ClearsAnswer is, for Xids, as ClearsGeneration, or the GPU had stopped answering and does again.
	ClearsAnswer ClearsBy = "answer"
)

// Clears is when a rule or a Xid ends. An operator may end all of them (Monitor.Acknowledge).
type Clears struct {
	By    ClearsBy
	After time.Duration
}

// Rule is one row of the rubric.
type Rule struct {
	// Name is the reason that the rule reports.
	Name string
	// When is the condition in words.
	When string
	// Cap is the highest score while the rule is active.
	Cap    int
	Action Action
	Clears Clears
	// Threshold is the number in When that an operator may change; 0 for a rule
	// without one.
	Threshold float64
	// Source of the condition. Caps are our judgement.
	Source string
	// Predicted: the GPU works but asks to be replaced.
	Predicted bool
	// Unknown: the rule takes the score away instead of lowering it; Cap is NoCap.
	Unknown bool
	// Off rules are not looked at.
	Off bool

	// polls is how many polls in a row have to meet the condition, 0 is as 1. A
	// rule that no clean poll ends takes two: one wrong answer must not stay for ever.
	polls int
	// slow rules are about slow readings: only a poll that reads them anew counts.
	slow bool
	// always rules do not need a reading.
	always    bool
	condition func(*view) finding
}

// finding is the answer of a condition.
type finding int

const (
	// absent: the sample has no reading for it.
	absent finding = iota
	no
	yes
)

func found(b bool) finding {
	if b {
		return yes
	}
	return no
}

func foundIf(o Opt[bool]) finding {
	if !o.OK {
		return absent
	}
	return found(o.V)
}

// Rubric is the rules and the Xid catalogue that a Monitor judges by.
type Rubric struct {
	rules []Rule
	xids  map[uint64]Xid
}

// DefaultRubric is the rubric without overrides.
func DefaultRubric() *Rubric { return &Rubric{rules: slices.Clone(defaultRules), xids: defaultXids()} }

// Rules are the rules by cap, then by name.
func (r *Rubric) Rules() []Rule {
	rules := slices.Clone(r.rules)
	slices.SortFunc(rules, func(a, b Rule) int { return cmp.Or(a.Cap-b.Cap, strings.Compare(a.Name, b.Name)) })
	return rules
}

// Xid is what the rubric knows of a code; a code that it does not know is XidUnknown.
func (r *Rubric) Xid(code uint64) Xid {
	if x, ok := r.xids[code]; ok {
		return x
	}
	return unknownXid(code)
}

// Knows reports whether the code is in the catalogue or has an override.
func (r *Rubric) Knows(code uint64) bool {
	_, ok := r.xids[code]
	return ok
}

// Xids are the codes that the rubric knows, in order.
func (r *Rubric) Xids() []Xid {
	xids := slices.Collect(maps.Values(r.xids))
	slices.SortFunc(xids, func(a, b Xid) int { return int(a.Code) - int(b.Code) })
	return xids
}

// Override changes a rule or a Xid; an unset field changes nothing.
type Override struct {
	// `false`: it is not looked at.
	Enabled *bool `mapstructure:"enabled"`
	// The highest score while it is active, 0 to 100.
	Cap *int `mapstructure:"cap"`
	// The action that it asks for.
	Action Action `mapstructure:"action"`
	// How long it has to be away, for findings that end with time.
	ClearAfter *time.Duration `mapstructure:"clear_after"`
	// The number of a rule that has one, in the unit of its description.
	Threshold *float64 `mapstructure:"threshold"`

	_ struct{}
}

func ruleIndex(rules []Rule, name string) int {
	return slices.IndexFunc(rules, func(r Rule) bool { return r.Name == name })
}

// Meaning is a clause on when a rule of the rubric holds, or on which Xid it is. It is
// empty for a reason that the rubric does not have.
func Meaning(reason string) string {
	if i := ruleIndex(defaultRules, reason); i >= 0 {
		// How many readings it took is of no use to an operator.
		return strings.TrimSuffix(defaultRules[i].When, ", twice")
	}
	if code, ok := strings.CutPrefix(reason, "xid_"); ok {
		return "the driver reported Xid " + code
	}
	return ""
}

// CapOf is the score that a reason leaves a GPU by default: the less, the worse it is.
func CapOf(reason string) int {
	if i := ruleIndex(defaultRules, reason); i >= 0 {
		return defaultRules[i].Cap
	}
	code, err := strconv.ParseUint(strings.TrimPrefix(reason, "xid_"), 10, 64)
	if x, known := shippedXids()[code]; err == nil && known {
		return x.Cap
	}
	return NoCap
}

var shippedXids = sync.OnceValue(defaultXids)

// OverrideRule changes a rule. The error lists which rules there are, which
// caps, or which actions.
func (r *Rubric) OverrideRule(name string, o Override) error {
	err := o.validate()
	i := ruleIndex(r.rules, name)
	if i < 0 {
		names := make([]string, 0, len(r.rules))
		for _, rule := range r.Rules() {
			names = append(names, rule.Name)
		}
		return errors.Join(fmt.Errorf("no rule is called %q; the rules are %s", name, strings.Join(names, ", ")), err)
	}
	rule := &r.rules[i]
	if err = errors.Join(err,
		mistake.If(rule.Unknown && o.Cap != nil, "rule %q takes the score away and has no cap; it can only be turned off", name),
		mistake.If(o.Threshold != nil && rule.Threshold == 0, "rule %q has no threshold that could be changed", name),
		mistake.If(o.ClearAfter != nil && rule.Clears.By != ClearsCondition,
			"rule %q does not clear with time, so that it has no time that could be changed", name)); err != nil {
		return err
	}
	o.apply(&rule.Cap, &rule.Action, &rule.Off, &rule.Clears)
	if o.Threshold != nil {
		rule.Threshold = *o.Threshold
	}
	return nil
}

// OverrideXid changes the effect of a Xid; the catalogue need not have the Xid.
// An action alone, for a Xid without a cap, is an error: no reason would show it.
func (r *Rubric) OverrideXid(code uint64, o Override) error {
	if err := o.validate(); err != nil {
		return err
	}
	x := r.Xid(code)
	if o.Threshold != nil {
		return fmt.Errorf("an Xid has no threshold; one of code %d counts as it comes", code)
	}
	if o.ClearAfter != nil && x.Clears.By != ClearsQuiet && x.Clears.By != ClearsRemap {
		return fmt.Errorf("what Xid %d says does not clear with time, so that it has no time that could be changed", code)
	}
	o.apply(&x.Cap, &x.Action, &x.Off, &x.Clears)
	if o.Action != "" && x.Cap >= NoCap && !x.Off {
		return fmt.Errorf("the action %q would be in no reason, as Xid %d has no cap; it has to have a cap below %d too", o.Action, code, NoCap)
	}
	r.xids[code] = x
	return nil
}

func (o Override) validate() error {
	score, after, threshold := value(o.Cap, NoCap), value(o.ClearAfter, 0), value(o.Threshold, 1)
	return errors.Join(
		mistake.If(score < 0 || score > NoCap, "a cap of %d is not a score; it has to be 0 to 100", score),
		mistake.If(o.Action != "" && !slices.Contains(Actions, o.Action), "%q is no action; the actions are %q", o.Action, Actions),
		mistake.If(after < 0, "%v is no time to be away; it has to be 0 or more", after),
		mistake.If(!(threshold > 0 && threshold <= math.MaxUint32), // also NaN
			"a threshold of %v is none; it has to be above 0", threshold))
}

// value is what the pointer has, else the default.
func value[T any](p *T, otherwise T) T {
	if p != nil {
		return *p
	}
	return otherwise
}

func (o Override) apply(limit *int, action *Action, off *bool, clears *Clears) {
	clears.After = value(o.ClearAfter, clears.After)
	*limit = value(o.Cap, *limit)
	*action = cmp.Or(o.Action, *action)
	*off = *off || !value(o.Enabled, true)
}
