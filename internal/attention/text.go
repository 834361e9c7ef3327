// SPDX-License-Identifier: Apache-2.0

package attention

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/unjudged"
)

// The actions of this package, beside those of reasons and of the GPUs' rubric.
const (
	actionCheckAgent = "check_agent"
	actionInspectJob = "inspect_job"
)

func countOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// sentence makes one of a clause.
func sentence(s string) string {
	if s == "" {
		return ""
	}
	r, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(r)) + s[size:] + "."
}

// gpuNames says `GPU 3` or `GPUs 1, 3`, or UUIDs where the first has no index.
func gpuNames(list []GPU) string {
	const most = 8
	var names []string
	for i, g := range list {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(list)-most))
			break
		}
		name := g.UUID
		if g.Index >= 0 {
			name = strconv.Itoa(g.Index)
		}
		names = append(names, name)
	}
	switch {
	case len(list) == 0:
		return ""
	case list[0].Index < 0:
		return strings.Join(names, ", ")
	case len(list) == 1:
		return "GPU " + names[0]
	default:
		return "GPUs " + strings.Join(names, ", ")
	}
}

// partOf names a rank and GPU, such as `rank 3 (GPU 5)`. n may be nil.
func partOf(whom nodesignal.Subject, n *fleetstate.Node) (text string, gpus []GPU) {
	if n != nil && whom.GPU != "" {
		gpus = gpusOf(n, func(g *fleetstate.GPU) bool { return g.UUID == whom.GPU })
	}
	gpu := gpuNames(gpus)
	if gpu == "" {
		gpu = whom.GPU // a network adapter, or a GPU that is not known yet
	}
	rank, known := whom.Rank.Get()
	switch {
	case !known:
		return gpu, gpus
	case gpu == "":
		return "rank " + strconv.FormatInt(rank, 10), gpus
	default:
		return "rank " + strconv.FormatInt(rank, 10) + " (" + gpu + ")", gpus
	}
}

func percent(v float64) string { return strconv.FormatFloat(math.Round(1000*v)/10, 'f', -1, 64) + " %" }

func gigabytes(v float64) string { return strconv.FormatFloat(v/1e9, 'g', 3, 64) + " GB/s" }

// because says why, and what to do next, by an episode's reason.
func (i *Item) because(e *fleetstate.Episode) {
	i.Next = reason.Advice(reason.Reason(e.Reason), reason.Action(e.Action))
	if e.Reason == "" {
		return
	}
	var told []reason.Told
	for _, ev := range e.Evidence {
		told = append(told, reason.Told{Fact: ev.Fact, Value: ev.Value, Peers: ev.Peers})
	}
	why := reason.Because(reason.Reason(e.Reason), told)
	if e.Observation {
		why = "its peers show it too, or are not known: " + why
	}
	i.Why = sentence(why)
}

// saySlow is of a node, by what its episode knows.
func (i *Item) saySlow(e *fleetstate.Episode) {
	i.because(e)
	switch {
	case e.Signal == nodesignal.Communication.String() && e.Gap != nil:
		// Between collectives a rank spends what its share of time in them leaves.
		i.What = "Waits less for its peers."
		if e.Median != nil && 1-*e.Median > *e.Gap {
			i.What = "Takes " + percent(*e.Gap/(1-*e.Median)) + " longer between collectives than its peers."
		}
		others := "the other ranks"
		if e.Job != "" {
			others += " of job " + e.Job
		}
		i.What = strings.TrimSuffix(i.What, ".") + "; " + others + " wait " + percent(*e.Gap) + " of their time for it."
	case e.Gap != nil && e.Signal != "":
		i.What = percent(*e.Gap) + " behind its peers in " + strings.ReplaceAll(e.Signal, "_", " ") + "."
	default:
		i.What = "Slower than its peers."
	}
	if i.Next == "" {
		i.Action, i.Next = actionInspectJob, "Look at what the job does on the node."
	}
}

// sayFault is of many nodes.
func (i *Item) sayFault(e *fleetstate.Episode) {
	i.because(e)
	i.What = "Many nodes slow at once"
	if all := max(e.NodeCount, i.NodeCount); all > 1 { // those with an item of their own too
		i.What = countOf(int(all), "node") + " slow at once"
	}
	if e.Gap != nil && e.Signal != "" {
		i.What += ", " + percent(*e.Gap) + " behind their peers in " + strings.ReplaceAll(e.Signal, "_", " ")
	}
	i.What += "."
	if i.Next == "" {
		i.Action = string(reason.ActionCheckShared)
		i.Next = reason.Advice(reason.Unexplained, reason.ActionCheckShared)
	}
}

// sayLink is of a communicator, whose value and median are its bandwidth now and usually.
func (i *Item) sayLink(e *fleetstate.Episode) {
	i.What = "Communicator " + e.Communicator + " of job " + e.Group + " is slow"
	if e.Value != nil && e.Median != nil {
		i.What += ": " + gigabytes(*e.Value) + " instead of " + gigabytes(*e.Median)
	}
	i.What += "."
	i.Why = "Its ranks arrive together, so that none of them is slow."
	i.Action, i.Next = string(reason.ActionCheckNet), "Look at the links between the nodes of the communicator."
}

// sayStalled is of a job.
func (i *Item) sayStalled(e *fleetstate.Episode) {
	i.What = "Job " + e.Group + " stands still: no operation of its ranks ends."
	i.Action = actionInspectJob
	switch {
	case e.Node != "":
		i.Why = "The other ranks wait for " + cmp.Or(i.Part, "a rank") + " on " + e.Node + "."
		i.Next = "Look at what that rank does, and at the node's kernel log."
	case len(e.Nodes) > 0:
		i.Why = "The other ranks wait for those on " + strings.Join(e.Nodes[:min(len(e.Nodes), 8)], ", ") + "."
		i.Next = "Look at what those ranks do, and at their nodes' kernel logs."
	default:
		i.Why = "Nobody is known to hold it up."
		i.Next = "Look at what the ranks of the job do, such as their stacks."
	}
}

func (i *Item) sayLost(n *fleetstate.Node, count int) {
	const lost = reason.Reason("gpu_lost")
	i.What = "The GPU does not answer."
	if count > 1 {
		i.What = countOf(count, "GPU") + " do not answer."
	}
	i.Reason, i.Action, i.Next = string(lost), string(reason.ActionReboot), reason.Advice(lost, reason.ActionReboot)
	for j := range n.GPUs {
		g := &n.GPUs[j]
		switch {
		case !g.Lost():
		case len(g.Xids) > 0:
			i.Why = fmt.Sprintf("The driver reported Xid %d.", g.Xids[len(g.Xids)-1].Code)
			return
		case g.UpReason != "" && g.UpReason != "ok":
			i.Why = "The driver's answer: " + strings.ReplaceAll(g.UpReason, "_", " ") + "."
		}
	}
}

// saySick says what is wrong with the sickest GPU of a node, and what to do. It returns
// that GPU's health.
func (i *Item) saySick(n *fleetstate.Node) (worst fleetstate.Health) {
	action, findings := gpuhealth.ActionNone, 0
	for j := range n.GPUs {
		g := &n.GPUs[j]
		if !g.Sick() {
			continue
		}
		findings += len(g.Reasons)
		for _, r := range g.Reasons {
			effort := func(a gpuhealth.Action) int { return slices.Index(gpuhealth.Actions, a) }
			a := gpuhealth.Action(r.Action)
			// Of the same action the reason that costs most.
			more := cmp.Or(cmp.Compare(effort(a), effort(action)), cmp.Compare(gpuhealth.CapOf(i.Reason), gpuhealth.CapOf(r.Reason)))
			if i.Reason == "" || g.Health > worst || g.Health == worst && more > 0 {
				worst, i.Reason, action = g.Health, r.Reason, a
			}
		}
		worst = max(worst, g.Health)
	}
	i.What = "The health of the GPU is " + worst.String() + "."
	if len(i.GPUs) > 1 {
		i.What = "The health of " + countOf(len(i.GPUs), "GPU") + " is " + worst.String() + "."
	}
	i.Action, i.Next = string(action), action.Advice()
	if i.Reason == "" {
		i.Why = "The agent does not say why."
		return worst
	}
	i.Why = sentence(cmp.Or(gpuhealth.Meaning(i.Reason), strings.ReplaceAll(i.Reason, "_", " ")))
	if findings > 1 {
		i.Why = strings.TrimSuffix(i.Why, ".") + fmt.Sprintf("; and %d more.", findings-1)
	}
	return worst
}

func (i *Item) saySilent(gpus int) {
	i.What = "Nothing is heard of the node."
	if gpus > 0 {
		i.What = "Nothing is heard of the node; its " + countOf(gpus, "GPU") + " may still work."
	}
	i.Action, i.Next = actionCheckAgent, "Look whether the node is up, whether its agent runs, and whether it reaches the gateway."
}

func (i *Item) saySilentMany() {
	i.What = "Nothing is heard of " + countOf(int(i.NodeCount), "node") + "."
	i.Action, i.Next = string(reason.ActionCheckShared), "Look at what the nodes share, such as switch, rack or power, and at their way to the gateway."
}

// maxWaiting bounds the sentences about what is not judged.
const maxWaiting = 20

// wait says which nodes are not judged, and why; the most nodes come first.
func (c *collector) wait() {
	if c.store.Nodes() == 0 {
		c.list.Waiting = []string{"No node has reported yet: point an agent at this gateway."}
		return
	}
	type silence struct {
		n    int
		text string
	}
	var list []silence
	several := len(c.store.Clusters()) > 1
	for k, counts := range c.unjudged {
		of := cmp.Or(k.Group, k.Cluster)
		if several && k.Group != "" && k.Cluster != "" {
			of += " in " + k.Cluster
		}
		for why, n := range counts {
			if n > 0 {
				are := " is"
				if n > 1 {
					are = " are"
				}
				list = append(list, silence{n, countOf(n, "node") + " of " + of + are + " not judged: " + unjudged.Reason(why).Sentence()})
			}
		}
	}
	slices.SortFunc(list, func(a, b silence) int { return cmp.Or(b.n-a.n, strings.Compare(a.text, b.text)) })
	for _, s := range list[:min(len(list), maxWaiting)] {
		c.list.Waiting = append(c.list.Waiting, s.text)
	}
}
