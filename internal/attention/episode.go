// SPDX-License-Identifier: Apache-2.0

package attention

import (
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reason"
)

// episodes takes the open episodes, and the groups that say of themselves that many of
// their nodes are slow.
func (c *collector) episodes(f *Filter) {
	open := true
	faulty := map[fleetstate.GroupKey]bool{}
	for _, e := range c.store.Episodes(&fleetstate.EpisodeFilter{Clusters: f.Clusters, Nodes: f.Nodes, Open: &open}) {
		if len(f.Groups) > 0 && !slices.Contains(f.Groups, e.Group) {
			continue
		}
		switch e.Subject {
		case fleetstate.SubjectNode:
			k := fleetstate.Key{Cluster: e.Cluster, Node: e.Node}
			v, known := c.store.Node(k, c.now)
			// The silence of a node says more than what it was before.
			if known && v.State == gpusemconv.StateMissing {
				continue
			}
			c.named[k] = true
			c.straggler(e, v.Node)
		case fleetstate.SubjectMissing:
			c.away(e)
		default:
			faulty[fleetstate.GroupKey{Cluster: e.Cluster, Group: e.Group}] = true
			for _, n := range e.Nodes {
				c.named[fleetstate.Key{Cluster: e.Cluster, Node: n}] = true
			}
			c.fault(e)
		}
	}
	for _, g := range c.store.Groups() {
		if len(f.Nodes) > 0 || !g.Flag(reading.GroupIncident) || faulty[g.GroupKey] ||
			len(f.Clusters) > 0 && !slices.Contains(f.Clusters, g.Cluster) || len(f.Groups) > 0 && !slices.Contains(f.Groups, g.Group) {
			continue
		}
		c.list.Counts[GroupFault]++
		c.add(major, &Item{
			ID: "group_fault/" + g.Cluster + "//" + g.Group, Kind: GroupFault, Cluster: g.Cluster, Group: g.Group,
			Text: "Many nodes of the group are slow at once.", Action: "check_shared", Advice: advices["check_shared"],
		})
	}
}

// item is what all episodes say alike.
func (c *collector) item(e *fleetstate.Episode, k Kind) *Item {
	i := &Item{
		ID: string(k) + "/" + e.Cluster + "/" + e.ID, Kind: k, Cluster: e.Cluster, Group: e.Group, Node: e.Node, Episode: e.ID, job: e.Job,
		Reason: e.Reason, Action: e.Action, Since: e.Since, CostPerHour: e.LostGPUHoursPerHour,
	}
	_, i.Advice = reason.Meaning(reason.Reason(e.Reason), reason.Action(e.Action))
	if i.Advice == "" {
		i.Advice = advices[e.Action]
	}
	if e.LostGPUHoursPerHour != nil || e.LostGPUHours != nil {
		// The last record's figure, and what it takes since.
		cost := of(e.LostGPUHours) + of(e.LostGPUHoursPerHour)*max(0, c.now.Sub(e.Updated).Hours())
		i.Cost = &cost
	}
	return i
}

func severityOf(e *fleetstate.Episode, otherwise int) int {
	if at := slices.Index(severities[:], e.Severity); at >= 0 {
		return at
	}
	return otherwise
}

// straggler is a slow node; n is nil where nothing else is known of it.
func (c *collector) straggler(e *fleetstate.Episode, n *fleetstate.Node) {
	i := c.item(e, Straggler)
	of := e.Culprit
	if of.GPU == "" {
		of.GPU = e.GPU
	}
	i.Part = part(of, n)
	if n != nil && of.GPU != "" {
		i.GPUs = parts(n, func(g *fleetstate.GPU) bool { return g.UUID == of.GPU })
	}
	i.Text = slowText(e)
	if i.Advice == "" {
		i.Action, i.Advice = "inspect_job", advices["inspect_job"]
	}
	c.add(severityOf(e, major), i)
}

// fault is of a group, a cluster, a communicator or a job.
func (c *collector) fault(e *fleetstate.Episode) {
	i := c.item(e, GroupFault)
	i.Nodes, i.NodeCount = e.Nodes[:min(len(e.Nodes), MaxNodes)], max(e.NodeCount, int64(len(e.Nodes)))
	i.Text = faultText(e)
	if i.Advice == "" {
		i.Action, i.Advice = "check_shared", advices["check_shared"]
	}
	severity := severityOf(e, major)
	if e.Subject == fleetstate.SubjectJob {
		severity = critical // it does nothing at all
	}
	c.list.Counts[GroupFault]++
	c.add(severity, i)
}

// away is an episode of missing nodes: those of it that are still missing.
func (c *collector) away(e *fleetstate.Episode) {
	names := e.Nodes
	if e.Node != "" {
		names = []string{e.Node}
	}
	var gone []fleetstate.View
	for _, name := range names {
		v, known := c.store.Node(fleetstate.Key{Cluster: e.Cluster, Node: name}, c.now)
		if known && v.State == gpusemconv.StateMissing {
			gone = append(gone, v)
		}
	}
	// Single nodes say it themselves, with their own time.
	if len(gone) < foldMissing {
		return
	}
	i := c.item(e, MissingNode)
	i.Node, i.NodeCount = "", max(e.NodeCount, int64(len(gone)))
	for _, v := range gone {
		c.told[v.Key] = true
		i.Nodes = append(i.Nodes, v.Node.Node)
	}
	i.Text = countOf(int(i.NodeCount), "node") + " are silent" + shared(e) + "."
	i.Action, i.Advice = "check_shared", "Look for what the nodes share, such as their switch, rack or power, and whether the gateway can be reached from them."
	c.bound(i, gone)
	c.add(severityOf(e, critical), i)
}
