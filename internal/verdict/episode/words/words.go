// SPDX-License-Identifier: Apache-2.0

// Package words has the sentences about an episode: what is wrong, why, and what to do next,
// and all of it as a line of a log. Log, page, terminal and API share them. No sentence has
// an identifier or a time stamp: those are fields and attributes.
package words // import "github.com/gpu-collector/gpu-collector/internal/verdict/episode/words"

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
	"github.com/gpu-collector/gpu-collector/internal/verdict/reason"
)

// GPUs names a GPU of the node by its index, such as `GPU 3`; empty where it is not known.
type GPUs func(uuid string) string

// NoGPUs is for where no GPU is known.
func NoGPUs(string) string { return "" }

// Part names the rank and GPU at fault, such as `rank 3 (GPU 5)`; it is empty for the node.
func Part(e *episode.Episode, names GPUs) string {
	gpu := gpuName(cmp.Or(e.Culprit.GPU, e.GPU), names)
	rank, known := e.Culprit.Rank.Get()
	switch {
	case !known:
		return cmp.Or(gpu, e.Part)
	case gpu != "":
		gpu = " (" + gpu + ")"
	}
	return "rank " + strconv.FormatInt(rank, 10) + gpu
}

// gpuName names a GPU, or another device by what it is called.
func gpuName(id string, names GPUs) string {
	name := names(id)
	if name == "" && !strings.HasPrefix(id, "GPU-") && !strings.HasPrefix(id, "MIG-") {
		name = Name(id)
	}
	return name
}

// What returns what is wrong.
func What(e *episode.Episode) string {
	switch e.Subject {
	case episode.SubjectGroup:
		text := "Many nodes slow at once"
		if e.NodeCount > 1 {
			text = Count(int(e.NodeCount), "node") + " slow at once"
		} else if e.NodeCount == 1 {
			text = "One of many nodes is still slow"
		}
		if text += behind(e, ", ", "their") + "."; keepsUp(e) {
			text += " All keep up now: the incident ends when they have done so for some minutes."
		}
		return text
	case episode.SubjectMissing:
		if e.Node != "" {
			return "No report from the node."
		}
		return "No report from " + Count(int(e.NodeCount), "node") + "."
	case episode.SubjectLink:
		text := headline(e, NoGPUs) + " is slow"
		if e.Value != nil && e.Median != nil {
			text += ": " + gigabytes(*e.Value) + " instead of " + gigabytes(*e.Median)
		}
		return text + "."
	case episode.SubjectJob:
		return headline(e, NoGPUs) + " stands still: no operation of its ranks ends."
	}
	text := behind(e, "", "its")
	switch {
	case e.Signal == nodesignal.Communication.String() && e.Gap != nil:
		text = waits(e)
	case text == "":
		text = "Slower than its peers"
	}
	if keepsUp(e) {
		return text + ". It keeps up now: the verdict ends when it has done so for some minutes."
	}
	return text + "."
}

// keepsUp reports whether an open episode is about what seems to be well.
func keepsUp(e *episode.Episode) bool { return e.Recovering && e.Open() }

// behind is how far the signal is behind, empty where that is not known.
func behind(e *episode.Episode, before, owner string) string {
	if e.Gap == nil || e.Signal == "" {
		return ""
	}
	return before + Percent(*e.Gap) + " behind " + owner + " peers in " + strings.ReplaceAll(e.Signal, "_", " ")
}

// waits is what a slow rank costs the others. Between collectives a rank spends what its
// share of time in them leaves: the gap is the rank's longer part of that.
func waits(e *episode.Episode) string {
	text := "Waits less for its peers"
	if e.Median != nil && 1-*e.Median > *e.Gap {
		text = "Takes " + Percent(*e.Gap/(1-*e.Median)) + " longer between collectives than its peers"
	}
	others := "the other ranks"
	if e.Job != "" {
		others += " of job " + Name(e.Job)
	}
	return text + "; " + others + " wait " + Percent(*e.Gap) + " of their time for it"
}

// Why returns the reason by the facts of the nodes, empty without one.
func Why(e *episode.Episode, names GPUs) string {
	switch {
	case e.Subject == episode.SubjectLink:
		return "Its ranks arrive together, so that none of them is slow."
	case e.Subject == episode.SubjectJob && e.Node != "":
		return "The other ranks wait for " + cmp.Or(Part(e, names), "a rank") + " on " + Name(e.Node) + "."
	case e.Subject == episode.SubjectJob && len(e.Nodes) > 0:
		return "The other ranks wait for those on " + strings.Join(e.Nodes[:min(len(e.Nodes), 8)], ", ") + "."
	case e.Subject == episode.SubjectJob:
		return "Nobody is known to hold it up."
	case e.Reason == "":
		return ""
	}
	text := reason.Because(reason.Reason(e.Reason), e.Evidence)
	switch {
	case e.Observation:
		text = "its peers show it too, or are not known: " + text
	case len(e.Evidence) > 0 && e.Evidence[0].Standing:
		text += ", and was so before"
	}
	if e.Asked > 0 && e.Shared > 0 {
		text += ", on " + strconv.FormatInt(e.Shared, 10) + " of " + Count(int(e.Asked), "node")
	}
	if e.GPU != "" && e.Culprit.GPU != "" && e.GPU != e.Culprit.GPU {
		if gpu := gpuName(e.GPU, names); gpu != "" {
			return gpu + ": " + text + "."
		}
	}
	return Sentence(text)
}

// Next returns what to do.
func Next(e *episode.Episode) string {
	switch {
	case keepsUp(e):
		return "Nothing, unless it begins again."
	case e.Subject == episode.SubjectMissing && e.Node != "":
		return gpuhealth.ActionCheckAgent.Advice()
	case e.Subject == episode.SubjectMissing:
		return "Look at what the nodes share, such as switch, rack or power, and at their way to the gateway."
	case e.Subject == episode.SubjectLink:
		return "Look at the links between the nodes of the communicator."
	case e.Subject == episode.SubjectJob && e.Node != "":
		return "Look at what that rank does, and at the node's kernel log."
	case e.Subject == episode.SubjectJob && len(e.Nodes) > 0:
		return "Look at what those ranks do, and at their nodes' kernel logs."
	case e.Subject == episode.SubjectJob:
		return "Look at what the ranks of the job do, such as their stacks."
	case e.Subject == episode.SubjectGroup:
		return cmp.Or(gpuhealth.Action(e.Action).Advice(), gpuhealth.ActionCheckShared.Advice())
	}
	return cmp.Or(gpuhealth.Action(e.Action).Advice(), "Look at what the job does on the node.")
}

// Line returns the last record of an episode as one line, which makes sense by itself.
func Line(e *episode.Episode, names GPUs) string {
	text := headline(e, names)
	switch e.Phase {
	case episode.PhaseEnd:
		if d := e.Duration().Round(time.Second); d > 0 && !e.SinceBefore {
			return text + ": over after " + d.String() + ". " + ended(e)
		}
		return text + ": over. " + ended(e)
	case episode.PhaseSeverity:
		text += ", " + e.Severity.String() + " now"
	case episode.PhaseUpdate:
		text += ", more is known now"
	}
	if what := strings.TrimSuffix(What(e), "."); strings.HasPrefix(what, text) {
		text = what
	} else {
		text += ": " + what
	}
	switch d := e.Duration().Round(time.Second); {
	case e.SinceBefore:
		text += ", since before it was watched"
	case d > 0:
		text += ", for " + d.String()
	}
	sentences := slices.DeleteFunc([]string{text + ".", Why(e, names), Next(e), Cost(e)}, func(s string) bool { return s == "" })
	return strings.Join(sentences, " ")
}

func headline(e *episode.Episode, names GPUs) string {
	switch {
	case e.Subject == episode.SubjectLink:
		return "Communicator " + cmp.Or(Name(e.Communicator), "without a name") + " of job " + cmp.Or(Name(e.Job), "without a name")
	case e.Subject == episode.SubjectJob:
		return "Job " + cmp.Or(Name(e.Job), "without a name")
	case e.Subject == episode.SubjectGroup:
		return "Incident in group " + Name(e.Group)
	case e.Subject == episode.SubjectMissing && e.Node != "":
		return "Missing node " + Name(e.Node)
	case e.Subject == episode.SubjectMissing && e.Group != "":
		return "Missing nodes of group " + Name(e.Group)
	case e.Subject == episode.SubjectMissing:
		return "Missing nodes"
	}
	text := "Straggler " + Name(e.Node)
	if part := Part(e, names); part != "" {
		text += ", " + part
	}
	return text
}

var causes = map[string]string{
	episode.CauseRecovered: "It recovered.",
	episode.CauseIdle:      "It has no work, or nothing to be compared with.",
	episode.CauseMoved:     "The node went to another peer group.",
	episode.CauseMissing:   "No report from the node.",
	episode.CauseContested: "Several nodes use its name.",
	episode.CauseForgotten: "The node was silent for too long.",
}

func ended(e *episode.Episode) string { return cmp.Or(causes[e.Cause], Sentence(e.Cause)) }

// Cost returns what the job loses, empty where that is not known.
func Cost(e *episode.Episode) string {
	if e.Cost == nil {
		return ""
	}
	return "The job loses the work of " + gpus(*e.Cost) + "."
}

// gpus returns a cost in GPU-hours per hour, `1 GPU` or `12.5 GPUs`.
func gpus(cost float64) string {
	text := strconv.FormatFloat(cost, 'g', 3, 64)
	if text == "1" {
		return "1 GPU"
	}
	return text + " GPUs"
}

// Count returns `1 node` or `3 nodes`.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// Sentence makes one of a clause.
func Sentence(s string) string {
	if s == "" {
		return ""
	}
	r, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(r)) + s[size:] + "."
}

// Percent writes a fraction.
func Percent(v float64) string {
	return strconv.FormatFloat(math.Round(1000*v)/10, 'f', -1, 64) + " %"
}

func gigabytes(v float64) string { return strconv.FormatFloat(v/1e9, 'g', 3, 64) + " GB/s" }

// Name quotes a name that could forge a line of a log.
func Name(name string) string {
	if name == "" || pushheaders.ValidName(name) {
		return name
	}
	return strconv.QuoteToASCII(name)
}
