// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/hang"
	"github.com/gpu-collector/gpu-collector/internal/jobcost"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/rankattr"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// hangs makes episodes of the events about jobs that stand still.
func (x *explainer) hangs(events []hang.Event, r *straggler.Report, ranks *rankReader) []episode {
	all := make([]episode, len(events))
	for i := range events {
		ep := &all[i]
		*ep = episode{Event: &events[i].Event, hang: &events[i]}
		if !ep.news() {
			x.repeat(ep)
			continue
		}
		f := reason.OfHang(len(ep.hang.Laggards) > 0)
		ep.finding = &f
		if l := ep.hang.Laggards; len(l) > 0 {
			ep.Culprit = l[0].Subject
		}
		gpus, known := jobGPUs(r, ranks.job, ep.Cluster, ep.hang.Job, x.facts)
		ep.cost, ep.hasCost = jobcost.Hours(1, gpus, time.Hour), known && gpus > 0
		x.keep(ep)
	}
	return all
}

// fillHang writes the attributes of an episode about a job.
func (ep *episode) fillHang(a pcommon.Map) {
	a.PutStr(gpusemconv.AttrJobID, ep.hang.Job)
	if !ep.news() {
		return
	}
	if ep.hang.Pause > 0 {
		a.PutDouble(gpusemconv.AttrEpisodePause, ep.hang.Pause.Seconds())
	}
	if len(ep.hang.Laggards) == 0 {
		return
	}
	list := a.PutEmptySlice(gpusemconv.AttrEpisodeLaggards)
	for i := range ep.hang.Laggards {
		list.AppendEmpty().SetStr(laggardText(&ep.hang.Laggards[i]))
	}
	rankattr.Put(a, ep.Culprit)
	putText(a, gpusemconv.AttrJobRankGPU, ep.Culprit.GPU)
}

// laggardText has keys and values in one string, as evidence has.
func laggardText(l *hang.Laggard) string {
	state := gpusemconv.LaggardBehind
	if l.Missing {
		state = gpusemconv.LaggardMissing
	}
	var text strings.Builder
	text.WriteString("state=" + state)
	for _, f := range [...]struct{ key, value string }{
		{"rank", ordinalText(l.Subject.Rank)},
		{"gpu", l.Subject.GPU},
		{"node", l.Node},
		{"address", l.Host},
		{"communicator", l.Communicator},
		{"communicator_rank", strconv.FormatInt(l.Rank, 10)},
	} {
		if f.value != "" {
			text.WriteString(" " + f.key + "=" + oneLine(f.value))
		}
	}
	return text.String()
}

func ordinalText(o nodesignal.Ordinal) string {
	if n, known := o.Get(); known {
		return strconv.FormatInt(n, 10)
	}
	return ""
}

func (ep *episode) hangSentence() string {
	job := "job " + oneLine(ep.hang.Job)
	if ep.Kind == straggler.EventEnd {
		return job + " stands still no more: " + ep.Cause + ep.after() + ep.spent()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "HANG: %s stands still%s: ", job, ep.since())
	if ep.hang.ByPower {
		b.WriteString("its GPUs are busy at less than half of the usual power")
	} else {
		b.WriteString("none of its collective operations has ended")
	}
	if ep.hang.Pause > 0 {
		fmt.Fprintf(&b, ", and its longest pause before was %s", ep.hang.Pause.Round(time.Second))
	}
	for i := range ep.hang.Laggards {
		b.WriteString("; " + laggardSentence(&ep.hang.Laggards[i]))
	}
	b.WriteString("; " + nodes(ep.NodeCount))
	if ep.hasCost {
		fmt.Fprintf(&b, ", %s GPU-hours per hour", short(ep.cost))
	}
	b.WriteString(". " + strings.TrimSuffix(ep.finding.Advice, "."))
	return b.String()
}

func laggardSentence(l *hang.Laggard) string {
	who := fmt.Sprintf("rank %d of communicator %s", l.Rank, oneLine(l.Communicator))
	if l.Subject != (nodesignal.Subject{}) {
		of := l.Subject
		if of.GPU != "" {
			of.GPU = oneLine(of.GPU)
		}
		who = of.String()
	}
	switch {
	case l.Node != "":
		who += " of " + oneLine(l.Node)
	case l.Host != "":
		who += " at " + oneLine(l.Host)
	}
	if l.Missing {
		return who + " does not answer"
	}
	return who + " has begun fewer operations than the others"
}
