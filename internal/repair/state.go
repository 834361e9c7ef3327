// SPDX-License-Identifier: Apache-2.0

// Package repair decides how a node goes from a first suspicion to proven health, and
// which steps that takes. It does nothing itself: it asks for steps, and is told how they
// went. docs/repair.md has the states, the rules and who may take each step.
//
// A Machine is of one cluster and for one goroutine. It takes the time as an argument,
// and all that it knows is in its Snapshot.
package repair // import "github.com/gpu-collector/gpu-collector/internal/repair"

import "slices"

// State is where a node is on the way to proven health.
type State string

// The states. A node without a case is Healthy.
const (
	Healthy     State = "healthy"
	Suspect     State = "suspect"
	Confirmed   State = "confirmed"
	KeptOff     State = "kept_off"
	UnderRepair State = "under_repair"
	OnProbation State = "on_probation"
)

// Step is something that a driver can do about a node, or that the machine did itself.
type Step string

// Steps of drivers, in the order in which a confirmed node takes them.
const (
	StepNotify      Step = "notify"
	StepEvent       Step = "event"
	StepCondition   Step = "condition"
	StepLabel       Step = "label"
	StepTaint       Step = "taint"
	StepDeviceTaint Step = "device_taint"
	StepCordon      Step = "cordon"
	StepDrain       Step = "drain"
	StepEvict       Step = "evict"
	StepBurnIn      Step = "burn_in"
)

// Steps of the machine itself.
const (
	StepTransition Step = "transition"
	StepBreaker    Step = "breaker"
	StepWord       Step = "word"
)

// marks are the steps that change a node, in their order. Each of them can be undone.
var marks = []Step{StepCondition, StepLabel, StepTaint, StepDeviceTaint, StepCordon, StepDrain}

// Rungs are the steps that can be enabled.
var Rungs = append(append([]Step{StepNotify, StepEvent}, marks...), StepEvict, StepBurnIn)

// KeepsOff reports whether a step keeps new jobs off the node, or off its GPU.
func (s Step) KeepsOff() bool {
	return s == StepTaint || s == StepDeviceTaint || s == StepCordon || s == StepDrain
}

// tells reports whether a step only tells people: it needs no confirmation and no breaker.
func (s Step) tells() bool { return s == StepNotify || s == StepEvent }

func isMark(s Step) bool { return slices.Contains(marks, s) }

// Outcome is how a step went.
type Outcome string

// The outcomes of a step.
const (
	Taken   Outcome = "taken"
	Refused Outcome = "refused"
	Failed  Outcome = "failed"
)

// Rule is the reason of a decision.
type Rule string

// Rules of transitions and words.
const (
	RuleOnset          Rule = "onset"
	RuleUnhealthy      Rule = "unhealthy"
	RuleMissing        Rule = "missing"
	RuleHardware       Rule = "hardware_reason"
	RuleSecondSignal   Rule = "second_signal"
	RuleTwice          Rule = "same_gpu_again"
	RuleLasting        Rule = "lasting"
	RuleTestFailed     Rule = "test_failed"
	RuleTestPassed     Rule = "test_passed"
	RulePerson         Rule = "person"
	RuleEnded          Rule = "ended"
	RuleAged           Rule = "aged"
	RuleMarked         Rule = "marked"
	RuleEmpty          Rule = "empty"
	RuleRelapse        Rule = "relapse"
	RuleProven         Rule = "proven"
	RuleAdopted        Rule = "adopted"
	RuleProposeService Rule = "propose_service"
	RuleRepeated       Rule = "repeated"
)

// Rules of steps that are refused.
const (
	RuleBreakerOpen    Rule = "breaker_open"
	RuleNodes          Rule = "max_nodes"
	RuleFraction       Rule = "max_fraction"
	RulePerHour        Rule = "max_per_hour"
	RuleReset          Rule = "reset"
	RuleStateLost      Rule = "state_lost"
	RuleSilenced       Rule = "silenced"
	RuleGroupIncident  Rule = "group_incident"
	RulePanic          Rule = "panic_mode"
	RuleCoverage       Rule = "coverage_low"
	RulePeers          Rule = "too_few_peers"
	RuleForeign        Rule = "foreign_change"
	RuleBudget         Rule = "disruption_budget"
	RuleNoSuchNode     Rule = "no_such_node"
	RuleTooManyCases   Rule = "max_cases"
	RuleDriver         Rule = "driver"
	RuleWordConfirm    Rule = "confirm"
	RuleWordRepaired   Rule = "repaired"
	RuleWordSilence    Rule = "silence"
	RuleWordRelease    Rule = "release"
	RuleWordAcknowlege Rule = "acknowledge"
)
