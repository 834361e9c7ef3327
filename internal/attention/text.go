// SPDX-License-Identifier: Apache-2.0

package attention

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
)

// advices say what to do, by the actions of the GPU rubric, of the reasons, and of this
// package.
var advices = map[string]string{
	string(gpuhealth.ActionNone):       "Nothing is to be done now. Watch whether it lasts.",
	string(gpuhealth.ActionRestartApp): "Start the job anew. If it comes back, drain the node and reset the GPU.",
	string(gpuhealth.ActionResetGPU):   "Drain the node and reset the GPU.",
	string(gpuhealth.ActionReboot):     "Drain the node and reboot it.",
	string(gpuhealth.ActionService):    "Drain the node and have the GPU replaced.",
	string(reason.ActionReboot):        "Drain the node and reboot it. If the GPU is lost again, have it serviced.",
	string(reason.ActionReset):         "Drain the node and reset the GPU.",
	string(reason.ActionCheckPower):    "Check power supplies and the rack's power budget.",
	string(reason.ActionCheckCool):     "Check fans, airflow and coolant of the node.",
	string(reason.ActionCheckLimit):    "Set the GPU's power limit to that of its peers.",
	string(reason.ActionCheckClock):    "Check application clocks and locked clocks of the GPU.",
	string(reason.ActionCheckPCIe):     "Drain the node and reseat the GPU or its riser.",
	string(reason.ActionCheckNVLink):   "Drain the node and reset its GPUs. Have the NVLink connection checked if it comes back.",
	string(reason.ActionCheckNet):      "Check cable, transceiver and switch port of the network adapter.",
	string(reason.ActionCheckCPU):      "Look for other work on the node's CPUs.",
	string(reason.ActionCheckMemory):   "Look for what fills the node's memory.",
	string(reason.ActionCheckOthers):   "End or move what else runs on the GPU.",
	string(reason.ActionBurnIn):        "Drain the node and run a burn-in.",
	string(reason.ActionCheckShared):   "Look for what the nodes share, such as rack, power, cooling, switch or storage.",
	string(reason.ActionCheckInput):    "Look at what feeds the GPUs of the node: data loader, disks, network file systems.",
	string(reason.ActionInspectJob):    "Look at what the job does on the node.",
	"check_agent":                      "Look whether the node is up, whether its agent runs, and whether it reaches the gateway.",
}

func countOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

func words(name string) string { return strings.ReplaceAll(name, "_", " ") }

// sentence makes one of a clause.
func sentence(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:] + "."
}

// gpuNames says `GPU 3` or `GPUs 1, 3`, by index where that is known.
func gpuNames(list []Part) string {
	const most = 8
	names := make([]string, 0, len(list))
	for i, p := range list {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(list)-most))
			break
		}
		if p.Index >= 0 {
			names = append(names, strconv.Itoa(p.Index))
		} else {
			names = append(names, p.UUID)
		}
	}
	switch len(list) {
	case 0:
		return ""
	case 1:
		return "GPU " + names[0]
	default:
		return "GPUs " + strings.Join(names, ", ")
	}
}

// part names a rank and GPU, such as `rank 3 (GPU 5)`. n may be nil.
func part(of nodesignal.Subject, n *fleetstate.Node) string {
	gpu := ""
	if of.GPU != "" {
		gpu = "GPU " + of.GPU
		if n != nil {
			if list := parts(n, func(g *fleetstate.GPU) bool { return g.UUID == of.GPU }); len(list) == 1 {
				gpu = gpuNames(list)
			}
		}
	}
	rank, known := of.Rank.Get()
	if !known {
		return gpu
	}
	text := "rank " + strconv.FormatInt(rank, 10)
	if gpu != "" {
		text += " (" + gpu + ")"
	}
	return text
}

// shared says what the nodes of an episode have in common, empty for nothing.
func shared(e *fleetstate.Episode) string {
	if len(e.Topology) == 0 {
		return ""
	}
	name, value, _ := strings.Cut(e.Topology[0], "=")
	label := value
	if !strings.HasPrefix(value, name) {
		label = name + " " + value // leaf-7 says that it is a leaf
	}
	if e.TopologyBad == e.TopologyNodes && e.TopologyBad > 1 {
		return fmt.Sprintf(": all %d nodes of %s", e.TopologyBad, label)
	}
	if e.TopologyNodes > 0 {
		return fmt.Sprintf(": %d of the %d nodes of %s", e.TopologyBad, e.TopologyNodes, label)
	}
	return " at " + label
}

// because is the reason as a sentence of its own, empty where there is none.
func because(e *fleetstate.Episode) string {
	switch reason.Reason(e.Reason) {
	case "", reason.SharedPlace:
		return ""
	case reason.Unexplained:
		return " Nothing that was measured explains it."
	case reason.OneRank:
		return " The node's other GPUs are well, and nothing that was measured explains it."
	}
	when, _ := reason.Meaning(reason.Reason(e.Reason), reason.Action(e.Action))
	if when == "" {
		when = words(e.Reason)
	}
	if e.Observation {
		return " Observed, no proof: " + when + "."
	}
	return " " + sentence(when)
}

func percent(v float64) string { return strconv.FormatFloat(math.Round(1000*v)/10, 'f', -1, 64) + " %" }

// slowText says by how much a node is behind, and why.
func slowText(e *fleetstate.Episode) string {
	text := "Slower than its peers"
	if e.Gap != nil {
		text = percent(*e.Gap) + " behind its peers"
	}
	if e.Signal != "" {
		text += " in " + words(e.Signal)
	}
	text += "."
	if e.Slowdown != nil && *e.Slowdown > 1 {
		text += " The job loses " + percent(1 - 1 / *e.Slowdown) + "."
	}
	return text + because(e)
}

// faultText says what many nodes, a communicator or a job have.
func faultText(e *fleetstate.Episode) string {
	var text string
	switch {
	case e.Subject == fleetstate.SubjectJob:
		text = "Job " + e.Job + " stands still."
		if len(e.Laggards) > 0 {
			text += " It waits for " + laggard(e.Laggards[0]) + "."
		}
		return text
	case e.Communicator != nil:
		text = countOf(int(max(1, e.Communicator.Count)), "communicator")
		if e.Job != "" {
			text += " of job " + e.Job
		}
		return text + " move their data slower." + because(e)
	case e.Subject == fleetstate.SubjectCluster:
		text = "Nodes of the whole cluster are slow at once"
	default:
		text = "Nodes of the group are slow at once"
	}
	if n := max(e.NodeCount, int64(len(e.Nodes))); n > 0 {
		text = countOf(int(n), "node") + " slow at once"
	}
	if e.Gap != nil {
		text += ", " + percent(*e.Gap) + " behind"
	}
	return text + shared(e) + "." + because(e)
}

// laggard says who of `state=behind rank=5 gpu=GPU-1 node=n1` is meant.
func laggard(text string) string {
	var rank, node string
	for pair := range strings.FieldsSeq(text) {
		switch name, value, _ := strings.Cut(pair, "="); name {
		case "rank":
			rank = "rank " + value
		case "node":
			node = " on " + value
		}
	}
	if rank == "" {
		return text
	}
	return rank + node
}

func lostText(n *fleetstate.Node, count int) string {
	text := "The GPU does not answer"
	if count > 1 {
		text = countOf(count, "GPU") + " do not answer"
	}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if !g.Lost() {
			continue
		}
		why := ""
		for _, x := range g.Xids {
			why = fmt.Sprintf(": Xid %d", x.Code)
		}
		if why == "" && g.UpReason != "" && g.UpReason != "ok" {
			why = ": " + words(g.UpReason)
		}
		return text + why + "."
	}
	return text + "."
}

// sickText says what is wrong with the sickest GPU of a node, and what to do.
func sickText(n *fleetstate.Node) (text, why, action string) {
	action = string(gpuhealth.ActionNone)
	var worst fleetstate.Health
	rules := 0
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if !g.Sick() {
			continue
		}
		for _, r := range g.Reasons {
			rules++
			if weight := actionWeight(r.Action); why == "" || g.Health > worst || g.Health == worst && weight > actionWeight(action) {
				worst, why, action = g.Health, r.Reason, r.Action
			}
		}
	}
	if why == "" {
		return "The GPU's health is degraded, and it does not say why.", "", action
	}
	when := gpuhealth.Meaning(why)
	if when == "" {
		when = words(why)
	}
	// How many readings it took is of no use to whoever acts.
	text = sentence(strings.TrimSuffix(when, ", twice"))
	if rules > 1 {
		text += fmt.Sprintf(" %s more.", countOf(rules-1, "finding"))
	}
	return text, why, action
}

// actionWeight orders actions by effort; unknown ones come first.
func actionWeight(a string) int {
	for i, known := range gpuhealth.Actions {
		if string(known) == a {
			return i
		}
	}
	return -1
}

func missingText(gpus int) string {
	if gpus == 0 {
		return "The gateway hears nothing of the node."
	}
	return fmt.Sprintf("The gateway hears nothing of the node. Its %s may still work.", countOf(gpus, "GPU"))
}

// wait says which nodes are not judged, and why.
func (c *collector) wait() {
	if c.list.Nodes == 0 {
		c.list.Waiting = []string{"No node has reported to this gateway yet. Point an agent at it."}
		return
	}
	for why, n := range c.unjudged {
		if unjudged.Reason(why) == unjudged.Missing {
			continue // an item of its own
		}
		if text := unjudged.Reason(why).Silence(n, c.list.Nodes); n > 0 && text != "" {
			c.list.Waiting = append(c.list.Waiting, text+": "+unjudged.Reason(why).Remedy()+".")
		}
	}
}
