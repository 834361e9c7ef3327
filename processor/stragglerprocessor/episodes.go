// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpu-collector/gpu-collector/internal/episode"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/rankattr"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// explained is one event with what the nodes' facts add to it.
type explained struct {
	*episode.Event
	// finding is why the node is slow, at the end why it was; nil where that is
	// not asked.
	finding *reason.Finding
	// holders are the containers and jobs of the culprit's GPU, else of the node; of an onset.
	holders []reading.Holder
	// cost is what the gap takes from a synchronous job, in GPU-hours per hour;
	// only read when hasCost.
	cost    float64
	hasCost bool
}

// explainer completes events by the facts of the nodes.
type explainer struct {
	facts   *factReader
	groupBy []string
	// told is what was said of the episodes that go on, by their ids: at the end
	// the facts may be gone.
	told map[string]reason.Finding
	most int // in told
}

// maxHolders bounds those that a record names.
const maxHolders = 16

func newExplainer(cfg *Config, facts *factReader) *explainer {
	return &explainer{facts: facts, groupBy: cfg.GroupBy, told: make(map[string]reason.Finding), most: cfg.bounded().MaxNodes}
}

// episodes completes the events of a report.
func (x *explainer) episodes(r *straggler.Report) []explained {
	if len(r.Events) == 0 {
		return nil
	}
	all := make([]explained, len(r.Events))
	for i := range r.Events {
		all[i] = explained{Event: &r.Events[i]}
		ep := &all[i]
		if ep.Node != "" && ep.Kind == episode.EventOnset {
			ep.holders = x.facts.store.Holders(ep.Cluster, ep.Node, ep.Culprit.GPU, maxHolders)
		}
		switch {
		case ep.slow():
			x.explain(ep, r)
		case ep.Kind == episode.EventEnd:
			if f, known := x.told[ep.ID]; known {
				ep.finding = &f
				delete(x.told, ep.ID)
			}
		}
	}
	return all
}

// explain says why those whom ep is about are slow, and what it costs.
func (x *explainer) explain(ep *explained, r *straggler.Report) {
	members := groupMembers(r.Nodes, ep.Cluster, ep.Group)
	since := ep.Since
	if !ep.sinceKnown() {
		since = time.Time{}
	}
	var f reason.Finding
	if ep.Subject == episode.SubjectNode {
		f = x.facts.store.Explain(ep.Cluster, ep.Node, workers(members, false), since, ep.At)
	} else {
		f = x.facts.store.ExplainGroup(ep.Cluster, ep.Nodes, workers(members, true), since, ep.At)
	}
	ep.finding = &f
	ep.cost, ep.hasCost = cost(ep.Event, members, x.facts, x.groupBy)
	if _, known := x.told[ep.ID]; known || len(x.told) < x.most {
		x.told[ep.ID] = reason.Finding{Reason: f.Reason, Observation: f.Observation, GPU: f.GPU}
	}
}

// slow reports whether the episode is about slowness that goes on. Its group and
// signal are known.
func (ep *explained) slow() bool {
	return ep.Kind != episode.EventEnd && (ep.Subject == episode.SubjectNode || ep.Subject == episode.SubjectGroup)
}

// groupMembers returns the part of nodes, which are in order, that is one group.
func groupMembers(nodes []straggler.NodeReport, cluster, group string) []straggler.NodeReport {
	at, _ := slices.BinarySearchFunc(nodes, group, func(n straggler.NodeReport, group string) int {
		return cmp.Or(cmp.Compare(n.Cluster, cluster), cmp.Compare(n.Group, group))
	})
	end := at
	for end < len(nodes) && nodes[end].Cluster == cluster && nodes[end].Group == group {
		end++
	}
	return nodes[at:end]
}

// workers are the names of the active nodes, without the stragglers where that is
// asked. A node that lacks work says nothing about a node that works.
func workers(nodes []straggler.NodeReport, healthy bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range nodes {
			n := &nodes[i]
			if n.State == nodesignal.StateActive && (!healthy || !n.Straggler) && !yield(n.Node) {
				return
			}
		}
	}
}

// cost is gap times GPUs: in a synchronous job, which steps together, all wait
// for the slowest (Greyhound, ATC '25). It is known when the nodes belong to a
// job and all active ones have told their number of GPUs.
func cost(ev *episode.Event, members []straggler.NodeReport, facts *factReader, groupBy []string) (float64, bool) {
	if ev.Ranks > 1 {
		return ev.Gap * float64(ev.Ranks-1), true // each has a GPU
	}
	job := slices.Index(groupBy, gpusemconv.AttrJobID)
	if ev.Gap <= 0 || job < 0 || job >= len(ev.Peers) || ev.Peers[job] == "" {
		return 0, false
	}
	gpus := 0
	for i := range members {
		if members[i].State != nodesignal.StateActive {
			continue
		}
		n, ok := facts.store.GPUs(members[i].Cluster, members[i].Node)
		if !ok {
			return 0, false
		}
		gpus += n
	}
	return min(ev.Gap, 1) * float64(gpus), gpus > 0
}

// sinceKnown is false when the node was slow from its first value on.
func (ep *explained) sinceKnown() bool { return ep.Since.Unix() > 0 }

// duration of an episode that has ended, zero when its beginning is not known.
func (ep *explained) duration() time.Duration {
	if !ep.sinceKnown() {
		return 0
	}
	return max(ep.At.Sub(ep.Since), 0)
}

// record turns an episode's event into the log record that docs/events.md
// describes.
func (ep *explained) record(ids *identifier, version string, now time.Time) plog.Logs {
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	ids.stamp(rl.Resource().Attributes(), ep.Cluster, ep.Node, ep.Peers)
	sl := rl.ScopeLogs().AppendEmpty()
	sl.Scope().SetName(metadata.ScopeName)
	sl.Scope().SetVersion(version)
	lr := sl.LogRecords().AppendEmpty()
	lr.SetTimestamp(pcommon.NewTimestampFromTime(ep.At))
	lr.SetObservedTimestamp(pcommon.NewTimestampFromTime(now))
	lr.SetEventName(gpusemconv.EventStraggler)
	lr.SetSeverityNumber(ep.severityNumber())
	lr.SetSeverityText(lr.SeverityNumber().String())
	lr.Body().SetStr(ep.sentence())
	ep.fill(lr.Attributes())
	return ld
}

func (ep *explained) severityNumber() plog.SeverityNumber {
	switch {
	case ep.Kind == episode.EventEnd:
		return plog.SeverityNumberInfo
	case ep.Severity == episode.SeverityCritical:
		return plog.SeverityNumberError
	default:
		return plog.SeverityNumberWarn
	}
}

func (ep *explained) fill(a pcommon.Map) {
	a.PutStr(gpusemconv.AttrEpisodeID, ep.ID)
	a.PutStr(gpusemconv.AttrEpisodePhase, ep.Kind.String())
	a.PutStr(gpusemconv.AttrEpisodeSubject, ep.Subject.String())
	a.PutStr(gpusemconv.AttrEpisodeSeverity, ep.Severity.String())
	if ep.sinceKnown() {
		a.PutStr(gpusemconv.AttrEpisodeSince, ep.Since.UTC().Format(iso8601))
		if ep.Kind == episode.EventEnd {
			a.PutDouble(gpusemconv.AttrEpisodeDuration, ep.duration().Seconds())
		}
	}
	putText(a, gpusemconv.AttrPeerGroup, ep.Group)
	putText(a, gpusemconv.AttrEpisodeCause, ep.Cause)
	putText(a, gpusemconv.AttrJobID, ep.Job)
	if ep.Node == "" && ep.NodeCount > 0 {
		a.PutInt(gpusemconv.AttrEpisodeNodeCount, int64(ep.NodeCount))
		list := a.PutEmptySlice(gpusemconv.AttrEpisodeNodes)
		for _, n := range ep.Nodes {
			list.AppendEmpty().SetStr(n)
		}
	}
	if len(ep.holders) > 0 {
		list := a.PutEmptySlice(gpusemconv.AttrEpisodeAllocations)
		for _, h := range ep.holders {
			list.AppendEmpty().SetStr(h.String())
		}
	}
	switch ep.Subject {
	case episode.SubjectNode:
		a.PutDouble(gpusemconv.AttrEpisodeConfidence, ep.Confidence)
		if ep.Compared {
			a.PutDouble(gpusemconv.AttrEpisodeValue, ep.Value)
			a.PutDouble(gpusemconv.AttrEpisodePeersMedian, ep.Median)
		}
		if ep.Rank > 0 {
			a.PutInt(gpusemconv.AttrEpisodeRank, int64(ep.Rank))
		}
		ep.fillComparison(a)
		rankattr.Put(a, ep.Culprit)
		putText(a, gpusemconv.AttrJobRankGPU, ep.Culprit.GPU)
	case episode.SubjectJob:
		rankattr.Put(a, ep.Culprit)
	case episode.SubjectLink:
		a.PutStr(gpusemconv.AttrCommunicatorName, ep.Detail)
		a.PutDouble(gpusemconv.AttrEpisodeGap, ep.Gap)
		a.PutDouble(gpusemconv.AttrEpisodeValue, ep.Value)
		a.PutDouble(gpusemconv.AttrEpisodePeersMedian, ep.Median)
	case episode.SubjectGroup:
		if ep.Kind != episode.EventEnd {
			a.PutDouble(gpusemconv.AttrEpisodeValue, ep.Value)
			a.PutDouble(gpusemconv.AttrEpisodePeersMedian, ep.Median)
			ep.fillComparison(a)
		}
	}
	if ep.hasCost {
		a.PutDouble(gpusemconv.AttrEpisodeCost, ep.cost)
	}
	if f := ep.finding; f != nil {
		a.PutStr(gpusemconv.AttrEpisodeReason, string(f.Reason))
		a.PutBool(gpusemconv.AttrEpisodeObservation, f.Observation)
		putText(a, gpusemconv.AttrEpisodeAction, string(f.Action))
		putText(a, gpusemconv.AttrHWID, f.GPU)
		if len(f.Evidence) > 0 {
			list := a.PutEmptySlice(gpusemconv.AttrEpisodeEvidence)
			for i := range f.Evidence {
				list.AppendEmpty().SetStr(logfmt(&f.Evidence[i]))
			}
		}
		if f.Asked > 0 {
			a.PutInt(gpusemconv.AttrEpisodeShared, int64(f.Shared))
			a.PutInt(gpusemconv.AttrEpisodeAsked, int64(f.Asked))
		}
	}
}

func (ep *explained) fillComparison(a pcommon.Map) {
	a.PutStr(gpusemconv.AttrSignal, ep.Signal.String())
	a.PutDouble(gpusemconv.AttrEpisodeGap, ep.Gap)
	a.PutInt(gpusemconv.AttrEpisodePeersActive, int64(ep.Active))
}

// iso8601 in UTC, to the millisecond, as OpenTelemetry's own attributes of
// points in time, such as process.creation.time.
const iso8601 = "2006-01-02T15:04:05.000Z"

// logfmt writes evidence as keys and values in one string: log stores index
// lists of strings, but not lists of maps.
func logfmt(e *reason.Evidence) string {
	var b strings.Builder
	b.WriteString("fact=" + e.Fact.String() + " value=" + short(e.Value))
	if e.HasPeers {
		b.WriteString(" peers=" + short(e.Peers))
	}
	b.WriteString(" unit=" + e.Fact.Unit())
	switch {
	case !e.Since.IsZero():
		b.WriteString(" since=" + e.Since.Format(iso8601))
	case e.Standing:
		b.WriteString(" since=unknown")
	}
	if e.GPU != "" {
		b.WriteString(" gpu=" + oneLine(e.GPU))
	}
	return b.String()
}

func putText(a pcommon.Map, key, text string) {
	if text != "" {
		a.PutStr(key, text)
	}
}
