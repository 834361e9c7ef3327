// SPDX-License-Identifier: Apache-2.0

// Package check judges a node, and its way to a gateway, for the command `check`. Package
// gather has the input.
package check // import "github.com/gpu-collector/gpu-collector/internal/node/check"

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

// Status of a check.
type Status string

// The statuses. Unknown is what could not be judged.
const (
	OK      Status = "ok"
	Warn    Status = "warn"
	Fail    Status = "fail"
	Unknown Status = "unknown"
)

// Finding is what one check found.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Text   string `json:"text"`
	// Next is what to do, empty where nothing is to be done.
	Next string `json:"next,omitempty"`
}

// Exit is the command's status: 1 where a check failed, 2 where nothing could be checked,
// 3 where nothing is wrong of what could be judged, and that is not all.
func Exit(all []Finding) int {
	count := map[Status]int{}
	for _, f := range all {
		count[f.Status]++
	}
	switch {
	case count[Fail] > 0:
		return 1
	case count[OK] == 0 && count[Warn] < max(len(all), 1):
		return 2
	case count[Unknown] > 0:
		return 3
	}
	return 0
}

// Text is for people: a line for each check, and below it what to do.
func Text(all []Finding) string {
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintf(&b, "%-7s  %-10s  %s\n", f.Status, f.Check, f.Text)
		if f.Next != "" {
			fmt.Fprintf(&b, "%23s%s\n", "-> ", f.Next)
		}
	}
	verdict := [...]string{"Nothing is wrong.\n", "Something is wrong: see fail.\n", "Nothing could be checked.\n", "Not all could be judged: see unknown.\n"}[Exit(all)]
	if Exit(all) == 0 && slices.ContainsFunc(all, func(f Finding) bool { return f.Status == Warn }) {
		verdict = "Nothing fails: see warn.\n"
	}
	return b.String() + verdict
}

// GPUs are the whole ones of the node, as the nvml receiver reports them.
type GPUs struct {
	Driver          string
	Expected, Found int
	List            []*GPU
	// Log is the text of the receiver's log.
	Log string
	// Looks of All were taken.
	Looks, All int
	// Failures are the functions of NVML that failed.
	Failures []string
}

// GPU is one of them.
type GPU struct {
	UUID, PCIBusID, Index string
	// Health is a state of the rubric. Reasons hold it down, and ask for Actions.
	Health string
	// Joining: the GPU has not joined its fabric yet.
	Joining          bool
	Reasons, Actions []string
}

const noDriver = "Look at the kernel's log (dmesg). Without persistence mode the first contact takes long: try --timeout 60s."

// Unread is the finding where the GPUs could not be read.
func Unread(why string) []Finding { return []Finding{{"driver", Fail, why, noDriver}} }

// Findings judges the GPUs.
func (g *GPUs) Findings() []Finding {
	broken := strings.Contains(g.Log, "NVML is in trouble")
	if g.Expected == 0 && g.Found == 0 && !broken {
		return []Finding{{"driver", Unknown, "No NVIDIA GPU is seen. " + g.Log, "Run it on a GPU node; a container needs the driver's library and the host's /sys."}}
	}
	count := Finding{"gpus", OK, fmt.Sprintf("%d of %d GPUs answer.", g.Found, g.Expected), ""}
	if g.Found == 0 {
		return Unread(count.Text + " " + g.Log)
	}
	if g.Found < g.Expected {
		count.Status, count.Text, count.Next = Fail, count.Text+" "+g.Log, gpuhealth.ActionReboot.Advice()
	}
	all := []Finding{{"driver", OK, "NVIDIA's driver " + g.Driver + " answers.", ""}, count}
	const named = 5
	failed := slices.Clone(g.Failures)
	if len(failed) > named {
		failed = append(failed[:named], "others")
	}
	if failed != nil {
		all = append(all, Finding{"readings", Unknown, "What these functions of NVML tell is not judged, since they fail: " + strings.Join(failed, ", ") + ".", "Look at the kernel's log (dmesg)."})
	}
	if g.Looks < g.All {
		all = append(all, Finding{"readings", Unknown, fmt.Sprintf("The time was enough for %d of %d looks, and some rules take all.", g.Looks, g.All), "Give more --timeout."})
	}
	judged := len(all)
	for _, d := range g.List {
		if status, text, next := d.health(); text != "" {
			all = append(all, Finding{"health", status, fmt.Sprintf("GPU %s (%s) %s.", d.Index, cmp.Or(d.PCIBusID, d.UUID), text), next})
		}
	}
	if len(all) == judged {
		all = append(all, Finding{"health", OK, "Every GPU that answers is healthy.", ""})
	}
	return all
}

func (d *GPU) health() (status Status, text, next string) {
	switch {
	case d.Health == string(gpuhealth.StateUnknown), d.Health == "":
		return Unknown, "cannot be judged: " + cmp.Or(strings.Join(d.Reasons, ", "), "it has no reading"), "Look at the kernel's log (dmesg)."
	case d.Health != string(gpuhealth.StateHealthy):
	case d.Joining:
		return Unknown, "cannot be judged: it has not joined its fabric yet", gpuhealth.ActionCheckFabricManager.Advice()
	default:
		return OK, "", ""
	}
	status, worst := Warn, gpuhealth.ActionNone
	if d.Health == string(gpuhealth.StateUnhealthy) {
		status = Fail
	}
	for _, a := range gpuhealth.Actions {
		if slices.Contains(d.Actions, string(a)) {
			worst = a
		}
	}
	return status, "is " + d.Health + ": " + cmp.Or(strings.Join(d.Reasons, ", "), "no reason is known"), worst.Advice()
}

// Port is an address that the configuration listens on, and why it could not be listened on.
type Port struct {
	Key, Address, Error string
	Taken               bool
}

// Ports judges them. An agent that runs has taken most: its settings may be others.
func Ports(all []Port) (found []Finding) {
	var free, taken []string
	for _, p := range all {
		switch {
		case p.Taken:
			taken = append(taken, p.Address)
		case p.Error == "":
			free = append(free, p.Address)
		}
	}
	runs := len(taken) > len(free)
	for _, p := range all {
		switch {
		case p.Taken && !runs:
			found = append(found, Finding{"ports", Fail, p.Address + " is taken, and not by this agent: " + free[0] + " is free.", "`ss -ltnp` names who has it. Stop it, or change `" + p.Key + "`."})
		case !p.Taken && p.Error != "":
			found = append(found, Finding{"ports", Fail, fmt.Sprintf("The agent cannot listen on %s: %s.", p.Address, p.Error), "Change `" + p.Key + "`."})
		}
	}
	if found == nil && runs {
		found = []Finding{{"ports", OK, "Taken, as by an agent that runs: " + strings.Join(taken, ", ") + ".", ""}}
	} else if found == nil && free != nil {
		found = []Finding{{"ports", OK, "Free: " + strings.Join(free, ", ") + ".", ""}}
	}
	return found
}

// Gateway is the next hop, and its answer to an empty push.
type Gateway struct {
	// Exporter is empty where none of the configuration asks for thresholds.
	Exporter, Endpoint, Cluster, Node string
	Err                               error // why the push failed
	// Standing is nil where the next hop does not report it.
	Standing *threshold.Standing
	// Threshold is of the node's group, else of its cluster; nil where none came.
	Threshold *threshold.Received
}

// Findings judges the gateway's answer.
func (g *Gateway) Findings() []Finding {
	if g.Exporter == "" {
		return []Finding{{"gateway", Warn, "No exporter of the configuration has the middleware `straggler_threshold`.", "Add it, as in configs/agent.yaml: thresholds come with the answers."}}
	}
	if g.Err != nil {
		text := fmt.Sprintf("The gateway %s (`%s`) does not take a push: %v.", g.Endpoint, g.Exporter, g.Err)
		return []Finding{{"gateway", Fail, text, "docs/troubleshooting.md#pushes-fail has a row for it. A gateway that refuses also says why in its log and `/api/v1/health`."}}
	}
	all := []Finding{{"gateway", OK, "The gateway " + g.Endpoint + " takes pushes.", ""}}
	s := g.Standing
	published := "No threshold is published: that takes `quorum` active nodes, five by default. Verdicts do without."
	if g.Threshold != nil && g.Threshold.QuorumMet {
		published = fmt.Sprintf("A threshold comes back: %.3g for %s.", g.Threshold.Threshold, cmp.Or(g.Threshold.Group, "the whole cluster"))
	}
	all = append(all, Finding{"threshold", OK, published, ""})
	switch {
	case s == nil:
		return append(all, Finding{"peers", Unknown, "Who answers does not tell them: a shard, a gateway that has just started, or one whose receiver names no `threshold_extension`.", "Ask the gateway: /api/v1/nodes/" + g.Node + "."})
	case s.Node == "":
		return append(all, Finding{"peers", Warn, "The gateway does not know a node " + g.Node + " of cluster " + g.Cluster + ".", "Start the agent: it is known after its first push. Both names have to be the agent's (GPU_COLLECTOR_CLUSTER)."})
	}
	peers := Finding{"peers", OK, fmt.Sprintf("%d peers work in group %s, %d are needed.", s.Active, s.Group, s.Needed), ""}
	if s.Active < s.Needed {
		peers.Text = fmt.Sprintf("%d of %d peers: so many nodes work in group %s, this one included.", s.Active, s.Needed, s.Group)
		peers.Status, peers.Next = Warn, "Compare more nodes: `group_by` makes the groups."
		if s.Why == unjudged.Calibrating {
			peers.Next = "Wait: nodes that warm up do not count yet."
		}
	}
	verdict := Finding{"verdict", OK, "The node is compared, and is no straggler.", ""}
	if s.Why != unjudged.Judged {
		verdict.Text = "There is no verdict: " + s.Why.String() + ". " + s.Why.Sentence()
		if s.Why != unjudged.Idle && s.Why != unjudged.Calibrating {
			verdict.Status, verdict.Next = Warn, "docs/troubleshooting.md has a row for `"+s.Why.String()+"`."
		}
	} else if g.Threshold != nil {
		if v, straggler, _ := g.Threshold.Of(g.Node); straggler {
			verdict.Status, verdict.Next = Warn, "The gateway's page says why."
			verdict.Text = fmt.Sprintf("The node is a straggler: %.1f %% behind its peers in %s.", 100*v.Loss, v.Signal)
		}
	}
	return append(all, peers, verdict)
}
