// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/rankattr"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// record turns an episode's event into the log record that docs/events.md
// describes.
func (ep *episode) record(ids *identifier, version string, now time.Time) plog.Logs {
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

func (ep *episode) severityNumber() plog.SeverityNumber {
	switch {
	case !ep.news():
		return plog.SeverityNumberInfo
	case ep.Severity == straggler.SeverityCritical:
		return plog.SeverityNumberError
	default:
		return plog.SeverityNumberWarn
	}
}

func (ep *episode) fill(a pcommon.Map) {
	a.PutStr(gpusemconv.AttrEpisodeID, ep.ID)
	a.PutStr(gpusemconv.AttrEpisodePhase, ep.Kind.String())
	a.PutStr(gpusemconv.AttrEpisodeSubject, ep.Subject.String())
	a.PutStr(gpusemconv.AttrEpisodeSeverity, ep.Severity.String())
	if ep.sinceKnown() {
		a.PutStr(gpusemconv.AttrEpisodeSince, ep.Since.UTC().Format(iso8601))
		if ep.Kind == straggler.EventEnd {
			a.PutDouble(gpusemconv.AttrEpisodeDuration, ep.duration().Seconds())
		}
	}
	putText(a, gpusemconv.AttrPeerGroup, ep.Group)
	putText(a, gpusemconv.AttrEpisodeCause, ep.Cause)
	if ep.Node == "" && ep.NodeCount > 0 {
		a.PutInt(gpusemconv.AttrEpisodeNodeCount, int64(ep.NodeCount))
		list := a.PutEmptySlice(gpusemconv.AttrEpisodeNodes)
		for _, n := range ep.Nodes {
			list.AppendEmpty().SetStr(n)
		}
	}
	switch ep.Subject {
	case straggler.SubjectNode:
		a.PutDouble(gpusemconv.AttrEpisodeConfidence, ep.Confidence)
		if ep.Compared {
			a.PutDouble(gpusemconv.AttrEpisodeValue, ep.Value)
			a.PutDouble(gpusemconv.AttrEpisodePeersMedian, ep.Median)
		}
		if ep.Rank > 0 {
			a.PutInt(gpusemconv.AttrEpisodeRank, int64(ep.Rank))
		}
		ep.fillComparison(a)
		putText(a, gpusemconv.AttrEpisodePage, ep.page)
		if ep.hasIndex {
			a.PutInt(gpusemconv.AttrGPUIndex, int64(ep.index))
		}
		rankattr.Put(a, ep.Culprit)
		putText(a, gpusemconv.AttrJobRankGPU, ep.Culprit.GPU)
	case straggler.SubjectGroup:
		if ep.news() {
			a.PutDouble(gpusemconv.AttrEpisodeValue, ep.Value)
			a.PutDouble(gpusemconv.AttrEpisodePeersMedian, ep.Median)
			ep.fillComparison(a)
		}
	case straggler.SubjectCommunicator:
		ep.fillLink(a)
	case straggler.SubjectJob:
		ep.fillHang(a)
	}
	if ep.hasCost {
		a.PutDouble(gpusemconv.AttrEpisodeCost, ep.cost)
	}
	if ep.hasLost {
		a.PutDouble(gpusemconv.AttrEpisodeLost, ep.lost)
	}
	if ep.slowdown > 0 {
		a.PutDouble(gpusemconv.AttrEpisodeSlowdown, ep.slowdown)
	}
	if s := &ep.Shared; len(s.Labels) > 0 {
		list := a.PutEmptySlice(gpusemconv.AttrEpisodeTopology)
		for _, l := range s.Labels {
			list.AppendEmpty().SetStr(l.Level + "=" + l.Value)
		}
		a.PutInt(gpusemconv.AttrEpisodeTopologyBad, int64(s.Bad))
		a.PutInt(gpusemconv.AttrEpisodeTopologyNodes, int64(s.Nodes))
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

func (ep *episode) fillComparison(a pcommon.Map) {
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
	b.WriteString("fact=" + e.Fact.String())
	if e.Kind != "" {
		b.WriteString(" kind=" + e.Kind)
	}
	b.WriteString(" value=" + short(e.Value))
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
