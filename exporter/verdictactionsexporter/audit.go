// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/repair"
)

// maxTestOutput is what a record keeps of a test's output, from its end.
const maxTestOutput = 4096

// record writes a decision as docs/events.md describes it.
func record(to plog.LogRecord, resource pcommon.Map, r *repair.Record, cluster string, dryRun bool, now time.Time) {
	resource.PutStr(gpusemconv.AttrClusterName, cluster)
	putText(resource, gpusemconv.AttrHostName, r.Node)
	to.SetTimestamp(pcommon.NewTimestampFromTime(r.At))
	to.SetObservedTimestamp(pcommon.NewTimestampFromTime(now))
	to.SetEventName(gpusemconv.EventAction)
	to.SetSeverityNumber(plog.SeverityNumberInfo)
	if r.Outcome != repair.Taken || r.Step == repair.StepBreaker && !r.Undo {
		to.SetSeverityNumber(plog.SeverityNumberWarn)
	}
	to.SetSeverityText(to.SeverityNumber().String())
	to.Body().SetStr(sentence(r, dryRun))
	a := to.Attributes()
	actor := r.Actor
	if actor == "" {
		actor = gpusemconv.ActionActor
	}
	a.PutStr(gpusemconv.AttrActionID, r.ID)
	a.PutStr(gpusemconv.AttrActionStep, string(r.Step))
	a.PutStr(gpusemconv.AttrActionOutcome, string(r.Outcome))
	a.PutStr(gpusemconv.AttrActionRule, string(r.Rule))
	a.PutStr(gpusemconv.AttrActionActor, actor)
	a.PutBool(gpusemconv.AttrActionUndo, r.Undo)
	a.PutBool(gpusemconv.AttrActionDryRun, dryRun)
	putText(a, gpusemconv.AttrActionCase, r.Case)
	putText(a, gpusemconv.AttrActionDriver, r.Driver)
	putText(a, gpusemconv.AttrActionReason, r.Reason)
	putText(a, gpusemconv.AttrActionStateBefore, string(r.StateBefore))
	putText(a, gpusemconv.AttrActionStateAfter, string(r.After))
	putText(a, gpusemconv.AttrActionBefore, r.ObjectBefore)
	putText(a, gpusemconv.AttrActionAfter, r.ObjectIs)
	if len(r.Evidence) > 0 {
		list := a.PutEmptySlice(gpusemconv.AttrActionEvidence)
		for _, e := range r.Evidence {
			list.AppendEmpty().SetStr(e)
		}
	}
	if t := r.Test; t != nil {
		a.PutStr(gpusemconv.AttrActionTest, t.Name)
		a.PutInt(gpusemconv.AttrActionTestExitCode, int64(t.ExitCode))
		putText(a, gpusemconv.AttrActionTestOutput, t.Output[max(0, len(t.Output)-maxTestOutput):])
	}
	if !r.Until.IsZero() {
		a.PutStr(gpusemconv.AttrActionUntil, r.Until.UTC().Format(time.RFC3339))
	}
	putText(a, gpusemconv.AttrEpisodeID, r.Episode)
	putText(a, gpusemconv.AttrEpisodeReason, r.EpisodeReason)
	putText(a, gpusemconv.AttrPeerGroup, r.Group)
	putText(a, gpusemconv.AttrJobID, r.Job)
	putText(a, gpusemconv.AttrHWID, r.GPU)
}

func putText(a pcommon.Map, key, text string) {
	if text != "" {
		a.PutStr(key, strings.ToValidUTF8(text, "\uFFFD"))
	}
}

// sentence is the record for people.
func sentence(r *repair.Record, dryRun bool) string {
	var b strings.Builder
	if dryRun {
		b.WriteString("DRY RUN: ")
	}
	step := string(r.Step)
	if r.Undo {
		step = "undo " + step
	}
	if r.Step == repair.StepTransition && r.Outcome == repair.Taken {
		fmt.Fprintf(&b, "%s went from %s to %s by %s.", r.Node, r.StateBefore, r.After, r.Rule)
		return b.String()
	}
	who := r.Node
	if who == "" {
		who = "The actor"
	}
	fmt.Fprintf(&b, "%s: %s was %s by %s", who, step, r.Outcome, r.Rule)
	if r.Reason != "" {
		fmt.Fprintf(&b, ": %s", r.Reason)
	}
	b.WriteString(".")
	return b.String()
}

// logs are records as one message.
func logs(records []repair.Record, cluster, version string, dryRun bool, now time.Time) plog.Logs {
	ld := plog.NewLogs()
	for i := range records {
		rl := ld.ResourceLogs().AppendEmpty()
		sl := rl.ScopeLogs().AppendEmpty()
		sl.Scope().SetName(metadata.ScopeName)
		sl.Scope().SetVersion(version)
		record(sl.LogRecords().AppendEmpty(), rl.Resource().Attributes(), &records[i], cluster, dryRun, now)
	}
	return ld
}
