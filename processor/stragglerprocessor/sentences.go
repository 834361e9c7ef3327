// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/episode"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// tell writes an episode's event to the collector's own log. The line has to
// make sense by itself: for many it is the only thing they read.
func (ep *explained) tell(logger *zap.Logger) {
	fields := []zap.Field{zap.String("cluster", ep.Cluster)}
	for _, f := range [...]struct{ key, text string }{{"group", ep.Group}, {"node", ep.Node}} {
		if f.text != "" {
			fields = append(fields, zap.String(f.key, f.text))
		}
	}
	of := ep.Culprit
	if f := ep.finding; f != nil && f.GPU != "" {
		of.GPU = f.GPU
	}
	fields = appendSubject(fields, of)
	fields = append(fields, zap.String("episode", ep.ID))
	if ep.Kind == episode.EventEnd {
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
func (ep *explained) who() string {
	of, who := ep.Culprit, oneLine(ep.Node)
	if of != (nodesignal.Subject{}) {
		if of.GPU != "" {
			of.GPU = oneLine(of.GPU)
		}
		who = of.String() + " of " + who
	}
	if ep.Job != "" {
		who += " in job " + oneLine(ep.Job)
	}
	return who
}

// sentence says the event to people.
func (ep *explained) sentence() string {
	switch ep.Subject {
	case episode.SubjectNode:
		return ep.nodeSentence()
	case episode.SubjectGroup:
		return ep.groupSentence()
	case episode.SubjectLink:
		return ep.linkSentence()
	case episode.SubjectJob:
		return ep.jobSentence()
	default:
		return ep.missingSentence()
	}
}

func (ep *explained) nodeSentence() string {
	var b strings.Builder
	switch node := ep.who(); ep.Kind {
	case episode.EventEnd:
		return fmt.Sprintf("%s is no straggler any more: %s%s%s", node, ep.Cause, ep.after(), ep.because())
	case episode.EventSeverity:
		fmt.Fprintf(&b, "straggler %s is %s now: ", node, ep.Severity)
	default:
		fmt.Fprintf(&b, "STRAGGLER %s: ", node)
	}
	if ep.Signal == nodesignal.Communication {
		b.WriteString(ep.waiting())
		return b.String()
	}
	whose := "its"
	if ep.Culprit != (nodesignal.Subject{}) && ep.Ranks == 0 {
		whose = "the node's"
	}
	fmt.Fprintf(&b, "%s %s has been %s behind its peers'%s, ", whose, ep.Signal, percent(ep.Gap), ep.since())
	if ep.Compared {
		fmt.Fprintf(&b, "%s against a median of %s ", short(ep.Value), short(ep.Median))
	}
	among := fmt.Sprintf("%d active nodes of %s", ep.Active, ep.Group)
	if ep.Ranks > 0 {
		among = rankCount(ep.Ranks)
	}
	fmt.Fprintf(&b, "among the %s (confidence %.2f)", among, ep.Confidence)
	b.WriteString(ep.why())
	return b.String()
}

// waiting says what a slow rank costs the others. Between collectives a rank spends what
// its share of time leaves: the gap is the rank's longer part of that.
func (ep *explained) waiting() string {
	text := "waits less for its peers"
	if own := 1 - ep.Median; own > ep.Gap {
		text = fmt.Sprintf("takes %s longer between collectives", percent(ep.Gap/own))
	}
	return fmt.Sprintf("%s%s; %s wait %s of their time for it (confidence %.2f)%s",
		text, ep.since(), rankCount(ep.Ranks-1), percent(ep.Gap), ep.Confidence, ep.why())
}

func (ep *explained) linkSentence() string {
	what := fmt.Sprintf("slow communication in %s of job %s", oneLine(ep.Detail), oneLine(ep.Group))
	if ep.Kind == episode.EventEnd {
		return fmt.Sprintf("no %s any more: %s%s", what, ep.Cause, ep.after())
	}
	return fmt.Sprintf("%s%s: %s GB/s, %s below its usual %s GB/s. Its %s arrive together, so that none is named: look at their links",
		what, ep.since(), short(ep.Value/1e9), percent(ep.Gap), short(ep.Median/1e9), rankCount(ep.Ranks))
}

func (ep *explained) jobSentence() string {
	what := "job " + oneLine(ep.Group)
	if ep.Kind == episode.EventEnd {
		cause := ep.Cause
		if cause == episode.CauseIdle {
			cause = "its processes ended"
		}
		return fmt.Sprintf("%s stands still no more: %s%s", what, cause, ep.after())
	}
	text := fmt.Sprintf("STALLED: %s: no operation of its %s has ended%s, longer than its longest pause of the last hour", what, rankCount(ep.Ranks), ep.since())
	if ep.Detail == "" {
		return text + "; nobody is known to hold it up"
	}
	return text + "; the others wait for " + strconv.Quote(ep.Detail)
}

// why says the reason, the cost, and what to do.
func (ep *explained) why() string {
	if ep.finding == nil {
		return ep.costs()
	}
	return ep.because() + ep.costs() + ". " + strings.TrimSuffix(ep.finding.Advice, ".")
}

// because says the reason and the evidence that decided.
func (ep *explained) because() string {
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
		text += " of " + oneLine(f.GPU)
	}
	if f.Asked > 0 {
		text += fmt.Sprintf(" on %d of %d", f.Shared, f.Asked)
	}
	if len(f.Evidence) == 0 {
		return text
	}
	e := &f.Evidence[0]
	text += fmt.Sprintf(" (%s %s", e.Fact, short(e.Value))
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

func (ep *explained) groupSentence() string {
	what := fmt.Sprintf("group %s of cluster %s", ep.Group, oneLine(ep.Cluster))
	switch ep.Kind {
	case episode.EventEnd:
		return fmt.Sprintf("the incident of %s is over: %s%s%s", what, ep.Cause, ep.after(), ep.because())
	default:
		text := "INCIDENT"
		switch ep.Kind {
		case episode.EventSeverity:
			text = "incident is " + ep.Severity.String() + " now"
		case episode.EventUpdate:
			text = "incident has more nodes now"
		}
		return fmt.Sprintf("%s: %s of the %d active ones of %s have fallen behind%s, by %s of %s%s",
			text, nodes(ep.NodeCount), ep.Active, what, ep.since(), percent(ep.Gap), ep.Signal, ep.why())
	}
}

func (ep *explained) missingSentence() string {
	who := oneLine(ep.Node)
	if ep.Node == "" {
		who = nodes(ep.NodeCount)
	}
	if ep.Kind == episode.EventEnd {
		return fmt.Sprintf("the silence of %s is over: %s%s", who, ep.Cause, ep.after())
	}
	if ep.Group != "" {
		who += " of group " + ep.Group
	}
	return fmt.Sprintf("MISSING: nothing is heard of %s of cluster %s%s", who, oneLine(ep.Cluster), ep.since())
}

func (ep *explained) since() string {
	if !ep.sinceKnown() {
		return " since before it was watched"
	}
	return " since " + ep.Since.UTC().Format(time.RFC3339)
}

func (ep *explained) after() string {
	if d := ep.duration(); d > 0 {
		return " after " + d.Round(time.Second).String()
	}
	return ""
}

func (ep *explained) costs() string {
	if !ep.hasCost {
		return ""
	}
	return fmt.Sprintf("; the job loses %s GPU-hours per hour", short(ep.cost))
}

func rankCount(n int) string {
	if n == 1 {
		return "1 rank"
	}
	return strconv.Itoa(n) + " ranks"
}

func nodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return strconv.Itoa(n) + " nodes"
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
