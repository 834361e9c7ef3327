// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// tell writes an episode's event to the collector's own log. The line has to
// make sense by itself: for many it is the only thing they read.
func (ep *episode) tell(logger *zap.Logger) {
	fields := []zap.Field{zap.String("cluster", ep.Cluster)}
	for _, f := range [...]struct{ key, text string }{{"group", ep.Group}, {"node", ep.Node}} {
		if f.text != "" {
			fields = append(fields, zap.String(f.key, f.text))
		}
	}
	of := ep.Culprit
	of.GPU = ep.gpu()
	fields = appendSubject(fields, of)
	if ep.hasIndex {
		fields = append(fields, zap.Int("gpu_index", ep.index))
	}
	if ep.page != "" {
		fields = append(fields, zap.String("page", ep.page))
	}
	fields = append(fields, zap.String("episode", ep.ID))
	if !ep.news() {
		logger.Info(ep.sentence(), fields...)
	} else {
		logger.Warn(ep.sentence(), fields...)
	}
}

// appendSubject adds what is known of the part of a node that is meant.
func appendSubject(fields []zap.Field, of nodesignal.Subject) []zap.Field {
	if n, known := of.Rank.Get(); known {
		fields = append(fields, zap.Int64("rank", n))
	}
	if n, known := of.LocalRank.Get(); known {
		fields = append(fields, zap.Int64("local_rank", n))
	}
	if of.GPU != "" {
		fields = append(fields, zap.String("gpu", of.GPU))
	}
	return fields
}

// who names the smallest part of the node that is known to be at fault.
func (ep *episode) who() string {
	of := ep.Culprit
	if of == (nodesignal.Subject{}) {
		return oneLine(ep.Node)
	}
	of.GPU = ep.named(of.GPU)
	return of.String() + " of " + oneLine(ep.Node)
}

// named is a GPU by its hw.id, and by its index where that is known.
func (ep *episode) named(gpu string) string {
	switch {
	case gpu == "":
		return ""
	case ep.hasIndex && gpu == ep.gpu():
		return fmt.Sprintf("GPU %d, %s", ep.index, oneLine(gpu))
	default:
		return oneLine(gpu)
	}
}

// sentence says the event to people.
func (ep *episode) sentence() string {
	if ep.Kind == straggler.EventContinues {
		return ep.what() + " goes on after a restart," + ep.since() + ep.because()
	}
	switch ep.Subject {
	case straggler.SubjectNode:
		return ep.nodeSentence()
	case straggler.SubjectGroup:
		return ep.groupSentence()
	case straggler.SubjectMissing:
		return ep.missingSentence()
	case straggler.SubjectCommunicator:
		return ep.linkSentence()
	case straggler.SubjectJob:
		return ep.hangSentence()
	default:
		if len(ep.Shared.Labels) > 0 {
			return ep.placeSentence()
		}
		if ep.Kind == straggler.EventEnd {
			return fmt.Sprintf("none of the %d further stragglers of cluster %s is one any more%s%s", ep.NodeCount, oneLine(ep.Cluster), ep.after(), ep.spent())
		}
		return fmt.Sprintf("STRAGGLERS: %s more of cluster %s fell behind their peers at once than are told one by one%s", nodes(ep.NodeCount), oneLine(ep.Cluster), ep.why())
	}
}

// what names an episode.
func (ep *episode) what() string {
	of := " of cluster " + oneLine(ep.Cluster)
	switch ep.Subject {
	case straggler.SubjectNode:
		return "straggler " + ep.who()
	case straggler.SubjectGroup:
		return "the incident of group " + ep.Group + of
	case straggler.SubjectMissing:
		if ep.Node == "" {
			return "the silence of " + nodes(ep.NodeCount) + of
		}
		return "the silence of " + oneLine(ep.Node)
	case straggler.SubjectCommunicator:
		return "the slow link of " + ep.linkName()
	case straggler.SubjectJob:
		return "the hang of job " + oneLine(ep.hang.Job)
	default:
		if len(ep.Shared.Labels) > 0 {
			return "the fault of " + strings.TrimPrefix(ep.where(), "; ") + of
		}
		return "the event of " + nodes(ep.NodeCount) + of
	}
}

func (ep *episode) placeSentence() string {
	where := strings.TrimPrefix(ep.where(), "; ") + " of cluster " + oneLine(ep.Cluster)
	text := "SHARED FAULT"
	switch ep.Kind {
	case straggler.EventEnd:
		return fmt.Sprintf("the fault of %s is over%s%s%s", where, ep.after(), ep.because(), ep.spent())
	case straggler.EventUpdate:
		text = "fault has more nodes now"
	default:
	}
	return fmt.Sprintf("%s: %s have fallen behind their peers%s%s", text, where, ep.since(), ep.why())
}

func (ep *episode) nodeSentence() string {
	var b strings.Builder
	switch node := ep.who(); ep.Kind {
	case straggler.EventEnd:
		return fmt.Sprintf("%s is no straggler any more: %s%s%s%s", node, ep.Cause, ep.after(), ep.because(), ep.spent())
	case straggler.EventSeverity:
		fmt.Fprintf(&b, "straggler %s is %s now: ", node, ep.Severity)
	case straggler.EventUpdate:
		fmt.Fprintf(&b, "straggler %s has a name now: ", node)
	default:
		fmt.Fprintf(&b, "STRAGGLER %s: ", node)
	}
	whose := "its"
	if ep.Culprit != (nodesignal.Subject{}) {
		whose = "the node's"
	}
	fmt.Fprintf(&b, "%s %s has been %s behind its peers'%s, ", whose, ep.Signal, percent(ep.Gap), ep.since())
	switch {
	case ep.Compared && ep.steps && ep.Median > 0:
		fmt.Fprintf(&b, "%s s a step against a median of %s s ", short(1/ep.Value), short(1/ep.Median))
	case ep.Compared:
		fmt.Fprintf(&b, "%s against a median of %s ", short(ep.Value), short(ep.Median))
	}
	fmt.Fprintf(&b, "among the %d active nodes of %s (confidence %.2f)", ep.Active, ep.Group, ep.Confidence)
	b.WriteString(ep.why())
	return b.String()
}

// why says the reason, the cost, and what to do.
func (ep *episode) why() string {
	if ep.finding == nil {
		return ep.costs()
	}
	return ep.because() + ep.costs() + ". " + strings.TrimSuffix(ep.finding.Advice, ".")
}

// because says the reason and the evidence that decided.
func (ep *episode) because() string {
	f := ep.finding
	if f == nil {
		return ""
	}
	if f.Reason == reason.Unexplained {
		return "; unexplained"
	}
	text := "; reason " + string(f.Reason)
	if f.Observation {
		text = "; its peers show it too, or are not known: " + string(f.Reason)
	}
	if f.GPU != "" {
		text += " of " + ep.named(f.GPU)
	}
	if f.Asked > 0 {
		text += fmt.Sprintf(" on %d of %d", f.Shared, f.Asked)
	}
	if len(f.Evidence) == 0 {
		return text
	}
	e := &f.Evidence[0]
	what := e.Fact.String()
	if e.Kind != "" {
		what += " by " + e.Kind
	}
	text += fmt.Sprintf(" (%s %s", what, short(e.Value))
	if e.HasPeers {
		text += ", peers " + short(e.Peers)
	}
	if f.Standing {
		text += ", and was there before"
		if !e.Since.IsZero() {
			text += ", since " + e.Since.Format(time.RFC3339)
		}
	}
	return text + ")"
}

func (ep *episode) groupSentence() string {
	what := fmt.Sprintf("group %s of cluster %s", ep.Group, oneLine(ep.Cluster))
	switch ep.Kind {
	case straggler.EventEnd:
		return fmt.Sprintf("the incident of %s is over: %s%s%s%s", what, ep.Cause, ep.after(), ep.because(), ep.spent())
	default:
		text := "INCIDENT"
		switch ep.Kind {
		case straggler.EventSeverity:
			text = "incident is " + ep.Severity.String() + " now"
		case straggler.EventUpdate:
			text = "incident has more nodes now"
		}
		return fmt.Sprintf("%s: %s of the %d active ones of %s have fallen behind%s, by %s of %s%s%s",
			text, nodes(ep.NodeCount), ep.Active, what, ep.since(), percent(ep.Gap), ep.Signal, ep.where(), ep.why())
	}
}

func (ep *episode) missingSentence() string {
	who := oneLine(ep.Node)
	if ep.Node == "" {
		who = nodes(ep.NodeCount)
	}
	if ep.Kind == straggler.EventEnd {
		return fmt.Sprintf("the silence of %s is over: %s%s", who, ep.Cause, ep.after())
	}
	if ep.Group != "" {
		who += " of group " + ep.Group
	}
	return fmt.Sprintf("MISSING: nothing is heard of %s of cluster %s%s%s", who, oneLine(ep.Cluster), ep.since(), ep.where())
}

func (ep *episode) since() string {
	if !ep.sinceKnown() {
		return " since before it was watched"
	}
	return " since " + ep.Since.UTC().Format(time.RFC3339)
}

func (ep *episode) after() string {
	if d := ep.duration(); d > 0 {
		return " after " + d.Round(time.Second).String()
	}
	return ""
}

func (ep *episode) costs() string {
	var text string
	switch {
	case ep.slowdown > 0:
		text = "; it costs the job " + percent(1-1/ep.slowdown)
	case ep.hasCost:
		text = "; it costs " + count(ep.jobs, "job")
	default:
		return ""
	}
	if ep.hasCost {
		text += fmt.Sprintf(", %s GPU-hours per hour", short(ep.cost))
	}
	if ep.hasLost {
		text += fmt.Sprintf(" and %s so far", short(ep.lost))
	}
	return text
}

// spent is what an episode cost in the end.
func (ep *episode) spent() string {
	if !ep.hasLost {
		return ""
	}
	return fmt.Sprintf("; it cost %s GPU-hours", short(ep.lost))
}

// where names what the nodes of an event share, such as leaf leaf-7: 7 of 8 nodes.
func (ep *episode) where() string {
	s := &ep.Shared
	if len(s.Labels) == 0 {
		return ""
	}
	names := make([]string, len(s.Labels))
	for i, l := range s.Labels {
		names[i] = oneLine(l.Level) + " " + oneLine(l.Value)
	}
	text := fmt.Sprintf("; %s: %d of %d nodes", strings.Join(names, ", "), s.Bad, s.Nodes)
	if len(names) > 1 {
		text += " (they cannot be told apart)"
	}
	return text
}

func nodes(n int) string { return count(n, "node") }

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

func percent(x float64) string { return strconv.FormatFloat(100*x, 'f', 1, 64) + " %" }

// short is a number as people read it.
func short(x float64) string { return strconv.FormatFloat(x, 'g', 4, 64) }

// oneLine quotes a name that could forge a line of a log.
func oneLine(name string) string {
	if wire.ValidName(name) {
		return name
	}
	return strconv.QuoteToASCII(name)
}
