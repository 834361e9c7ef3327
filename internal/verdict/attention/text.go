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

// gpuNames is `GPU 3` or `GPUs 1, 3`, or the number of GPUs where the first has no index.
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

func (i *Item) describeLost(n *fleetstate.Node, count int) {
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

// describeSick sets what, why and next of a node's sick GPUs by the reason that costs most. It
// returns the worst health.
func (i *Item) describeSick(n *fleetstate.Node) (worst fleetstate.Health) {
	type finding struct {
		fleetstate.Health
		fleetstate.HealthReason
	}
	var all []finding
	for j := range n.GPUs {
		if g := &n.GPUs[j]; g.Sick() {
			worst = max(worst, g.Health)
			for _, r := range g.Reasons() {
				all = append(all, finding{g.Health, r})
			}
		}
	}
	i.What = "The health of the GPU is " + worst.String() + "."
	if len(i.GPUs) > 1 {
		i.What = "The health of " + words.Count(len(i.GPUs), "GPU") + " is " + worst.String() + "."
	}
	if len(all) == 0 {
		i.Why, i.Action, i.Next = "The agent does not say why.", string(gpuhealth.ActionNone), gpuhealth.ActionNone.Advice()
		return worst
	}
	effort := func(f finding) int { return slices.Index(gpuhealth.Actions, gpuhealth.Action(f.Action)) }
	first := slices.MaxFunc(all, func(a, b finding) int { // of the same action the reason that costs most
		return cmp.Or(cmp.Compare(a.Health, b.Health), cmp.Compare(effort(a), effort(b)), cmp.Compare(gpuhealth.CapOf(b.Reason), gpuhealth.CapOf(a.Reason)))
	})
	i.Reason, i.Action, i.Next = first.Reason, first.Action, gpuhealth.Action(first.Action).Advice()
	i.Why = words.Sentence(cmp.Or(gpuhealth.Meaning(i.Reason), strings.ReplaceAll(i.Reason, "_", " ")))
	if len(all) > 1 {
		i.Why = strings.TrimSuffix(i.Why, ".") + fmt.Sprintf("; and %d more.", len(all)-1)
	}
	return worst
}

func (i *Item) describeMissing(gpus int) {
	e := episode.Episode{Subject: episode.SubjectMissing, Node: i.Node, NodeCount: i.NodeCount}
	i.What, i.Next, i.Action = words.What(&e), words.Next(&e), string(gpuhealth.ActionCheckAgent)
	if i.Node == "" {
		i.Action = string(gpuhealth.ActionCheckShared)
	} else if gpus > 0 {
		i.What = strings.TrimSuffix(i.What, ".") + "; its " + words.Count(gpus, "GPU") + " may still work."
	}
}

// maxWaiting bounds the sentences about unjudged nodes.
const maxWaiting = 20

// wait sets the sentences about unjudged nodes, the most nodes first.
func (c *collector) wait() {
	if c.store.Nodes() == 0 {
		c.list.Waiting = []string{"No node has reported yet: point an agent at this gateway."}
		return
	}
	type sentence struct {
		n    int
		text string
	}
	var list []sentence
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
				list = append(list, sentence{n, words.Count(n, "node") + " of " + of + are + " not judged: " + unjudged.Reason(why).Sentence()})
			}
		}
	}
	slices.SortFunc(list, func(a, b sentence) int { return cmp.Or(b.n-a.n, strings.Compare(a.text, b.text)) })
	for _, s := range list[:min(len(list), maxWaiting)] {
		c.list.Waiting = append(c.list.Waiting, s.text)
	}
}
