// SPDX-License-Identifier: Apache-2.0

package attention

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode/words"
)

// gpuNames says `GPU 3` or `GPUs 1, 3`, or how many there are where the first has no index.
func gpuNames(list []Device) string {
	const most = 8
	if len(list) == 0 {
		return ""
	}
	if list[0].Index == nil {
		return words.Count(len(list), "GPU")
	}
	var names []string
	for _, d := range list[:min(len(list), most)] {
		names = append(names, strconv.Itoa(*d.Index))
	}
	if len(list) > most {
		names = append(names, fmt.Sprintf("and %d more", len(list)-most))
	}
	if len(list) == 1 {
		return "GPU " + names[0]
	}
	return "GPUs " + strings.Join(names, ", ")
}

func (i *Item) sayLost(n *fleetstate.Node, count int) {
	i.What = "The GPU does not answer."
	if count > 1 {
		i.What = words.Count(count, "GPU") + " do not answer."
	}
	i.Reason, i.Action, i.Next = fleetstate.LostSpell, string(gpuhealth.ActionReboot), gpuhealth.ActionReboot.Advice()
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
		reasons := g.Reasons()
		findings += len(reasons)
		for _, r := range reasons {
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
		i.What = "The health of " + words.Count(len(i.GPUs), "GPU") + " is " + worst.String() + "."
	}
	i.Action, i.Next = string(action), action.Advice()
	if i.Reason == "" {
		i.Why = "The agent does not say why."
		return worst
	}
	i.Why = words.Sentence(cmp.Or(gpuhealth.Meaning(i.Reason), strings.ReplaceAll(i.Reason, "_", " ")))
	if findings > 1 {
		i.Why = strings.TrimSuffix(i.Why, ".") + fmt.Sprintf("; and %d more.", findings-1)
	}
	return worst
}

func (i *Item) saySilent(gpus int) {
	e := episode.Episode{Subject: episode.SubjectMissing, Node: i.Node, NodeCount: i.NodeCount}
	i.What, i.Next, i.Action = words.What(&e), words.Next(&e), string(gpuhealth.ActionCheckAgent)
	if gpus > 0 {
		i.What = strings.TrimSuffix(i.What, ".") + "; its " + words.Count(gpus, "GPU") + " may still work."
	}
	if i.Node == "" {
		i.Action = string(gpuhealth.ActionCheckShared)
	}
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
				list = append(list, silence{n, words.Count(n, "node") + " of " + of + are + " not judged: " + unjudged.Reason(why).Sentence()})
			}
		}
	}
	slices.SortFunc(list, func(a, b silence) int { return cmp.Or(b.n-a.n, strings.Compare(a.text, b.text)) })
	for _, s := range list[:min(len(list), maxWaiting)] {
		c.list.Waiting = append(c.list.Waiting, s.text)
	}
}
