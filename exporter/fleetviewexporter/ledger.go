// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"math"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/ledger"
	"github.com/gpu-collector/gpu-collector/internal/people"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// boardFields are what the ledger reads of metrics: the facts of a board, and the counters
// that it keeps for life.
var boardFields = func() (list [reading.NumFields]struct {
	reads bool
	ledger.Counter
},
) {
	list[reading.Info].reads = true
	for f, c := range map[reading.Field]ledger.Counter{
		reading.RemappedCorrected: ledger.RemappedCorrected, reading.RemappedUncorrected: ledger.RemappedUncorrected,
		reading.ECCCorrectedTotal: ledger.ECCCorrected, reading.ECCUncorrectedTotal: ledger.ECCUncorrected,
		reading.RetiredSBE: ledger.RetiredSingleBit, reading.RetiredDBE: ledger.RetiredDoubleBit,
	} {
		list[f].reads, list[f].Counter = true, c
	}
	return list
}()

// board tells the ledger what a point says of a board. A MIG slice is none.
func (e *fleetExporter) board(id *sender, p *metricreading.Point, now time.Time) {
	f := &boardFields[p.Field]
	if !f.reads || p.Parent != "" || p.ID == "" || p.Vague || math.IsNaN(p.Value) {
		return
	}
	if p.Field != reading.Info {
		e.ledger.Count(id.Cluster, id.Node, p.ID, f.Counter, p.Value, now)
		return
	}
	s := ledger.Sighting{Cluster: id.Cluster, Node: id.Node, UUID: p.ID, Index: -1, Module: -1}
	for name, v := range p.Attributes().All() {
		switch name {
		case gpusemconv.AttrGPUIndex:
			s.Index = small(v)
		case gpusemconv.AttrModuleID:
			s.Module = small(v)
		case gpusemconv.AttrHWModel:
			s.Model = metricreading.Text(v)
		case gpusemconv.AttrHWSerial:
			s.Serial = metricreading.Text(v)
		case gpusemconv.AttrHWDriver:
			s.Driver = metricreading.Text(v)
		case gpusemconv.AttrHWFirmware:
			s.VBIOS = metricreading.Text(v)
		case gpusemconv.AttrPCIBusID:
			s.Slot = metricreading.Text(v)
		case gpusemconv.AttrBoardPartNumber:
			s.PartNumber = metricreading.Text(v)
		case gpusemconv.AttrInfoROM:
			s.InfoROM = metricreading.Text(v)
		}
	}
	e.ledger.See(&s, now)
}

// small returns -1 for what is no number of a GPU.
func small(v pcommon.Value) int {
	if v.Type() == pcommon.ValueTypeInt && v.Int() >= 0 && v.Int() < math.MaxInt32 {
		return int(v.Int())
	}
	return -1
}

// event tells the ledger of a record about a node's boards.
func (e *fleetExporter) event(lr plog.LogRecord, id *sender, now time.Time) {
	a := attributes{lr.Attributes()}
	uuid := a.text(gpusemconv.AttrHWParent)
	if uuid == "" {
		uuid = a.text(gpusemconv.AttrHWID)
	}
	at := now
	if t := lr.Timestamp(); t != 0 {
		at = earlier(t.AsTime().UTC(), now)
	}
	entry := ledger.Entry{At: at, Node: id.Node}
	switch lr.EventName() {
	case gpusemconv.EventXid:
		code := a.int(gpusemconv.AttrXIDCode)
		if code == nil || *code < 0 || *code > math.MaxInt32 {
			return
		}
		entry.Kind, entry.Code = ledger.KindXid, int(*code)
		entry.Reason, entry.Action = a.text(gpusemconv.AttrXIDClass), a.text(gpusemconv.AttrHealthAction)
	case gpusemconv.EventHealthChange:
		entry.Kind, entry.From, entry.To = ledger.KindHealth, a.text(gpusemconv.AttrHealthFrom), a.text(gpusemconv.AttrHealthTo)
		entry.Reason, entry.Action = a.join(gpusemconv.AttrHealthReasons), a.join(gpusemconv.AttrHealthActions)
	case gpusemconv.EventAction:
		e.action(&a, &entry, id, uuid, now)
		return
	default:
		return
	}
	if uuid != "" && id.Node != "" {
		e.ledger.Add(id.Cluster, uuid, &entry, now)
	}
}

// join makes one text of a list of words.
func (a attributes) join(name string) string {
	var words []string
	for _, v := range a.list(name, maxTopology) {
		words = append(words, metricreading.Text(v))
	}
	return short(strings.Join(words, ","), maxSentenceBytes)
}

// Steps and rules of gpu.action, see docs/events.md.
const (
	stepWord, stepBurnIn, stepNotify, stepEvent, stepBreaker = "word", "burn_in", "notify", "event", "breaker"
	ruleSilence, ruleRepaired, ruleAcknowledge               = "silence", "repaired", "acknowledge"
	rulePassed, ruleFailed                                   = "test_passed", "test_failed"
)

// action takes a decision of the actor: for the board that it is about, or for all boards
// of the node.
func (e *fleetExporter) action(a *attributes, entry *ledger.Entry, id *sender, uuid string, now time.Time) {
	step, rule := a.text(gpusemconv.AttrActionStep), a.text(gpusemconv.AttrActionRule)
	entry.ID, entry.By, entry.Outcome, entry.Rule = a.text(gpusemconv.AttrActionID), a.text(gpusemconv.AttrActionActor), a.text(gpusemconv.AttrActionOutcome), rule
	entry.Text, entry.DryRun = a.text(gpusemconv.AttrActionReason), a.text(gpusemconv.AttrActionDryRun) == "true"
	entry.From, entry.To = a.text(gpusemconv.AttrActionBefore), a.text(gpusemconv.AttrActionAfter)
	entry.Reason = a.text(gpusemconv.AttrEpisodeReason)
	entry.Kind, entry.Action = ledger.KindAction, step
	if a.text(gpusemconv.AttrActionUndo) == "true" {
		entry.Action = "undo " + step
	}
	switch {
	case step == stepNotify || step == stepEvent || step == stepBreaker || step == "":
		return // they tell people, and do nothing to a board
	case step == stepWord:
		e.word(a, entry, id, rule, now)
		entry.Kind, entry.Action = ledger.KindWord, rule
		if rule == ruleRepaired {
			entry.Kind = ledger.KindRepair
		}
	case step == stepBurnIn && (rule == rulePassed || rule == ruleFailed):
		entry.Kind, entry.Test = ledger.KindTest, a.text(gpusemconv.AttrActionTest)
		if v, ok := a.Get(gpusemconv.AttrActionTestOutput); ok {
			entry.Output = metricreading.Text(v) // the ledger keeps its end
		}
		if code := a.int(gpusemconv.AttrActionTestExitCode); code != nil && *code >= math.MinInt32 && *code <= math.MaxInt32 {
			n := int(*code)
			entry.ExitCode = &n
		}
	case entry.From == "" && entry.To == "":
		entry.From, entry.To = a.text(gpusemconv.AttrActionStateBefore), a.text(gpusemconv.AttrActionStateAfter)
	}
	switch {
	case id.Node == "":
	case uuid != "":
		e.ledger.Add(id.Cluster, uuid, entry, now)
	default:
		e.ledger.AddNode(id.Cluster, id.Node, entry, now)
	}
}

// word takes what a person told the actor: by an annotation, or by Slurm.
func (e *fleetExporter) word(a *attributes, entry *ledger.Entry, id *sender, rule string, now time.Time) {
	if entry.Outcome != gpusemconv.OutcomeTaken {
		return
	}
	// A word that is refused is in the audit of people.
	switch rule {
	case ruleSilence:
		s := people.Silence{
			Cluster: id.Cluster, Node: id.Node, By: entry.By, Reason: entry.Text, Source: people.SourceAction,
			From: entry.At, Until: a.time(gpusemconv.AttrActionUntil, time.Time{}),
		}
		if s.Node == "" {
			if s.Job = a.text(gpusemconv.AttrJobID); s.Job == "" {
				s.Group = a.text(gpusemconv.AttrPeerGroup)
			}
		}
		_, _ = e.people.Silence(s, now)
	case ruleAcknowledge:
		_, _ = e.people.Acknowledge(people.Acknowledgement{Cluster: id.Cluster, Episode: a.text(gpusemconv.AttrEpisodeID), By: entry.By, Reason: entry.Text}, now)
	}
}

// episodeEntry tells the ledger of an episode of one node.
func (e *fleetExporter) episodeEntry(ep *fleetstate.Episode, now time.Time) {
	if ep.Subject != fleetstate.SubjectNode || ep.Node == "" || ep.ID == "" {
		return
	}
	gpu := ep.GPU
	if gpu == "" {
		gpu = ep.Culprit.GPU
	}
	e.ledger.AddEpisode(ep.Cluster, ep.Node, gpu, &ledger.Entry{
		At: ep.Since.UTC(), Kind: ledger.KindEpisode, ID: ep.ID, Node: ep.Node, Text: ep.Text, Reason: ep.Reason, Action: ep.Action,
		Job: ep.Job, Signal: ep.Signal, Severity: ep.Severity, Gap: ep.Gap, Lost: ep.LostGPUHours, Ended: ep.Ended,
	}, now)
}
