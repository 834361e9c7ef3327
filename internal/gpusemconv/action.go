// SPDX-License-Identifier: Apache-2.0

package gpusemconv

// The event of the verdict_actions exporter, and its attributes besides AttrHWID,
// AttrEpisodeID, AttrEpisodeReason, AttrPeerGroup and AttrJobID.
const (
	// EventAction is one decision about one node: a step that was taken, refused or that
	// failed, or a change of the node's state of repair.
	EventAction = "gpu.action"

	// AttrActionID is the same in all records of one step, those of a repetition too.
	AttrActionID = "gpu.action.id"
	// AttrActionCase names the case: from the first suspicion to health.
	AttrActionCase = "gpu.action.case.id"
	// AttrActionStep is what was decided upon, a word of internal/repair's Step.
	AttrActionStep = "gpu.action.step"
	// AttrActionUndo is true when the step takes back what an earlier one did.
	AttrActionUndo = "gpu.action.undo"
	// AttrActionOutcome is OutcomeTaken, OutcomeRefused or OutcomeFailed.
	AttrActionOutcome = "gpu.action.outcome"
	// AttrActionDryRun is true when nothing was written.
	AttrActionDryRun = "gpu.action.dry_run"
	// AttrActionDriver is kubernetes, slurm or webhook; left out for a change of state.
	AttrActionDriver = "gpu.action.driver"
	// AttrActionRule is the rule that allowed, demanded or refused it.
	AttrActionRule = "gpu.action.rule"
	// AttrActionActor is who decided: ActionActor, or a person's name.
	AttrActionActor = "gpu.action.actor"
	// AttrActionReason is a person's words, or the answer that refused.
	AttrActionReason = "gpu.action.reason"
	// AttrActionStateBefore and AttrActionStateAfter are states of repair.
	AttrActionStateBefore = "gpu.action.state.before"
	AttrActionStateAfter  = "gpu.action.state.after"
	// AttrActionBefore and AttrActionAfter are how the object of the step read.
	AttrActionBefore   = "gpu.action.before"
	AttrActionAfter    = "gpu.action.after"
	AttrActionEvidence = "gpu.action.evidence"
	// AttrActionTest is the test of a burn-in, with its exit status and its last output.
	AttrActionTest         = "gpu.action.test.name"
	AttrActionTestExitCode = "gpu.action.test.exit_code"
	AttrActionTestOutput   = "gpu.action.test.output"
	// AttrActionUntil is when a silence ends, ISO 8601 in UTC.
	AttrActionUntil = "gpu.action.until"
)

// Outcomes of a step.
const (
	OutcomeTaken   = "taken"
	OutcomeRefused = "refused"
	OutcomeFailed  = "failed"
)

// ActionActor is the actor of what no person decided.
const ActionActor = "gpu-collector-actions"

// Attributes of a record about something that a person has silenced. The gateway alone
// writes them, by internal/people.
const (
	// AttrSilenced is true, or left out.
	AttrSilenced = "gpu.silenced"
	// AttrSilenceUntil is when the silence ends, ISO 8601 in UTC.
	AttrSilenceUntil = "gpu.silence.until"
	// AttrSilenceReason is the person's reason.
	AttrSilenceReason = "gpu.silence.reason"
)
